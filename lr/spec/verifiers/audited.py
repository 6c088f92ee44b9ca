"""A verifier under audit: a reference is asked about the same pairs, for the record only. What it
costs is time, never a decision.

For the drift of a verifier (`lr/lab/eval/signatures.py`, `verifier_drift`): what would the oracle
or a larger judge have said?
"""

from __future__ import annotations

from collections.abc import Sequence

from lr.spec.verifiers.base import Pair, Verifier, judge_safely, need_of
from lr.types import Verdict


class Audited:
    """Judges as `verifier` does. `verdicts` and `reference` keep, pair by pair, whether each of the
    two said aligned.

    All pairs count that the verifier was asked about, also those whose verdict was not needed in
    the end. A reference that fails counts as a rejection.
    """

    def __init__(self, verifier: Verifier, reference: Verifier) -> None:
        self.verifier, self.by = verifier, reference
        self.name = verifier.name
        self.need = need_of(verifier) | need_of(reference)
        self.verdicts: list[bool] = []
        self.reference: list[bool] = []

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        verdicts = judge_safely(self.verifier, pairs)
        self.verdicts += [verdict.aligned for verdict in verdicts]
        self.reference += [verdict.aligned for verdict in judge_safely(self.by, pairs)]
        return verdicts
