"""`lr bench alpha`: the mean acceptance length of token-level speculation, measured and as theory
predicts it, for k = 1, 2, ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from lr.commands.models import Placement
from lr.commands.show import console
from lr.errors import SettingError
from lr.types import require

if TYPE_CHECKING:
    from lr.lab.bench.alpha import Places, Point
    from lr.reasoner import Reasoner

NOTES = """tokens per round: 1 + accepted / rounds. α: accepted / tried. G(α) = (1 - α^(k+1)) / (1 - α). by place: one rate per place, from
the other half of the problems. off: measured minus predicted, in standard errors of the measurement (jackknife over problems).
short: rounds with fewer than k drafts. emitted: tokens of a round that are still there after the step's end was cut."""


@dataclass(frozen=True)
class BenchAlpha:
    """Measure how many tokens a round of token-level speculation decides, and compare with theory.
    Rule reject, a fixed k.
    """

    problems: int = 128
    """How many held-out problems to solve, for every k."""
    longest: int = 8
    """k goes from 1 to this."""
    temperature: float = 0.6
    """Of target and draft."""
    seed: int = 0
    """Same seed: same figures."""
    threads: int = 1
    """CPU threads."""
    json: Path | None = None
    """Also write every figure to this file."""
    figure: Path | None = None
    """Also draw them: to this file and its twin, PNG and SVG. Needs matplotlib (the extra
    `plot`).
    """

    def run(self) -> None:
        from lr.lab.bench.report import conditions, write_json

        self._check()
        points = self._measure()
        out = console()
        out.print(_table(points))
        out.print(NOTES, style="dim")
        document = self.document(points) | {"conditions": conditions()}
        if self.json is not None:
            write_json(document, self.json)
        if self.figure is not None:
            from lr.lab.bench.alpha_figure import draw

            for path in draw(document, self.figure):
                out.print(f"drawn: {path}")

    def document(self, points: Sequence[Point]) -> dict[str, Any]:
        """The figures and the settings that they belong to."""
        settings = {name: getattr(self, name) for name in ("problems", "temperature", "seed")}
        return {"settings": settings, "points": [asdict(p) | {"gaps": p.gaps} for p in points]}

    def _check(self) -> None:
        require(self.problems >= 4, "problems", self.problems, "at least 4, for a standard error")
        require(1 <= self.longest <= 64, "longest", self.longest, "1 to 64")
        require(self.temperature >= 0, "temperature", self.temperature, "a number >= 0")
        for name in ("json", "figure"):
            path = getattr(self, name)
            if path is not None and not path.parent.is_dir():
                raise SettingError(
                    f"{name} is {str(path)!r}, but there is no folder {path.parent}; create it first."
                )
        if self.figure is not None:
            from lr.lab.viz.style import require_matplotlib

            require_matplotlib()

    def _measure(self) -> list[Point]:
        from lr.lab.bench.alpha import point
        from lr.reasoner import Reasoner

        Placement(threads=self.threads).set_threads()
        reasoner = Reasoner()
        shown = Console(stderr=True)
        ks = track(
            range(1, self.longest + 1),
            "k",
            console=shown,
            transient=True,
            disable=not shown.is_terminal,
        )
        return [
            point(k, [self._rounds(reasoner, number, k) for number in range(self.problems)])
            for k in ks
        ]

    def _rounds(self, reasoner: Reasoner, number: int, k: int) -> Places:
        """The rounds of one problem."""
        from lr.lab.bench.alpha import Places
        from lr.tiny.language import Split, problem
        from lr.trace import TokenRound

        made = reasoner.generate(
            problem(Split.TEST, number).question,
            mode="sd",
            drafter="draft",
            acceptance="reject",
            coupling="independent",
            temperature=self.temperature,
            top_p=1.0,
            top_k=0,
            min_p=0.0,
            num_speculative_tokens=k,
            seed=self.seed,
            max_tokens=400,
        )
        return Places.of(
            (event for _, event in made.trace.events if isinstance(event, TokenRound)), k
        )


def _table(points: Sequence[Point]) -> Table:
    table = Table(
        box=SIMPLE_HEAD, pad_edge=False, padding=0, title="tokens per round", title_justify="left"
    )
    for column in (
        "k",
        "rounds",
        "short",
        "α",
        "measured",
        "± s.e.",
        "G(α)",
        "off",
        "by place",
        "off",
        "emitted",
    ):
        table.add_column(column, justify="right", no_wrap=True)
    for p in points:
        off, off_place = p.gaps
        table.add_row(
            *(
                str(p.k),
                str(p.rounds),
                f"{p.cut:.1%}",
                f"{p.alpha:.4f}",
                f"{p.measured:.3f}",
                f"{p.error:.3f}",
            ),
            *(
                f"{p.constant:.3f}",
                f"{off:+.1f}",
                f"{p.by_place:.3f}",
                f"{off_place:+.1f}",
                f"{p.emitted:.3f}",
            ),
        )
    return table
