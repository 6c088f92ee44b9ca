"""Evaluates verifiers on pairs of steps that runs have saved.

`PairRecorder` saves every pair that a run's verifier judges: context, draft step and
target step as token ids, and the verdict. `replay` asks any verifier about them again,
and `quality` compares it with a reference: the oracle of the tiny language, or a larger
judge. For a verifier with a score the user chooses a threshold, so `curve` gives all of
them: how much is accepted, and how much of that the reference rejects."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from msgspec import ValidationError, convert, to_builtins

from lr.errors import SettingError
from lr.measure.datasets import Item
from lr.measure.report import column
from lr.measure.store import AnswerKey, Store
from lr.spec.verifiers.base import Pair, Requires, Verifier, verdicts_of
from lr.spec.verifiers.named import Around
from lr.types import Step, Verdict


class PairRecorder(Around):
    """Judges as `verifier` does, and keeps every pair with its verdict in `seen`.
    `requires`: what a pair must have besides, for a verifier that judges it later
    (`replay`)."""

    def __init__(
        self, verifier: Verifier, requires: Requires = Requires.NOTHING
    ) -> None:
        super().__init__(verifier)
        self.requires, self.seen = (
            verifier.requires | requires,
            list[tuple[Pair, Verdict]](),
        )

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        verdicts = verdicts_of(self.verifier, pairs)
        self.seen += zip(pairs, verdicts, strict=True)
        return verdicts

    def take(self, prompt: Sequence[int], item: Item) -> dict[str, Any]:
        """Remove the pairs that begin with this prompt, and return them as JSON."""
        begin, seen, self.seen = tuple(prompt), self.seen, []
        n, mine = len(begin), []
        for pair, verdict in seen:
            if pair.prefix[:n] == begin:
                mine.append(KeptPair(pair.prefix[n:], pair.draft, pair.target, verdict))
            else:
                self.seen.append((pair, verdict))
        head = {
            "question_id": item.number,
            "verifier": self.name,
            "prompt": list(begin),
        }
        return head | {"pairs": to_builtins(mine)}


@dataclass(frozen=True)
class KeptPair:
    """A pair as stored in a file; `context` follows the prompt."""

    context: tuple[int, ...]
    draft: Step
    target: Step | None
    verdict: Verdict


@dataclass(frozen=True)
class SavedPair:
    """A pair, the answer that it comes from, and the verdict of the run's own
    verifier."""

    key: AnswerKey
    pair: Pair
    aligned: bool


def load_pairs(
    folder: Path, keys: Collection[AnswerKey] | None = None
) -> list[SavedPair]:
    """The pairs of a run, given its folder or the folder pairs/ in it; with `keys`,
    those of these answers. Raises `SettingError` for a damaged pair and, without
    `keys`, if there is no pair."""
    place = folder / "pairs" if (folder / "pairs").is_dir() else folder
    found = []
    for key, content in Store(place).results():
        for one in content.get("pairs", ()) if keys is None or key in keys else ():
            try:
                kept = convert(one, KeptPair)
                pair = Pair(
                    (*content["prompt"], *kept.context), kept.draft, kept.target
                )
                found.append(SavedPair(key, pair, kept.verdict.aligned))
            except (KeyError, ValidationError) as error:
                raise SettingError(
                    f"{place / key.file} has a damaged pair ({error}). Remove the file, or run "
                    "lr run --save_pairs again."
                ) from error
    if not found and keys is None:
        raise SettingError(
            f"{folder} has no pairs of steps; lr run --save_pairs keeps them."
        )
    return found


@dataclass(frozen=True)
class ReplayedVerdicts:
    """A verifier's verdicts on pairs, in order, and its total seconds."""

    verdicts: tuple[Verdict, ...]
    seconds: float

    @property
    def scores(self) -> list[float]:
        """One number per pair that grows with agreement: the score or, without one, an
        extreme."""
        known = [
            verdict.score for verdict in self.verdicts if verdict.score is not None
        ]
        low, high = (min(known), max(known)) if known else (0.0, 1.0)
        edge = (0.0, 1.0) if low >= 0 and high <= 1 else (low - 1.0, high + 1.0)
        return [
            edge[one.aligned] if one.score is None else one.score
            for one in self.verdicts
        ]


def replay(
    verifier: Verifier, pairs: Sequence[Pair], batch: int = 16
) -> ReplayedVerdicts:
    """Ask a verifier about pairs again, `batch` at a time. Pairs lack the target's
    log-probabilities; a verifier that needs them must compute them. Raises
    `SettingError` if the verifier needs a target step and a pair has none."""
    if verifier.requires & Requires.TARGET_STEP and any(
        pair.target is None for pair in pairs
    ):
        raise SettingError(
            f"verifier {verifier.name} compares with the target's step, and some pairs have none. "
            "Keep pairs in a run whose verifier compares, such as judge."
        )
    verdicts: list[Verdict] = []
    started = time.perf_counter()
    for first in range(0, len(pairs), batch):
        verdicts += verdicts_of(verifier, pairs[first : first + batch])
    return ReplayedVerdicts(tuple(verdicts), time.perf_counter() - started)


