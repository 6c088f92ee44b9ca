"""How far a step can be read before it contradicts a given meaning: the judge is told during
training where two steps part.

A sentence is a path through a template's places, an alternative at each. `agreeing_prefix` follows
all paths of all templates of one meaning through a text at once and says where the last of them
ends.

Example: the meaning is "Ann has 7 coins". "Before Ann owns 17 coins." agrees for the 16 characters
"Before Ann owns "; the "1" is too much. "Before Ann owns 72 coins." agrees for one character more:
7 may still become 7.

Standard library only. Read next: `judge_rows.py`.
"""

from __future__ import annotations

from lr.tiny.grammar import PIECES, slots, unglue
from lr.tiny.language import Meaning


def agreeing_prefix(meaning: Meaning, text: str) -> int:
    """The length of the longest beginning of `unglue(text)` that begins some sentence saying
    `meaning`.
    """
    spaced, values = unglue(text), slots(meaning)
    longest = 0
    for template in PIECES[meaning.kind, meaning.operation]:
        ends = {0}  # where in the text the places so far may end
        for alternatives in template:
            ends_next: set[int] = set()
            for alternative in alternatives:
                words = values.get(alternative, alternative)
                words += " " if words else ""
                for end in ends:
                    matched = _common(spaced, end, words)
                    longest = max(longest, end + matched)
                    if matched == len(words):
                        ends_next.add(end + matched)
            ends = ends_next
    return longest


def _common(text: str, start: int, words: str) -> int:
    """How many characters of `words` stand in `text` from `start` on."""
    if text.startswith(words, start):
        return len(words)
    return next(
        (i for i, letter in enumerate(words) if text[start + i : start + i + 1] != letter),
        len(words),
    )
