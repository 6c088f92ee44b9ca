"""Who scores a draft step, for the variants that accept by a score.

| scorer | the score | scale, usual threshold |
|---|---|---|
| judge | P(aligned) of the judge, draft step against the target's own step | 0 to 1, 0.5 |
| digits | the digit with which the target rates the step (SpecReason) | 0 to 9, 7 |
| likelihood | the target's mean log-probability per token | nats, -1 |

`None` takes the judge where one comes with the target's tiny language, `likelihood` for the other
tiny language, and `digits` for real checkpoints. The tiny targets have never learnt to rate with a
digit, so with `digits` they keep nothing.
"""

from __future__ import annotations

from dataclasses import replace

from lr.engine.runner import ModelRunner
from lr.errors import SettingError
from lr.lab.endpoint.judge import ServedScore
from lr.lab.endpoint.models import ServedModel, refuse_for_logprobs
from lr.parts.deferred import ThreadedVerifier
from lr.parts.judge import JudgeVerifier, asked_model
from lr.parts.verifiers import (
    LikelihoodVerifier,
    NormalisedMatch,
    ScoreReading,
    ScoreVerifier,
    VerifierChoice,
    own_judge,
)
from lr.reasoner import Reasoner
from lr.spec.verifiers.base import Verifier
from lr.tiny.names import language_of

THRESHOLDS = {"judge": 0.5, "digits": 7.0, "likelihood": -1.0}


def make_scorer(reasoner: Reasoner, kind: str | None, threshold: float | None) -> Verifier:
    """A verifier whose verdicts have scores, aligned from `threshold` on (None: the usual one)."""
    codec, target = reasoner.codec, reasoner.models.target
    if kind is None:
        tiny = "judge" if own_judge(codec) is not None else "likelihood"
        kind = "digits" if language_of(codec) is None else tiny
    if kind not in THRESHOLDS:
        raise SettingError(f"scorer is {kind!r}, expected one of {', '.join(THRESHOLDS)}.")
    least = THRESHOLDS[kind] if threshold is None else threshold
    if isinstance(target, ServedModel):
        refuse_for_logprobs(
            target, f"the scorer {kind}", "Use Lookahead Reasoning with verifier exact or judge"
        )
        if kind != "digits":
            raise SettingError(f"scorer is {kind!r}; for a target on a server only 'digits' works.")
        return ServedScore(target, threshold=least, reading=ScoreReading.LIKELIEST)
    if kind == "likelihood":
        return LikelihoodVerifier(least, asked_model(target, codec).runner)
    if kind == "digits":
        asked = asked_model(target, codec)
        return ScoreVerifier(asked, threshold=least, reading=ScoreReading.LIKELIEST)
    judge: object = reasoner.verifier  # with its model, where that is the judge
    threaded = isinstance(judge, ThreadedVerifier)  # then the judge's runner is its thread's
    if isinstance(judge, ThreadedVerifier):
        judge = judge.verifier
    if not (isinstance(judge, NormalisedMatch) and isinstance(judge.verifier, JudgeVerifier)):
        choice = VerifierChoice("judge", codec, device=target.device, dtype=target.dtype)
        judge = choice.build(target)
    assert isinstance(judge, NormalisedMatch) and isinstance(judge.verifier, JudgeVerifier)
    own = judge.verifier
    asked, runner = own.model, own.model.runner
    if threaded and isinstance(runner, ModelRunner):
        blocks, size = runner.cache.pool.num_blocks, runner.vocab_size
        own_runner = ModelRunner(runner.model, num_blocks=blocks, vocab_size=size)
        asked = replace(asked, runner=own_runner)
    made = JudgeVerifier(asked, own.decode, threshold=least, prompt=own.prompt)
    if not threaded:
        made.prefixes = own.prefixes  # and with the prompts that it keeps
    return made
