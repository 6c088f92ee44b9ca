"""What a verifier is, and the guard around it.

A verifier judges pairs (prefix, draft step, target step) in batches. It never decides eligibility (see `spec/eligibility.py`), and it
may fail: `judge_safely` turns an exception or rubbish into a rejection with its reason, because a broken judge may cost speed but
never the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from lr.types import Step, Verdict


@dataclass(frozen=True)
class Pair:
    """The same position written twice: `prefix` are the token ids before it, prompt included."""

    prefix: tuple[int, ...]
    draft: Step
    target: Step


class Verifier(Protocol):
    """Judges pairs. `name` is what reports call it."""

    name: str

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """One verdict per pair, in order."""
        ...


def judge_safely(verifier: Verifier, pairs: Sequence[Pair]) -> list[Verdict]:
    """The verifier's verdicts; if it raises or answers with anything else, a rejection with the reason for every pair."""
    try:
        verdicts = verifier.judge(pairs)
    except Exception as error:
        return [
            Verdict(aligned=False, why=f"verifier {verifier.name} failed: {type(error).__name__}: {error}")
            for _ in pairs
        ]
    proper = (
        isinstance(verdicts, list) and len(verdicts) == len(pairs) and all(isinstance(v, Verdict) for v in verdicts)
    )
    if not proper:
        return [Verdict(aligned=False, why=f"verifier {verifier.name} answered with no verdict") for _ in pairs]
    return verdicts
