"""Verifiers whose questions a server answers: the judge (arXiv 2506.19830, section 3.2), and the
score of SpecReason (arXiv 2504.07891).

The questions are those of `parts/judge.py`, and the answer begins in the same way. If the
endpoint gives the log-probabilities of the likeliest tokens, the score is the same too: the share
of the possible answers in one distribution. An answer's probability is that of all likely tokens
with which it can go on, however the server cuts it: for "aligned]" those that begin with "a", for
"unaligned]" those with "u". Otherwise one greedy token is read, and the score is 0 or 1.

A question that fails is a rejection with its reason. After `FAILURES` in a row, or when failures
have used up their budget of seconds, the judge is given up, because it would cost every answer its
speed; what becomes of the run then is `Retry.lost`. A refusal ends it at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar

from lr.errors import SettingError
from lr.lab.endpoint.client import Broken, EndpointError, Refused, read_piece
from lr.lab.endpoint.models import ServedModel, refuse, refuse_for_logprobs
from lr.parts.judge import JUDGE_PROMPT, TINY_JUDGE_PROMPT, Decode
from lr.parts.verifiers import SCORE_QUESTION, THRESHOLDS, ScoreReading, VerifierChoice
from lr.spec.verifiers.base import DeferredVerifier, Pair, Requires, Verifier
from lr.tiny.names import language_of
from lr.types import Verdict, require

LIKELIEST = 20
"""How many tokens with their log-probabilities are asked for: as many as servers give."""
FAILURES = 3  # Questions that may fail in a row, each after all its attempts.
LEAST_MASS = 0.01  # Of the probability, that the possible answers together have to hold.
JudgeQuestion = tuple[str, tuple[str, ...]]
"""A prompt, and the words that its answer may begin with."""


class ServedVerifier(Verifier, DeferredVerifier):
    """What judge and score have in common: put a question, weigh the possible answers. Accepts if
    the score is at least `threshold`, unless the answers together hold less than `LEAST_MASS` of
    the probability: then the model says something else."""

    said: ClassVar[str]  # A score in words.
    unsaid: ClassVar[str]  # That there is none.

    def __init__(self, model: ServedModel, threshold: float) -> None:
        self.model, self.threshold = model, threshold
        model.can.logprobs  # noqa: B018  # find out now, not in the thread of the requests
        self.failures = 0  # Questions that failed since one was answered.
        self.passes = 0
        self.given_up: str | None = None  # Why nobody is asked any more.

    def question(self, pair: Pair) -> JudgeQuestion | Verdict:
        """What is asked about a pair; or the verdict, if it is clear."""
        raise NotImplementedError

    def score(self, shares: list[float]) -> float:
        """The score that the shares of the answers make."""
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
        """All pairs at once. Raises `EndpointError` as said above."""
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
            return Verdict(aligned=False, why=f"{self.name} failed: {error}", failed=True)
        self.failures = 0
        held, mass = shares(likeliest, answers)
        if mass < LEAST_MASS:
            why = f"{self.unsaid} ({word!r}; the possible answers hold {mass:.1e})"
            return Verdict(aligned=False, why=why)
        score = self.score(held)
        return Verdict(score >= self.threshold, why=self.said.format(score), score=score)

    def _read(self, answer: Any) -> tuple[str, Mapping[str, float]]:
        """What was said, and the log-probabilities of what might have been said."""
        try:
            word = read_piece(answer).text
            if not self.model.can.logprobs:
                return word, {word: 0.0}
            likeliest = answer["choices"][0]["logprobs"]["top_logprobs"][0]
            found = {str(token): float(value) for token, value in likeliest.items()}
            if not all(value <= 0.01 for value in found.values()):  # nor NaN; some round to above 0
                raise ValueError(f"{found} are no log-probabilities")
            return word, found
        except (Broken, KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            said = f"{self.model} gave no answer that can be read ({error})."
            raise EndpointError(said) from error


class ServedJudge(ServedVerifier):
    """The score is the share of "aligned". The first step of a prompt is the target's, the second
    the draft's. Texts that are equal but for case and outer white space are not asked about.
    `tiny`: the judge speaks the tiny language only."""

    name, requires = "judge", Requires.TARGET_STEP
    said, unsaid = "aligned with {:.3f} for the judge", "the judge answers something else"

    def __init__(
        self, model: ServedModel, decode: Decode, *, threshold: float = 0.5, tiny: bool = False
    ) -> None:
        super().__init__(model, threshold)
        require(0 <= threshold <= 1, "threshold", threshold, "a probability, 0 to 1")
        self.decode, self.prompt = decode, TINY_JUDGE_PROMPT if tiny else JUDGE_PROMPT

    def question(self, pair: Pair) -> JudgeQuestion | Verdict:
        steps = (pair.target_step, pair.draft)
        first, second = (self.decode(step.tokens).strip() for step in steps)
        if first.casefold() == second.casefold():
            return Verdict(aligned=True, why="equal text")
        chat = self.model.codec.chat(self.prompt.about(first, second), enable_thinking=False)
        prompt = self.model.text(chat) + self.prompt.prefill
        return prompt, (self.prompt.aligned, self.prompt.unaligned)

    def score(self, shares: list[float]) -> float:
        return shares[0]


class ServedScore(ServedVerifier):
    """The target's score of the draft step, read off the probabilities of the digits 0 to 9."""

    name, requires = "score", Requires.NOTHING
    said, unsaid = "the target scores it {:.2f} of 9", "the target gives no score"

    def __init__(
        self, model: ServedModel, threshold: float, reading: ScoreReading = ScoreReading.EXPECTED
    ) -> None:
        super().__init__(model, threshold)
        require(0 <= threshold <= 9, "threshold", threshold, "a score, 0 to 9")
        self.reading = reading

    def question(self, pair: Pair) -> JudgeQuestion | Verdict:
        text = self.model.text((*pair.prefix, *pair.draft.tokens))
        return text + SCORE_QUESTION, tuple(map(str, range(10)))

    def score(self, shares: list[float]) -> float:
        return self.reading.score(shares)


