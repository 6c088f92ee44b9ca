"""Verifiers whose questions a server answers: the judge (arXiv 2506.19830, section 3.2), and the
score of SpecReason (arXiv 2504.07891).

The same questions as with a model at hand (`spec/verifiers/judge.py`), the answer begun in the
same way. Where the endpoint gives the log-probabilities of the likeliest tokens, the score is what
it is there: the share of the possible answers in one distribution. An answer's probability is that
of all likely tokens with which it can go on, however the server cuts it: for "aligned]" those that
begin with "a", for "unaligned]" those with "u". Where it gives none, one greedy token is read, and
the score is 0 or 1.

Many pairs are asked about at once (`begin` returns what cancels); an answer that fails is a
rejection with its reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from lr.lab.endpoint.completions import read_piece
from lr.lab.endpoint.failures import Broken, Cancelled, EndpointError
from lr.lab.endpoint.http import Call
from lr.lab.endpoint.models import ServedModel
from lr.spec.verifiers.base import Pair, Requires, Verifier
from lr.spec.verifiers.judge import JUDGE_PROMPT, SCORE_QUESTION, TINY_JUDGE_PROMPT, ScoreReading
from lr.spec.verifiers.simple import Decode
from lr.types import Verdict, require

LIKELIEST = 20
"""How many tokens with their log-probabilities are asked for: as many as servers give."""
READ = 1
"""Tokens of an answer that is read as text: it is begun, so its next token tells the possible ones
apart.
"""


class AskingElsewhere(Protocol):
    """A verifier that can be asked without being waited for."""

    def decide(self, pair: Pair, call: Call) -> Verdict:
        """The verdict about one pair. Raises `EndpointError`, or `Cancelled` where `call` is
        cancelled.
        """
        ...


@dataclass(frozen=True)
class _Question:
    """A prompt, and the words an answer may begin with."""

    prompt: Any
    answers: tuple[str, ...]


class _Asked(Verifier):
    """What judge and score have in common: put a question, weigh the answers."""

    fallible = True

    def __init__(self, model: ServedModel, least_mass: float) -> None:
        require(0 <= least_mass <= 1, "least_mass", least_mass, "a probability, 0 to 1")
        self.model, self.least_mass = model, least_mass

    def weigh(self, question: _Question, call: Call) -> tuple[list[float], float, str]:
        """The shares of the answers, the probability that they hold together, and what the model
        said.
        """
        weighs = self.model.can.logprobs
        settings: dict[str, Any] = {"temperature": 0, "max_tokens": 1 if weighs else READ}
        if weighs:
            settings["logprobs"] = LIKELIEST
        endpoint = self.model.endpoint
        answer = endpoint.client.post(
            "/v1/completions", endpoint.body(question.prompt, settings), call
        )
        try:
            said = read_piece(answer).text
            likeliest = (
                answer["choices"][0]["logprobs"]["top_logprobs"][0] if weighs else {said: 0.0}
            )
            return (*shares(likeliest, question.answers), said)
        except (Broken, KeyError, IndexError, TypeError, AttributeError) as error:
            raise EndpointError(
                f"{self.model} gave no answer that can be read ({error})."
            ) from error

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """All pairs at once; a question that fails is a rejection with its reason."""
        if not pairs:
            return []
        with ThreadPoolExecutor(min(len(pairs), 16)) as pool:
            return list(pool.map(lambda pair: decide_safely(self, pair, Call()), pairs))

    def decide(self, pair: Pair, call: Call) -> Verdict:
        raise NotImplementedError


class ServedJudge(_Asked):
    """Accepts iff the judge's score is at least `threshold`. The first step of a prompt is the
    target's, the second the draft's.

    Texts that are equal but for case and outer white space are not asked about. `tiny`: the judge
    speaks the tiny language only.
    """

    name = "judge"
    requires = Requires.TARGET_STEP

    def __init__(
        self,
        model: ServedModel,
        decode: Decode,
        *,
        threshold: float = 0.5,
        tiny: bool = False,
        least_mass: float = 0.01,
    ) -> None:
        super().__init__(model, least_mass)
        require(0 <= threshold <= 1, "threshold", threshold, "a probability, 0 to 1")
        self.decode, self.threshold = decode, threshold
        self.prompt = TINY_JUDGE_PROMPT if tiny else JUDGE_PROMPT

    def decide(self, pair: Pair, call: Call) -> Verdict:
        first, second = (
            self.decode(step.tokens).strip() for step in (pair.target_step, pair.draft)
        )
        if first.casefold() == second.casefold():
            return Verdict(aligned=True, why="equal text")
        codec = self.model.codec
        chat = codec.chat(self.prompt.about(first, second), enable_thinking=False)
        answers = (self.prompt.aligned, self.prompt.unaligned)
        prompt = self.model.text(chat) + self.prompt.prefill
        (score, _), mass, said = self.weigh(_Question(prompt, answers), call)
        if mass < self.least_mass:
            return Verdict(
                aligned=False,
                why=f"the judge answers something else ({said!r}; the two answers hold {mass:.1e})",
            )
        return Verdict(
            score >= self.threshold, why=f"aligned with {score:.3f} for the judge", score=score
        )


class ServedScore(_Asked):
    """Accepts iff the target's score of the draft step, read off the probabilities of the digits 0
    to 9, is at least `threshold`.
    """

    name = "score"
    requires = Requires.NOTHING

    def __init__(
        self,
        model: ServedModel,
        *,
        threshold: float = 7.0,
        reading: ScoreReading = ScoreReading.EXPECTED,
        least_mass: float = 0.01,
    ) -> None:
        super().__init__(model, least_mass)
        require(0 <= threshold <= 9, "threshold", threshold, "a score, 0 to 9")
        self.threshold, self.reading = threshold, reading

    def decide(self, pair: Pair, call: Call) -> Verdict:
        text = self.model.text((*pair.prefix, *pair.draft.tokens)) + SCORE_QUESTION
        weights, mass, said = self.weigh(_Question(text, tuple(map(str, range(10)))), call)
        if mass < self.least_mass:
            return Verdict(
                aligned=False,
                why=f"the target gives no score ({said!r}; the ten digits hold {mass:.1e})",
            )
        if self.reading is ScoreReading.EXPECTED:
            score = sum(digit * weight for digit, weight in enumerate(weights))
        else:
            score = float(max(range(10), key=weights.__getitem__))
        return Verdict(
            score >= self.threshold, why=f"the target scores it {score:.2f} of 9", score=score
        )


def shares(likeliest: Mapping[str, float], answers: Sequence[str]) -> tuple[list[float], float]:
    """The probabilities of answers relative to each other, and what they hold together, from the
    likeliest tokens {text: log p}.

    A token speaks for the one answer that it begins, or that begins it; white space and case before
    it do not count. Example: {"al": -0.1, "un": -2.5, "The": -5} for ("aligned]", "unaligned]"):
    0.905 and 0.082, so shares 0.917 and 0.083, held 0.987.
    """
    held = [0.0] * len(answers)
    for token, logprob in likeliest.items():
        word = token.strip().strip("[").lower()
        speaks = [
            i
            for i, answer in enumerate(answers)
            if word and (answer.startswith(word) or word.startswith(answer[:-1] or answer))
        ]
        if len(speaks) == 1:
            held[speaks[0]] += math.exp(logprob)
    whole = sum(held)
    return ([one / whole for one in held] if whole > 0 else [0.0] * len(answers)), min(1.0, whole)


def decide_safely(verifier: AskingElsewhere, pair: Pair, call: Call) -> Verdict:
    """The verdict; a rejection with the reason if it cannot be had."""
    try:
        return verifier.decide(pair, call)
    except Cancelled:
        return Verdict(aligned=False, why="the question was cancelled")
    except Exception as error:
        return Verdict(aligned=False, why=f"verifier failed: {type(error).__name__}: {error}")
