"""`lr generate` answers one question; `lr demo` shows the tiny models reason, and what it saves."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any, Literal

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from lr.commands.options import ModelChoice
from lr.commands.show import STYLES, console, legend, number, step_line, summary
from lr.engine.answer import Run
from lr.lab.eval.failure_modes import DraftBottleneck, FailureMode, failure_modes
from lr.lab.trace.file import require_writable
from lr.lab.trace.replay import save_trace
from lr.options import LOOKAHEAD, MODES, GenerateOptions
from lr.reasoner import Reasoner
from lr.registry import language_of
from lr.result import Result
from lr.spec.protocol import Emit
from lr.tiny.language import Split
from lr.tiny.languages import QUANTITIES, Exercise
from lr.trace import Stats
from lr.types import require


@contextmanager
def saving(path: Path | None, run: Run) -> Iterator[None]:
    """Write the trace of what is answered inside to `path` (None: nowhere), also if it is
    interrupted or fails.
    """
    try:
        yield
    except BaseException as error:
        if path is not None:
            save_trace(path, run, why=f"{type(error).__name__}: {error}")
        raise
    if path is not None:
        save_trace(path, run)


def _commonest_reason(result: Result) -> str:
    emits = [event for _, event in result.trace.events if isinstance(event, Emit)]
    reasons = Counter(verdict.why for emit in emits for verdict in emit.verdicts)
    return escape(reasons.most_common(1)[0][0])


@dataclass(frozen=True)
class Generate:
    """Answer one question. The answer goes to standard output as it is decided, the statistics to
    standard error.
    """

    question: tyro.conf.Positional[str]
    """What to ask; the checkpoint's chat template is put around it."""
    models: ModelChoice = field(default_factory=ModelChoice)
    generation: GenerateOptions = field(default_factory=GenerateOptions)
    max_depth: int | None = None
    """The official tool's name of --depth; where both are given, this one counts."""
    explain: bool = False
    """Say also whether the run shows a failure mode: a cascade of rejections, a target that
    waits for the draft.
    """

    trace: Path | None = None
    """Write everything that happens to this file, as JSON lines, for lr trace and the tools that
    show it.
    """

    def run(self) -> None:
        generation = self.generation
        if self.max_depth is not None:
            generation = dataclasses.replace(generation, depth=self.max_depth)
        if self.trace is not None:
            require_writable(self.trace)
        reasoner = self.models.load(needs_draft=generation.needs_draft)
        run = reasoner.run(
            self.question, detailed=self.trace is not None, **dataclasses.asdict(generation)
        )
        out = console()
        with saving(self.trace, run):
            for step in run:
                out.print(step.text, style=STYLES[step.origin], end="", markup=False)
        result = run.finish()
        if not result.text.endswith("\n"):
            out.print()
        notes = console(stderr=True)
        coupling = "" if self.generation.mode == "ar" else f", coupling {result.coupling}"
        notes.print(f"[dim]{summary(result.stats)}{coupling}[/]")
        if result.stats.judged and not result.stats.accepted:
            notes.print(
                f"[dim]no draft step was accepted; most often: {_commonest_reason(result)}[/]"
            )
        for mode in self._failure_modes(result) if self.explain else []:
            notes.print(f"[dim]{mode}[/]")
        if not result.finished:
            notes.print(
                "[dim]the answer was cut: the token budget (--max_tokens) or the context was reached[/]"
            )

    def _failure_modes(self, result: Result) -> list[FailureMode]:
        """Where the models take turns the target never waits for the draft, it only pays for it."""
        found = failure_modes(result.trace)
        alone = self.generation.driver == "lockstep"
        return [one for one in found if not (alone and isinstance(one, DraftBottleneck))]


COLUMNS = (
    "right",
    "tokens\n/ s",
    "steps\nkept",
    "tokens\nkept",
    "target\npasses",
    "tokens\n/ pass",
    "speedup",
    "middle\nhalf",
)
NOTES = """ar: plain decoding. sd: tokens guessed ahead. lr: steps written ahead (Lookahead Reasoning). lr+sd: both.
steps kept: accepted of the draft steps judged; tokens kept: of the tokens guessed. speedup: in tokens per
second against ar, all modes in turn on every problem; middle half: its quartiles over the problems. In lr and lr+sd
the draft's steps are written in a second process (--driver lockstep: in turns, on one core)."""


