"""Accepts where most words are the same, as an embedding does in more dimensions."""

from __future__ import annotations


def aligned(draft: str, target: str) -> bool:
    """Wrong: one other digit leaves nearly all words as they were."""
    one, other = set(draft.lower().split()), set(target.lower().split())
    return len(one & other) >= 0.5 * len(one | other)
