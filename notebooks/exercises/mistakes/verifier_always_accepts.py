"""Says yes. Nothing is ever slower for it, and every mistake of the draft is in the
answer."""

from __future__ import annotations


def aligned(draft: str, target: str) -> bool:
    """Wrong: a verifier that accepts more has not become better."""
    return True
