"""`lr verify`: pairs of steps that a run has kept, judged again by any verifier and compared with a
reference.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro
from rich.box import SIMPLE_HEAD
from rich.table import Table

from lr.commands.lab_models import LabChoice
from lr.commands.show import console
from lr.errors import SettingError
from lr.types import require

if TYPE_CHECKING:
    from lr.lab.eval.laboratory import KeptPair, Quality, Replayed

COLUMNS = {
    "pairs": "pairs",
    "accepted": "accepted",
    "error": "of them wrong",
    "precision": "precision",
    "recall": "recall",
    "auc": "ROC area",
    "average_precision": "PR area",
    "calibration_error": "calibration error",
    "ms_per_pair": "ms per pair",
    "order_flips": "flips by order",
    "order_shift": "score shift by order",
}


@dataclass(frozen=True)
class Verify:
    """Judge the pairs of a run again, with one or several verifiers: ROC, precision and recall,
    calibration, cost, sensitivity to order.
    """

    pairs: tyro.conf.Positional[Path]
    """The folder of a run with --save_pairs."""
    verifier: tuple[str, ...] = ("judge",)
    """Verifiers by name, such as judge:0.5 exact embedding:0.95."""
    reference: str | None = None
    """Who is right: a verifier by name. None: the oracle for the tiny language; for other models
    one has to be named.
    """
    models: LabChoice = field(default_factory=LabChoice)
    batch: int = 16
    """Pairs per call; what a decision costs depends on it."""
    json: Path | None = None
    """Also write every number and curve to this file."""
    figure: Path | None = None
    """Also draw ROC, precision and recall, acceptance and error, calibration. Needs matplotlib (the
    extra `plot`).
    """

    def run(self) -> None:
        from lr.lab.eval.laboratory import load_pairs

        require(self.batch >= 1, "batch", self.batch, "a whole number >= 1")
        if self.figure is not None:
            from lr.lab.eval.figure import require_matplotlib

            require_matplotlib()
        kept = load_pairs(self.pairs)
        found = self._judge(kept)
        _show({name: entry[1] for name, entry in found.items()})
        if self.json is not None:
            self.json.write_text(json.dumps(_document(found), indent=1) + "\n", encoding="utf-8")
        if self.figure is not None:
            for path in _draw(found, self.figure):
                console(stderr=True).print(f"drawn: {path}")

    def _judge(self, kept: Sequence[KeptPair]) -> dict[str, tuple[Replayed, Quality, list[bool]]]:
        from lr.lab.eval.laboratory import quality, replay, swapped
        from lr.spec.verifiers.base import Need, need_of

        lab = self.models.lab(self.pairs)
        reference = self.reference or ("oracle" if lab.tiny else None)
        if reference is None:
            raise SettingError(
                "who is right has to be said for models that do not speak the tiny language: --reference judge, for one."
            )
        pairs = [one.pair for one in kept]
        truth = [
            verdict.aligned
            for verdict in replay(lab.verifier_named(reference), pairs, self.batch).verdicts
        ]
        found = {}
        for name in self.verifier:
            verifier = lab.verifier_named(name)
            replay(
                verifier, pairs[: self.batch], self.batch
            )  # the first call pays for what is set up once
            made = replay(verifier, pairs, self.batch)
            compares = bool(need_of(verifier) & Need.TARGET_STEP)
            other = replay(verifier, swapped(pairs), self.batch) if compares else None
            found[name] = (made, quality(made, truth, other), truth)
        return found


def _show(found: dict[str, Quality]) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("verifier")
    for head in COLUMNS.values():
        table.add_column(head.replace(" ", "\n"), justify="right")
    for name, made in found.items():
        values = [getattr(made, field) for field in COLUMNS]
        table.add_row(
            name,
            *("" if v is None else str(v) if isinstance(v, int) else f"{v:.3f}" for v in values),
        )
    console().print(table)


def _document(found: dict[str, tuple[Replayed, Quality, list[bool]]]) -> dict[str, Any]:
    from lr.lab.eval.laboratory import curve

    return {
        name: asdict(made) | {"curve": [asdict(point) for point in curve(replayed.scores, truth)]}
        for name, (replayed, made, truth) in found.items()
    }


def _draw(found: dict[str, tuple[Replayed, Quality, list[bool]]], path: Path) -> list[Path]:
    from lr.lab.eval.figure import Points, draw
    from lr.lab.eval.laboratory import curve, reliability

    roc, recall, errors, calibrated = [], [], [], []
    for name, (made, _, truth) in found.items():
        points = curve(made.scores, truth)
        roc.append((name, [(0.0, 0.0, ""), *((p.false_rate, p.true_rate, "") for p in points)]))
        recall.append((name, [(p.true_rate, 1 - p.error, "") for p in points]))
        errors.append((name, [(p.accepted, p.error, "") for p in points]))
        if all(0 <= score <= 1 for score in made.scores):
            calibrated.append(
                (name, [(mean, share, "") for mean, share, _ in reliability(made.scores, truth)])
            )
    return draw(
        [
            Points(
                "ROC",
                "false pairs accepted",
                "true pairs accepted",
                roc,
                joined=True,
                diagonal=True,
            ),
            Points("precision and recall", "recall", "precision", recall, joined=True),
            Points("acceptance and error", "share accepted", "of them wrong", errors, joined=True),
            Points(
                "calibration",
                "mean score",
                "share that is true",
                calibrated,
                joined=True,
                diagonal=True,
            ),
        ],
        path,
    )
