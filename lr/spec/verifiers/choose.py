"""From the name of a verifier to the verifier, with a refusal where it makes no sense."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lr.errors import SettingError
from lr.spec.verifiers.base import Verifier
from lr.spec.verifiers.exact import ExactVerifier
from lr.spec.verifiers.oracle import OracleVerifier

GENERAL = ("exact",)
TINY_ONLY = ("oracle",)


def choose_verifier(
    name: str, *, decode: Callable[[Sequence[int]], str], speaks_tiny: bool, checkpoint: str
) -> Verifier:
    """The verifier called `name`. Raises `SettingError`, with the choices, if there is none or if the checkpoint is not of its kind."""
    choices = GENERAL + (TINY_ONLY if speaks_tiny else ())
    if name in TINY_ONLY and not speaks_tiny:
        raise SettingError(
            f"verifier {name!r} knows only the tiny language, and {checkpoint} does not speak it. "
            f"For this checkpoint choose one of: {', '.join(choices)}."
        )
    if name not in choices:
        raise SettingError(f"there is no verifier {name!r}; choose one of: {', '.join(choices)}.")
    return ExactVerifier() if name == "exact" else OracleVerifier(decode)
