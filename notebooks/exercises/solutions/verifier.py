"""A reference solution of verifier.py: read both steps, and compare what they state."""

from __future__ import annotations

import re

GETS = {"gets", "fewer", "Compared"}
"""Words that come with the second person first."""
IDLE = {"So", "Adding", "Taking", "Then", "From", "Compared"}
THINGS = {"coins", "shells", "pencils", "apples", "stamps"}


def meaning(step: str) -> tuple[object, ...]:
    """Who, in their roles; all numbers; which thing; whether it is a sum."""
    words = re.findall(r"[A-Za-z]+", step)
    names = [word for word in words if word[0].isupper() and word not in IDLE]
    if GETS & set(words):
        names.reverse()
    numbers = sorted(map(int, re.findall(r"\d+", step)))
    thing = THINGS & set(words)
    adds = any(sign in step for sign in ("+", "plus", "Adding"))
    return names, numbers, thing, adds


def aligned(draft: str, target: str) -> bool:
    """Equal meanings."""
    return meaning(draft) == meaning(target)
