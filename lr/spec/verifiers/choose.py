"""From the name of a verifier to the verifier.

A name is `kind` or `kind:threshold`: exact, judge, judge:0.8, embedding:0.85, score:9,
likelihood:-0.5, random:0.3. What a verifier is made of (a judge, an encoder, the target) comes in
as functions that are called only if that verifier is chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from lr.errors import SettingError
from lr.spec.verifiers import simple
from lr.spec.verifiers.base import Verifier
from lr.spec.verifiers.judge import JudgeVerifier, LikelihoodVerifier, PromptedModel, ScoreVerifier

THRESHOLDS = {"judge": 0.5, "embedding": 0.95, "score": 7.0, "likelihood": -1.0, "random": 0.5}
"""The kinds that take a number, with its default."""
PLAIN = ("exact", "oracle", "always", "never")
_Part = TypeVar("_Part")


class VerifierName(NamedTuple):
    """A name taken apart. `threshold` is None for the kinds that take none."""

    kind: str
    threshold: float | None


def parse_verifier(text: str, *, speaks_tiny: bool, checkpoint: str) -> VerifierName:
    """Take a name apart. Raises `SettingError`, with the choices, if it does not exist or does not
    suit the checkpoint: "oracle" reads the tiny languages only.
    """
    kind, colon, number = text.partition(":")
    numbered = [f"{known}:{default:g}" for known, default in THRESHOLDS.items()]
    plain = [known for known in PLAIN if known != "oracle" or speaks_tiny]
    choices = f"choose one of: {', '.join([*plain[:-2], *numbered, *plain[-2:]])}."
    if kind == "oracle" and not speaks_tiny:
        raise SettingError(
            f"verifier {kind!r} knows only the tiny languages, and {checkpoint} speaks none of "
            f"them. For this checkpoint {choices}"
        )
    if kind not in PLAIN and kind not in THRESHOLDS:
        raise SettingError(f"there is no verifier {text!r}; {choices}")
    if not colon:
        return VerifierName(kind, THRESHOLDS.get(kind))
    if kind in PLAIN:
        raise SettingError(f"verifier {text!r}: {kind} takes no number. Say {kind!r}, or {choices}")
    try:
        return VerifierName(kind, float(number))
    except ValueError:
        raise SettingError(
            f"verifier {text!r}: {number!r} is not a number. "
            f"Say for example '{kind}:{THRESHOLDS[kind]:g}'."
        ) from None


def make_verifier(
    name: VerifierName,
    decode: simple.Decode,
    *,
    judge: Callable[[], PromptedModel] | None = None,
    target: Callable[[], PromptedModel] | None = None,
    embed: Callable[[], simple.Embed] | None = None,
    parse: simple.Parse | None = None,
) -> Verifier:
    """The verifier of that name; those that compare texts accept equal texts without a model.
    `parse` reads the meaning of a step, for the oracle.

    Raises `SettingError` for an impossible threshold or a missing part.
    """
    kind, threshold = name

    def needed(part: _Part | None, what: str) -> _Part:
        if part is None:
            raise SettingError(f"verifier {kind!r} needs {what}, and none was given.")
        return part

    if kind == "exact":
        return simple.ExactVerifier()
    if kind == "oracle":
        return simple.OracleVerifier(decode, needed(parse, "a tiny language"))
    if kind in ("always", "never"):
        return simple.RandomVerifier(float(kind == "always"))
    assert threshold is not None, "parse_verifier gives every other kind a number"
    if kind == "random":
        return simple.RandomVerifier(threshold)
    if kind == "judge":
        asked = needed(judge, "a judge model")()
        return simple.NormalisedMatch(JudgeVerifier(asked, decode, threshold=threshold), decode)
    if kind == "embedding":
        encoder = needed(embed, "a sentence encoder")()
        compared = simple.EmbeddingVerifier(encoder, decode, threshold=threshold)
        return simple.NormalisedMatch(compared, decode)
    asked = needed(target, "the target model")()
    if kind == "score":
        return ScoreVerifier(asked, threshold=threshold)
    return LikelihoodVerifier(threshold, asked.runner)
