"""The likelihood verifier: would the target have written this? The mean log-probability of the
draft step's tokens under the target.

The draft step passes through the target anyway, as the prefix of the next target step; that prefill
yields the log-probabilities for free (`step_logprobs`), and no target step has to be written to
judge. Where the pairs do not hold them, they are computed by a prefill of the verifier's own. The
score is in nats per token: -1 means that a token was, in the geometric mean, given 37 %.

It prefers the target's wording, not only its meaning; a threshold that suits one pair of models
does not suit another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lr.errors import ProtocolError
from lr.spec.runner import Runner
from lr.spec.verifiers.base import Need, Pair
from lr.spec.verifiers.kept import KeptPrefixes, Row
from lr.types import Verdict, require


class LikelihoodVerifier:
    """Accepts iff the mean log-probability per token is at least `threshold` (nats, at most 0).

    `runner` runs the target where pairs come without log-probabilities; without it such a pair is a
    ProtocolError.
    """

    name = "likelihood"
    need = Need.TARGET_LOGPROBS

    def __init__(self, threshold: float = -1.0, runner: Runner | None = None) -> None:
        require(threshold <= 0, "threshold", threshold, "a mean log-probability in nats, at most 0")
        self.threshold = threshold
        self.prefixes = None if runner is None else KeptPrefixes(runner)

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        computed = iter(self._compute([pair for pair in pairs if pair.logprobs is None]))
        return [
            self._verdict(next(computed) if pair.logprobs is None else pair.logprobs)
            for pair in pairs
        ]

    def close(self) -> None:
        """Give the cached chains back; the next call computes them anew."""
        if self.prefixes is not None:
            self.prefixes.close()

    def _compute(self, pairs: Sequence[Pair]) -> list[tuple[float, ...]]:
        """The log-probabilities of each draft step, by one forward over all pairs.

        Example: 10 tokens of prefix, a draft of 4: the row is prefix and the first 3 draft tokens,
        the logits after its last 4 tokens (the prefix's last one and the 3) are those of the 4
        draft tokens.
        """
        if not pairs:
            return []
        if self.prefixes is None:
            raise ProtocolError(
                "a pair without the target's log-probabilities came to the likelihood verifier, which has no runner to compute them: "
                "heed its need (Need.TARGET_LOGPROBS), or give it a runner."
            )
        rows = [
            Row(
                [*pair.prefix, *pair.draft.tokens[:-1]],
                wanted=len(pair.draft.tokens),
                keep=len(pair.prefix),
            )
            for pair in pairs
        ]
        logits = self.prefixes.logits(rows)
        return [
            step_logprobs(some, pair.draft.tokens) for some, pair in zip(logits, pairs, strict=True)
        ]

    def _verdict(self, logprobs: Sequence[float]) -> Verdict:
        mean = math.fsum(logprobs) / len(logprobs) if logprobs else math.nan
        if math.isnan(mean):
            return Verdict(aligned=False, why="the log-probabilities are not numbers")
        return Verdict(mean >= self.threshold, why=f"{mean:.3f} nats per token", score=mean)


def step_logprobs(logits: Tensor, tokens: Sequence[int]) -> tuple[float, ...]:
    """The natural log-probabilities of the t `tokens` of a step, from the logits [t, v] of the
    positions before each of them.
    """
    chosen = torch.as_tensor(tokens, device=logits.device)[:, None]
    picked: list[float] = torch.log_softmax(logits.double(), -1).gather(-1, chosen)[:, 0].tolist()
    return tuple(picked)
