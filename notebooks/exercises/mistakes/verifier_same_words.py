"""Accepts what is word for word the same. Safe, and it rejects whatever is said in
another way."""

from __future__ import annotations


def aligned(draft: str, target: str) -> bool:
    """Wrong: meaning is not wording."""
    return draft.strip() == target.strip()
