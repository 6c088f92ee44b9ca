"""Exact verification: the two steps are the same token ids, end of sequence included. Lossless at temperature 0.

With it Lookahead Reasoning emits what plain greedy decoding of the target emits, which makes it the verifier of the tests.
"""

from __future__ import annotations

from collections.abc import Sequence

from lr.spec.verifiers.base import Pair
from lr.types import Verdict


class ExactVerifier:
    """Accepts iff the token ids are equal."""

    name = "exact"

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [
            Verdict(aligned=True, why="equal tokens") if pair.draft.tokens == pair.target.tokens else _differ(pair)
            for pair in pairs
        ]


def _differ(pair: Pair) -> Verdict:
    drafts, targets = pair.draft.tokens, pair.target.tokens
    place = next(
        (i for i, (a, b) in enumerate(zip(drafts, targets, strict=False)) if a != b), min(len(drafts), len(targets))
    )
    return Verdict(aligned=False, why=f"tokens differ from offset {place} on")
