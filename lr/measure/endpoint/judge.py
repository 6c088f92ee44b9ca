"""Verifiers that ask a model on a server: the judge (arXiv 2506.19830, section 3.2),
and the score of SpecReason (arXiv 2504.07891).

The prompts, and the beginnings of their answers, are those of `parts/judge.py`. If the
endpoint gives the log-probabilities of the likeliest tokens, the score is the same too:
the share of one possible answer in the next-token distribution. An answer has the
probability of all likely tokens with which it can begin, however the server splits it:
"aligned]" of those that begin with "a", "unaligned]" of those with "u". Without
log-probabilities one greedy token is read, and the score is 0 or 1.

A failed question is a rejection, with the reason. After `FAILURES` in a row, or when
failures have used up the budget of seconds, the judge is no longer asked, because each
failure slows the answers down; `Retry.lost` decides whether the run ends. A refused
request ends it at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar

from lr.errors import SettingError
from lr.measure.endpoint.client import Broken, EndpointError, Refused, read_piece
from lr.measure.endpoint.models import ServedModel, refuse, refuse_for_logprobs
from lr.spec.verifiers.base import DeferredVerifier, Pair, Requires, Verifier
from lr.spec.verifiers.judge import JUDGE_PROMPT, TINY_JUDGE_PROMPT, Decode
from lr.spec.verifiers.named import (
    SCORE_QUESTION,
    THRESHOLDS,
    ScoreReading,
    VerifierChoice,
)
from lr.tiny.names import language_of
from lr.types import Verdict, require

LIKELIEST = 20  # Number of log-probabilities to ask for: the most that servers give.
FAILURES = (
    3  # Failed questions in a row, each after all its attempts, that end the judging.
)
LEAST_MASS = 0.01  # The least probability of all possible answers together.
JudgeQuestion = tuple[str, tuple[str, ...]]  # A prompt, and its possible answers.


class ServedVerifier(Verifier, DeferredVerifier):
    """The common part of judge and score: ask a question and weigh the possible
    answers. Accepts if the score is at least `threshold`. Rejects if the possible
    answers together have a probability below `LEAST_MASS`: then the model would say
    something else."""

    said: ClassVar[str]  # How a verdict states the score.
    unsaid: ClassVar[str]  # How a verdict states that the model says something else.

    def __init__(self, model: ServedModel, threshold: float) -> None:
        self.model, self.threshold = model, threshold
        model.can.logprobs  # noqa: B018  # find out now, not in the thread of the requests
        self.failures = 0  # Failed questions since the last answered one.
        self.passes = 0
        self.given_up: str | None = None  # Why no more questions are asked.

    def question(self, pair: Pair) -> JudgeQuestion | Verdict:
        """The question about a pair, or its verdict if no question is needed."""
        raise NotImplementedError

    def score(self, shares: list[float]) -> float:
        raise NotImplementedError

    def ask(self, pair: Pair) -> Future[Verdict]:
        question, answer = self.question(pair), Future[Verdict]()
        if not isinstance(question, Verdict):
            size, most = len(self.model.codec.encode(question[0])), self.model.context
            long = f"the question has {size} tokens, and the context of {self.model} is {most}"
            why = self.given_up or (long if size >= most else None)
            if why is None:
                self.passes += 1
                return self.model.endpoint.client.start(self._decide(*question))
            question = Verdict(aligned=False, why=why, failed=True)
        answer.set_result(question)
        return answer

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Judge all pairs at once. Raises `EndpointError` if that ends the run."""
        asked = [self.ask(pair) for pair in pairs]
        try:
            return [answer.result() for answer in asked]
        finally:
            for answer in asked:
                answer.cancel()

    async def _decide(self, prompt: str, answers: tuple[str, ...]) -> Verdict:
        model, client = self.model, self.model.endpoint.client
        settings = {"temperature": 0, "max_tokens": 1}
        if model.can.logprobs:
            settings["logprobs"] = LIKELIEST
        body = model.endpoint.body(prompt, settings)
        try:
            answer = await client.retried(lambda: client.fetch(body))
            word, likeliest = self._read(answer)
        except Refused:
            raise
        except EndpointError as error:
            self.failures += 1
            if self.failures >= FAILURES or client.given_up:
                cost = f"failed {self.failures} times in a row, {client.spent:.0f} s in all"
                if client.retry.lost == "stop":
                    raise EndpointError(f"{self.name} {cost}; last: {error}") from error
                self.given_up = f"{self.name} is not asked any more: it {cost}"
            return Verdict(
                aligned=False, why=f"{self.name} failed: {error}", failed=True
            )
        self.failures = 0
        held, mass = shares(likeliest, answers)
        if mass < LEAST_MASS:
            why = f"{self.unsaid} ({word!r}; the possible answers hold {mass:.1e})"
            return Verdict(aligned=False, why=why)
        score = self.score(held)
        return Verdict(
            score >= self.threshold, why=self.said.format(score), score=score
        )

    def _read(self, answer: Any) -> tuple[str, Mapping[str, float]]:
        """The answer, and the log-probabilities of the likeliest answers."""
        try:
            word = read_piece(answer).text
            if not self.model.can.logprobs:
                return word, {word: 0.0}
            likeliest = answer["choices"][0]["logprobs"]["top_logprobs"][0]
            found = {str(token): float(value) for token, value in likeliest.items()}
            if not all(
                value <= 0.01 for value in found.values()
            ):  # refuses NaN, allows rounding
                raise ValueError(f"{found} are no log-probabilities")
            return word, found
        except (
            Broken,
            KeyError,
            IndexError,
            TypeError,
            AttributeError,
            ValueError,
        ) as error:
            said = f"{self.model} gave an unreadable answer ({error})."
            raise EndpointError(said) from error


