"""`lr generate`: one question, any checkpoint, the answer as it is decided. `lr demo`: held-out
problems in every mode, side by side, offline."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lr.commands import show
from lr.commands.options import ModelChoice
from lr.lab.bench.report import Spread
from lr.lab.eval.failure_modes import DraftBottleneck, failure_modes
from lr.lab.trace.file import require_writable
from lr.options import (
    LOOKAHEAD,
    MODES,
    Driver,
    GenerateOptions,
    Mode,
    OptionArguments,
    ScheduleName,
)
from lr.registry import language_of
from lr.result import Result
from lr.spec.protocol import Emit
from lr.tiny.language import Problem, Split
from lr.tiny.languages import QUANTITIES, TinyLanguage
from lr.trace import Stats

if TYPE_CHECKING:
    from lr.engine.engine import Run
    from lr.reasoner import Reasoner


@contextmanager
def saving(path: Path | None, run: Run) -> Iterator[None]:
    """Write the trace of what is answered inside to `path` (None: nowhere), also if it is
    interrupted or fails."""
    from lr.lab.trace.replay import save_trace

    try:
        yield
    except BaseException as error:
        if path is not None:
            save_trace(path, run, why=f"{type(error).__name__}: {error}")
        raise
    if path is not None:
        save_trace(path, run)


@dataclass(frozen=True)
class Generate:
    """Answer one question. The answer goes to standard output as it is decided, the statistics to
    standard error."""

    question: tyro.conf.Positional[str | None] = None
    """What to ask; the checkpoint's chat template is put around it. Left out: a sample problem."""
    models: ModelChoice = field(default_factory=ModelChoice)
    generation: GenerateOptions = field(default_factory=GenerateOptions)
    max_depth: int | None = None  # The official name of --depth; it counts if both are given.
    explain: bool = False  # Name failure modes too: cascades of rejections, waits for the draft.
    trace: Path | None = None
    """Write everything that happens to this file, as JSON lines, for lr trace and the tools that
    show it."""

    def run(self) -> None:
        options = self.generation
        if self.max_depth is not None:
            options = dataclasses.replace(options, depth=self.max_depth)
        if self.trace is not None:
            require_writable(self.trace)
        out, notes = show.console(), show.console(stderr=True)
        reasoner = self.models.load(needs_draft=options.needs_draft)
        run = reasoner.run(
            self.models.question(self.question),
            detailed=self.trace is not None,
            **dataclasses.asdict(options),
        )
        with saving(self.trace, run):
            for step in run:
                out.print(step.text, style=show.STYLES[step.origin], end="", markup=False)
        result = run.finish()
        if not result.text.endswith("\n"):
            out.print()
        for note in self._notes(result):
            notes.print(f"[dim]{escape(note)}[/]")

    def _notes(self, result: Result) -> Iterator[str]:
        """What is said about an answer, line by line."""
        stats = result.stats
        coupling = "" if self.generation.mode == "ar" else f", coupling {result.coupling}"
        yield show.summary(stats) + coupling
        if stats.judged and not stats.accepted:
            events = (event for _, event in result.trace.events)
            emits = (e for e in events if isinstance(e, Emit))
            reasons = Counter(v.why for emit in emits for v in emit.verdicts)
            yield f"no draft step was accepted; most often: {reasons.most_common(1)[0][0]}"
        for found in failure_modes(result.trace) if self.explain else []:
            # where the models take turns, the target pays for the draft but never waits for it
            if self.generation.driver != "lockstep" or not isinstance(found, DraftBottleneck):
                yield str(found)
        if not result.finished:
            yield "the answer was cut: the token budget (--max_tokens) or the context was reached"


COLUMNS = ("mode", "right", "tokens\n/ s", "steps\nkept", "tokens\nkept", "target\npasses")
NOTES = """\
ar: plain decoding. sd: tokens guessed ahead. lr: steps written ahead (Lookahead Reasoning).
lr+sd: both. steps kept: accepted of the draft steps judged; tokens kept: of the tokens guessed.
speedup: in tokens per second against ar, all modes in turn on every problem; middle half: its
quartiles over the problems. In lr and lr+sd the draft's steps are written in a second process
(--driver lockstep: in turns, on one core)."""

Solved = list[tuple[Problem[Any], dict[Mode, Result]]]
"""Problems, each with its results by mode."""


