"""Exact verification: the two steps are the same token ids, end of sequence included. Lossless at
temperature 0.

With it Lookahead Reasoning emits what plain greedy decoding of the target emits, which makes it the
verifier of the tests. It never looks at text; the lenient comparison of texts is `folded.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from lr.spec.verifiers.base import Need, Pair
from lr.types import Verdict


class ExactVerifier:
    """Accepts iff the token ids are equal."""

    name = "exact"
    need = Need.TARGET_STEP

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [_compare(pair.draft.tokens, pair.target_step.tokens) for pair in pairs]


def _compare(drafts: Sequence[int], targets: Sequence[int]) -> Verdict:
    if drafts == targets:
        return Verdict(aligned=True, why="equal tokens")
    place = next(
        (i for i, (a, b) in enumerate(zip(drafts, targets, strict=False)) if a != b),
        min(len(drafts), len(targets)),
    )
    return Verdict(aligned=False, why=f"tokens differ from offset {place} on")