class ServedJudge(ServedVerifier):
    """The score is the share of "aligned". In the prompt, the target's step comes first
    and the draft's second. No question is needed for texts that differ only in case and
    outer white space. `tiny`: the judge speaks only the tiny language."""

    name, requires = "judge", Requires.TARGET_STEP
    said, unsaid = (
        "aligned with {:.3f} for the judge",
        "the judge answers something else",
    )

    def __init__(
        self,
        model: ServedModel,
        decode: Decode,
        *,
        threshold: float = 0.5,
        tiny: bool = False,
    ) -> None:
        super().__init__(model, threshold)
        require(0 <= threshold <= 1, "threshold", threshold, "a probability, 0 to 1")
        self.decode, self.prompt = decode, TINY_JUDGE_PROMPT if tiny else JUDGE_PROMPT

    def question(self, pair: Pair) -> JudgeQuestion | Verdict:
        steps = (pair.target_step, pair.draft)
        first, second = (self.decode(step.tokens).strip() for step in steps)
        if first.casefold() == second.casefold():
            return Verdict(aligned=True, why="equal text")
        chat = self.model.codec.chat(
            self.prompt.about(first, second), enable_thinking=False
        )
        prompt = self.model.text(chat) + self.prompt.prefill
        return prompt, (self.prompt.aligned, self.prompt.unaligned)

    def score(self, shares: list[float]) -> float:
        return shares[0]


class ServedScore(ServedVerifier):
    """The target's score of the draft step, from the probabilities of the digits 0 to
    9."""

    name, requires = "score", Requires.NOTHING
    said, unsaid = "the target scores it {:.2f} of 9", "the target gives no score"

    def __init__(
        self,
        model: ServedModel,
        threshold: float,
        reading: ScoreReading = ScoreReading.EXPECTED,
    ) -> None:
        super().__init__(model, threshold)
        require(0 <= threshold <= 9, "threshold", threshold, "a score, 0 to 9")
        self.reading = reading

    def question(self, pair: Pair) -> JudgeQuestion | Verdict:
        text = self.model.text((*pair.prefix, *pair.draft.tokens))
        return text + SCORE_QUESTION, tuple(map(str, range(10)))

    def score(self, shares: list[float]) -> float:
        return self.reading.score(shares)


def shares(
    likeliest: Mapping[str, float], answers: Sequence[str]
) -> tuple[list[float], float]:
    """The answers' probabilities relative to each other, and their sum, from the
    likeliest tokens {text: log p}.

    A token counts for an answer if one begins with the other, ignoring white space and
    case, and if that holds for one answer only. Example: {"al": -0.1, "un": -2.5,
    "The": -5} for ("aligned]", "unaligned]"): 0.905 and 0.082, so shares 0.917 and
    0.083, sum 0.987."""
    held = [0.0] * len(answers)
    for token, logprob in likeliest.items():
        word = token.strip().strip("[").lower()
        fits = [
            word and (a.startswith(word) or word.startswith(a[:-1] or a))
            for a in answers
        ]
        if sum(map(bool, fits)) == 1:
            held[fits.index(True)] += math.exp(logprob)
    whole = sum(held)
    return ([one / whole for one in held] if whole > 0 else [0.0] * len(answers)), min(
        1.0, whole
    )


def served_judge(choice: VerifierChoice, judge: ServedModel) -> Verifier:
    """The chosen verifier with a judge on a server. Raises `SettingError` if it needs
    another kind of model, or something that the server does not give."""
    if choice.kind == "embedding":
        raise SettingError(
            f"judge is {judge}, but verifier {choice.name!r} needs a sentence encoder in this "
            "process; use verifier judge, or leave the judge out."
        )
    assert choice.threshold is not None, "a judge has a threshold"
    if choice.threshold != THRESHOLDS["judge"]:
        remedy = (
            "Take verifier 'judge' without a threshold, which reads the answer as text"
        )
        refuse_for_logprobs(judge, f"verifier {choice.name!r}", remedy)
    tiny = language_of(judge.codec) is not None
    return ServedJudge(
        judge, choice.codec.decode, threshold=choice.threshold, tiny=tiny
    )


def beside_served_target(choice: VerifierChoice, target: ServedModel) -> Verifier:
    """The chosen verifier for a target on a server. Raises `SettingError` if it needs
    more of the target than a server gives."""
    if choice.kind == "score":
        assert choice.threshold is not None
        refuse_for_logprobs(target, "verifier 'score'", "Take verifier exact or judge")
        return ServedScore(target, threshold=choice.threshold)
    if choice.kind == "likelihood":
        lack, remedy = (
            "the log-probabilities of given tokens",
            "Use exact, judge or score",
        )
        refuse(target, "verifier 'likelihood'", lack, remedy)
    return choice.build(target)  # type: ignore[arg-type]  # no other verifier asks the target
