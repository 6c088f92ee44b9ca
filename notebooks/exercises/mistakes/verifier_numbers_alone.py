"""Compares the numbers and forgets whose they are."""

from __future__ import annotations

import re


def aligned(draft: str, target: str) -> bool:
    """Wrong: who has the coins matters too."""
    return sorted(re.findall(r"\d+", draft)) == sorted(re.findall(r"\d+", target))
