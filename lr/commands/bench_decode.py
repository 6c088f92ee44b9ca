"""`lr bench decode`: plain decoding against `transformers` and a bare loop, in one run, in
turns.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from lr.commands.show import console
from lr.errors import CheckpointError, SettingError
from lr.types import require

if TYPE_CHECKING:
    from lr.lab.bench.timing import Lane, Plan, Timing


@dataclass(frozen=True)
class BenchDecode:
    """Time plain decoding, in ms per step, against transformers' generate and a bare static-cache
    loop, all in one run.
    """

    models: tuple[str, ...] = ("tiny-target", "tiny-draft", "random-12")
    """tiny-target, tiny-draft, random-12 (the tiny shape, 12 layers, random weights), 0.6b-fp32,
    0.6b-bf16 (Qwen3-0.6B's shape).
    """
    shapes: bool = False
    """Add 0.6b-fp32 and 0.6b-bf16. They need about 4 GB of memory and some minutes."""
    batches: tuple[int, ...] | None = None
    """Batch sizes. None: 1 2 4 8, and 1 for the large shapes."""
    tokens: int | None = None
    """Steps per measurement. None: 64, and 8 for the large shapes."""
    repeats: int = 7
    """How often all contenders are measured in turn; one more turn, to warm up, is dropped."""
    threads: int | None = None
    """CPU threads. None: one, and all cores for the large shapes."""
    json: Path | None = None
    """Also write every single figure to this file."""

    def run(self) -> None:
        from lr.lab.bench.report import conditions, document, write_json

        self._check()
        facts, out = conditions(), console()
        timings: list[Timing] = []
        for names, plan in self._groups():
            with _threads(plan.threads):
                lanes = _lanes(names, out)
                timings += _measure(lanes, plan)
            del lanes
            gc.collect()  # a large model goes before the next one comes
        out.print(", ".join(f"{name} {value}" for name, value in facts.items()))
        _print_tables(timings, out)
        _print_goals(timings, out)
        if self.json is not None:
            write_json(document(timings, facts), self.json)

    def _check(self) -> None:
        from lr.lab.bench.subjects import NAMES, PROMPT_TOKENS

        for name in self.models:
            require(name in NAMES, "models", name, f"names among {', '.join(NAMES)}")
        require(
            all(batch > 0 for batch in self.batches or ()),
            "batches",
            self.batches,
            "whole numbers > 0",
        )
        longest = 1024 - PROMPT_TOKENS
        require(
            self.tokens is None or 0 < self.tokens <= longest,
            "tokens",
            self.tokens,
            f"1 to {longest}",
        )
        require(
            self.repeats >= 2,
            "repeats",
            self.repeats,
            "at least 2, for a spread; 5 for a figure to publish",
        )
        require(
            self.threads is None or self.threads > 0, "threads", self.threads, "a whole number > 0"
        )
        if self.json is not None and not self.json.parent.is_dir():
            raise SettingError(
                f"json is {str(self.json)!r}, but there is no folder {self.json.parent}; create it first."
            )

    def _groups(self) -> Iterator[tuple[list[str], Plan]]:
        """What is measured in turns with each other: all small models; each large one alone, for
        its memory.
        """
        import os

        from lr.lab.bench.subjects import SHAPES
        from lr.lab.bench.timing import Plan

        names = list(dict.fromkeys((*self.models, *(SHAPES if self.shapes else ()))))
        small = [name for name in names if name not in SHAPES]
        if small:
            yield (
                small,
                Plan(
                    self.batches or (1, 2, 4, 8), self.tokens or 64, self.repeats, self.threads or 1
                ),
            )
        for name in names:
            if name in SHAPES:
                threads = self.threads or os.cpu_count() or 1
                yield (
                    [name],
                    Plan(self.batches or (1,), self.tokens or 8, self.repeats, threads, warm_up=1),
                )


@contextmanager
def _threads(count: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _lanes(names: Sequence[str], out: Console) -> list[Lane]:
    """All contenders on all models that are there; a checkpoint that is missing is named and left
    out.
    """
    from lr.lab.bench.contenders import Bare, Ours, OursSampled, Transformers
    from lr.lab.bench.subjects import load_subject
    from lr.lab.bench.timing import Lane

    lanes = []
    for name in names:
        try:
            subject = load_subject(name)
        except CheckpointError as error:
            out.print(f"{name} is left out: {error}")
            continue
        model = subject.model
        for contender in (
            Ours(model),
            OursSampled(model, subject.sampling),
            Bare(model),
            Transformers(model),
        ):
            lanes.append(Lane(name, contender, subject.prompt))
    return lanes


def _measure(lanes: Sequence[Lane], plan: Plan) -> list[Timing]:
    from lr.lab.bench.timing import measure

    shown = Console(stderr=True)
    with Progress(console=shown, transient=True, disable=not shown.is_terminal) as bar:
        task = bar.add_task("timing", total=len(lanes) * plan.runs)
        return measure(lanes, plan, lambda: bar.advance(task))


def _print_tables(timings: Sequence[Timing], out: Console) -> None:
    """One table per model: a row per contender and batch size, and the given marks where there are
    some.
    """
    from lr.lab.bench.goals import GIVEN_MARKS, show
    from lr.lab.bench.subjects import RANDOM_12

    found = {(t.model, t.contender, t.batch): t for t in timings}
    for model in dict.fromkeys(t.model for t in timings):
        mine = [t for t in timings if t.model == model]
        table = Table(title=f"{model}, {mine[0].threads} thread(s)", title_justify="left")
        for column in (
            "batch",
            "contender",
            "ms per step",
            "quartiles",
            "tokens/s",
            "time / lr's",
            "quartiles",
        ):
            table.add_column(
                column, justify="left" if column == "contender" else "right", no_wrap=True
            )
        for batch in dict.fromkeys(t.batch for t in mine):
            for timing in (t for t in mine if t.batch == batch):
                ratio = timing.relative_to(found[model, "lr", batch])
                spread = timing.spread
                table.add_row(
                    *(str(batch), timing.contender, f"{spread.median:.3f}", show(spread)),
                    *(f"{timing.tokens_per_second:.0f}", f"{ratio.median:.2f}", show(ratio)),
                )
            marks = {
                who: ms[batch]
                for who, ms in GIVEN_MARKS.items()
                if model == RANDOM_12 and batch in ms
            }
            for who, ms in marks.items():
                table.add_row(str(batch), f"{who} *", f"{ms:.1f}", style="dim")
            table.add_section()
        out.print(table)
        if model == RANDOM_12:
            out.print(
                "* given mark: measured elsewhere, on an idle two-core machine with one thread; not part of this run."
            )


def _print_goals(timings: Sequence[Timing], out: Console) -> None:
    from lr.lab.bench.goals import goals

    words: dict[bool | None, str] = {True: "met", False: "missed", None: "not measured"}
    out.print("goals")
    for goal in goals(timings):
        out.print(f"  {words[goal.met]:<13} {goal.text}: {goal.measured}")
