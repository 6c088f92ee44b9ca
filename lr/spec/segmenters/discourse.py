r"""A step follows the discourse: it ends at a turn of the reasoning ("Wait", "So", "Therefore",
"But", ...) or at a paragraph long enough.

One would like a step to end *before* the cue that begins a new thought, but whether there is a cue
is known when it has been written, and what is written is not taken back. So **the cue is the last
word of the step that it ends**: whoever writes the next step (and a router that decides who that
is) finds the turn announced. A cue counts at the beginning of a sentence or a line, and is complete
with the first byte that is no letter ("So" is a cue, "Some" and "So-called" are not). In the usual
"Wait, ..." that is the comma; in "So we" the step takes " we" along, because tokens are not cut.

Before a step has `least` visible bytes nothing ends it. So "Hmm.\n\n" and a formula on a line of
its own stay with what follows them, which the blank line alone would cut off. Worked example, least
= 10: "Six plus one is 7.\n\n" ends at the blank line; "Hmm.\n\nSix plus one is 8. Wait, no" at the
comma; "Wait, six plus one" not at all: its cue comes too early.

The cues are English, and a list; this is a rule to measure against, not a parser.
"""

from __future__ import annotations

from collections.abc import Callable

from lr.spec.segmenters.sentence import OPENERS, SentenceScan
from lr.spec.steps import WHITE_SPACE
from lr.types import require

CUES = frozenset(
    b"wait so therefore thus hence alternatively but however now then next finally actually hmm".split()
)
LONGEST_CUE = max(map(len, CUES))
LEAST = 40


class DiscourseSegmenter:
    """A step ends at a cue or a blank line, once it has `least` visible bytes. `token_bytes` maps a
    token id to its exact bytes.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], least: int = LEAST) -> None:
        require(least >= 1, "least", least, "a number of visible bytes >= 1")
        self.token_bytes, self.least = token_bytes, least

    def start(self) -> DiscourseDetector:
        return DiscourseDetector(self.token_bytes, self.least)


class DiscourseDetector:
    """Beside the scan of sentences: the word that begins a sentence, as far as it is read; None
    inside a sentence.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], least: int) -> None:
        self.token_bytes, self.least = token_bytes, least
        self.scan = SentenceScan()
        self.opening: bytes | None = b""

    def feed(self, token: int) -> bool:
        return any(self._read(byte) for byte in self.token_bytes(token))

    def _read(self, byte: int) -> bool:
        before = self.scan.visible
        at_cue = self._is_cue(byte) and before - len(self.opening or b"") >= self.least
        begins = self.scan.read(byte) or byte == ord("\n")
        if begins:
            self.opening = b""
        elif self.opening is not None:
            self.opening = self._read_on(self.opening, byte)
        return at_cue or (self.scan.blank and before >= self.least)

    def _is_cue(self, byte: int) -> bool:
        """Whether the word that begins the sentence is a cue, and complete before this byte."""
        if self.opening is None or _goes_on(byte):
            return False
        return self.opening.lower() in CUES

    def _read_on(self, opening: bytes, byte: int) -> bytes | None:
        if _is_letter(byte):
            return opening + bytes([byte]) if len(opening) < LONGEST_CUE else None
        return opening if not opening and byte in WHITE_SPACE + OPENERS else None


def _is_letter(byte: int) -> bool:
    return byte in b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _goes_on(byte: int) -> bool:
    """Whether a word goes on with this byte: a letter, a hyphen, an apostrophe, or part of a
    character beyond ASCII.
    """
    return _is_letter(byte) or byte in b"-'" or byte >= 128
