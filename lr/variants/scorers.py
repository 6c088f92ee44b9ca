"""The scorers of draft steps, for variants that accept by a score.

| scorer | the score | scale, default threshold |
|---|---|---|
| judge | P(aligned) of the judge, draft step against the target's own step | 0 to 1, 0.5 |
| digits | the digit with which the target rates the step (SpecReason) | 0 to 9, 7 |
| likelihood | the target's mean log-probability per token | nats, -1 |

`None` means the judge if the target's tiny language has one, else `likelihood` for a
tiny target and `digits` for a real checkpoint. The tiny targets have not learnt to rate
with a digit, so with `digits` no step of theirs is accepted."""

from __future__ import annotations

from dataclasses import replace

from lr.engine.deferred import ThreadedVerifier
from lr.engine.runner import ModelRunner
from lr.errors import SettingError
from lr.reasoner import Reasoner
from lr.spec.verifiers.base import Verifier
from lr.spec.verifiers.judge import JudgeVerifier, asked_model
from lr.spec.verifiers.named import (
    LikelihoodVerifier,
    NormalisedMatch,
    ScoreReading,
    ScoreVerifier,
    VerifierChoice,
    own_judge,
)
from lr.tiny.names import speaks_tiny

THRESHOLDS = {"judge": 0.5, "digits": 7.0, "likelihood": -1.0}


def make_scorer(
    reasoner: Reasoner, kind: str | None, threshold: float | None
) -> Verifier:
    """A verifier whose verdicts have scores, aligned from `threshold` on (None: the
    default)."""
    codec, target = reasoner.codec, reasoner.models.target
    if kind is None:
        tiny = "judge" if own_judge(codec) is not None else "likelihood"
        kind = tiny if speaks_tiny(codec) else "digits"
    if kind not in THRESHOLDS:
        raise SettingError(
            f"scorer is {kind!r}, expected one of {', '.join(THRESHOLDS)}."
        )
    least = THRESHOLDS[kind] if threshold is None else threshold
    if kind == "likelihood":
        return LikelihoodVerifier(least, asked_model(target, codec).runner)
    if kind == "digits":
        asked = asked_model(target, codec)
        return ScoreVerifier(asked, threshold=least, reading=ScoreReading.LIKELIEST)
    own = reasoner.verifier
    threaded = isinstance(
        own, ThreadedVerifier
    )  # then the judge's runner belongs to its thread
    judge: object = own.verifier if isinstance(own, ThreadedVerifier) else own
    if not (
        isinstance(judge, NormalisedMatch) and isinstance(judge.verifier, JudgeVerifier)
    ):
        choice = VerifierChoice(
            "judge", codec, device=target.device, dtype=target.dtype
        )
        judge = choice.build(target)
    assert isinstance(judge, NormalisedMatch) and isinstance(
        judge.verifier, JudgeVerifier
    )
    loaded = judge.verifier
    asked, runner = loaded.model, loaded.model.runner
    if threaded and isinstance(runner, ModelRunner):
        blocks, size = runner.cache.pool.num_blocks, runner.vocab_size
        own_runner = ModelRunner(runner.model, num_blocks=blocks, vocab_size=size)
        asked = replace(asked, runner=own_runner)
    made = JudgeVerifier(asked, loaded.decode, threshold=least, prompt=loaded.prompt)
    if not threaded:
        made.prefixes = loaded.prefixes  # share the cached prompts
    return made
