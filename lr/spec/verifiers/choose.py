"""From the name of a verifier to the verifier, with a refusal where it makes no sense.

A name is `kind` or `kind:threshold`: exact, judge, judge:0.8, embedding:0.85, score:9,
likelihood:-0.5, random:0.3. What a verifier is made of (a judge model, an encoder, the target) is
handed in as functions, called only when that verifier is chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from lr.errors import SettingError
from lr.spec.verifiers.asked import AskedModel, Decode
from lr.spec.verifiers.base import Verifier
from lr.spec.verifiers.coin import RandomVerifier
from lr.spec.verifiers.embedding import Embed, EmbeddingVerifier
from lr.spec.verifiers.exact import ExactVerifier
from lr.spec.verifiers.folded import FoldedThen
from lr.spec.verifiers.judge import JudgeVerifier
from lr.spec.verifiers.likelihood import LikelihoodVerifier
from lr.spec.verifiers.oracle import OracleVerifier, Reads
from lr.spec.verifiers.score import ScoreVerifier

THRESHOLDS = {"judge": 0.5, "embedding": 0.95, "score": 7.0, "likelihood": -1.0, "random": 0.5}
"""The kinds that take a number, with the number they have where none is given."""
PLAIN = ("exact", "always", "never")
TINY_ONLY = ("oracle",)
_Part = TypeVar("_Part")


@dataclass(frozen=True)
class VerifierName:
    """A name taken apart. `threshold` is None for the kinds that take none."""

    kind: str
    threshold: float | None


@dataclass(frozen=True)
class VerifierParts:
    """What verifiers are made of: how steps are read, the seed of the random one, and what some
    kinds need beyond that. `parse` reads the meaning of a step, for the oracle."""

    decode: Decode
    seed: int = 0
    judge: Callable[[], AskedModel] | None = None
    target: Callable[[], AskedModel] | None = None
    embed: Callable[[], Embed] | None = None
    parse: Reads | None = None


def parse_verifier(text: str, *, speaks_tiny: bool, checkpoint: str) -> VerifierName:
    """Take a name apart. Raises `SettingError`, with the choices, if there is none such or if the
    checkpoint is not of its kind.
    """
    kind, colon, number = text.partition(":")
    choices = _choices(speaks_tiny)
    if kind in TINY_ONLY and not speaks_tiny:
        raise SettingError(
            f"verifier {kind!r} knows only the tiny languages, and {checkpoint} speaks none of them. "
            f"For this checkpoint choose one of: {choices}."
        )
    if kind not in (*PLAIN, *TINY_ONLY, *THRESHOLDS):
        raise SettingError(f"there is no verifier {text!r}; choose one of: {choices}.")
    if not colon:
        return VerifierName(kind, THRESHOLDS.get(kind))
    if kind not in THRESHOLDS:
        raise SettingError(
            f"verifier {text!r}: {kind} takes no number. Say {kind!r}, or choose one of: {choices}."
        )
    try:
        return VerifierName(kind, float(number))
    except ValueError:
        raise SettingError(
            f"verifier {text!r}: {number!r} is not a number. Say for example '{kind}:{THRESHOLDS[kind]:g}'."
        ) from None


def make_verifier(name: VerifierName, parts: VerifierParts) -> Verifier:
    """The verifier of that name. Verifiers that read text skip equal texts. Raises `SettingError`
    for an impossible threshold or a missing part."""
    kind, threshold = name.kind, name.threshold
    if kind in PLAIN or kind in TINY_ONLY:
        return _plain(kind, parts)
    assert threshold is not None, "parse_verifier gives every kind of THRESHOLDS one"
    if kind == "random":
        return RandomVerifier(threshold, parts.seed)
    if kind == "judge":
        return FoldedThen(
            JudgeVerifier(_part(kind, parts.judge), parts.decode, threshold=threshold), parts.decode
        )
    if kind == "embedding":
        return FoldedThen(
            EmbeddingVerifier(_part(kind, parts.embed), parts.decode, threshold=threshold),
            parts.decode,
        )
    target = _part(kind, parts.target)
    if kind == "score":
        return ScoreVerifier(target, threshold=threshold)
    return LikelihoodVerifier(threshold, target.runner)


def _plain(kind: str, parts: VerifierParts) -> Verifier:
    if kind == "oracle":
        return OracleVerifier(parts.decode, parts.parse)
    return (
        ExactVerifier()
        if kind == "exact"
        else RandomVerifier(1.0 if kind == "always" else 0.0, parts.seed)
    )


def _part(kind: str, make: Callable[[], _Part] | None) -> _Part:
    if make is None:
        wanted = {"judge": "a judge model", "embedding": "a sentence encoder"}.get(
            kind, "the target model"
        )
        raise SettingError(f"verifier {kind!r} needs {wanted}, and none was given.")
    return make()


def _choices(speaks_tiny: bool) -> str:
    numbered = (f"{kind}:{number:g}" for kind, number in THRESHOLDS.items())
    return ", ".join(("exact", *(TINY_ONLY if speaks_tiny else ()), *numbered, "always", "never"))
