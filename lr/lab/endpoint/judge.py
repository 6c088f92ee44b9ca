"""Verifiers whose questions a server answers: the judge (arXiv 2506.19830, section 3.2), and the
score of SpecReason (arXiv 2504.07891).

The questions are those of `spec/verifiers/judge.py`, and the answer begins in the same way. If the
endpoint gives the log-probabilities of the likeliest tokens, the score is the same too: the share
of the possible answers in one distribution. An answer's probability is that of all likely tokens
with which it can go on, however the server cuts it: for "aligned]" those that begin with "a", for
"unaligned]" those with "u". Otherwise one greedy token is read, and the score is 0 or 1.

Many pairs are asked about at once. A question that fails is a rejection with its reason; after
`FAILURES` in a row the run ends, because a judge that is gone would cost every answer its speed. A
refusal (a wrong key, a wrong name) ends it at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

from lr.errors import SettingError
from lr.lab.endpoint.client import COMPLETIONS, Broken, EndpointError, Refused, read_piece
from lr.lab.endpoint.models import ServedModel, refuse, refuse_for_logprobs
from lr.model.codec import Codec
from lr.registry import language_of
from lr.spec.verifiers.base import DeferredVerifier, Pair, Requires, Verifier
from lr.spec.verifiers.choose import THRESHOLDS, parse_verifier
from lr.spec.verifiers.judge import JUDGE_PROMPT, SCORE_QUESTION, TINY_JUDGE_PROMPT, ScoreReading
from lr.spec.verifiers.simple import Decode
from lr.types import Verdict, require

if TYPE_CHECKING:
    from lr.engine.load import VerifierChoice

LIKELIEST = 20
"""How many tokens with their log-probabilities are asked for: as many as servers give."""
FAILURES = 3
"""Questions that may fail in a row, each after all its attempts."""


class Question(NamedTuple):
    """A question in flight."""

    answer: Future[Verdict]

    def done(self) -> bool:
        return self.answer.done()

    def verdict(self) -> Verdict:
        """The verdict. Raises `EndpointError` if the run must end."""
        return self.answer.result()

    def cancel(self) -> None:
        """Hang up."""
        self.answer.cancel()


class ServedVerifier(Verifier, DeferredVerifier):
    """What judge and score have in common: put a question, weigh the possible answers. `least_mass`
    is the probability that these must hold together."""

    def __init__(self, model: ServedModel, least_mass: float) -> None:
        require(0 <= least_mass <= 1, "least_mass", least_mass, "a probability, 0 to 1")
        self.model, self.least_mass = model, least_mass
        model.can.logprobs  # noqa: B018  # find out now, not in the thread of the requests
        self.failures = 0
        """Questions that failed since one was answered."""

    def ask(self, pair: Pair, ring: Callable[[], object] = lambda: None) -> Question:
        """Begin to judge a pair; `ring` is called when the verdict is there."""
        question, answer = self.question(pair), Future[Verdict]()
        if not isinstance(question, Verdict):
            size, most = len(self.model.codec.encode(question[0])), self.model.context
            if size >= most:
                why = f"the question has {size} tokens, and the context of {self.model} is {most}"
                question = Verdict(aligned=False, why=why, failed=True)
        if isinstance(question, Verdict):
            answer.set_result(question)
        else:
            answer = self.model.endpoint.client.start(self._decide(*question))
        answer.add_done_callback(lambda _: ring())
        return Question(answer)

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """All pairs at once. Raises `EndpointError` as said above."""
        asked = [self.ask(pair) for pair in pairs]
        try:
            return [question.verdict() for question in asked]
        finally:
            for question in asked:
                question.cancel()

    def question(self, pair: Pair) -> tuple[str, tuple[str, ...]] | Verdict:
        """The prompt and the words an answer may begin with; or the verdict, if it is clear."""
        raise NotImplementedError

    def weigh(self, shares: list[float], mass: float, said: str) -> Verdict:
        """The verdict from the shares of the answers, the probability that they hold together, and
        what the model said."""
        raise NotImplementedError

    async def _decide(self, prompt: str, answers: tuple[str, ...]) -> Verdict:
        model, client = self.model, self.model.endpoint.client
        settings = {"temperature": 0, "max_tokens": 1}
        if model.can.logprobs:
            settings["logprobs"] = LIKELIEST
        body = model.endpoint.body(prompt, settings)
        try:
            answer = await client.retried(lambda: client.fetch(COMPLETIONS, body))
            said, likeliest = self._read(answer)
        except Refused:
            raise
        except EndpointError as error:
            self.failures += 1
            if self.failures >= FAILURES:
                raise EndpointError(
                    f"{self.name} failed {self.failures} times in a row; last: {error}"
                ) from error
            return Verdict(aligned=False, why=f"{self.name} failed: {error}", failed=True)
        self.failures = 0
        return self.weigh(*shares(likeliest, answers), said)

    def _read(self, answer: Any) -> tuple[str, Mapping[str, float]]:
        """What was said, and the log-probabilities of what might have been said."""
        try:
            said = read_piece(answer).text
            if not self.model.can.logprobs:
                return said, {said: 0.0}
            likeliest = answer["choices"][0]["logprobs"]["top_logprobs"][0]
            return said, {str(token): float(value) for token, value in likeliest.items()}
        except (Broken, KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise EndpointError(
                f"{self.model} gave no answer that can be read ({error})."
            ) from error


class ServedJudge(ServedVerifier):
    """Accepts iff the judge's score is at least `threshold`. The first step of a prompt is the
    target's, the second the draft's. Texts that are equal but for case and outer white space are
    not asked about. `tiny`: the judge speaks the tiny language only."""

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

    def question(self, pair: Pair) -> tuple[str, tuple[str, ...]] | Verdict:
        steps = (pair.target_step, pair.draft)
        first, second = (self.decode(step.tokens).strip() for step in steps)
        if first.casefold() == second.casefold():
            return Verdict(aligned=True, why="equal text")
        chat = self.model.codec.chat(self.prompt.about(first, second), enable_thinking=False)
        prompt = self.model.text(chat) + self.prompt.prefill
        return prompt, (self.prompt.aligned, self.prompt.unaligned)

    def weigh(self, shares: list[float], mass: float, said: str) -> Verdict:
        if mass < self.least_mass:
            why = f"the judge answers something else ({said!r}; the two answers hold {mass:.1e})"
            return Verdict(aligned=False, why=why)
        score = shares[0]
        why = f"aligned with {score:.3f} for the judge"
        return Verdict(score >= self.threshold, why=why, score=score)


class ServedScore(ServedVerifier):
    """Accepts iff the target's score of the draft step, read off the probabilities of the digits 0
    to 9, is at least `threshold`."""

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

    def question(self, pair: Pair) -> tuple[str, tuple[str, ...]] | Verdict:
        text = self.model.text((*pair.prefix, *pair.draft.tokens))
        return text + SCORE_QUESTION, tuple(map(str, range(10)))

    def weigh(self, shares: list[float], mass: float, said: str) -> Verdict:
        if mass < self.least_mass:
            why = f"the target gives no score ({said!r}; the ten digits hold {mass:.1e})"
            return Verdict(aligned=False, why=why)
        score = self.reading.score(shares)
        why = f"the target scores it {score:.2f} of 9"
        return Verdict(score >= self.threshold, why=why, score=score)


def shares(likeliest: Mapping[str, float], answers: Sequence[str]) -> tuple[list[float], float]:
    """The probabilities of answers relative to each other, and what they hold together, from the
    likeliest tokens {text: log p}.

    A token counts for the one answer that it begins, or that begins it; white space and case do not
    count. Example: {"al": -0.1, "un": -2.5, "The": -5} for ("aligned]", "unaligned]"): 0.905 and
    0.082, so shares 0.917 and 0.083, held 0.987.
    """
    held = [0.0] * len(answers)
    for token, logprob in likeliest.items():
        word = token.strip().strip("[").lower()
        fits = [
            i
            for i, answer in enumerate(answers)
            if word and (answer.startswith(word) or word.startswith(answer[:-1] or answer))
        ]
        if len(fits) == 1:
            held[fits[0]] += math.exp(logprob)
    whole = sum(held)
    return ([one / whole for one in held] if whole > 0 else [0.0] * len(answers)), min(1.0, whole)


def served_judge(name: str, codec: Codec, judge: ServedModel) -> Verifier:
    """The verifier `name` with a judge behind a server. Raises `SettingError` for a verifier that
    has none, or for a judge that cannot give what it needs."""
    tiny = language_of(codec) is not None
    parsed = parse_verifier(name, speaks_tiny=tiny, checkpoint=codec.name)
    if parsed.kind != "judge":
        encodes = parsed.kind == "embedding"
        uses = "needs a sentence encoder in this process" if encodes else "uses no judge model"
        raise SettingError(
            f"judge is {judge}, but verifier {name!r} {uses}; take verifier judge, or leave the "
            "judge out."
        )
    assert parsed.threshold is not None
    if parsed.threshold != THRESHOLDS["judge"]:
        remedy = "Take verifier 'judge' without a threshold, which reads the answer as text"
        refuse_for_logprobs(judge, f"verifier {name!r}", remedy)
    tiny = language_of(judge.codec) is not None
    return ServedJudge(judge, codec.decode, threshold=parsed.threshold, tiny=tiny)


def beside_served_target(choice: VerifierChoice, target: ServedModel) -> Verifier:
    """The chosen verifier for a target behind a server. Raises `SettingError` if it reads in the
    target what no server gives."""
    name = choice.name
    if name.kind == "score":
        assert name.threshold is not None
        refuse_for_logprobs(target, "verifier 'score'", "Take verifier exact or judge")
        return ServedScore(target, threshold=name.threshold)
    if name.kind == "likelihood":
        lack, remedy = "the log-probabilities of given tokens", "Use exact, judge or score"
        refuse(target, "verifier 'likelihood'", lack, remedy)
    return choice.build(target)  # type: ignore[arg-type]  # no other verifier asks the target
