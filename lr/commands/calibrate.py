"""`lr calibrate`: runs a pair of models and writes down every number that the formulas take, with
confidence intervals.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from lr.commands.models import ModelChoice
from lr.commands.show import console
from lr.errors import SettingError
from lr.types import require

if TYPE_CHECKING:
    from lr.reasoner import Reasoner
    from lr.theory.calibration import Calibration
    from lr.theory.observe import Seen, Timed

MEANINGS = {
    "alpha1": "draft steps accepted / judged",
    "c1": "a draft step, in target steps",
    "alpha2": "draft tokens accepted / tried",
    "c2": "a draft token, in target passes",
    "turn": "changing from draft to target and back, in target passes",
    "b": "a further row makes a batch so much slower",
    "b_draft": "a further row makes a batch of the draft so much slower",
    "b_positions": "a further position makes a pass so much slower",
    "pace": "a lone target row with lookahead / in plain decoding",
    "v": "a verdict, in target steps",
    "reading": "reading a draft step along with a batch, in target steps",
    "reading_alone": "reading a draft step in a pass of its own, in target steps",
    "start": "the prompt, both models, in target steps",
    "step_seconds": "a target step, in seconds",
    "second_chance": "second alternative accepted after the first was not",
}


@dataclass(frozen=True)
class Calibrate:
    """Measure acceptance, speed ratio, batching and judge latency of a pair of models from traces
    of real runs, for `lr plan`.
    """

    output: Path | None = None
    """Write the calibration to this JSON file."""
    problems: int = 24
    """How many problems to run, five times each (plain, lookahead, two alternatives, token level
    twice). At least 4.
    """
    questions: Path | None = None
    """A text file with one question per line; None: training problems of the tiny language."""
    depth: int = 4
    """How many draft steps to write ahead."""
    num_speculative_tokens: int = 4
    """How many tokens the draft model guesses ahead in the token-level run, at least 2; a second
    run guesses one.
    """
    max_tokens: int = 400
    """Longest answer."""
    seed: int = 1
    """Same seed: same answers."""
    clock: Literal["auto", "cpu", "wall"] = "auto"
    """cpu: processor time of this process, which others on the machine do not disturb; wall: what a
    user waits. auto: cpu where the models run on the CPU."""
    models: ModelChoice = field(default_factory=ModelChoice)

    def run(self) -> None:
        from lr.lab.bench.report import conditions

        self._check()
        asked = self.asked()
        reasoner = self.models.load(needs_draft=True)
        found = self.measure(reasoner, asked, conditions())
        out = console()
        out.print(_table(found))
        if self.output is not None:
            self.output.write_text(found.to_json(), encoding="utf-8")
            out.print(f"written: {self.output}")

    def measure(
        self, reasoner: Reasoner, asked: Sequence[str], conditions: dict[str, Any]
    ) -> Calibration:
        """Run every question and estimate."""
        reasoner.generate(asked[0], max_tokens=40)  # warm up: first calls pay for allocation
        shown = Console(stderr=True)
        seen = [
            self.see(reasoner, question)
            for question in track(
                asked, "measuring", console=shown, transient=True, disable=not shown.is_terminal
            )
        ]
        return self.estimate(reasoner, seen, conditions)

    def estimate(
        self, reasoner: Reasoner, seen: Sequence[Seen], conditions: dict[str, Any]
    ) -> Calibration:
        """The calibration from what was seen of each question."""
        from lr.theory.estimate import calibrate

        settings = {
            name: getattr(self, name)
            for name in ("problems", "depth", "num_speculative_tokens", "max_tokens", "seed")
        }
        facts = settings | {
            "clock": clock_for(self.clock, reasoner).__name__,
            "verifier": str(getattr(reasoner.verifier, "name", reasoner.verifier)),
        }
        return calibrate(
            seen, f"{self.models.model} / {self.models.drafting()}", facts | conditions
        )

    def see(self, reasoner: Reasoner, question: str) -> Seen:
        """One question, run five times."""
        from lr.theory.observe import LookaheadRun, PairRun, PlainRun, Seen, TokenRun

        clock = clock_for(self.clock, reasoner)

        def events(**options: object) -> list[Timed]:
            return timed(
                reasoner, question, clock, seed=self.seed, max_tokens=self.max_tokens, **options
            )

        k = self.num_speculative_tokens
        return Seen(
            PlainRun.of(events(mode="ar")),
            LookaheadRun.of(events(mode="lr", schedule="sync", depth=self.depth)),
            TokenRun.of(events(mode="sd", drafter="draft", num_speculative_tokens=k)),
            TokenRun.of(events(mode="sd", drafter="draft", num_speculative_tokens=1)),
            PairRun.of(events(mode="lr", schedule="sync", depth=1, width=2)),
        )

    def _check(self) -> None:
        require(
            self.problems >= 4,
            "problems",
            self.problems,
            "at least 4: intervals come from resampling them",
        )
        k = self.num_speculative_tokens
        require(
            k >= 2,
            "num_speculative_tokens",
            k,
            "at least 2: what a token costs is told from rounds of one and of several",
        )
        if self.output is not None and not self.output.parent.is_dir():
            raise SettingError(
                f"output is {str(self.output)!r}, but there is no folder {self.output.parent}; create it first."
            )

    def asked(self) -> list[str]:
        """The questions."""
        if self.questions is None:
            from lr.tiny.language import Split, problem

            return [problem(Split.TRAIN, number).question for number in range(self.problems)]
        try:
            lines = [
                line.strip()
                for line in self.questions.read_text(encoding="utf-8").splitlines()
                if line.strip()
            ]
        except (OSError, UnicodeDecodeError) as error:
            raise SettingError(
                f"questions is {str(self.questions)!r}, which cannot be read ({error})."
            ) from None
        require(
            len(lines) >= 4,
            "questions",
            f"{len(lines)} lines",
            "at least 4 questions, one per line",
        )
        return lines[: self.problems]


def clock_for(name: str, reasoner: Reasoner) -> Callable[[], float]:
    """The clock that a name means for these models."""
    on_cpu = reasoner.models.target.device.type == "cpu"
    return time.process_time if name == "cpu" or (name == "auto" and on_cpu) else time.perf_counter


def timed(
    reasoner: Reasoner, question: str, clock: Callable[[], float], **options: Any
) -> list[Timed]:
    """The events of one run by this clock."""
    run = reasoner.run(question, **options)
    run.trace.clock, run.trace.start = clock, clock()
    return run.finish().trace.events


def _table(found: Calibration) -> Table:
    title = f"{found.name}, {len(found.chain_lengths)} problems, 95 % intervals"
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    for column, justify in (
        ("", "left"),
        ("value", "right"),
        ("from", "right"),
        ("to", "right"),
        ("meaning", "left"),
    ):
        table.add_column(column, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for name, meaning in MEANINGS.items():
        estimate = getattr(found, name)
        table.add_row(
            name, *(f"{x:.4g}" for x in (estimate.value, estimate.low, estimate.high)), meaning
        )
    return table
