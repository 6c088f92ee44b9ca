"""Compares names and numbers as sets: who gives and who gets is forgotten."""

from __future__ import annotations

import re

IDLE = {"So", "Adding", "Taking", "Then", "From", "Compared"}


def aligned(draft: str, target: str) -> bool:
    """Wrong: “Ann gives Ben 3” is not “Ben gives Ann 3”."""
    found = [
        (set(re.findall(r"[A-Z]\w+", step)) - IDLE, sorted(re.findall(r"\d+", step)))
        for step in (draft, target)
    ]
    return found[0] == found[1]
