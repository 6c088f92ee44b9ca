"""The score verifier: the target rates the draft step from 0 to 9, as in SpecReason (arXiv
2504.07891). No target step is written.

The question is put behind the draft step in the target's own text, as token ids: the chain is never
encoded again, and what is cached of it is used again for the next step. The ten digits'
probabilities come from one forward. The paper compared thresholds 7 and 9 and found the scores
lenient (Table 2): a step can deserve a 9 and still not be what the target would have written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum

from torch import Tensor

from lr.spec.verifiers.answers import part, read_answer
from lr.spec.verifiers.asked import AskedModel
from lr.spec.verifiers.base import Need, Pair
from lr.spec.verifiers.kept import KeptPrefixes, Row
from lr.spec.verifiers.prompts import SCORE_QUESTION
from lr.types import Verdict, require


class Reading(Enum):
    """How ten probabilities become one score."""

    EXPECTED = "expected"
    """The mean digit."""
    LIKELIEST = "likeliest"
    """The digit that greedy decoding would write."""


class ScoreVerifier:
    """Accepts iff the target's score of the draft step is at least `threshold`.

    `target` is the target itself, or whoever else is to rate. Where the digits together hold less
    than `least_mass` of the probability, no score was given, and the step is rejected for that.
    """

    name = "score"
    need = Need.NOTHING

    def __init__(
        self,
        target: AskedModel,
        *,
        threshold: float = 7.0,
        reading: Reading = Reading.EXPECTED,
        question: str = SCORE_QUESTION,
        least_mass: float = 0.01,
    ) -> None:
        require(0 <= threshold <= 9, "threshold", threshold, "a score, 0 to 9")
        require(0 <= least_mass <= 1, "least_mass", least_mass, "a probability, 0 to 1")
        self.threshold, self.reading, self.least_mass = threshold, reading, least_mass
        self.parting = part([target.encode(f" {digit}") for digit in range(10)])
        self.question = [*target.encode(question), *self.parting.common]
        self.prefixes = KeptPrefixes(target.runner)

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        rows = [
            Row(
                [*pair.prefix, *pair.draft.tokens, *self.question],
                keep=len(pair.prefix) + len(pair.draft.tokens),
            )
            for pair in pairs
        ]
        return [self._verdict(logits[-1]) for logits in self.prefixes.logits(rows)]

    def close(self) -> None:
        """Give the cached chains back; the next call computes them anew."""
        self.prefixes.close()

    def _verdict(self, logits: Tensor) -> Verdict:
        p, mass = read_answer(logits, self.parting)
        if math.isnan(mass):
            return Verdict(aligned=False, why="the target's probabilities are not numbers")
        if mass < self.least_mass:
            return Verdict(
                aligned=False, why=f"the target gives no score (the ten digits hold {mass:.1e})"
            )
        if self.reading is Reading.EXPECTED:
            score = sum(digit * weight for digit, weight in enumerate(p))
        else:
            score = float(max(range(10), key=p.__getitem__))
        return Verdict(
            score >= self.threshold, why=f"the target scores it {score:.2f} of 9", score=score
        )
