"""How well a judge agrees with the oracle, and how long it takes: agreement, precision, recall, an
ROC curve, milliseconds per batch.

Every pair is judged in both orders, and both count. Precision: of the pairs it accepts, how many
mean the same. Recall: of those that mean the same, how many it accepts. A point of the ROC curve is
a threshold: which share of the different pairs it would accept, and which share of the equal ones.
The area under the curve is the chance that of an equal and a different pair the equal one scores
higher.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from lr.spec.verifiers.base import Pair, Verifier
from lr.tiny.pairs import TextPair, kind_of_difference
from lr.types import Finish, Step

THRESHOLDS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
JUDGED_AT_ONCE = 64


@dataclass(frozen=True)
class JudgeReport:
    """Scores of judged pairs, each with the truth and with what tells the two steps apart."""

    scores: tuple[float, ...]
    truths: tuple[bool, ...]
    kinds: tuple[str, ...]

    def accepted(self, threshold: float, same: bool) -> int:
        """How many pairs of a class score at least `threshold`."""
        return sum(
            score >= threshold
            for score, truth in zip(self.scores, self.truths, strict=True)
            if truth is same
        )

    def agreement(self, threshold: float = 0.5) -> float:
        """The share of verdicts that are the oracle's."""
        right = (
            self.accepted(threshold, True)
            + self.truths.count(False)
            - self.accepted(threshold, False)
        )
        return right / len(self.truths)

    def precision(self, threshold: float = 0.5) -> float:
        accepted = self.accepted(threshold, True) + self.accepted(threshold, False)
        return self.accepted(threshold, True) / accepted if accepted else 1.0

    def recall(self, threshold: float = 0.5) -> float:
        return self.accepted(threshold, True) / max(1, self.truths.count(True))

    def false_accepts(self, threshold: float = 0.5) -> float:
        """The share of different pairs that are accepted."""
        return self.accepted(threshold, False) / max(1, self.truths.count(False))

    @property
    def area(self) -> float:
        """The area under the ROC curve; ties count half."""
        same = [score for score, truth in zip(self.scores, self.truths, strict=True) if truth]
        other = [score for score, truth in zip(self.scores, self.truths, strict=True) if not truth]
        wins = sum((a > b) + 0.5 * (a == b) for a in same for b in other)
        return wins / (len(same) * len(other))

    def order_agreement(self, threshold: float = 0.5) -> float:
        """The share of pairs that are judged alike in both orders (the second half of the scores is
        the first in the other order).
        """
        half = len(self.scores) // 2
        alike = [
            (a >= threshold) == (b >= threshold)
            for a, b in zip(self.scores[:half], self.scores[half:], strict=True)
        ]
        return sum(alike) / half

    def mistakes(self, threshold: float = 0.5) -> dict[str, tuple[int, int]]:
        """By what tells the steps apart ("" where nothing does): verdicts that are not the
        oracle's, and verdicts.
        """
        wrong: Counter[str] = Counter()
        for score, truth, kind in zip(self.scores, self.truths, self.kinds, strict=True):
            wrong[kind] += (score >= threshold) != truth
        return {kind: (wrong[kind], count) for kind, count in sorted(Counter(self.kinds).items())}


def judge_pairs(
    verifier: Verifier, encode: Callable[[str], list[int]], pairs: Sequence[TextPair]
) -> JudgeReport:
    """Put pairs, in both orders, to a verifier that gives scores."""
    both = [*pairs, *(TextPair(pair.second, pair.first, pair.same) for pair in pairs)]
    asked = [as_pair(pair, encode) for pair in both]
    scores = []
    for first in range(0, len(asked), JUDGED_AT_ONCE):
        scores += [
            verdict.score or 0.0
            for verdict in verifier.judge(asked[first : first + JUDGED_AT_ONCE])
        ]
    return JudgeReport(
        tuple(scores), tuple(pair.same for pair in both), tuple(map(kind_of_difference, both))
    )


def milliseconds(
    verifier: Verifier,
    encode: Callable[[str], list[int]],
    pairs: Sequence[TextPair],
    batch: int,
    repeats: int = 30,
) -> float:
    """The median time of one call with `batch` pairs, over `repeats` calls with different pairs,
    after three that do not count.
    """
    asked = [as_pair(pair, encode) for pair in pairs]
    times = []
    for call in range(repeats + 3):
        chosen = [asked[(call * batch + i) % len(asked)] for i in range(batch)]
        began = time.perf_counter()
        verifier.judge(chosen)
        times.append(1e3 * (time.perf_counter() - began))
    return median(times[3:])


def as_pair(pair: TextPair, encode: Callable[[str], list[int]]) -> Pair:
    """The pair as a verifier gets it: the first text is the target's step, the second the
    draft's.
    """
    target, draft = (
        Step(tuple(encode(text + "\n\n")), Finish.BOUNDARY) for text in (pair.first, pair.second)
    )
    return Pair((0,), draft, target)
