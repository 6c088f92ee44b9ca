"""The answer in a text: what stands in its last `\\boxed{...}`, braces balanced, thought left aside."""

from __future__ import annotations

BOX = "\\boxed{"
END_OF_THOUGHT = "</think>"


def reply(text: str) -> str:
    """The text after the model's thought (what follows the last `</think>`), or all of it where there is none."""
    return text.rpartition(END_OF_THOUGHT)[2]


def boxed(text: str) -> str | None:
    """The content of the last complete `\\boxed{...}`, or None. Example: "so \\boxed{\\frac{1}{2}}." gives "\\frac{1}{2}"."""
    end = len(text)
    while (start := text.rfind(BOX, 0, end)) >= 0:
        depth, first = 1, start + len(BOX)
        for place in range(first, len(text)):
            depth += {"{": 1, "}": -1}.get(text[place], 0)
            if depth == 0:
                return text[first:place].strip()
        end = start
    return None
