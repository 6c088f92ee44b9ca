"""The verifier laboratory: pairs of steps that a run has kept, judged again by any verifier, and
compared with a reference.

A verifier with a score has a threshold to be chosen, so what matters is the whole curve: how much
is accepted and how much of that the reference rejects. A reference is the oracle of the tiny
language, or a larger judge. Everything here is pure but `replay`, which asks. Read next:
`keeping.py`, which wrote the pairs; `drift.py`, which asks what the accepted steps have cost.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lr.errors import SettingError
from lr.lab.eval.keeping import pair_from_json
from lr.lab.eval.store import Key, read_object
from lr.spec.verifiers.base import Pair, Requires, Verifier, verdicts_of
from lr.types import Verdict

BINS = 10


@dataclass(frozen=True)
class KeptPair:
    """A pair, the problem it comes from, and what the run's own verifier said."""

    key: Key
    pair: Pair
    aligned: bool


def load_pairs(folder: Path) -> list[KeptPair]:
    """The pairs of a run (its folder, or the folder pairs/ in it), with both steps. Raises
    `SettingError` where there are none.
    """
    place = folder / "pairs" if (folder / "pairs").is_dir() else folder
    files = sorted(
        (key, path) for path in place.glob("*.json") if (key := Key.of(path.name)) is not None
    )
    found = []
    for key, path in files:
        content = read_object(path)
        if "pairs" not in content:
            break
        for one in content["pairs"]:
            found.append(
                KeptPair(
                    key, pair_from_json(one, content["prompt"]), bool(one["verdict"]["aligned"])
                )
            )
    if not found:
        raise SettingError(
            f"{folder} has no pairs of steps; a run keeps them with lr run --mode lr --save_pairs."
        )
    return found


@dataclass(frozen=True)
class Replayed:
    """What a verifier said about pairs, in order, and the seconds that it took in all."""

    verdicts: tuple[Verdict, ...]
    seconds: float

    @property
    def scores(self) -> list[float]:
        """A number per pair that grows with agreement: the verifier's score; where it decided
        without one, below or above all scores.
        """
        known = [verdict.score for verdict in self.verdicts if verdict.score is not None]
        low, high = (min(known), max(known)) if known else (0.0, 1.0)
        edge = (low - 1.0, high + 1.0) if known and not (low >= 0 and high <= 1) else (0.0, 1.0)
        return [
            edge[verdict.aligned] if verdict.score is None else verdict.score
            for verdict in self.verdicts
        ]


def replay(verifier: Verifier, pairs: Sequence[Pair], batch: int = 16) -> Replayed:
    """Ask a verifier about pairs again, `batch` at a time. Pairs lack the target's
    log-probabilities; a verifier that needs them computes them, if it can. Raises `SettingError`
    for a verifier that needs a target step where a pair has none."""
    if verifier.requires & Requires.TARGET_STEP and any(pair.target is None for pair in pairs):
        raise SettingError(
            f"verifier {verifier.name} compares with the target's step, and some pairs have none: they were kept in a run whose verifier "
            "judges alone. Keep pairs with a verifier that compares, such as judge."
        )
    verdicts: list[Verdict] = []
    started = time.perf_counter()
    for first in range(0, len(pairs), batch):
        verdicts += verdicts_of(verifier, pairs[first : first + batch])
    return Replayed(tuple(verdicts), time.perf_counter() - started)


def swapped(pairs: Sequence[Pair]) -> list[Pair]:
    """The same pairs with draft and target in each other's place."""
    return [replace(pair, draft=pair.target_step, target=pair.draft) for pair in pairs]


@dataclass(frozen=True)
class Quality:
    """A verifier against a reference. `accepted`: the share it accepts; `error`: the share of those
    that the reference rejects.
    """

    pairs: int
    accepted: float
    error: float | None
    precision: float | None
    recall: float | None
    auc: float | None
    average_precision: float | None
    calibration_error: float | None
    ms_per_pair: float
    order_flips: float | None = None
    order_shift: float | None = None


