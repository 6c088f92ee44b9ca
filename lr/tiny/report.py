"""The result of measuring the tiny models, and how it is shown. Plain data; `evaluate.py` fills
it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

KINDS = ("goal", "given", "operation", "answer", "unreadable")


@dataclass
class Tally:
    """Sums over steps of one kind. `positions` and `overlap` come from the target's own solutions,
    the rest from the judged chain.

    `accepted`: the draft's step means what the target's does; `exact`: it has the same tokens.
    `self_accepted` and `self_exact`: the same for a second step of the target from the same prefix.
    `tokens`, `draft_tokens`: their lengths.
    """

    steps: int = 0
    accepted: int = 0
    exact: int = 0
    self_accepted: int = 0
    self_exact: int = 0
    tokens: int = 0
    draft_tokens: int = 0
    positions: int = 0
    overlap: float = 0.0

    def __add__(self, other: Tally) -> Tally:
        mine, theirs = vars(self), vars(other)
        return Tally(**{name: mine[name] + theirs[name] for name in mine})

    def rates(self) -> dict[str, float]:
        """Every rate by name; NaN where nothing was counted."""
        of_steps = {
            "step acceptance": self.accepted,
            "exact text": self.exact,
            "target against itself": self.self_accepted,
            "itself, exact text": self.self_exact,
            "tokens per target step": self.tokens,
            "tokens per draft step": self.draft_tokens,
        }
        rates = {
            name: count / self.steps if self.steps else math.nan for name, count in of_steps.items()
        }
        return rates | {
            "token acceptance": self.overlap / self.positions if self.positions else math.nan
        }


@dataclass(frozen=True)
class LayerSkipped:
    """The target without one layer (None: whole): accuracy, and log-loss per token (nats) on the
    whole target's own solutions.
    """

    layer: int | None
    accuracy: float
    loss: float


@dataclass(frozen=True)
class TinyReport:
    """What `evaluate` measured. `ablation` has one row for the whole target and one per layer;
    empty if it was not asked for.
    """

    problems: int
    temperature: float
    target_right: int
    draft_right: int
    tallies: dict[str, Tally]
    ablation: tuple[LayerSkipped, ...] = ()

    @property
    def target_accuracy(self) -> float:
        return self.target_right / self.problems

    @property
    def draft_accuracy(self) -> float:
        return self.draft_right / self.problems

    @property
    def total(self) -> Tally:
        return sum(self.tallies.values(), Tally())

    def table(self) -> str:
        """The report as Markdown: accuracy, then the rates by kind of step, then the ablation."""
        lines = [
            f"Held-out problems: {self.problems}, temperature {self.temperature}.",
            "",
            f"Accuracy: target {self.target_accuracy:.3f} ({self.target_right}/{self.problems}), "
            f"draft {self.draft_accuracy:.3f} ({self.draft_right}/{self.problems}).",
            "",
        ]
        kinds = [kind for kind in KINDS if kind in self.tallies]
        columns = {"all": self.total} | {kind: self.tallies[kind] for kind in kinds}
        lines += _rows(["", *columns], ["steps", *(str(tally.steps) for tally in columns.values())])
        for name in self.total.rates():
            lines.append(
                _row([name, *(f"{tally.rates()[name]:.3f}" for tally in columns.values())])
            )
        if self.ablation:
            lines += ["", "The target without one layer:", ""]
            names = ("none" if row.layer is None else str(row.layer) for row in self.ablation)
            lines += _rows(
                ["layer left out", *names],
                ["accuracy", *(f"{row.accuracy:.2f}" for row in self.ablation)],
            )
            lines.append(_row(["loss per token", *(f"{row.loss:.2f}" for row in self.ablation)]))
        return "\n".join(lines) + "\n"


def _rows(header: list[str], first: list[str]) -> list[str]:
    return [_row(header), _row(["---"] * len(header)), _row(first)]


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
