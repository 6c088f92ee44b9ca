"""The answer in a reply: in its boxes, or after `####`, or in the last sentence that
states an answer, or its last value; for a multiple choice the letter, never one out of
a sentence. Read next: `grading.py`, which compares it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lr.result import Box, boxes

TAIL = 10_000  # Characters from the end in which an answer without a box is looked for.
SENTENCES = 50  # How many sentences are read for it, from the end.
SENTENCE = 400  # Longest sentence in characters.

_SYMBOLS = str.maketrans(
    {
        "−": "-", "–": "-", "－": "-", "‐": "-", "‑": "-", "﹣": "-", "×": r"\times ", "·": r"\cdot ", "÷": "/",
        "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "±": r"\pm ",
        "∞": r"\infty ", "π": r"\pi ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ",
        "∅": r"\emptyset ", "°": r"^\circ ", "\r": "", "⁄": "/",
        "\u00a0": " ", "\u2009": " ", "\u202f": " ", "~": " ",
    }
)  # fmt: skip
_VULGAR_FRACTION = re.compile("[¼-¾⅐-⅞]")
_POWER = re.compile("[⁰¹²³⁴-⁹⁺⁻]+")
_ROOT = re.compile(r"√\s*(?:[({]([^(){}]*)[)}]|(\d+(?:\.\d+)?|[a-z]))")
# emphasis and code marks; a power 2**3 and a product 2*3 stay
_MARKS = re.compile(
    r"(?<![\w)}])\*+(?=\S)|(?<=\S)\*+(?![\w({\\*-])|`+|^[ \t]*[-*+] |\b__|__\b", re.M
)
_MATH = (  # LaTeX in its delimiters; `$5 and $7` is money
    r"\$\$(?:(?!\$\$).){1,400}\$\$|\\\[(?:(?!\\[\[\]]).){1,400}\\\]"
    r"|\\\((?:(?!\\[()]).){1,400}\\\)"
    r"|\$(?!\d[\d.,]*\s+[A-Za-z]{2})(?:\\.|[^$\n\\]){1,400}\$(?!\d)"
)
_BRACES = r"\{(?:[^{}]|\{[^{}]{0,100}\}){0,100}\}"
_LATEX = (
    rf"(?:(?<!\d)\d{{1,9}})?\\[a-zA-Z]{{1,20}}(?:{_BRACES})+"  # \frac{{1}}{{2}} bare
)
_TUPLE = (
    r"[(\[](?=[^()\[\]]{0,60}\d)[^()\[\]\nA-Za-z]{1,60},[^()\[\]\nA-Za-z]{1,60}[)\]]"
)
# a sign, money, 1,000 or 45 000, decimals, then 1/2 or 3:4, %; never the 2 of 2x or x2
_NUMBER = (
    r"(?>(?:(?<![\w)}])-)?(?<![\w.^_])(?<![Ss]tep )\\?[$€£]?-?"
    r"(?:(?:\d{1,3}(?:[, ]\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
    r"(?:[eE][+-]?\d+(?!\w))?(?: \d+/\d+|[/:]\d+)?(?:\s?\\?%)?"
    r"(?: (?:thousand|million|billion|trillion)\b)?)(?![xyzn]\b)"
)
_VALUE = re.compile(f"{_MATH}|{_LATEX}|{_TUPLE}|{_NUMBER}", re.DOTALL)
_EXPRESSION = re.compile(  # no word but the names of functions
    r"(?:\\[a-zA-Z]+|(?<![a-zA-Z])(?:sqrt|sin|cos|tan|log|ln|exp|pi|[a-zA-Z])(?![a-zA-Z])"
    r"|[\d\s.,+*/^=<>()\[\]{}_!|%:-])+"
)
_LEFT_SIDE = re.compile(r"(?:[^a-zA-Z\\]*|[a-zA-Z](?:_\w|\(\w\))?\s*)=\s*(?=\S)")
_CHAIN = re.compile(  # all but the end of "a = b = 5" and "\text{cost} = 5"
    r"^\s*(?:\\text\{[^{}]*\}|[^,;&]*=[^,;&]*)=\s*"
    r"(?=(?:[^=,;&{}]|\{(?:[^{}]|\{[^{}]*\})*\})+$)"
)
_STATES = re.compile(  # "The answer to this is", "Answer:", "### Final answer"
    r"\b(?:answer|result)s?\b[^.\n:=]{0,80}?(?:\b(?:is|are|equals)\b|=|:):?"
    r"|\bsolutions? (?:is|are)\b:?|^(?-i:A):|^[\s#]*(?:final )?answer\s*$",
    re.IGNORECASE | re.MULTILINE,
)
_FINAL = re.compile(r"final answer|^[\s*#]*answer\s*[:=]", re.IGNORECASE | re.MULTILINE)
_MARK = re.compile(r"^\s*####\s*(?!\d+[.)]\s)(?=[-+$\\(*_]*\.?\d)(.+)", re.MULTILINE)
_SENTENCE_END = r"(?<!\d\.\s)[.!?](?=\s|$)|\n"
# after these words the answer is explained, or another one denied
_ASIDE = re.compile(
    r"[,;]?\s*(?:\b(?:because|since|as|when|where|rather than|instead of|(?:and )?not"
    r"|or (?:about|approximately|roughly)|that is|i\.e)\b|, which\b|≈|\\approx| \()",
    re.IGNORECASE,
)
_HOLLOW = re.compile(  # "so the answer is correct" states none
    r"(?:in|not|un)?(?:correct|right|wrong|valid|consistent|verified|clear|known|the|a|an"
    r"|as|below|above|therefore|thus|reasonable|obtained|found|that)\b",
    re.IGNORECASE,
)
_AMOUNT = re.compile(r"\\?[$€£]\d[\d,.]*")
_MEANS = re.compile(
    r"(?:\b(?:with|for|at|of|from|to|by|than)|[-+*/=(]) $", re.IGNORECASE
)
_PRICE = re.compile(r"\s*(?:(?:an?|per|each|every|more|less)\b|[-+*/=×÷$\\])")
_AND = re.compile(r"\s*(?:[,;]|(?:,\s*)?(?:and|or|&))\s*(?:[a-zA-Z]\s?=\s*)?")
_NOT_TEXT = re.compile(r"\\(?:q?quad|text|mathrm|[()\[\],;! ])|[${}*~]")
_INFERS = set(
    "so thus hence then therefore gives wait no not actually but rather".split()
)


class FinalAnswer(NamedTuple):
    """An answer and where it was found: "box", "mark" (#### 42), "sentence" (the answer
    is 42), "last value", "last line"."""

    text: str
    where: str


def as_latex(text: str) -> str:
    """The text with signs of Unicode as LaTeX has them: −3, ½, √2, 10⁻³, ≤."""
    text = _VULGAR_FRACTION.sub(_fraction, text)
    text = _POWER.sub(_power, text)
    return _ROOT.sub(r"\\sqrt{\1\2}", text).translate(_SYMBOLS)


def _fraction(sign: re.Match[str]) -> str:
    top, _, bottom = unicodedata.normalize("NFKC", sign[0]).partition("\u2044")
    return rf"\frac{{{top}}}{{{bottom}}}"


def _power(signs: re.Match[str]) -> str:
    power = unicodedata.normalize("NFKC", signs[0])
    return f"^{power}" if len(power) == 1 else f"^{{{power}}}"


def final_answer(text: str) -> FinalAnswer | None:
    """The final answer of a mathematical solution, or None. A final answer stated after
    the last box replaces it."""
    closed = boxes(text)
    box = _joined(text, closed)
    end = closed[-1].end if closed else 0
    tail = as_latex(_MARKS.sub("", text[max(end, len(text) - TAIL) :]))
    if marks := _MARK.findall(tail):
        value = _value(marks[-1])
        return FinalAnswer(value or marks[-1].strip(), "mark")
    sentences = list(_statements(tail))
    for states, sentence in sentences:
        value = _value(_before_aside(sentence))
        if value and (box is None or _FINAL.search(states)):
            return FinalAnswer(value, "sentence")
        words = _before_aside(sentence, needs_value=False).strip(" .:,$")
        if box is None and words and len(words) < 60 and not _HOLLOW.match(words):
            return FinalAnswer(words, "sentence")
    if box is not None:
        return FinalAnswer(box, "box")
    for sentence in list(_sentences(tail))[: -SENTENCES - 1 : -1]:
        if value := _value(sentence):
            return FinalAnswer(value, "last value")
    names = re.findall(f"(?s:{_MATH})", tail)
    return FinalAnswer(_bare(names[-1]), "last value") if names else None


def boxed_answer(text: str) -> str | None:
    """The content of the last box, or None. Boxes joined by "and", "or" or a comma are
    a list: "x = \\boxed{1} and y = \\boxed{2}" is "1, 2"."""
    return _joined(text, boxes(text))


def _joined(text: str, closed: Sequence[Box]) -> str | None:
    first = len(closed) - 1
    while first > 0 and _joins(text[closed[first - 1].end : closed[first].start]):
        first -= 1
    contents = dict.fromkeys(box.content for box in closed[max(first, 0) :])
    return ", ".join(contents) or None


def _joins(gap: str) -> bool:
    """Whether the text between two boxes joins them."""
    if len(gap) > 80 or "\n\n" in gap:
        return False
    words = re.findall(r"[,;&]|[^\s,;&]+", _NOT_TEXT.sub(" ", gap))
    joined = not words or any(word in (",", ";", "&", "and", "or") for word in words)
    ends = any(word.endswith((".", "!", "?")) for word in words)
    return joined and not ends and len(words) <= 6 and not _INFERS.intersection(words)


def _statements(text: str) -> Iterator[tuple[str, str]]:
    """The sentences that state an answer, from the last: the words that do, and what
    follows them, which may begin on another line."""
    for states in list(_STATES.finditer(text))[: -SENTENCES - 1 : -1]:
        following = text[states.end() : states.end() + SENTENCE].lstrip(" \n:*_")
        yield states[0], next(_sentences(following), "")


def _sentences(text: str) -> Iterator[str]:
    """The sentences and lines of a text. None ends within mathematics."""
    start = 0
    for part in re.finditer(f"(?s:{_MATH})|(?P<end>{_SENTENCE_END})|$", text):
        if part["end"] or (part.end() == len(text) and not part[0]):
            if sentence := text[start : part.start()].strip():
                yield sentence
            start = part.end()


def _before_aside(sentence: str, *, needs_value: bool = True) -> str:
    for aside in _ASIDE.finditer(sentence):
        before = sentence[: aside.start()]
        if _VALUE.search(before) or not needs_value:
            return before
    return sentence


def _value(sentence: str) -> str | None:
    """The value that a sentence gives: all of it, if it is an expression, or else the
    last value in it, with those that "and", "or" and commas join to it."""
    sentence = sentence.lstrip(" ,;:!?").rstrip(" .,;:!?")
    if _EXPRESSION.fullmatch(sentence) and re.search(r"\d|\\", sentence):
        return _LEFT_SIDE.sub("", sentence, count=1).strip()
    values = list(_VALUE.finditer(sentence))
    while values and not re.search(r"\d|\\[a-zA-Z]|[=<>]", values[-1][0]):
        values.pop()  # `$n$` names something
    if not values:
        return None
    clause = max(sentence.rfind(", "), sentence.rfind("; "))
    amounts = [
        value
        for value in values
        if value.start() > clause
        and _AMOUNT.fullmatch(value[0])
        and not _MEANS.search(sentence[max(0, value.start() - 6) : value.start()])
    ]
    # "she spends $5 over 30 days": the money, unless it is a means or a price
    if len(amounts) == 1 and not _PRICE.match(sentence, amounts[0].end()):
        return _bare(amounts[0][0])
    first = len(values) - 1
    while first and _AND.fullmatch(
        sentence[values[first - 1].end() : values[first].start()]
    ):
        first -= 1
    return ", ".join(_bare(value[0]) for value in values[first:])


def _bare(value: str) -> str:
    """A value without delimiters of mathematics or money."""
    value = re.sub(r"^(?:\$\$?|\\[(\[])|(?:\$\$?|\\[)\]])$", "", value.strip())
    value = _CHAIN.sub("", value)
    return re.sub(r"^(-?)\\?[$€£]", r"\1", value.strip()).strip(" .,;")


_WRAPPER = re.compile(
    r"\\[a-zA-Z]+\s*\{|[{}$*_`\"'“”]|\\[()\[\]]|\b(?:option|choice|answer)\b",
    re.IGNORECASE,
)
_LETTER = re.compile(
    r"[\s:]*(?P<bracket>[(\[])?(?P<letter>[A-Za-z])(?!['\w])"
    r"(?:(?P<alone>[.)\]\s]*)$|[)\]]|(?=[ \t]*(?:\n|[.,;:!)\]—–-]|\(|\\"
    r"|(?:because|since|as|due|for|which|with)\b)))"
    r"(?:\s*(?:,|and|or|&|/)\s*\(?(?P<next>[A-Z])(?!['\w]))?"
)
_CHOOSES = re.compile(
    r"\b(?:answer|option|choice)\b[^.\n:=]{0,60}?"
    r"(?:\bis\b(?:,? (?:therefore|thus|hence|clearly),?)?|:|=)",
    re.IGNORECASE,
)
_IS_RIGHT = re.compile(r"\b[A-Z]\b\)?(?= is (?:the )?(?:correct|right|best)\b)")


def chosen_letter(text: str, letters: str) -> FinalAnswer | None:
    """The chosen one of these letters, or None. Example: "\\boxed{\\text{(B)}}", "the
    answer is (B), because" and a last line "**B**" give "B"."""
    closed = boxes(text)
    end = closed[-1].end if closed else 0
    after_box = text[max(end, len(text) - TAIL) :]
    if letter := _stated_letter(after_box, letters):
        return FinalAnswer(letter, "sentence")
    if closed:
        letter = _letter(_joined(text, closed[-9:]) or "", letters)
        return FinalAnswer(letter, "box") if letter else None
    lines = after_box.strip().splitlines() or [""]
    last_line = _WRAPPER.sub("", lines[-1]).strip(" .()[]")
    if len(last_line) == 1 or len(lines) == 1:  # not the last of a list of options
        letter = _letter(lines[-1], letters)
        return FinalAnswer(letter, "last line") if letter else None
    return None


def _stated_letter(text: str, letters: str) -> str | None:
    for states in list(_CHOOSES.finditer(text))[: -SENTENCES - 1 : -1]:
        following = text[states.end() : states.end() + SENTENCE].lstrip(" \n*_")
        if letter := _letter(following, letters):
            return letter
    right = [match[0][0] for match in _IS_RIGHT.finditer(text)]
    return right[-1] if right and right[-1] in letters else None


def _letter(text: str, letters: str) -> str | None:
    """The letter that a text begins with, if it is no word of a sentence and no other
    letter follows. A small letter counts in brackets or alone."""
    match = _LETTER.match(_WRAPPER.sub("", text))
    if match is None or (match["next"] and match["next"] in letters):
        return None
    letter = match["letter"]
    if letter.islower() and not match["bracket"] and match["alone"] is None:
        return None
    return letter.upper() if letter.upper() in letters else None