def quality(made: Replayed, truth: Sequence[bool], other_order: Replayed | None = None) -> Quality:
    """The numbers of one verifier. `other_order`: what it says with the steps swapped."""
    said = [verdict.aligned for verdict in made.verdicts]
    accepted, aligned = sum(said), sum(truth)
    both = sum(a and b for a, b in zip(said, truth, strict=True))
    graded = any(verdict.score is not None for verdict in made.verdicts)
    flips = shift = None
    if other_order is not None:
        flips = sum(
            a.aligned != b.aligned for a, b in zip(made.verdicts, other_order.verdicts, strict=True)
        ) / len(said)
        shifts = [abs(a - b) for a, b in zip(made.scores, other_order.scores, strict=True)]
        shift = math.fsum(shifts) / len(shifts) if graded else None
    return Quality(
        pairs=len(said),
        accepted=accepted / len(said),
        error=(accepted - both) / accepted if accepted else None,
        precision=both / accepted if accepted else None,
        recall=both / aligned if aligned else None,
        auc=auc(made.scores, truth),
        average_precision=average_precision(made.scores, truth),
        calibration_error=calibration_error(made.scores, truth) if graded else None,
        ms_per_pair=1000 * made.seconds / len(said),
        order_flips=flips,
        order_shift=shift,
    )


@dataclass(frozen=True)
class Threshold:
    """What accepting from `score` on gives: the accepted shares of the true, the false, and all
    pairs; of the accepted, the wrong.
    """

    score: float
    true_rate: float
    false_rate: float
    accepted: float
    error: float


def curve(scores: Sequence[float], truth: Sequence[bool]) -> list[Threshold]:
    """One point per distinct score, from the strictest threshold to the loosest; ROC, precision and
    recall, acceptance and error in one.

    Example: scores (3, 2, 1), truth (yes, no, yes): from 3 on half of the true and nothing false,
    from 2 on half and all of the false.
    """
    positive, negative = sum(truth), len(truth) - sum(truth)
    ordered = sorted(zip(scores, truth, strict=True), key=lambda pair: -pair[0])
    points, true, false = [], 0, 0
    for place, (score, right) in enumerate(ordered):
        true, false = true + right, false + (not right)
        if place + 1 == len(ordered) or ordered[place + 1][0] != score:
            points.append(
                Threshold(
                    score,
                    true / positive if positive else 0.0,
                    false / negative if negative else 0.0,
                    (true + false) / len(ordered),
                    false / (true + false),
                )
            )
    return points


def auc(scores: Sequence[float], truth: Sequence[bool]) -> float | None:
    """The area under the ROC curve: how often a true pair scores above a false one, ties as halves;
    None without both kinds.
    """
    if all(truth) or not any(truth):
        return None
    area, last = 0.0, (0.0, 0.0)
    for point in curve(scores, truth):
        area += (point.false_rate - last[0]) * (point.true_rate + last[1]) / 2
        last = (point.false_rate, point.true_rate)
    return area


def average_precision(scores: Sequence[float], truth: Sequence[bool]) -> float | None:
    """The area under the precision-recall curve as a sum of steps; None without a true pair."""
    if not any(truth):
        return None
    total, last = 0.0, 0.0
    for point in curve(scores, truth):
        total += (point.true_rate - last) * (1 - point.error)
        last = point.true_rate
    return total


def reliability(scores: Sequence[float], truth: Sequence[bool]) -> list[tuple[float, float, int]]:
    """Ten equal bins of scores in [0, 1]: the mean score, the share that is true, the number of
    pairs; empty bins are left out.
    """
    bins: dict[int, list[tuple[float, bool]]] = {}
    for score, right in zip(scores, truth, strict=True):
        bins.setdefault(min(BINS - 1, int(score * BINS)), []).append((score, right))
    return [
        (math.fsum(s for s, _ in some) / len(some), sum(r for _, r in some) / len(some), len(some))
        for _, some in sorted(bins.items())
    ]


def calibration_error(scores: Sequence[float], truth: Sequence[bool]) -> float | None:
    """The mean gap between score and share over the bins, weighted by their pairs; None for scores
    that are no probabilities.
    """
    if any(not 0 <= score <= 1 for score in scores):
        return None
    return sum(
        count * abs(mean - share) for mean, share, count in reliability(scores, truth)
    ) / len(scores)
