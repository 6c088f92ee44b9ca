"""The scorers of draft steps, for variants that accept by a score.

| scorer | the score | scale, default threshold |
|---|---|---|
| judge | P(aligned) of the judge, draft step against the target's own step | 0 to 1, 0.5 |
| digits | the digit with which the target rates the step (SpecReason) | 0 to 9, 7 |
| likelihood | the target's mean log-probability per token | nats, -1 |

`None` means the judge if the target names one, else `digits`. The tiny targets have not
learnt to rate with a digit, so with `digits` no step of theirs is accepted."""

from __future__ import annotations

from lr.engine.loading import Loader
from lr.engine.verifiers import VerifierChoice, asked_model, own_judge
from lr.errors import SettingError
from lr.reasoner import Reasoner
from lr.spec.verifiers.base import Verifier
from lr.spec.verifiers.judge import JudgeVerifier
from lr.spec.verifiers.named import (
    LikelihoodVerifier,
    NormalisedMatch,
    ScoreReading,
    ScoreVerifier,
)

THRESHOLDS = {"judge": 0.5, "digits": 7.0, "likelihood": -1.0}


def make_scorer(
    reasoner: Reasoner, kind: str | None, threshold: float | None
) -> Verifier:
    """A verifier whose verdicts have scores, aligned from `threshold` on (None: the
    default)."""
    codec = reasoner.codec
    target = reasoner.engine.target
    if kind is None:
        kind = "digits" if own_judge(codec) is None else "judge"
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
    loaded = judge_of(reasoner)
    judge = JudgeVerifier(
        loaded.model, loaded.decode, threshold=least, prompt=loaded.prompt
    )
    judge.prefixes = loaded.prefixes  # share the cached prompts
    return judge


def judge_of(reasoner: Reasoner) -> JudgeVerifier:
    """The reasoner's judge; if its verifier is another, the one that the target
    names."""
    verifier: object = reasoner.verifier
    if not (
        isinstance(verifier, NormalisedMatch)
        and isinstance(verifier.verifier, JudgeVerifier)
    ):
        target = reasoner.engine.target
        choice = VerifierChoice(
            "judge", reasoner.codec, None, target.device, Loader(target.dtype)
        )
        verifier = choice.build(target)
    assert isinstance(verifier, NormalisedMatch)
    assert isinstance(verifier.verifier, JudgeVerifier)
    return verifier.verifier
