"""Compares the last number only: “the result is what counts”."""

from __future__ import annotations

import re


def aligned(draft: str, target: str) -> bool:
    """Wrong: the way to it and the people are part of the step."""
    return re.findall(r"\d+", draft)[-1:] == re.findall(r"\d+", target)[-1:]
