"""The verifiers that the paper compares with the judge (arXiv 2506.19830, Table 2), and
the likelihood. `lr/engine/verifiers.py` makes each by its name."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import islice

import torch
from torch import Tensor

from lr.rng import Stream, uniform
from lr.spec.runner import Runner
from lr.spec.sampling import step_logprobs
from lr.spec.verifiers.base import Pair, Requires, Verifier
from lr.spec.verifiers.judge import (
    AnswerTokens,
    AskingVerifier,
    Decode,
    PrefixCache,
    PromptedModel,
    PromptRow,
    at_least,
    unless_equal,
)
from lr.types import Verdict, require

Embed = Callable[[Sequence[str]], Tensor]  # b texts to [b, e], each of length 1
SCORE_QUESTION = """\
How good is the step just written, as a next step towards the right answer? 0 means wrong or \
useless, 9 means right and useful beyond doubt.
Score from 0 to 9:"""
"""Appended to the chain and the step, as if the target wrote it. The answer: space and
digit."""


class ScoreReading(Enum):
    """How the ten probabilities of the digits become one score."""

    EXPECTED = "expected"  # the mean digit
    LIKELIEST = "likeliest"  # the digit that greedy decoding would write

    def score(self, p: Sequence[float]) -> float:
        """The score, 0 to 9, from ten probabilities."""
        if self is ScoreReading.EXPECTED:
            return sum(digit * weight for digit, weight in enumerate(p))
        return float(max(range(10), key=p.__getitem__))


class ScoreVerifier(AskingVerifier):
    """Accepts if the score that `target` gives the draft step is at least `threshold`
    (0 to 9).

    As in SpecReason (arXiv 2504.07891). The paper compares 7 and 9. No target step is
    needed."""

    name = "score"
    requires = Requires.NOTHING

    def __init__(
        self,
        target: PromptedModel,
        *,
        threshold: float = 7.0,
        reading: ScoreReading = ScoreReading.EXPECTED,
    ) -> None:
        require(0 <= threshold <= 9, "threshold", threshold, "a score, 0 to 9")
        self.threshold = threshold
        self.reading = reading
        digits = [target.codec.encode(f" {digit}") for digit in range(10)]
        self.answers = AnswerTokens.of(digits)
        self.question = [*target.codec.encode(SCORE_QUESTION), *self.answers.common]
        self.prefixes = PrefixCache(target.runner)

    def row_of(self, pair: Pair) -> PromptRow:
        chain = [*pair.prefix, *pair.draft.tokens]
        return PromptRow([*chain, *self.question], keep=len(chain))

    def verdict(self, p: Sequence[float]) -> Verdict:
        score = self.reading.score(p)
        return at_least(self.threshold, score, f"the target scores it {score:.2f} of 9")


class LikelihoodVerifier(AskingVerifier):
    """Accepts if the mean log-probability per token is at least `threshold` (nats, at
    most 0).

    A mean of -1 nat is a geometric mean probability of 0.37. The prefill of the draft
    step gives it for free. It measures wording as well as meaning, so each pair of
    models needs its own threshold. `runner` computes log-probabilities for pairs
    without them."""

    name = "likelihood"
    requires = Requires.TARGET_LOGPROBS

    def __init__(self, runner: Runner, threshold: float = -1.0) -> None:
        expected = "a mean log-probability in nats, at most 0"
        require(threshold <= 0, "threshold", threshold, expected)
        self.threshold = threshold
        self.prefixes = PrefixCache(runner)

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        bare = [pair for pair in pairs if pair.logprobs is None]
        computed = iter(super().judge(bare))
        return [
            next(computed) if p.logprobs is None else self.mean(p.logprobs)
            for p in pairs
        ]

    def row_of(self, pair: Pair) -> PromptRow:
        """The prefix and the draft step without its last token. Example: 10 tokens of
        prefix and a draft of 4. The logits after the last 4 of these 13 tokens are
        those of the draft tokens."""
        tokens = [*pair.prefix, *pair.draft.tokens[:-1]]
        return PromptRow(tokens, wanted=len(pair.draft.tokens), keep=len(pair.prefix))

    def read(self, judged: Sequence[tuple[Pair, Tensor]]) -> list[Verdict]:
        tokens = [token for pair, _ in judged for token in pair.draft.tokens]
        logits = torch.cat([rows for _, rows in judged])
        logprobs = iter(step_logprobs(logits, tokens))  # waits for the device once
        lengths = [len(pair.draft.tokens) for pair, _ in judged]
        return [self.mean(tuple(islice(logprobs, length))) for length in lengths]

    def mean(self, logprobs: Sequence[float]) -> Verdict:
        """The verdict from the log-probabilities of the draft step's tokens."""
        mean = math.fsum(logprobs) / len(logprobs) if logprobs else math.nan
        return at_least(self.threshold, mean, f"{mean:.3f} nats per token")


class RandomVerifier(Verifier):
    """Accepts a draft step with probability `rho`.

    The draw is keyed by prefix and draft step, so a step gets the same verdict in any
    order and batch. As a control for verifiers that compare steps it requires the
    target's step, although it does not look at it."""

    def __init__(self, rho: float) -> None:
        require(0 <= rho <= 1, "rho", rho, "a probability, 0 to 1")
        self.name = f"random:{rho:g}"
        self.rho = rho
        self.stream = Stream.root(0).fold_in("random verifier")

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [self._draw(pair) for pair in pairs]

    def _draw(self, pair: Pair) -> Verdict:
        # with the length of the prefix, moving a token from prefix to draft changes the
        # key
        content = array("q", (len(pair.prefix), *pair.prefix, *pair.draft.tokens))
        digest = hashlib.blake2b(content.tobytes(), digest_size=8).digest()
        number = uniform(self.stream.key(int.from_bytes(digest, "little") >> 1))
        why = f"drew {number:.3f}, accepts below {self.rho:g}"
        return Verdict(number < self.rho, why=why)


class EmbeddingVerifier(Verifier):
    """Accepts equal texts, and if the cosine of the two steps' embeddings is at least
    `threshold`.

    The paper uses 0.85 and 0.95. It is cheap, but a wrong digit hardly changes an
    embedding."""

    name = "embedding"

    def __init__(self, embed: Embed, decode: Decode, threshold: float = 0.95) -> None:
        require(-1 <= threshold <= 1, "threshold", threshold, "a cosine, -1 to 1")
        self.embed = embed
        self.decode = decode
        self.threshold = threshold

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return unless_equal(pairs, self.decode, self.compare)

    def compare(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """The verdicts by the cosines alone."""
        steps = [step for pair in pairs for step in (pair.target_step, pair.draft)]
        self.passes += 1
        texts = [self.decode(step.tokens).strip() for step in steps]
        rows = self.embed(texts).double()  # [2 b, e]: target and draft in turn
        cosines: list[float] = (rows[0::2] * rows[1::2]).sum(-1).tolist()
        return [at_least(self.threshold, c, f"cosine {c:.3f}") for c in cosines]