@dataclass(frozen=True)
class Demo:
    """Watch the tiny models reason through held-out problems: which draft steps are kept, what
    replaces the others, what it saves.
    """

    problems: int = 24
    """How many problems to solve, each in every mode."""
    show: int = 4
    """How many of them to show step by step."""
    depth: int = 3
    """How many draft steps to write ahead."""
    max_depth: int | None = None
    """The official tool's name of --depth; where both are given, this one counts."""
    width: int = 1
    """How many alternative draft steps per position."""
    schedule: Literal["sync", "paper", "depth"] = "depth"
    """When target steps begin: see lr generate --help."""
    num_speculative_tokens: int = 3
    """How many tokens to guess ahead, in sd and lr+sd."""
    driver: Literal["lockstep", "overlapped"] = "overlapped"
    """overlapped: the draft's steps are written in a process of their own. lockstep: draft and
    target take turns.
    """
    temperature: float | None = None
    """None: the checkpoint's own (0.6); 0 is greedy."""
    seed: int = 0
    """Same seed: same answers."""
    trace: Path | None = None
    """Write everything that happens in the first problem's answer in mode lr to this file, as JSON
    lines, for lr trace.
    """
    models: ModelChoice = field(default_factory=ModelChoice)

    def run(self) -> None:
        require(self.problems > 0, "problems", self.problems, "a whole number > 0")
        if self.trace is not None:
            require_writable(self.trace)
        with self.models.load(needs_draft=True) as reasoner:
            self._solve_all(reasoner)

    def _solve_all(self, reasoner: Reasoner) -> None:
        out = console()
        out.print(legend(), "")
        for mode in (
            MODES
        ):  # warm up: first calls pay for allocation, and for the start of the second process
            reasoner.generate(
                _exercise(reasoner, 0).question, **self._settings(mode), max_tokens=40
            )
        solved: list[tuple[Exercise, dict[str, Result]]] = []
        numbers = range(self.problems)
        for index in track(
            numbers,
            "solving",
            console=Console(stderr=True),
            transient=True,
            disable=not out.is_terminal,
        ):
            solved.append(self._solve(reasoner, index, out))
        out.print(_table(solved))
        out.print(NOTES, style="dim")

    def _settings(self, mode: str) -> dict[str, Any]:
        """The options of one mode. In mode sd nothing is there to overlap."""
        names = ("width", "schedule", "num_speculative_tokens", "temperature", "seed")
        driver = self.driver if mode in LOOKAHEAD else "lockstep"
        depth = self.depth if self.max_depth is None else self.max_depth
        return {
            "mode": mode,
            "driver": driver,
            "depth": depth,
            **{name: getattr(self, name) for name in names},
        }

    def _solve(
        self, reasoner: Reasoner, index: int, out: Console
    ) -> tuple[Exercise, dict[str, Result]]:
        """One problem in every mode; the modes take turns in going first, so that drifts of the
        machine's speed cancel.
        """
        task, results = _exercise(reasoner, index), {}
        shown, order = index < self.show, list(MODES)
        if shown:
            out.print(f"[bold]problem {index + 1}[/]  {task.question}")
        for mode in order[index % len(order) :] + order[: index % len(order)]:
            place = self.trace if index == 0 and mode == "lr" else None
            run = reasoner.run(task.question, detailed=place is not None, **self._settings(mode))
            with saving(place, run):
                for step in run:
                    if shown and mode == "lr":
                        out.print(step_line(step))
            results[mode] = run.finish()
        if shown:
            out.print(f"  answer {results['lr'].answer}, expected {task.answer}\n")
        return task, results


def _exercise(reasoner: Reasoner, index: int) -> Exercise:
    """A held-out problem of the language that the target speaks; of quantities where it speaks no
    tiny one.
    """
    language = language_of(reasoner.codec) or QUANTITIES
    return language.problem(Split.TEST, index, 0)


def _table(solved: list[tuple[Exercise, dict[str, Result]]]) -> Table:
    table = Table(
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
        padding=(0, 1, 0, 0),
        title=f"{len(solved)} held-out problems",
        title_justify="left",
    )
    table.add_column("mode", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    totals = {mode: sum((results[mode].stats for _, results in solved), Stats()) for mode in MODES}
    for mode in MODES:
        stats = totals[mode]
        right = sum(results[mode].answer == str(task.answer) for task, results in solved)
        table.add_row(
            mode,
            f"{right}/{len(solved)}",
            f"{_rate(stats):.0f}",
            number(stats.step_acceptance),
            number(stats.token_acceptance),
            str(stats.target_passes),
            f"{stats.tokens_per_target_pass or 0:.2f}",
            f"{_rate(stats) / _rate(totals['ar']):.2f}",
            "" if mode == "ar" else _spread(solved, mode),
        )
    return table


def _spread(solved: list[tuple[Exercise, dict[str, Result]]], mode: str) -> str:
    """The quartiles of the speedup over the problems."""
    ratios = [_rate(results[mode].stats) / _rate(results["ar"].stats) for _, results in solved]
    if len(ratios) < 4:
        return ""
    low, _, high = quantiles(ratios, n=4)
    return f"{low:.2f}-{high:.2f}"


def _rate(stats: Stats) -> float:
    return stats.tokens_per_second or 0.0
