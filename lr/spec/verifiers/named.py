"""The verifiers that the paper compares with the judge (arXiv 2506.19830, Table 2), and
the likelihood. `lr/engine/verifiers.py` makes each by its name."""

import hashlib
from array import array
from collections.abc import Callable, Sequence
from enum import Enum

from torch import Tensor

from lr.rng import Stream, uniform
from lr.spec.numbers import numbers_in, word_cosine
from lr.spec.sampling import root_scaled
from lr.spec.verifiers.base import (
    Decode,
    Pair,
    Requires,
    Verifier,
    texts_of,
    unless_equal,
    unseen_difference,
)
from lr.spec.verifiers.judge import (
    AnswerTokens,
    AskingVerifier,
    PrefixCache,
    PromptedModel,
    PromptRow,
    at_least,
)
from lr.types import Role, Verdict, require

Embed = Callable[[Sequence[str]], Tensor]  # b texts to [b, e], each of length 1
WORDS_ALONE = 0.1
"""How much more the words of two steps without numbers must agree."""
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
        self.codec = codec = target.codec
        self.threshold = threshold
        self.reading = reading
        # " 0" .. " 9"
        digits = [codec.encode(f" {digit}") for digit in range(10)]
        self.answers = AnswerTokens.of(digits)
        self.question = [*codec.encode(SCORE_QUESTION), *self.answers.common]
        self.prefixes = PrefixCache(target.runner)

    def row_of(self, pair: Pair) -> PromptRow:
        chain = [*pair.prefix, *pair.draft_step.tokens]  # as the target would read it
        return PromptRow([*chain, *self.question], keep=len(chain))

    def verdict(self, p: Sequence[float]) -> Verdict:
        score = self.reading.score(p)
        return at_least(self.threshold, score, f"the target scores it {score:.2f} of 9")


class LikelihoodVerifier(Verifier):
    """Accepts if the sum of the target's log-probabilities of the draft step, over the
    root of their number (`root_scaled`), is at least `threshold` (nats, at most 0).

    The target only reads the step, so no target step is needed. It measures wording as
    well as meaning, so each pair of models needs its own threshold."""

    name = "likelihood"
    requires = Requires.TARGET_LOGPROBS

    def __init__(self, threshold: float = -1.25) -> None:
        expected = "a root-scaled log-probability in nats, at most 0"
        require(threshold <= 0, "threshold", threshold, expected)
        self.threshold = threshold

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        verdicts = []
        for pair in pairs:
            score = root_scaled(pair.logs(Role.TARGET))
            why = f"likelihood: {score:.2f} nats over the root of the length"
            verdicts.append(at_least(self.threshold, score, why))
        return verdicts


class NumbersVerifier(Verifier):
    """Accepts if both steps have the same set of numbers and the cosine of their word
    counts is at least `threshold`.

    Without a number in either step only the words are left, and they must agree more
    (by `WORDS_ALONE`). No model, no tensor."""

    name = "numbers"

    def __init__(self, decode: Decode, threshold: float = 0.8) -> None:
        require(-1 <= threshold <= 1, "threshold", threshold, "a cosine, -1 to 1")
        self.decode = decode
        self.threshold = threshold

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [
            unseen_difference(pair, self.decode) or self.compare(pair) for pair in pairs
        ]

    def compare(self, pair: Pair) -> Verdict:
        """The verdict on one pair. Its score is the cosine, less 1 if the numbers
        differ."""
        target, draft = texts_of(pair, self.decode)
        numbers = [set(numbers_in(text)) for text in (target, draft)]
        cosine = word_cosine(target, draft)
        why = f"numbers: the same, cosine of words {cosine:.2f}"
        if numbers[0] != numbers[1]:
            differ = sorted(numbers[0] ^ numbers[1])[:3]
            listed = ", ".join(map(str, differ))
            return Verdict(False, f"numbers: {listed} in one step only", cosine - 1)
        if not numbers[0]:
            why = f"numbers: none, cosine of words {cosine:.2f}"
            cosine -= WORDS_ALONE
        return at_least(self.threshold, cosine, why)


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
        content = array("q", (len(pair.prefix), *pair.prefix, *pair.draft_step.tokens))
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
        texts = [text for pair in pairs for text in texts_of(pair, self.decode)]
        self.passes += 1
        rows = self.embed(texts).double()  # [2 b, e]: target and draft in turn
        cosines: list[float] = (rows[0::2] * rows[1::2]).sum(-1).tolist()
        return [at_least(self.threshold, c, f"cosine {c:.3f}") for c in cosines]
