"""`lr trace` checks, replays and converts a trace; `lr play` and `lr draw` show it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from lr.commands.options import ModelChoice, is_trace
from lr.commands.show import console, summary
from lr.errors import LRError, SettingError
from lr.lab.player.page import player_page, write_page
from lr.lab.trace.file import TraceFile, read_trace
from lr.lab.trace.perfetto import write_perfetto
from lr.lab.trace.state import TraceStates, state_at
from lr.lab.viz.cache import cache_figure, sharing_moment
from lr.lab.viz.clock import timeline_figure
from lr.lab.viz.style import require_matplotlib, write
from lr.lab.viz.tree import telling_moment, tree_figure
from lr.options import GenerateOptions
from lr.types import require

Output = Annotated[Path | None, tyro.conf.arg(aliases=["-o"])]


class ReplayDiffers(LRError):
    """The run that was made again is not the run of the trace."""


@dataclass(frozen=True)
class TraceCommand:
    """Check a trace, as made by --trace, and say what is in it. A fault is reported with its
    line."""

    file: tyro.conf.Positional[Path]
    """The trace: JSON lines, see docs/trace.md."""
    perfetto: Path | None = None
    """Write it in the Chrome trace-event format to this file, for ui.perfetto.dev."""
    replay: bool = False
    """Run it again from its own header and stop at the first difference (exit code 2)."""
    recorded: bool = False
    """With --replay: give the trace's verdicts again instead of asking the verifier."""
    device: str | None = None
    """With --replay: another device than the trace's."""

    def run(self) -> None:
        if self.perfetto is not None:
            other = self.perfetto.resolve() != self.file.resolve()
            require(other, "perfetto", str(self.perfetto), "another file than the trace itself")
        trace, out = read_trace(self.file), console()
        state_at(trace, len(trace.records))  # raises where events do not follow from those before
        for line in _facts(trace):
            out.print(line, markup=False)
        if trace.records:
            out.print(_kinds(trace))
        for note in trace.notes:
            out.print(f"note: {note}", style="yellow", markup=False)
        if self.perfetto is not None:
            write_perfetto(self.perfetto, trace)
            out.print(f"written for ui.perfetto.dev: {self.perfetto}", soft_wrap=True)
        if self.replay:
            self._replay(trace, out)

    def _replay(self, trace: TraceFile, out: Console) -> None:
        if trace.header.clock == "virtual":
            from lr.lab.trace.virtual import replay_virtual

            compared, difference = replay_virtual(trace)
            ordered = True
        else:
            from lr.lab.trace.replay import replay

            outcome = replay(trace, recorded=self.recorded, device=self.device)
            compared, difference, ordered = outcome.compared, outcome.difference, outcome.ordered
        what, until = "the output, and the steps and verdicts both have", ""
        if ordered:
            what = "every event in its order"
            if difference is not None and compared == _cut(trace):
                until, difference = ", up to where the trace was cut", None
        if difference is not None:
            raise ReplayDiffers(
                f"the replay of {self.file} differs after {compared} events. {difference}"
            )
        out.print(f"replayed: {what} came again the same{until} ({compared} events)")


def _cut(trace: TraceFile) -> int | None:
    """After how many events a recording stops whose answer was interrupted or killed; None for a
    whole one."""
    if not trace.complete:
        return len(trace.records)
    return None if trace.records[-1].data["done"] else len(trace.records) - 1


def _facts(trace: TraceFile) -> Iterator[str]:
    """What the header says, and the statistics."""
    header, stats = trace.header, trace.stats
    mode = f"mode {header.mode}, " if header.clock == "wall" else ""
    ahead = f", schedule {header.schedule}, depth {header.depth}, width {header.width}"
    ahead = "" if header.driver == "plain" else ahead
    yield f"{len(trace.records)} events; {mode}driver {header.driver}{ahead}"
    models = ", ".join(f"{role} {name}" for role, name in header.models.items() if name is not None)
    if models:
        yield models + ("" if header.verifier is None else f", verifier {header.verifier}")
    if header.question is not None:
        yield f"question: {header.question}"
    if header.clock == "virtual":
        last = trace.records[-1].time if trace.records else 0.0
        kept = f"{stats.accepted} of {stats.judged} drafts accepted"
        yield f"{stats.steps} steps in {last:g} {header.unit}s, {kept}"
    else:
        yield summary(stats)