@dataclass(frozen=True)
class Demo:
    """Watch the tiny models reason through held-out problems: which draft steps are kept, what
    replaces the others, what it saves."""

    problems: int = 24  # How many problems to solve, each in every mode.
    show: int = 4  # How many of them to show step by step.
    depth: int = 3  # How many draft steps to write ahead.
    max_depth: int | None = None  # The official name of --depth; it counts if both are given.
    width: int = 1  # How many alternative draft steps per position.
    schedule: ScheduleName = "depth"  # When target steps begin: see lr generate --help.
    num_speculative_tokens: int = 3  # How many tokens to guess ahead, in sd and lr+sd.
    driver: Driver = "overlapped"
    """overlapped: the draft's steps are written in a process of their own. lockstep: draft and
    target take turns."""
    temperature: float | None = None  # None: the checkpoint's own (0.6); 0 is greedy.
    seed: int = 0  # Same seed: same answers.
    trace: Path | None = None
    """Write everything that happens in the first problem's answer in mode lr to this file, as JSON
    lines, for lr trace."""
    models: ModelChoice = field(default_factory=ModelChoice)

    def run(self) -> None:
        show.at_least(self, problems=1)
        if self.trace is not None:
            require_writable(self.trace)
        out, solved = show.console(), Solved()
        with self.models.load(needs_draft=True) as reasoner:
            language = language_of(reasoner.codec) or QUANTITIES
            out.print(show.legend(), "")
            warm_up = language.problem(Split.TEST, 0, 0).question
            for mode in MODES:  # the first call allocates, and starts the second process
                reasoner.generate(warm_up, **self._options(mode, max_tokens=40))
            with show.progress("solving", self.problems) as advance:
                for index in range(self.problems):
                    task = language.problem(Split.TEST, index, 0)
                    solved.append((task, self._solve(reasoner, task, index, out, language)))
                    advance()
        out.print(_comparison(solved))
        out.print(NOTES, "", style="dim")
        out.print(_conclusion(solved), style="bold")

    def _options(self, mode: Mode, max_tokens: int | None = None) -> OptionArguments:
        """The options of one mode. In mode sd nothing is there to overlap."""
        return {
            "mode": mode,
            "driver": self.driver if mode in LOOKAHEAD else "lockstep",
            "depth": self.depth if self.max_depth is None else self.max_depth,
            "width": self.width,
            "schedule": self.schedule,
            "num_speculative_tokens": self.num_speculative_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "max_tokens": max_tokens,
        }

    def _solve(
        self,
        reasoner: Reasoner,
        task: Problem[Any],
        index: int,
        out: Console,
        language: TinyLanguage,
    ) -> dict[Mode, Result]:
        """One problem in every mode. The modes take turns in going first, so that drifts of the
        machine's speed cancel."""
        results: dict[Mode, Result] = {}
        shown = index < self.show
        if shown:
            out.print(f"[bold]problem {index + 1}[/]  {task.question}")
        turn = index % len(MODES)
        for mode in MODES[turn:] + MODES[:turn]:
            path = self.trace if index == 0 and mode == "lr" else None
            run = reasoner.run(task.question, detailed=path is not None, **self._options(mode))
            with saving(path, run):
                for step in run:
                    if shown and mode == "lr":
                        out.print(show.step_line(step, language))
            results[mode] = run.finish()
        if shown:
            out.print(f"  answer {results['lr'].answer}, expected {task.answer}\n")
        return results


def _rate(stats: Stats) -> float:
    return stats.tokens_per_second or 0.0


def _total(solved: Solved, mode: Mode) -> tuple[Stats, int]:
    """The statistics of all answers in one mode, and how many are right."""
    right = sum(results[mode].answer == str(task.answer) for task, results in solved)
    return sum((results[mode].stats for _, results in solved), Stats()), right


def _conclusion(solved: Solved) -> str:
    """What the table says, in words."""
    (plain, plain_right), (both, right) = _total(solved, "ar"), _total(solved, "lr+sd")
    per_pass = (both.tokens_per_target_pass or 0) / (plain.tokens_per_target_pass or 1)
    return (
        f"lr+sd: {right} of {len(solved)} answers right (ar: {plain_right}), "
        f"{1 - 1 / per_pass:.0%} fewer passes of the target per token, "
        f"{_rate(both) / _rate(plain):.2f} times as fast as ar on this machine. Here a pass over "
        "several tokens takes longer than over one; where it does not, as nearly on a GPU, and "
        f"the draft keeps up, lr+sd can be up to {per_pass:.1f} times as fast."
    )


def _comparison(solved: Solved) -> Table:
    """One row per mode."""
    totals = {mode: _total(solved, mode) for mode in MODES}
    rows = []
    for mode, (stats, right) in totals.items():
        ratios = [_rate(results[mode].stats) / _rate(results["ar"].stats) for _, results in solved]
        spread = Spread.of(ratios) if len(ratios) >= 4 and mode != "ar" else None
        rows.append(
            [
                *(mode, f"{right}/{len(solved)}", f"{_rate(stats):.0f}"),
                *(show.number(stats.step_acceptance), show.number(stats.token_acceptance)),
                *(str(stats.target_passes), f"{stats.tokens_per_target_pass or 0:.2f}"),
                f"{_rate(stats) / _rate(totals['ar'][0]):.2f}",
                "" if spread is None else f"{spread.low:.2f}-{spread.high:.2f}",
            ]
        )
    columns = (*COLUMNS, "tokens\n/ pass", "speedup", "middle\nhalf")
    return show.table(columns, rows, title=f"{len(solved)} held-out problems")