def shares(likeliest: Mapping[str, float], answers: Sequence[str]) -> tuple[list[float], float]:
    """The probabilities of answers relative to each other, and what they hold together, from the
    likeliest tokens {text: log p}.

    A token counts for the one answer that it begins, or that begins it; white space and case do not
    count. Example: {"al": -0.1, "un": -2.5, "The": -5} for ("aligned]", "unaligned]"): 0.905 and
    0.082, so shares 0.917 and 0.083, held 0.987."""
    held = [0.0] * len(answers)
    for token, logprob in likeliest.items():
        word = token.strip().strip("[").lower()
        fits = [word and (a.startswith(word) or word.startswith(a[:-1] or a)) for a in answers]
        if sum(map(bool, fits)) == 1:
            held[fits.index(True)] += math.exp(logprob)
    whole = sum(held)
    return ([one / whole for one in held] if whole > 0 else [0.0] * len(answers)), min(1.0, whole)


def served_judge(choice: VerifierChoice, judge: ServedModel) -> Verifier:
    """The chosen verifier with a judge behind a server. Raises `SettingError` for one that needs
    something else, or for a judge that cannot give what it needs."""
    if choice.kind == "embedding":
        raise SettingError(
            f"judge is {judge}, but verifier {choice.name!r} needs a sentence encoder in this "
            "process; take verifier judge, or leave the judge out."
        )
    assert choice.threshold is not None, "it is a judge, which has one"
    if choice.threshold != THRESHOLDS["judge"]:
        remedy = "Take verifier 'judge' without a threshold, which reads the answer as text"
        refuse_for_logprobs(judge, f"verifier {choice.name!r}", remedy)
    tiny = language_of(judge.codec) is not None
    return ServedJudge(judge, choice.codec.decode, threshold=choice.threshold, tiny=tiny)


def beside_served_target(choice: VerifierChoice, target: ServedModel) -> Verifier:
    """The chosen verifier for a target behind a server. Raises `SettingError` if it reads in the
    target what no server gives."""
    if choice.kind == "score":
        assert choice.threshold is not None
        refuse_for_logprobs(target, "verifier 'score'", "Take verifier exact or judge")
        return ServedScore(target, threshold=choice.threshold)
    if choice.kind == "likelihood":
        lack, remedy = "the log-probabilities of given tokens", "Use exact, judge or score"
        refuse(target, "verifier 'likelihood'", lack, remedy)
    return choice.build(target)  # type: ignore[arg-type]  # no other verifier asks the target
