"""A step is a fixed number of tokens: no reading at all, the control of every experiment with
segmenters.

The only rule that counts tokens instead of bytes. A step needs a visible character here too, so it
is longer where its first tokens are white space. Draft and target cut at the same places whatever
they write; their steps then rarely say the same thing, because a step ends in the middle of a
thought.
"""

from __future__ import annotations

from collections.abc import Callable

from lr.spec.steps import WHITE_SPACE
from lr.types import require


class FixedSegmenter:
    """A step is `tokens` tokens. `token_bytes` maps a token id to its exact bytes."""

    def __init__(self, token_bytes: Callable[[int], bytes], tokens: int) -> None:
        require(tokens >= 1, "segment_tokens", tokens, "a whole number >= 1")
        self.token_bytes, self.tokens = token_bytes, tokens

    def start(self) -> FixedDetector:
        return FixedDetector(self.token_bytes, self.tokens)


class FixedDetector:
    """State: how many tokens are still to come, and whether one of them was visible."""

    def __init__(self, token_bytes: Callable[[int], bytes], tokens: int) -> None:
        self.token_bytes = token_bytes
        self.left = tokens
        self.visible = False

    def feed(self, token: int) -> bool:
        self.left -= 1
        self.visible = self.visible or bool(self.token_bytes(token).strip(WHITE_SPACE))
        return self.left <= 0 and self.visible
