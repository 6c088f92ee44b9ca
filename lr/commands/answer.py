"""`lr generate` answers one question with any checkpoint. `lr demo` answers held-out
problems in every mode, side by side and offline."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lr.commands import show
from lr.commands.options import ModelChoice, VariantChoice
from lr.measure.bench.report import BenchWay, Spread, in_turn
from lr.measure.speed_reason import speed_reason
from lr.options import LOOKAHEAD, MODES, Driver, GenerateOptions, Mode, ScheduleName
from lr.result import Result
from lr.spec.protocol import Emit
from lr.tiny.language import Problem, Split, problem
from lr.tiny.stories import DATASETS
from lr.watch.figures.style import ORIGINS
from lr.watch.trace.file import require_writable

if TYPE_CHECKING:
    from lr.engine.engine import Run
    from lr.measure.bench.step import BenchTally
    from lr.reasoner import Reasoner


@contextmanager
def saving(path: Path | None, run: Run) -> Iterator[None]:
    """Write the trace of the answer made inside the block to `path`, even if the block
    fails."""
    from lr.watch.trace.replay import save_trace

    why = ""
    try:
        yield
    except BaseException as error:
        why = f"{type(error).__name__}: {error}"
        raise
    finally:
        if path is not None:
            save_trace(path, run, why)


@dataclass(frozen=True)
class Generate:
    """Answer one question. Prints each step of the answer to standard output as soon as
    it is decided, and the statistics to standard error."""

    question: tyro.conf.Positional[str | None] = None
    """What to ask; the checkpoint's chat template wraps it. Left out: a sample
    problem."""
    models: ModelChoice = field(default_factory=ModelChoice)
    generation: GenerateOptions = field(default_factory=GenerateOptions)
    own: VariantChoice = field(default_factory=VariantChoice)
    max_depth: int | None = (
        None  # The official tool's name for --depth; wins if both are given.
    )
    trace: Path | None = None
    """Write every event to this file, as JSON lines: for lr trace, play, draw and
    step."""

    def run(self) -> None:
        from lr.engine.engine import Run

        options = self.generation
        if self.max_depth is not None:
            options = replace(options, depth=self.max_depth)
        if self.trace is not None:
            require_writable(self.trace)
        out, notes = show.console(), show.console(stderr=True)
        reasoner = self.models.load(needs_draft=options.needs_draft)
        asked = (self.models.question(self.question), options, self.own.load(reasoner))
        run = Run(
            reasoner.engine, reasoner.verifier, *asked, detailed=self.trace is not None
        )
        with saving(self.trace, run):
            for step in run:
                out.print(step.text, style=ORIGINS[step.origin.value].style, end="")
        result = run.finish()
        if not result.text.endswith("\n"):
            out.print()
        stats = result.stats
        coupling = "" if options.mode == "ar" else f", coupling {result.coupling}"
        said = [show.summary(stats) + coupling]
        if stats.judged and not stats.accepted:
            emits = (
                event for _, event in result.trace.events if isinstance(event, Emit)
            )
            reasons = Counter(v.why for emit in emits for v in emit.verdicts)
            said += [
                f"no draft step was accepted; most often: {reasons.most_common(1)[0][0]}"
            ]
        elif reason := speed_reason(
            result.trace, overlapped=options.driver == "overlapped"
        ):
            said.append(reason)
        if not result.finished:
            said += [
                "the answer was cut at the token budget (--max_tokens) or the context length"
            ]
        notes.print(*said, sep="\n", style="dim")


COLUMNS = (
    "mode", "right", "tokens\n/ s:.0f", "steps\nkept", "tokens\nkept", "target\npasses",
    "tokens\n/ pass", "speedup", "middle\nhalf",
)  # fmt: skip
NOTES = (
    "ar: plain decoding. sd: tokens drafted ahead. lr: steps drafted ahead (Lookahead Reasoning). "
    "lr+sd: both. steps kept: accepted of the draft steps judged; tokens kept: of the draft "
    "tokens. speedup: tokens per second against ar, with the modes alternating on every problem; "
    "middle half: its quartiles over the problems. In lr and lr+sd a second process writes the "
    "draft's steps (--driver lockstep: draft and target alternate on one core)."
)
PACE = 0.2  # Seconds between two steps on a terminal: the pace of a reader.


@dataclass(frozen=True)
class Demo:
    """Watch the tiny models reason through held-out problems: which draft steps are
    kept, what replaces the rest, how much time is saved."""

    problems: int = 6  # How many problems to solve, each in every mode.
    seconds: float = (
        75.0  # Begin no problem after this many seconds; 0: solve all of them.
    )
    show: int = 2  # How many problems to show step by step.
    dataset: Literal["stories", "tiny"] = "stories"
    """stories: long problems; tiny: short ones. None: stories, or the models' own
    language."""
    depth: Annotated[int, tyro.conf.arg(aliases=["--max_depth"])] = (
        6  # Draft steps to write ahead.
    )
    width: int = 1  # How many alternative draft steps per position.
    schedule: ScheduleName = "depth"  # When target steps begin: see lr generate --help.
    num_speculative_tokens: int = 4  # How many tokens to draft ahead, in sd and lr+sd.
    driver: Driver = "overlapped"
    """overlapped: a second process writes the draft's steps. lockstep: the models
    alternate."""
    temperature: float | None = None  # None: the checkpoint's own (0.6); 0 is greedy.
    seed: int = 0  # Same seed, same answers.
    trace: Path | None = None
    """Write every event of the first problem's answer in mode lr to this file, as JSON
    lines."""
    models: ModelChoice = field(default_factory=ModelChoice)

    def run(self) -> None:
        show.at_least(self, problems=1, seconds=0)
        if self.trace is not None:
            require_writable(self.trace)
        from lr.measure.bench.step import BenchTally

        ways = [BenchWay(mode, mode, self._options(mode)) for mode in MODES]
        out, tallies = show.console(), {way.name: BenchTally(way) for way in ways}
        with self.models.load(needs_draft=True) as reasoner:
            draw = DATASETS[self.dataset]
            out.print(show.legend(), "", soft_wrap=False)
            warm_up = problem(Split.TEST, 0, 0).question
            for way in ways:  # the first call allocates, and starts the second process
                reasoner.generate(warm_up, max_tokens=40, **way.settings)
            began = time.monotonic()
            with show.progress("solving", self.problems, beside=out) as advance:
                for index in range(self.problems):
                    if index and 0 < self.seconds < time.monotonic() - began:
                        break
                    task = draw(Split.TEST, index, 0)
                    if index < self.show:
                        head = Text(f"problem {index + 1}", "bold")
                        out.print(head, "", task.question, soft_wrap=False)
                    result = self._solve(reasoner, task, index, tallies)
                    if index < self.show:
                        _tell(task, result, out)
                    advance()
        out.print(_comparison(tallies))
        out.print(NOTES, "", style="dim", soft_wrap=False)
        if (done := len(tallies["ar"].seconds)) < self.problems:
            said = f"{done} of {self.problems} problems in {self.seconds:.0f} seconds"
            out.print(f"{said}; --seconds 0 solves all.", style="dim")
        out.print(self._conclusion(tallies), style="bold", soft_wrap=False)

    def _options(self, mode: Mode) -> dict[str, Any]:
        """The options of one mode. Mode sd has nothing to overlap."""
        names = (
            "depth",
            "width",
            "schedule",
            "num_speculative_tokens",
            "temperature",
            "seed",
        )
        driver = self.driver if mode in LOOKAHEAD else "lockstep"
        return {name: getattr(self, name) for name in names} | {
            "mode": mode,
            "driver": driver,
        }

    def _solve(
        self,
        reasoner: Reasoner,
        task: Problem,
        index: int,
        tallies: Mapping[str, BenchTally],
    ) -> Result:
        """Solve one problem in every mode; returns the answer of mode lr. A different
        mode begins each time, so that drifts of the machine's speed cancel."""
        results = {}
        for mode in in_turn(MODES, index):
            path, tally = (
                self.trace if index == 0 and mode == "lr" else None,
                tallies[mode],
            )
            run = reasoner.run(
                task.question, detailed=path is not None, **tally.way.settings
            )
            with saving(path, run):
                results[mode] = result = run.finish()
            tally.seconds.append(0.0)
            tally.tokens.append(0)
            tally.take(result, result.stats.seconds, result.answer == str(task.answer))
        return results["lr"]

    def _conclusion(self, tallies: Mapping[str, BenchTally]) -> str:
        """The table in words."""
        plain, both = tallies["ar"], tallies["lr+sd"]
        per_pass, plain_per_pass = (
            one.stats.tokens_per_target_pass for one in (both, plain)
        )
        said = (
            f"lr+sd: {both.right} of {len(both.seconds)} answers right (ar: {plain.right}), "
            f"{1 - (plain_per_pass or 1) / (per_pass or 1):.0%} fewer passes of the target per "
            f"token, {_rate(both) / _rate(plain):.2f} times as fast as ar on this machine."
        )
        return said


def _tell(task: Problem, result: Result, out: Console) -> None:
    """Show the steps of an answer; on a terminal at a reader's pace."""
    for step in result.steps:
        out.print(show.step_line(step, tiny=True), soft_wrap=False)
        if out.is_terminal:
            time.sleep(PACE)
    out.print(f"  answer {result.answer}, expected {task.answer}\n")


def _rate(tally: BenchTally) -> float:
    return tally.stats.tokens_per_second or 0.0


def _comparison(tallies: Mapping[str, BenchTally]) -> Table:
    plain, rows = tallies["ar"], []
    count = len(plain.seconds)
    for mode, one in tallies.items():
        stats, rate, half = one.stats, _rate(one), ""
        if count >= 4 and one is not plain:
            half = Spread.of_ratios(one.rates, plain.rates).middle_half
        kept = stats.step_acceptance, stats.token_acceptance
        passes = stats.target_passes, stats.tokens_per_target_pass or 0.0
        right = f"{one.right}/{count}"
        rows.append((mode, right, rate, *kept, *passes, rate / _rate(plain), half))
    return show.table(
        COLUMNS, rows, title=f"{count} held-out problem{'s' if count > 1 else ''}"
    )
