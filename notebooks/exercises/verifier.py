"""Exercise: a verifier that reads. Grade it with `make grade EX=verifier`.

A verifier says whether a draft step and the target's own step mean the same. Judging by
similarity is cheap and dangerous: “Ann has 7 coins” and “Ann has 8 coins” have nearly
all words in common.

`pairs_kit.LABELLED` holds pairs of steps with their labels, to learn from:

    for pair in LABELLED: print(pair.same, "|", pair.draft, "|", pair.target)

You are graded on other pairs of the same kind (other names and numbers, the same ways
to say it). You win with at least nine of ten right; and of the pairs that do *not* mean
the same you may accept at most one in twenty, for what is accepted wrongly is in the
answer for good.
"""

from __future__ import annotations


def aligned(draft: str, target: str) -> bool:
    """Whether two steps mean the same: the same people, numbers and roles, in whatever
    words."""
    raise NotImplementedError(
        "write aligned in notebooks/exercises/verifier.py: True or False for two texts"
    )
