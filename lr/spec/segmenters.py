r"""Where a step ends: at a blank line, the paper's rule (`lr/parts/segmenters.py` has others).

Boundaries are found on bytes, token by token. One token need not be one piece of text: in Qwen's
vocabulary hundreds of tokens contain "\n\n", many of them fused to words, and two tokens "\n" make
a blank line as well. The token that completes a boundary is the step's last. Tokens are never cut,
and text is never encoded again. No step ends before it has a visible character.

Example: the tokens b"So", b" 4", b".\n", b"\nNext" end a step at the fourth; leading b"\n\n" never
does. A segmenter is made anew for each step. A rule of your own is a class like the one below; hand
it in as `Variant.segmenter`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

SegmenterName = Literal["blank_line", "sentence", "fixed", "discourse"]
TokenBytes = Callable[[int], bytes]
"""A token id to its exact bytes."""
WHITE_SPACE = b" \t\r\n\v\f"
BLANK_LINE = b"\n\n"


class Segmenter(Protocol):
    """Reads the tokens of one step in order."""

    def feed(self, token: int) -> bool:
        """Take the next token; True if it completes the boundary."""
        ...


class BlankLineSegmenter:
    """A step is a paragraph: it ends at the first blank line after a visible character."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        self.token_bytes = token_bytes
        self.visible = False
        self.carry = b""  # the last byte, if a blank line may begin with it

    def feed(self, token: int) -> bool:
        text = self.token_bytes(token)
        if not self.visible:
            text = text.lstrip(WHITE_SPACE)
            self.visible = bool(text)
        text = self.carry + text
        self.carry = text[-1:] if text.endswith(b"\n") else b""
        return BLANK_LINE in text
