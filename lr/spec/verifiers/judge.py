"""Verifiers that ask a language model: the judge, the score, the likelihood.

- `JudgeVerifier` asks whether two steps mean the same (arXiv 2506.19830, section 3.2 and Appendix
  A). Its score is P(aligned) as a share of the two answers, so it has an ROC curve, not only an
  opinion. It sees the texts of the two steps, not the problem or the chain.
- `ScoreVerifier` has the target rate the draft step from 0 to 9, as in SpecReason (arXiv
  2504.07891). No target step is needed. The paper compares thresholds 7 and 9 (Table 2).
- `LikelihoodVerifier` takes the target's mean log-probability of the draft step's tokens. The
  prefill of the draft step yields it for free. It prefers the target's wording, not only its
  meaning: a threshold that suits one pair of models does not suit another.

All pairs of a batch are decided by one ragged forward (`prompted.py`). A pair that does not fit the
model's context or cache is rejected alone, with that reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from lr.errors import LRError, ProtocolError
from lr.spec.runner import Runner
from lr.spec.verifiers.base import Pair, Requires, Verifier
from lr.spec.verifiers.prompted import AnswerTokens, PrefixCache, PromptedModel, Row, common_length
from lr.spec.verifiers.simple import Decode
from lr.types import Verdict, require


@dataclass(frozen=True)
class JudgePrompt:
    """A question about two steps (`{first}`, `{second}`), how the answer begins, and its two
    ends.
    """

    question: str
    prefill: str = "["
    aligned: str = "aligned]"
    unaligned: str = "unaligned]"

    def about(self, first: str, second: str) -> str:
        """The question about two texts. Braces in the texts stay text."""
        return self.question.format(first=first, second=second)


# The steps come after the instructions, so all prompts share a long beginning.
JUDGE_PROMPT = JudgePrompt(
    """\
You see two versions, A and B, of one step in the solution of a problem. Could one take the place \
of the other without changing the solution? That is so if both do the same thing with the same \
facts and come to the same values and conclusions. How it is said does not matter: wording, order, \
notation, length. What is said does: if a number, a sign, a name, a unit, an operation or a claim \
differs, or stands in only one of them, they are not interchangeable.

Answer with one word in brackets: [aligned] if they are interchangeable, [unaligned] if they are \
not or if you cannot tell.

<version A>
{first}
</version A>

