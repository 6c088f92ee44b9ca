"""A shadow verifier: a reference judges the same pairs, for the record only.

It answers what an oracle or a larger judge would have said, for the drift of a verifier
(`verifier_drift`). It costs time and changes no decision.
"""

from __future__ import annotations

from collections.abc import Sequence

from lr.spec.verifiers.base import Pair, Verifier, verdicts_of
from lr.types import Verdict


class ShadowVerifier(Verifier):
    """Judges as `verifier` does; `verdicts` and `reference` record, pair by pair, whether each of
    the two said aligned. Pairs whose verdict was not needed in the end count too.
    """

    def __init__(self, verifier: Verifier, reference: Verifier) -> None:
        self.name, self.fallible = verifier.name, verifier.fallible
        self.requires = verifier.requires | reference.requires
        self.verifier, self.shadow = verifier, reference
        self.verdicts: list[bool] = []
        self.reference: list[bool] = []

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        verdicts = verdicts_of(self.verifier, pairs)
        self.verdicts += [verdict.aligned for verdict in verdicts]
        self.reference += [verdict.aligned for verdict in verdicts_of(self.shadow, pairs)]
        return verdicts
