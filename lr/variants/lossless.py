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

from lr.engine.verifiers import asked_model
from lr.errors import SettingError
from lr.reasoner import Reasoner
from lr.rng import uniform
from lr.spec.sampling import distribution, step_logprobs
from lr.spec.variant import Correction, Corrector, Variant
from lr.spec.verifiers.base import Pair, Requires, Verifier
from lr.spec.verifiers.judge import PrefixCache, PromptRow
from lr.types import Finish, SamplingParams, Step, Verdict


def stays(log_p: float, log_q: float) -> float:
    """min(1, p / q)."""
    return math.exp(min(0.0, log_p - log_q))


def corrects(log_p: float, log_q: float) -> float:
    """(1 - q / p)+."""
    return 1.0 - math.exp(min(0.0, log_q - log_p))


class StepRejection(Verifier, Corrector):
    """Verifier and corrector in one. `draft` computes q for the target's steps."""

    name, requires = "lossless", Requires.SAMPLING_LOGPROBS

    def __init__(self, draft: PrefixCache) -> None:
        self.draft = draft

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [self._decide(pair) for pair in pairs]

    def _decide(self, pair: Pair) -> Verdict:
        assert pair.stream is not None
        assert pair.target_sampling is not None and pair.draft_sampling is not None
        # Without log q no model drew the step, so it was certain: log q = 0.
        chance = stays(math.fsum(pair.target_sampling), math.fsum(pair.draft_sampling))
        number = uniform(pair.stream.key(0))
        why = f"stays with {chance:.3g}, drew {number:.3f}"
        return Verdict(number < chance, why, chance)

    def keep(self, correction: Correction, step: Step, number: float) -> bool:
        if len(correction.rejected) > 1:
            raise SettingError(
                "width is more than 1; lossless step rejection needs width 1."
            )
        log_p = math.fsum(correction.logprobs)
        certain = [
            pair.draft for pair in correction.rejected if not pair.draft_sampling
        ]
        if step.finish is Finish.LENGTH:
            log_q = -math.inf
        elif certain:
            log_q = 0.0 if step.tokens == certain[0].tokens else -math.inf
        else:
            log_q = self.log_q(correction.prefix, step, correction.sampling)
        return number < corrects(log_p, log_q)

    def log_q(
        self, prefix: Sequence[int], step: Step, sampling: SamplingParams
    ) -> float:
        """log q of a whole step under the draft's sampling distribution."""
        row = PromptRow(
            [*prefix, *step.tokens[:-1]], wanted=len(step.tokens), keep=len(prefix)
        )
        [logits] = self.draft.logits([row])
        assert not isinstance(logits, Exception), logits
        return math.fsum(
            step_logprobs(distribution(logits, sampling).log(), step.tokens)
        )


def lossless(reasoner: Reasoner) -> Variant:
    """Speculative sampling on steps. Needs a draft."""
    if reasoner.engine.draft is None:
        raise SettingError(
            "the draft is None, expected a model, whose probabilities are needed."
        )
    asked = PrefixCache(asked_model(reasoner.engine.draft, reasoner.codec).runner)
    rejection = StepRejection(asked)
    return Variant(rejection, corrector=rejection)
