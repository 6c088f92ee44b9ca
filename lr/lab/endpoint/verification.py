"""From the name of a verifier to the verifier, where the target or the judge is served. Verifiers
that ask neither are as ever.
"""

from __future__ import annotations

from lr.engine.load import VerifierChoice, speaks_tiny
from lr.errors import SettingError
from lr.lab.endpoint.judge import ServedJudge, ServedScore
from lr.lab.endpoint.models import ServedModel
from lr.lab.endpoint.needs import refuse, refuse_for_logprobs
from lr.model.codec import Codec
from lr.spec.verifiers.base import Verifier
from lr.spec.verifiers.choose import THRESHOLDS, parse_verifier


def served_judge(name: str, codec: Codec, judge: ServedModel) -> Verifier:
    """The verifier `name` with a judge behind a server. Raises `SettingError` for a verifier that
    has none, or for a judge that cannot give what it needs."""
    parsed = parse_verifier(name, speaks_tiny=speaks_tiny(codec), checkpoint=codec.name)
    if parsed.kind != "judge":
        uses = (
            "needs a sentence encoder in this process"
            if parsed.kind == "embedding"
            else "uses no judge model"
        )
        raise SettingError(
            f"judge is {judge}, but verifier {name!r} {uses}; take verifier judge, or leave the judge out."
        )
    assert parsed.threshold is not None
    if parsed.threshold != THRESHOLDS["judge"]:
        refuse_for_logprobs(
            judge,
            f"verifier {name!r}",
            "Take verifier 'judge' without a threshold, which reads the answer as text",
        )
    return ServedJudge(
        judge, codec.decode, threshold=parsed.threshold, tiny=speaks_tiny(judge.codec)
    )


def beside_served_target(choice: VerifierChoice, target: ServedModel) -> Verifier:
    """The chosen verifier for a target behind a server. Raises `SettingError` where it reads in the
    target what no server gives.
    """
    name = choice.name
    if name.kind == "score":
        assert name.threshold is not None
        refuse_for_logprobs(target, "verifier 'score'", "Take verifier exact or judge")
        return ServedScore(target, threshold=name.threshold)
    if name.kind == "likelihood":
        refuse(
            target,
            "verifier 'likelihood'",
            "the log-probabilities of given tokens",
            "Use exact, judge or score",
        )
    return choice.build(target)  # type: ignore[arg-type]  # the verifiers that ask the target are settled above