def _kinds(trace: TraceFile) -> Table:
    """How many events of each kind there are."""
    counted = Counter(record.kind for record in trace.records)
    made = Table(box=SIMPLE_HEAD, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    cells = [f"{name} {count}" for name, count in counted.most_common()]
    for start in range(0, len(cells), 6):
        made.add_row(*cells[start : start + 6])
    return made


@dataclass(frozen=True)
class Play:
    """Write one page that shows an answer event by event: the tree, the text, the clock, the cache.
    It needs nothing but a browser."""

    what: tyro.conf.Positional[str | None] = None
    """A trace (a name that ends in .jsonl, or any file), as --trace writes it; or a question, which
    is answered now. Left out: a sample problem."""
    output: Output = None
    """The page to write; by default the trace's name with the ending .html, or answer.html."""
    models: ModelChoice = field(default_factory=ModelChoice)
    generation: GenerateOptions = field(default_factory=GenerateOptions)

    def run(self) -> None:
        if self.what is not None and is_trace(self.what):
            file = Path(self.what)
            trace, output = read_trace(file), self.output or file.with_suffix(".html")
            other = output.resolve() != file.resolve()
            require(other, "output", str(output), "another file than the trace itself")
        else:
            trace, output = self._answered(), self.output or Path("answer.html")
        state_at(trace, len(trace.records))  # where lines are missing, the page would stay empty
        page = player_page(trace)
        write_page(page, output)
        for note in trace.notes:
            console(stderr=True).print(f"{self.what}: {note}", style="dim", markup=False)
        size = f"{len(trace.records)} events, {len(page.encode()) / 1e6:.1f} MB"
        console().print(f"written: {output} ({size}); open it in a browser")

    def _answered(self) -> TraceFile:
        """The trace of an answer that is made now."""
        from lr.lab.trace.replay import trace_of

        with self.models.load(needs_draft=self.generation.needs_draft) as reasoner:
            question = self.models.question(self.what)
            options = dataclasses.asdict(self.generation)
            run = reasoner.run(question, detailed=True, **options)
            run.finish()
            return trace_of(run)


PICTURES = ("timeline", "tree", "cache")


@dataclass(frozen=True)
class Draw:
    """Draw a trace as SVG and PNG: who worked when, the tree at one moment, who held which block.
    Needs matplotlib (the extra `plot`)."""

    trace: tyro.conf.Positional[Path]
    """A trace, as `--trace` writes it."""
    output: Output = None
    """How the files' names begin, such as slides/run for slides/run-tree.svg; by default the
    trace's name without its ending."""
    pictures: tuple[str, ...] = PICTURES
    """Which: timeline, tree, cache."""
    event: int | None = None
    """Tree and cache after so many events; by default where there is most to see: the tree before
    the first correction, the cache where most blocks are shared."""

    def run(self) -> None:
        require_matplotlib()
        for name in self.pictures:
            require(name in PICTURES, "pictures", name, f"some of {', '.join(PICTURES)}")
        trace = read_trace(self.trace)
        last = len(trace.records)
        if self.event is not None and not 0 <= self.event <= last:
            raise SettingError(f"event is {self.event}; this trace has events 0 to {last}.")
        start = self.output or self.trace.with_suffix("")
        if not start.parent.is_dir():
            raise SettingError(
                f"output is {str(start)!r}, but there is no folder {start.parent}; create it first."
            )
        film, out = TraceStates(trace), console()
        for name in self.pictures:
            if name == "cache" and not trace.header.caches:
                out.print("no cache: this trace has no blocks to draw")
                continue
            if name == "timeline":
                figure = timeline_figure(trace)
            elif name == "tree":
                at = telling_moment(film) if self.event is None else self.event
                figure = tree_figure(film.at(at), len(film))
            else:
                at = sharing_moment(film) if self.event is None else self.event
                figure = cache_figure(film.at(at), len(film))
            with figure as made:
                for written in write(made, start.with_name(f"{start.name}-{name}.png")):
                    out.print(f"drawn: {written}")