<version B>
{second}
</version B>"""
)

TINY_JUDGE_PROMPT = JudgePrompt("{first}\n\n{second}")
"""For a judge trained to do nothing else (`scripts/train_judge.py`): two steps, no instructions."""

SCORE_QUESTION = """\
How good is the step just written, as a next step towards the right answer? 0 means wrong or \
useless, 9 means right and useful beyond doubt.
Score from 0 to 9:"""
"""Follows the chain and its last step in the target's own text; the answer is a space and a
digit.
"""


def _not_judged(error: LRError) -> Verdict:
    return Verdict(aligned=False, why=f"not judged: {error}", failed=True)


class JudgeVerifier(Verifier):
    """Accepts if the judge's score is at least `threshold`.

    In the prompt the target's step comes first, the draft's second. `prompt` None takes the one
    made for `judge`. A pair is rejected if the two answers together hold less than `least_mass` of
    the probability: then the judge says something else.
    """

    name = "judge"

    def __init__(
        self,
        judge: PromptedModel,
        decode: Decode,
        *,
        threshold: float = 0.5,
        prompt: JudgePrompt | None = None,
        least_mass: float = 0.01,
    ) -> None:
        require(0 <= threshold <= 1, "threshold", threshold, "a probability, 0 to 1")
        require(0 <= least_mass <= 1, "least_mass", least_mass, "a probability, 0 to 1")
        self.model, self.decode = judge, decode
        self.threshold, self.least_mass = threshold, least_mass
        self.prompt = prompt or (TINY_JUDGE_PROMPT if judge.tiny else JUDGE_PROMPT)
        ends = (self.prompt.aligned, self.prompt.unaligned)
        self.answers = AnswerTokens.of([judge.encode(end) for end in ends])
        self.begun = [*judge.encode(self.prompt.prefill), *self.answers.common]
        self.prefixes = PrefixCache(judge.runner)
        one, other = self.row("0", "0"), self.row("Then", "Then")
        self.head = one[: common_length(one, other)]  # the instructions, equal in all prompts

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        if not pairs:
            return []
        if self.head:
            self.prefixes.warm(self.head)
        texts = [
            [self.decode(step.tokens).strip() for step in (pair.target_step, pair.draft)]
            for pair in pairs
        ]
        rows = self.prefixes.logits([Row(self.row(*both)) for both in texts])
        return [self._verdict(logits) for logits in rows]

    def row(self, first: str, second: str) -> list[int]:
        """The token ids of the prompt about two texts, with the answer begun."""
        return [*self.model.chat(self.prompt.about(first, second)), *self.begun]

    def close(self) -> None:
        """Release the cached beginning of the prompts."""
        self.prefixes.close()

    def _verdict(self, logits: Tensor | LRError) -> Verdict:
        if isinstance(logits, LRError):
            return _not_judged(logits)
        (score, _), mass = self.answers.read(logits[-1])
        if math.isnan(score):
            return Verdict(aligned=False, why="the judge's probabilities are not numbers")
        if mass < self.least_mass:
            why = f"the judge answers something else (the two answers hold {mass:.1e})"
            return Verdict(aligned=False, why=why)
        why = f"aligned with {score:.3f} for the judge"
        return Verdict(score >= self.threshold, why=why, score=score)


class ScoreReading(Enum):
    """How the ten probabilities of the digits become one score."""

    EXPECTED = "expected"
    """The mean digit."""
    LIKELIEST = "likeliest"
    """The digit that greedy decoding would write."""

    def score(self, p: Sequence[float]) -> float:
        """The score that ten probabilities make, 0 to 9."""
        if self is ScoreReading.EXPECTED:
            return sum(digit * weight for digit, weight in enumerate(p))
        return float(max(range(10), key=p.__getitem__))


class ScoreVerifier(Verifier):
    """Accepts if the score that `target` gives the draft step is at least `threshold` (0 to 9).

    The step is rejected if the ten digits together hold less than `least_mass` of the probability.
    """

    name = "score"
    requires = Requires.NOTHING

    def __init__(
        self,
        target: PromptedModel,
        *,
        threshold: float = 7.0,
        reading: ScoreReading = ScoreReading.EXPECTED,
        question: str = SCORE_QUESTION,
        least_mass: float = 0.01,
    ) -> None:
        require(0 <= threshold <= 9, "threshold", threshold, "a score, 0 to 9")
        require(0 <= least_mass <= 1, "least_mass", least_mass, "a probability, 0 to 1")
        self.threshold, self.reading, self.least_mass = threshold, reading, least_mass
        self.answers = AnswerTokens.of([target.encode(f" {digit}") for digit in range(10)])
        self.question = [*target.encode(question), *self.answers.common]
        self.prefixes = PrefixCache(target.runner)

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        chains = [[*pair.prefix, *pair.draft.tokens] for pair in pairs]
        rows = [Row([*chain, *self.question], keep=len(chain)) for chain in chains]
        return [self._verdict(logits) for logits in self.prefixes.logits(rows)]

    def close(self) -> None:
        """Release the cached chains."""
        self.prefixes.close()

    def _verdict(self, logits: Tensor | LRError) -> Verdict:
        if isinstance(logits, LRError):
            return _not_judged(logits)
        p, mass = self.answers.read(logits[-1])
        if math.isnan(mass):
            return Verdict(aligned=False, why="the target's probabilities are not numbers")
        if mass < self.least_mass:
            why = f"the target gives no score (the ten digits hold {mass:.1e})"
            return Verdict(aligned=False, why=why)
        score = self.reading.score(p)
        why = f"the target scores it {score:.2f} of 9"
        return Verdict(score >= self.threshold, why=why, score=score)


class LikelihoodVerifier(Verifier):
    """Accepts if the mean log-probability per token is at least `threshold` (nats, at most 0).

    A mean of -1 nat is a geometric mean probability of 0.37. `runner` computes the
    log-probabilities of pairs that come without; if it is None, such a pair is a `ProtocolError`.
    """

    name = "likelihood"
    requires = Requires.TARGET_LOGPROBS

    def __init__(self, threshold: float = -1.0, runner: Runner | None = None) -> None:
        require(threshold <= 0, "threshold", threshold, "a mean log-probability in nats, at most 0")
        self.threshold = threshold
        self.prefixes = None if runner is None else PrefixCache(runner)

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        missing = [pair for pair in pairs if pair.logprobs is None]
        computed = iter(self._compute(missing))
        return [self._verdict(next(computed) if p.logprobs is None else p.logprobs) for p in pairs]

    def close(self) -> None:
        """Release the cached chains."""
        if self.prefixes is not None:
            self.prefixes.close()

    def _compute(self, pairs: Sequence[Pair]) -> list[tuple[float, ...] | LRError]:
        """The log-probabilities of each draft step, by one forward over all pairs.

        Example: 10 tokens of prefix, a draft of 4. The row is the prefix and the first 3 draft
        tokens; the logits after its last 4 tokens are those of the 4 draft tokens.
        """
        if not pairs:
            return []
        if self.prefixes is None:
            raise ProtocolError(
                "a pair without the target's log-probabilities came to the likelihood verifier, "
                "which has no runner to compute them: heed its `requires`, or give it a runner."
            )
        rows = [
            Row([*p.prefix, *p.draft.tokens[:-1]], wanted=len(p.draft.tokens), keep=len(p.prefix))
            for p in pairs
        ]
        return [
            one if isinstance(one, LRError) else step_logprobs(one, pair.draft.tokens)
            for one, pair in zip(self.prefixes.logits(rows), pairs, strict=True)
        ]

    def _verdict(self, logprobs: Sequence[float] | LRError) -> Verdict:
        if isinstance(logprobs, LRError):
            return _not_judged(logprobs)
        mean = math.fsum(logprobs) / len(logprobs) if logprobs else math.nan
        if math.isnan(mean):
            return Verdict(aligned=False, why="the log-probabilities are not numbers")
        return Verdict(mean >= self.threshold, why=f"{mean:.3f} nats per token", score=mean)


def step_logprobs(logits: Tensor, tokens: Sequence[int]) -> tuple[float, ...]:
    """The natural log-probabilities of a step's t `tokens`, from the logits [t, v] before each."""
    chosen = torch.as_tensor(tokens, device=logits.device)[:, None]
    picked: list[float] = torch.log_softmax(logits.double(), -1).gather(-1, chosen)[:, 0].tolist()
    return tuple(picked)
