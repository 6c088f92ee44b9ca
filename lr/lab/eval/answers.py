"""The answer in a text: the last `\\boxed{...}` where there is one, else what stands behind "the
answer is", else the last number.

Braces are balanced, and the model's thought is left aside: what counts stands behind the last
`</think>`, where there is one. Whether an answer is right is decided in `grading.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lr.result import boxed, reply

_SAID = re.compile(r"(?:answer|result)\s*(?:is|=|:|equals)\s*:?\s*\**([^\n]+)", re.IGNORECASE)
_GSM8K = re.compile(r"####\s*([^\n]+)")
_NUMBER = re.compile(r"(?<![\w.])-?\$?\d[\d,]*(?:\.\d+)?(?:/\d+)?%?")
_LETTER = re.compile(
    r"(?:\\text\{|\\mathrm\{|\\textbf\{)?\s*\(?([A-Z])\)?(?:[.:)\s}].*)?", re.DOTALL
)
_CODE = re.compile(
    r"```[ \t]*(?:python|py|python3)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE
)


@dataclass(frozen=True)
class Found:
    """An answer and where it stood: "box", "mark" (#### 42), "said" (the answer is 42), "number"
    (the last one), "code block", "text".
    """

    answer: str
    where: str


def final_answer(text: str) -> Found | None:
    """The final answer of a mathematical solution, or None. `text` is what the model wrote, without
    the prompt.
    """
    text = reply(text)
    box = boxed(text)
    if box:
        return Found(box, "box")
    for pattern, where in ((_GSM8K, "mark"), (_SAID, "said")):
        if found := pattern.findall(text):
            said = found[-1].strip().rstrip(".*").strip()
            numbers = _NUMBER.findall(said)
            if where == "mark" or "$" in said or "\\" in said or not numbers:
                return Found(said.strip("$ "), where)
            return Found(numbers[0].strip("$"), where)
    numbers = _NUMBER.findall(text)
    return Found(numbers[-1].strip("$"), "number") if numbers else None


def chosen_letter(text: str) -> Found | None:
    """The letter of a multiple choice, or None. Example: "\\boxed{\\text{(B)}}", "the answer is
    (B)." and "B" at the end give "B".
    """
    text = reply(text)
    box = boxed(text)
    if box is not None:
        match = _LETTER.fullmatch(box)
        return Found(match[1], "box") if match else None
    if said := _SAID.findall(text):
        match = _LETTER.fullmatch(said[-1].strip(" *."))
        return Found(match[1], "said") if match else None
    last = text.strip().rpartition("\n")[2].strip(" *.()")
    return Found(last, "text") if re.fullmatch("[A-Z]", last) else None


def code_block(text: str) -> Found | None:
    """The last block of Python in a reply, or the whole reply where it is code without a fence;
    None where there is neither.
    """
    text = reply(text)
    if blocks := [block for block in _CODE.findall(text) if block.strip()]:
        return Found(blocks[-1], "code block")
    return (
        Found(text, "text")
        if re.search(r"^\s*(def |import |from |class |return |print\()", text, re.MULTILINE)
        else None
    )
