"""SpecGuard (Purohit, Narayanam and Pal, arXiv 2604.15244): of several drafts the most
consistent one, kept if the target's own signals agree.

    lr generate --variant specguard
    lr generate --variant "specguard(width=4, threshold=0.5)"

The draft writes several versions of a step. The one that has most in common with the
others is taken, if its score reaches the threshold; else the target writes the step.
The score joins how well the step is grounded in the prompt and the accepted steps with
how likely the target finds its tokens. One part: a verifier, which scores each version
and whose `choose` takes one of them. No third model, no target step beside an
accepted draft.

Faithful: several candidates, the most consistent, two signals, one threshold.
Different: the paper measures grounding by the target's attention, which no part is
handed; here it is the share of the step's tokens that stand in the text before it. It
leaves open how alike two steps are; here by the tokens that they share."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from lr.reasoner import Reasoner
from lr.spec.variant import Variant
from lr.spec.verifiers.base import Pair, Requires, Verifier
from lr.types import Step, Verdict


class Grounded(Verifier):
    """Scores grounding and likelihood; takes the most consistent alternative."""

    name = "specguard"
    requires = Requires.TARGET_LOGPROBS

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [self.score(pair) for pair in pairs]

    def score(self, pair: Pair) -> Verdict:
        """The mean of both signals, each from 0 to 1."""
        assert pair.logprobs is not None
        before = set(pair.prefix)
        tokens = pair.draft.tokens
        # 1. of the step's tokens, those that stand before it
        grounded = sum(token in before for token in tokens) / len(tokens)
        # 2. the geometric mean of the target's probabilities of its tokens
        likely = math.exp(math.fsum(pair.logprobs) / len(tokens))
        score = (grounded + likely) / 2
        reason = f"{grounded:.2f} grounded, {likely:.2f} likely"
        return Verdict(score >= self.threshold, reason, score)

    def choose(self, drafts: Sequence[Step], verdicts: Sequence[Verdict]) -> int | None:
        # a draft is consistent if it shares much with all versions, itself included
        common = [sum(overlap(draft, rival) for rival in drafts) for draft in drafts]
        best = common.index(max(common))
        return best if verdicts[best].aligned else None


def overlap(first: Step, second: Step) -> float:
    """The share of tokens that two steps have in common."""
    # as bags: order does not count, repetition does
    shared = (Counter(first.tokens) & Counter(second.tokens)).total()
    return 2 * shared / (len(first.tokens) + len(second.tokens))


def specguard(reasoner: Reasoner, *, width: int = 3, threshold: float = 0.6) -> Variant:
    """Take the most consistent of `width` drafts from the score `threshold` on."""
    settings = {"width": width, "depth": 1, "schedule": "sync"}
    return Variant(Grounded(threshold), settings=settings)
