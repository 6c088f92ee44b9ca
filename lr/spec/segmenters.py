"""Other rules for the end of a step: a sentence, a fixed length.

`lr/spec/write.py` defines segmenters."""

from __future__ import annotations

import re

from lr.options import SegmenterName
from lr.spec.write import WHITE_SPACE, BlankLineSegmenter, Segmenter, TokenBytes


def make_segmenter(
    name: SegmenterName, token_bytes: TokenBytes, segment_tokens: int
) -> Segmenter:
    """A segmenter by name; `segment_tokens` is the length of a step for "fixed"."""
    if name == "fixed":
        return FixedSegmenter(token_bytes, segment_tokens)
    kind = SentenceSegmenter if name == "sentence" else BlankLineSegmenter
    return kind(token_bytes)


class FixedSegmenter:
    """A step has `tokens` tokens, or more until one of them is visible.

    This is the control in experiments with segmenters: steps end in the middle of a
    thought, so draft and target steps rarely mean the same."""

    def __init__(self, token_bytes: TokenBytes, tokens: int) -> None:
        self.token_bytes = token_bytes
        self.left = tokens
        self.visible = False

    def feed(self, token: int) -> bool:
        self.left -= 1
        self.visible = self.visible or bool(self.token_bytes(token).strip(WHITE_SPACE))
        return self.left <= 0 and self.visible


# Sentences

# A word with a mark, closed or quoted.
MARKED = re.compile(rb"""(.*)([.!?])[)\]"'*$}]*""")
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
        self.token_bytes = token_bytes
        self.lines = BlankLineSegmenter(lambda byte: bytes([byte]))
        self.text = b""
        self.word = 0  # where the last word begins in the text

    def feed(self, token: int) -> bool:
        return any(self._read(byte) for byte in self.token_bytes(token))

    def _read(self, byte: int) -> bool:
        """Read a byte; True if a sentence or a paragraph ends with it."""
        self.text += bytes([byte])
        paragraph = self.lines.feed(byte)
        if byte not in WHITE_SPACE:
            return False
        begin = self.word
        self.word = len(self.text)
        return paragraph or self._ends(self.text[:begin], self.text[begin:-1])

    def _ends(self, before: bytes, word: bytes) -> bool:
        """Whether a sentence ends with this word."""
        marked = MARKED.fullmatch(word)
        if marked is None:
            return False
        stem, mark = marked.groups()
        line = before.rpartition(b"\n")[2]
        list_number = stem.isdigit() and not line.strip(WHITE_SPACE)
        abbreviation = stem.lstrip(OPENERS).lower() in ABBREVIATIONS
        depth = 0  # of braces that are open
        for brace in re.findall(rb"[{}]", before + stem):
            depth = max(0, depth + (1 if brace == b"{" else -1))
        return depth == 0 and not (mark == b"." and (list_number or abbreviation))