def swapped(pairs: Sequence[Pair]) -> list[Pair]:
    """The same pairs with draft and target step exchanged."""
    return [replace(pair, draft=pair.target_step, target=pair.draft) for pair in pairs]


@dataclass(frozen=True)
class Quality:
    """A verifier compared with a reference. `accepted`: the share it accepts. `error`:
    the share of those that the reference rejects. `order_flips`, `order_shift`: the
    share of verdicts that change, and the mean change of the score, when draft and
    target step are swapped."""

    pairs: int = column("pairs")
    accepted: float = column("accepted")
    error: float | None = column("of them wrong")
    precision: float | None = column("precision")
    recall: float | None = column("recall")
    auc: float | None = column("ROC area")
    average_precision: float | None = column("PR area")
    calibration_error: float | None = column("calibration error")
    ms_per_pair: float = column("ms per pair")
    order_flips: float | None = column("flips by order", default=None)
    order_shift: float | None = column("score shift by order", default=None)


def quality(
    made: ReplayedVerdicts,
    truth: Sequence[bool],
    other_order: ReplayedVerdicts | None = None,
) -> Quality:
    """The numbers of one verifier. `other_order`: its verdicts with the steps
    swapped."""
    said, scores = [verdict.aligned for verdict in made.verdicts], made.scores
    count, accepted, aligned = len(said), sum(said), sum(truth)
    both = sum(a and b for a, b in zip(said, truth, strict=True))
    graded = any(verdict.score is not None for verdict in made.verdicts)
    flips = shift = None
    if other_order is not None:
        swaps = zip(made.verdicts, other_order.verdicts, strict=True)
        flips = fmean(a.aligned != b.aligned for a, b in swaps)
        shifts = (abs(a - b) for a, b in zip(scores, other_order.scores, strict=True))
        shift = fmean(shifts) if graded else None
    return Quality(
        pairs=count,
        accepted=accepted / count,
        error=(accepted - both) / accepted if accepted else None,
        precision=both / accepted if accepted else None,
        recall=both / aligned if aligned else None,
        auc=auc(scores, truth),
        average_precision=average_precision(scores, truth),
        calibration_error=calibration_error(scores, truth) if graded else None,
        ms_per_pair=1000 * made.seconds / count,
        order_flips=flips,
        order_shift=shift,
    )


@dataclass(frozen=True)
class Threshold:
    """The result of accepting pairs with at least this `score`: the accepted shares of
    the true, the false and all pairs; `error`: the share of accepted pairs that is
    false."""

    score: float
    true_rate: float
    false_rate: float
    accepted: float
    error: float


def curve(scores: Sequence[float], truth: Sequence[bool]) -> list[Threshold]:
    """One point per distinct score, from the strictest threshold to the loosest. They
    hold the ROC curve, precision and recall, acceptance and error.

    Example: scores (3, 2, 1), truth (yes, no, yes): threshold 3 accepts half of the
    true pairs and no false one, threshold 2 half of the true and all false ones."""
    positive, negative = sum(truth), len(truth) - sum(truth)
    pairs = sorted(zip(scores, truth, strict=True), key=lambda pair: -pair[0])
    points, true, accepted = [], 0, 0
    for score, equal in groupby(pairs, key=lambda pair: pair[0]):
        rights = [right for _, right in equal]
        true, accepted = true + sum(rights), accepted + len(rights)
        false = accepted - true
        rates = (
            true / max(positive, 1),
            false / max(negative, 1),
        )  # 0 without such a pair
        points.append(Threshold(score, *rates, accepted / len(pairs), false / accepted))
    return points


def auc(scores: Sequence[float], truth: Sequence[bool]) -> float | None:
    """The area under the ROC curve: how often a true pair scores above a false one,
    where a tie counts half. None unless there are pairs of both kinds."""
    if all(truth) or not any(truth):
        return None
    points = [
        (0.0, 0.0),
        *((one.false_rate, one.true_rate) for one in curve(scores, truth)),
    ]
    return sum((x - left) * (y + low) / 2 for (left, low), (x, y) in pairwise(points))


def average_precision(scores: Sequence[float], truth: Sequence[bool]) -> float | None:
    """The area under the precision-recall curve as a sum of steps; None without a true
    pair."""
    points = curve(scores, truth)
    gains = np.diff([0.0, *(one.true_rate for one in points)])
    return (
        float(np.dot(gains, [1 - one.error for one in points])) if any(truth) else None
    )


def reliability(
    scores: Sequence[float], truth: Sequence[bool]
) -> list[tuple[float, float, int]]:
    """For each non-empty tenth of [0, 1]: mean score, share of true pairs, number of
    pairs."""
    score, right = np.array(scores), np.array(truth, dtype=float)
    bins = np.minimum(9, (10 * score).astype(int))
    masks = [bins == number for number in np.unique(bins)]
    return [
        (float(score[m].mean()), float(right[m].mean()), int(m.sum())) for m in masks
    ]


def calibration_error(scores: Sequence[float], truth: Sequence[bool]) -> float | None:
    """The mean |score - true share| over `reliability`; None for scores outside [0, 1]."""
    if any(not 0 <= score <= 1 for score in scores):
        return None
    bins = reliability(scores, truth)
    return sum(count * abs(mean - share) for mean, share, count in bins) / len(scores)
