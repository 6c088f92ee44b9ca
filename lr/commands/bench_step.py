"""`lr bench step`: Lookahead Reasoning against plain decoding and token-level speculation, in one
run, in turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from lr.commands.models import Placement
from lr.commands.show import console, number
from lr.types import require

if TYPE_CHECKING:
    from lr.lab.bench.cost import PassCost
    from lr.lab.bench.step import StepRow

NOTES = """tok/s: of whole answers, all problems of a repeat together; median over the repeats. / ar: times the tokens/s of plain decoding,
repeat by repeat, quartiles in brackets. model: tok/s by the cost model (docs/results/step.md). right: share of right answers.
steps, tokens: accepted of those judged, or drafted. tok/pass: tokens per pass of the target. target, draft, verifier: share of
the time; with the draft in a second process target and draft overlap."""

TABLE_WIDTH = 132
MAIN = "lr, overlapped"
"""The way that the cost model explains."""
MOST_STEPS = 9
"""A goal, a given, six operations and an answer."""


@dataclass(frozen=True)
class BenchStep:
    """Time Lookahead Reasoning on the tiny models in all its forms against plain decoding and
    token-level speculation.
    """

    problems: int = 16
    """How many held-out problems a repeat has."""
    min_steps: int = 0
    """Only problems whose solution has at least so many steps (3 to 9)."""
    repeats: int = 5
    """How often everything is done, each time with other draws."""
    depth: int = 3
    """How many draft steps are written ahead."""
    draft_ticks: int = 8
    """How many tokens the draft may write while the target writes one, where they take turns."""
    k: int = 3
    """Tokens that a draft model guesses ahead."""
    step_k: int = 20
    """Tokens that a draft step guesses ahead."""
    verifier: str | None = None
    """How steps are compared; None: the demo's."""
    temperature: float | None = None
    """None: the checkpoint's own (0.6); 0 is greedy."""
    only: tuple[str, ...] = ()
    """Only the rows whose names hold one of these words, and ar."""
    threads: int = 1
    """CPU threads, of each process."""
    json: Path | None = None
    """Also write every single figure to this file."""

    def run(self) -> None:
        from lr.lab.bench.report import conditions, write_json

        require(self.problems >= 1, "problems", self.problems, "a whole number >= 1")
        require(
            0 <= self.min_steps <= MOST_STEPS, "min_steps", self.min_steps, f"0 to {MOST_STEPS}"
        )
        require(
            self.repeats >= 2,
            "repeats",
            self.repeats,
            "at least 2, for a spread; 5 for a figure to publish",
        )
        require(
            self.json is None or self.json.parent.is_dir(),
            "json",
            str(self.json),
            "a file in a folder that exists",
        )
        Placement(threads=self.threads).set_threads()
        facts, out = conditions(), console()
        out.width = max(out.width, TABLE_WIDTH)
        found, (target, draft) = self._measure()
        out.print(", ".join(f"{name} {value}" for name, value in facts.items()))
        out.print(_table(found))
        out.print(f"a pass of the target takes {_cost(target)}; of the draft {_cost(draft)}")
        for row in found:
            self._explain(row, found[0], (target, draft), out)
        out.print(NOTES, style="dim")
        if self.json is not None:
            settings = {
                name: getattr(self, name) for name in self.__dataclass_fields__ if name != "json"
            }
            rows_out = [row.figures() for row in found]
            costs = {"target": asdict(target), "draft": asdict(draft)}
            write_json(
                {
                    "conditions": facts,
                    "settings": settings,
                    "pass_seconds": costs,
                    "rows": rows_out,
                },
                self.json,
            )

    def _explain(
        self, row: StepRow, plain: StepRow, costs: tuple[PassCost, PassCost], out: Console
    ) -> None:
        """What the cost model says would make a way faster, for the main one."""
        from lr.lab.bench.step import what_if

        if row.tally.way.name == MAIN and plain.predicted is not None:
            rates = what_if(row.tally, costs, self.depth, self.draft_ticks)
            cases = "; ".join(
                f"{name}: {rate / plain.predicted:.2f}" for name, rate in rates.items()
            )
            out.print(f"{MAIN}, times ar by the cost model, if {cases}")

    def _measure(self) -> tuple[list[StepRow], tuple[PassCost, PassCost]]:
        from lr.lab.bench.step import fitted_costs, measure, rows
        from lr.lab.bench.ways import ways
        from lr.reasoner import Reasoner
        from lr.tiny.language import Split, problem

        every = ways(self.k, self.step_k)
        chosen = [
            way
            for way in every
            if not self.only or way.mode == "ar" or any(w in way.name for w in self.only)
        ]
        require(
            len(chosen) > 1,
            "only",
            self.only,
            f"words of the rows' names: {'; '.join(way.name for way in every)}",
        )
        numbers = (
            number for number in count() if len(problem(Split.TEST, number).steps) >= self.min_steps
        )
        tasks = [problem(Split.TEST, number) for number in islice(numbers, self.problems)]
        settings = {
            "depth": self.depth,
            "draft_ticks": self.draft_ticks,
            "temperature": self.temperature,
        }
        shown = Console(stderr=True)
        with (
            Reasoner(verifier=self.verifier) as reasoner,
            Progress(console=shown, transient=True, disable=not shown.is_terminal) as bar,
        ):
            task = bar.add_task("answering", total=len(chosen) * (1 + self.repeats * self.problems))
            tallies = measure(
                reasoner, chosen, tasks, self.repeats, settings, lambda: bar.advance(task)
            )
        costs = fitted_costs(tallies)
        return rows(tallies, costs, self.depth, self.draft_ticks), costs


def _table(rows: Sequence[StepRow]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=0)
    table.add_column("way", no_wrap=True)
    for column in (
        "tok/s",
        "/ ar",
        "model",
        "right",
        "steps",
        "tokens",
        "tok/pass",
        "target",
        "draft",
        "verifier",
    ):
        table.add_column(column, justify="right", no_wrap=True)
    mode = "ar"
    for row in rows:
        tally, stats = row.tally, row.tally.stats
        if tally.way.mode != mode:
            mode = tally.way.mode
            table.add_row()
        speedup = row.speedup
        table.add_row(
            *(tally.way.name, f"{row.rate.median:.0f}"),
            f"{speedup.median:.2f} [{speedup.low:.2f}-{speedup.high:.2f}]",
            "" if row.predicted is None else f"{row.predicted:.0f}",
            f"{tally.accuracy:.3f}",
            *(number(stats.step_acceptance), number(stats.token_acceptance)),
            f"{stats.tokens_per_target_pass or 0:.2f}",
            *(
                f"{tally.share(part):.2f}"
                for part in (stats.target_seconds, stats.draft_seconds, stats.verifier_seconds)
            ),
        )
    return table


def _cost(cost: PassCost) -> str:
    """The line through the passes of the ways that run one model at a time."""
    first, row, token = (1000 * part for part in (cost.first, cost.row, cost.token))
    return f"{first:.2f} ms for one row of one token, {row:.2f} ms more for each row, {token:.2f} ms for each token beyond one per row"
