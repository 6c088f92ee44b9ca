"""Other rules for the end of a step: a sentence, a fixed length, a turn of the
reasoning.

`lr/spec/write.py` defines segmenters. This file is loaded when an option names one of
these."""

from __future__ import annotations

import re

from lr.options import SegmenterName
from lr.spec.write import WHITE_SPACE, BlankLineSegmenter, Segmenter, TokenBytes
from lr.types import require


def make_segmenter(
    name: SegmenterName, token_bytes: TokenBytes, segment_tokens: int
) -> Segmenter:
    """A segmenter by name; `segment_tokens` is the length of a step for "fixed"."""
    if name == "blank_line":
        return BlankLineSegmenter(token_bytes)
    if name == "fixed":
        return FixedSegmenter(token_bytes, segment_tokens)
    return (SentenceSegmenter if name == "sentence" else DiscourseSegmenter)(
        token_bytes
    )


class FixedSegmenter:
    """A step has `tokens` tokens, or more until one of them is visible.

    This is the control in experiments with segmenters: steps end in the middle of a
    thought, so draft and target steps rarely mean the same."""

    def __init__(self, token_bytes: TokenBytes, tokens: int) -> None:
        require(tokens >= 1, "segment_tokens", tokens, "a whole number >= 1")
        self.token_bytes, self.left, self.visible = token_bytes, tokens, False

    def feed(self, token: int) -> bool:
        self.left -= 1
        self.visible = self.visible or bool(self.token_bytes(token).strip(WHITE_SPACE))
        return self.left <= 0 and self.visible


# Sentences

MARKED = re.compile(
    rb"""(.*)([.!?])[)\]"'*$}]*"""
)  # a word with a mark, closed or quoted
OPENERS = b"([\"'*"
ABBREVIATIONS = frozenset(b"e.g i.e cf vs mr mrs ms dr fig eq".split())


class SentenceSegmenter:
    r"""A step is a sentence: it ends at the white space after ". ! ?", or at a blank
    line.

    Only white space tells a full stop from the point in 3.14, so the token with the
    white space ends the step. If words have a leading space (" Then"), this is the
    first word of the next sentence, for draft and target alike. Example: b"x", b" = 3",
    b".", b"14", b".", b" So" ends at " So"; b"ok", b".", b"\n" ends at the newline.

    No sentence ends inside braces (`\boxed{A. B}`), after one of the `ABBREVIATIONS`,
    or after the number of a list item ("2. Then" at the start of a line). A step begins
    without memory of the line, the braces or the word before it."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        self.token_bytes, self.text = token_bytes, b""
        self.visible = 0  # bytes so far that are not white space
        self.blank = False  # the last byte completed a blank line
        self._word = 0  # where the last word begins

    def feed(self, token: int) -> bool:
        return any(self.read(byte) for byte in self.token_bytes(token))

    def read(self, byte: int) -> bool:
        """Read a byte; True if a sentence or a paragraph ends with it."""
        self.text += bytes([byte])
        if byte not in WHITE_SPACE:
            self.visible, self.blank = self.visible + 1, False
            return False
        self.blank = self.visible > 0 and self.text.endswith(b"\n\n")
        begin, self._word = self._word, len(self.text)
        return self.blank or self._ends(self.text[:begin], self.text[begin:-1])

    def _ends(self, before: bytes, word: bytes) -> bool:
        """Whether a sentence ends with this word."""
        marked, depth = MARKED.fullmatch(word), 0
        if marked is None:
            return False
        stem, mark = marked.groups()
        list_number = stem.isdigit() and not before.rpartition(b"\n")[2].strip(
            WHITE_SPACE
        )
        abbreviation = stem.lstrip(OPENERS).lower() in ABBREVIATIONS
        for brace in re.findall(rb"[{}]", before + stem):
            depth = max(0, depth + (1 if brace == b"{" else -1))
        return depth == 0 and not (mark == b"." and (list_number or abbreviation))


# Turns of the reasoning

CUES = frozenset(
    b"wait so therefore thus hence alternatively but however now then next finally actually "
    b"hmm".split()
)
LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


class DiscourseSegmenter:
    r"""A step ends at a cue ("Wait", "So", ...) or a blank line, after `least` visible
    bytes.

    A cue is recognised only after it is written, and tokens are not taken back. So the
    cue is the last word of the step that it ends. It counts at the start of a sentence
    or line, and is complete at the first byte that is not a letter ("Some" and
    "So-called" are not cues).

    Example, least = 10: "Six plus one is 7.\n\n" ends at the blank line, "Hmm.\n\nSix plus one is
    8. Wait, no" at the comma. "Wait, six plus one" does not end: its cue comes too early."""

    def __init__(self, token_bytes: TokenBytes, least: int = 40) -> None:
        require(least >= 1, "least", least, "a number of visible bytes >= 1")
        self.token_bytes, self.least = token_bytes, least
        self.sentence = SentenceSegmenter(token_bytes)
        self._begin = 0  # where the last sentence or line begins

    def feed(self, token: int) -> bool:
        return any(self._read(byte) for byte in self.token_bytes(token))

    def _read(self, byte: int) -> bool:
        sentence, before, at_cue = self.sentence, self.sentence.visible, False
        if not (
            byte in LETTERS or byte in b"-'" or byte >= 128
        ):  # beyond ASCII: part of a word
            first = sentence.text[self._begin :].lstrip(WHITE_SPACE + OPENERS)
            at_cue = first.lower() in CUES and before - len(first) >= self.least
        if sentence.read(byte) or byte == ord("\n"):
            self._begin = len(sentence.text)
        return at_cue or (sentence.blank and before >= self.least)
