"""The scorers of draft steps, for variants that accept by a score.

| scorer | the score | scale, default threshold |
|---|---|---|
| judge | P(aligned) of the judge, draft step against the target's own step | 0 to 1, 0.5 |
| digits | the digit with which the target rates the step (SpecReason) | 0 to 9, 7 |

`None` means the judge if the target names one, else `digits`. The tiny targets have not
learnt to rate with a digit, so with `digits` no step of theirs is accepted."""

from copy import copy

from lr.engine.verifiers import VerifierChoice, asked_model
from lr.reasoner import Reasoner
from lr.spec.verifiers.base import Verifier
from lr.spec.verifiers.judge import JudgeVerifier
from lr.spec.verifiers.named import ScoreReading, ScoreVerifier
from lr.types import require

SCORE_THRESHOLDS = {"judge": 0.5, "digits": 7.0}


def make_scorer(
    reasoner: Reasoner, kind: str | None, threshold: float | None
) -> Verifier:
    """A verifier whose verdicts have scores, aligned from `threshold` on (None: the
    default)."""
    codec = reasoner.codec
    stated = codec.generation_config.get("judge")  # that the target names
    kind = kind or ("judge" if stated else "digits")
    require(
        kind in SCORE_THRESHOLDS,
        "scorer",
        kind,
        f"one of {', '.join(SCORE_THRESHOLDS)}",
    )
    if threshold is None:
        threshold = SCORE_THRESHOLDS[kind]
    engine = reasoner.engine
    target = engine.target_model
    if kind == "digits":
        asked = asked_model(target, codec)
        # the digit it would write
        return ScoreVerifier(asked, threshold=threshold, reading=ScoreReading.LIKELIEST)
    judge = reasoner.verifier
    if not isinstance(judge, JudgeVerifier):  # the one that the target names
        choice = VerifierChoice("judge", codec, None, target.device, engine.loader)
        judge = choice.build(target)
        assert isinstance(judge, JudgeVerifier)
    judge = copy(judge)  # shares the model and the cached prompts
    judge.threshold = threshold
    return judge
