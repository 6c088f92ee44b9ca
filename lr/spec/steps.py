"""Where a step ends. Boundaries are found on bytes, token by token, with what was seen carried
over.

A step ends at the first blank line ("\\n\\n") that follows a visible character. One token need not
be one piece of text: in Qwen's vocabulary hundreds of tokens contain "\\n\\n", many of them fused
to words, and two tokens "\\n" make one as well. So a detector reads the bytes of each token, and
the token that completes the boundary is the step's last; tokens are never cut, text is never
encoded again. Worked example: tokens b"So", b" 4", b".\\n", b"\\nNext" end a step at the fourth
token; leading b"\\n\\n" never does.

The other rules (sentence, fixed length, discourse) are in `segmenters/`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

WHITE_SPACE = b" \t\r\n\v\f"
BLANK_LINE = b"\n\n"


class BoundaryDetector(Protocol):
    """Reads the tokens of one step in order."""

    def feed(self, token: int) -> bool:
        """Take the next token; True iff the boundary is complete with it."""
        ...


class Segmenter(Protocol):
    """A rule that cuts token streams into steps."""

    def start(self) -> BoundaryDetector:
        """A detector for a new step."""
        ...


class BlankLineSegmenter:
    """The paper's rule: a step is a paragraph. `token_bytes` maps a token id to its exact bytes."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self.token_bytes = token_bytes

    def start(self) -> BlankLineDetector:
        return BlankLineDetector(self.token_bytes)


class BlankLineDetector:
    """State: whether the step has a visible character yet, and the last byte if it could begin a
    blank line.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self.token_bytes = token_bytes
        self.visible = False
        self.carry = b""

    def feed(self, token: int) -> bool:
        text = self.token_bytes(token)
        if not self.visible:
            text = text.lstrip(WHITE_SPACE)
            self.visible = bool(text)
        text = self.carry + text
        self.carry = text[-1:] if text.endswith(b"\n") else b""
        return BLANK_LINE in text
