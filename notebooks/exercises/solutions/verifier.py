"""A reference solution of verifier.py: read both steps, and compare what they state."""

from __future__ import annotations

import re

GETS = {"gets", "fewer", "Compared"}
"""Words that come with the second person first."""
IDLE = {"So", "Adding", "Taking", "Then", "From", "Compared"}


def meaning(step: str) -> tuple[object, ...]:
    """Who, in their roles; all numbers; which thing is done."""
    words = re.findall(r"[A-Za-z]+", step)
    names = [word for word in words if word[0].isupper() and word not in IDLE]
    if GETS & set(words):
        names.reverse()
    numbers = sorted(map(int, re.findall(r"\d+", step)))
    thing = next((word for word in words if word.endswith("s") and word in THINGS), "")
    return names, numbers, thing, len(numbers) > 1 and _adds(step)


def _adds(step: str) -> bool:
    return any(sign in step for sign in ("+", "plus", "Adding"))


THINGS = {"coins", "shells", "pencils", "apples", "stamps"}


def aligned(draft: str, target: str) -> bool:
    """Equal meanings."""
    return meaning(draft) == meaning(target)
