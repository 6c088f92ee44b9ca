"""`lr bench token`: token-level speculation against `transformers` assisted generation and prompt
lookup, in one run, in turns.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from lr.commands.models import Placement
from lr.commands.show import console, number
from lr.errors import SettingError
from lr.types import require

if TYPE_CHECKING:
    from lr.lab.bench.timing import Spread
    from lr.lab.bench.token import Answer, Answerer
    from lr.lab.bench.token_rows import Row

NOTES = """tok/s: of a whole answer, median over the problems, quartiles in brackets. / ar: times the tokens/s of our plain decoding.
/ peer: times the tokens/s of the fastest transformers row of the same kind, problem by problem. tok/pass: tokens per
pass of the target. kept: accepted / drafted. length: 1 + accepted / rounds, the mean acceptance length."""

TABLE_WIDTH = 112
"""Columns that the tables need; a narrower terminal wraps them, which is better than figures left
out.
"""


@dataclass(frozen=True)
class BenchToken:
    """Time token-level speculation on the tiny models against transformers' generate, assisted
    generation and prompt lookup.
    """

    problems: int = 24
    """How many held-out problems everybody answers, at every temperature; one more, to warm up, is
    dropped.
    """
    k: int = 4
    """Drafts per round, on both sides (the trees: their depth)."""
    temperature: tuple[float, ...] = (0.6, 0.0)
    """One table for each; 0 is greedy."""
    branching: tuple[int, ...] = (2, 1, 1, 1)
    """Our trees: how many candidates at each place."""
    seed: int = 0
    """The first problem's; every other has one more."""
    threads: int = 1
    """CPU threads."""
    json: Path | None = None
    """Also write every single figure to this file."""

    def run(self) -> None:
        from lr.lab.bench.report import conditions, write_json

        self._check()
        facts, out = conditions(), console()
        out.width = max(out.width, TABLE_WIDTH)
        rows = self._measure()
        out.print(", ".join(f"{name} {value}" for name, value in facts.items()))
        for temperature in self.temperature:
            out.print(_table([row for row in rows if row.temperature == temperature], temperature))
        out.print(NOTES, style="dim")
        out.print(verdict(rows))
        if self.json is not None:
            settings = {
                name: getattr(self, name)
                for name in ("problems", "k", "branching", "seed", "threads")
            }
            rows_out = [row.figures() for row in rows]
            write_json({"conditions": facts, "settings": settings, "rows": rows_out}, self.json)

    def _check(self) -> None:
        from lr.options import TokenOptions

        require(
            self.problems >= 2,
            "problems",
            self.problems,
            "at least 2, for a spread; 20 for a figure to publish",
        )
        require(self.k >= 1, "k", self.k, "a whole number >= 1")
        proper = len(self.temperature) > 0 and all(t >= 0 for t in self.temperature)
        require(proper, "temperature", self.temperature, "numbers >= 0, such as 0.6 0")
        TokenOptions(branching=self.branching)
        if self.json is not None and not self.json.parent.is_dir():
            raise SettingError(
                f"json is {str(self.json)!r}, but there is no folder {self.json.parent}; create it first."
            )

    def _measure(self) -> list[Row]:
        from lr.lab.bench.token import answerers
        from lr.lab.bench.token_rows import measure
        from lr.reasoner import Reasoner
        from lr.tiny.language import Split, problem

        Placement(threads=self.threads).set_threads()
        contenders = answerers(Reasoner(), self.k, self.branching)
        temperatures = tuple(dict.fromkeys(self.temperature))
        shown = Console(stderr=True)
        with (
            Progress(console=shown, transient=True, disable=not shown.is_terminal) as bar,
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # what transformers says about its own settings
            task = bar.add_task(
                "answering", total=len(contenders) * len(temperatures) * (self.problems + 1)
            )

            def ask(contender: Answerer, temperature: float, number: int) -> Answer:
                answer = contender.answer(
                    problem(Split.TEST, number).question, temperature, self.seed + number
                )
                bar.advance(task)
                return answer

            return measure(contenders, temperatures, self.problems, ask)


def verdict(rows: Sequence[Row]) -> str:
    """Whether we are ahead in every row, and where not."""
    behind = [row for row in rows if row.behind]
    if not behind:
        return "lr is ahead of transformers in tokens/s in every row."
    names = "; ".join(
        f"{row.name} at temperature {row.temperature:g} ({_spread(row.to_peer)})" for row in behind
    )
    return f"lr is NOT ahead of transformers in: {names}."


def _table(rows: Sequence[Row], temperature: float) -> Table:
    title = f"temperature {temperature:g}"
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=0, title=title, title_justify="left")
    table.add_column("who", no_wrap=True)
    for column in ("tok/s", "/ ar", "/ peer", "tok/pass", "kept", "length"):
        table.add_column(column, justify="right", no_wrap=True)
    kind = rows[0].kind
    for row in rows:
        if row.kind != kind:
            kind = row.kind
            table.add_row()
        total, rate = row.total, row.rate
        table.add_row(
            *(f"{row.side}: {row.name}", f"{rate.median:.0f} [{rate.low:.0f}-{rate.high:.0f}]"),
            *(_spread(row.to_plain), _spread(row.to_peer), f"{total.tokens_per_pass:.2f}"),
            *(number(total.acceptance_rate), number(total.acceptance_length)),
        )
    return table


def _spread(spread: Spread | None) -> str:
    return "" if spread is None else f"{spread.median:.2f} [{spread.low:.2f}-{spread.high:.2f}]"
