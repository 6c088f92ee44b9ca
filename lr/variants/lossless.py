"""Lossless step rejection (ours): speculative sampling on whole steps instead of
tokens.

    lr generate --variant lossless

The answer has the target's distribution. A draft step is kept with probability min(1, p
/ q), where p and q are its probabilities under target and draft. After a rejection the
step comes from the residual (p - q)+. The residual cannot be listed, but drawn: the
target writes a step t and keeps it with probability (1 - q(t) / p(t))+, else it writes
another. A cut step counts as q = 0. `tests/variants/test_lossless.py` sums over all
outcomes in a small world: the result is exactly p.

Few draft steps are kept: over the tokens of a step, p / q is small even for close
models. If a draft step is rejected with probability r, the target writes 1 / r steps on
average to replace it, in total one per position. So this saves latency, but no work of
the target. The form of the idea that pays is `--mode sd --acceptance block`. Needs
width 1 and coupling independent."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lr.reasoner import Reasoner
from lr.rng import uniform
from lr.spec.sampling import distribution, step_logprobs
from lr.spec.variant import Correction, Corrector, Variant
from lr.spec.verifiers.base import Pair, Requires, Verifier
from lr.spec.verifiers.judge import PrefixCache, PromptRow
from lr.types import Finish, Step, Verdict, require
from lr.variants.scorers import asked_draft


def stays(log_p: float, log_q: float) -> float:
    """min(1, p / q)."""
    return math.exp(min(0.0, log_p - log_q))


def corrects(log_p: float, log_q: float) -> float:
    """(1 - q / p)+."""
    return 1.0 - math.exp(min(0.0, log_q - log_p))


class StepRejection(Verifier, Corrector):
    """Verifier and corrector in one. `draft` computes q for the target's steps."""

    name = "lossless"
    requires = Requires.SAMPLING_LOGPROBS

    def __init__(self, draft: PrefixCache) -> None:
        self.draft = draft

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [self.decide(pair) for pair in pairs]

    def decide(self, pair: Pair) -> Verdict:
        """Accept with probability min(1, p / q)."""
        assert pair.stream is not None
        assert pair.target_sampling is not None and pair.draft_sampling is not None
        # Without log q no model drew the step, so it was certain: log q = 0.
        chance = stays(math.fsum(pair.target_sampling), math.fsum(pair.draft_sampling))
        number = uniform(pair.stream.key(0))
        reason = f"stays with {chance:.3g}, drew {number:.3f}"
        return Verdict(number < chance, reason, chance)

    def keep(self, correction: Correction, step: Step, number: float) -> bool:
        width = len(correction.rejected)
        require(width < 2, "width", width, "1: a step has one rival")
        log_q = self.log_q(correction, step)
        return number < corrects(math.fsum(correction.logprobs), log_q)

    def log_q(self, correction: Correction, step: Step) -> float:
        """log q of a whole step under the draft's sampling distribution."""
        if step.finish is Finish.LENGTH:
            return -math.inf
        for pair in correction.rejected:
            if not pair.draft_sampling:  # the draft step was certain
                return 0.0 if step.tokens == pair.draft.tokens else -math.inf
        tokens = [*correction.prefix, *step.tokens[:-1]]
        row = PromptRow(tokens, wanted=len(step.tokens), keep=len(correction.prefix))
        [logits] = self.draft.logits([row])
        assert not isinstance(logits, Exception), logits
        log_q = distribution(logits, correction.sampling).log()
        return math.fsum(step_logprobs(log_q, step.tokens))


def lossless(reasoner: Reasoner) -> Variant:
    """Speculative sampling on steps. Needs a draft."""
    rejection = StepRejection(PrefixCache(asked_draft(reasoner).runner))
    return Variant(rejection, corrector=rejection)
