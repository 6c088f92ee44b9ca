r"""A step is a sentence: it ends at the white space behind ". ! ?", or at a blank line, once a
visible character was seen.

That white space is what tells a full stop from the point of 3.14; so the boundary is complete with
the token that brings it. Tokens are never cut: where words carry their space in front (" Then"),
**the step ends with the first word of the next sentence**. Draft and target do so alike, and
nothing is lost; but the text that a verifier reads is shifted by that word. Worked example: the
tokens b"x", b" = 3", b".", b"14", b".", b" So" end a step at " So"; b"ok", b".", b"\n" at the
newline, with nothing of what follows.

No sentence ends inside braces (`\boxed{A. B}`, `\text{...}`), behind an abbreviation of the list
below, or behind the number of a list item ("2. Then" at the beginning of a line). A blank line
always ends it, so an unbalanced brace costs a paragraph at most. Known limits: an abbreviation that
is not in the list ends a sentence; a step begins with no memory of the line, the braces or the word
before it.
"""

from __future__ import annotations

from collections.abc import Callable

from lr.spec.steps import WHITE_SPACE

MARKS = b".!?"
CLOSERS = b")]\"'*$}"
"""What may stand between a sentence's mark and the white space; a brace that closes among them."""
OPENERS = b"([\"'*"
ABBREVIATIONS = frozenset(
    {b"e.g", b"i.e", b"cf", b"vs", b"mr", b"mrs", b"ms", b"dr", b"fig", b"eq"}
)
LONGEST_WORD = 8
"""Bytes of a word that are kept: no abbreviation, and no number of a list item, is longer."""


class SentenceSegmenter:
    """A step is a sentence. `token_bytes` maps a token id to its exact bytes."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self.token_bytes = token_bytes

    def start(self) -> SentenceDetector:
        return SentenceDetector(self.token_bytes)


class SentenceDetector:
    """Reads a step byte by byte; tokens are only how the bytes come."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self.token_bytes = token_bytes
        self.scan = SentenceScan()

    def feed(self, token: int) -> bool:
        return any(self.scan.read(byte) for byte in self.token_bytes(token))


class SentenceScan:
    """Where sentences and lines end, one byte at a time. State: the word being read, the depth of
    braces, whether a mark is behind us.
    """

    def __init__(self) -> None:
        self.visible = 0
        """Bytes so far that are not white space."""
        self.blank = False
        """The last byte completed a blank line."""
        self._word = b""
        self._first_of_line = True
        self._depth = 0
        self._marked = False
        self._newline = False

    def read(self, byte: int) -> bool:
        """Take a byte; True iff a sentence or a paragraph ends with it."""
        if byte in WHITE_SPACE:
            return self._space(byte)
        self.visible += 1
        self.blank = self._newline = False
        if byte == ord("{"):
            self._depth += 1
        elif byte == ord("}"):
            self._depth = max(0, self._depth - 1)
        if byte in MARKS:
            self._marked = self._depth == 0 and not (byte == ord(".") and self._no_stop())
        elif byte not in CLOSERS:
            self._marked = False
        if len(self._word) <= LONGEST_WORD:
            self._word += bytes([byte])
        return False

    def _space(self, byte: int) -> bool:
        newline = byte == ord("\n")
        self.blank = newline and self._newline and self.visible > 0
        ended = self.blank or self._marked
        self._first_of_line = newline or (self._first_of_line and not self._word)
        self._newline, self._marked, self._word = newline, False, b""
        return ended

    def _no_stop(self) -> bool:
        """Whether a point behind this word ends no sentence: an abbreviation, or the number of a
        list item.
        """
        if self._first_of_line and self._word.isdigit():
            return True
        return self._word.lstrip(OPENERS).lower() in ABBREVIATIONS
