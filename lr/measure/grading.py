"""From a model's text to right or wrong: find the answer, then compare it as the task
requires. docs/answers.md has the rules. Read next: `programs.py`."""

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from fractions import Fraction
from multiprocessing.connection import Connection

from lr.measure.answers import (
    SCRIPT,
    Rules,
    as_latex,
    boxed_answer,
    chosen_letter,
    final_answer,
    rewrite,
)
from lr.measure.datasets import LETTERS, Item, Task
from lr.measure.programs import CodeLimits, code_block, passes
from lr.measure.store import Store
from lr.result import reply

LONGEST = 2000  # Characters of an answer that is worth comparing.


def _repeating_decimal(match: re.Match[str]) -> str:
    """0.1\\overline{6} as a fraction: 16 - 1 over 90."""
    before, fixed, repeated = match.groups()
    top = int(f"{before}{fixed}{repeated}") - int(f"0{before}{fixed}")
    return rf"\frac{{{top}}}{{{'9' * len(repeated)}{'0' * len(fixed)}}}"


# what math-verify does not read, or misreads; each has a pair in answers.jsonl
_REWRITES: Rules = {
    r"\A[\s*`]+|[\s*`]+\Z": "",
    r"\.{3}": r"\\ldots ",
    r"\.+\Z": "",
    r"(\d*)\.(\d*)(?:\\(?:overline|bar|dot)\s*\{?|\()(\d+)[})]?": _repeating_decimal,
    r"\\\\\[[^\[\]]{1,9}\]": r"\\\\ ",  # the space in `1 \\[2pt] 2`
    r"\\?\$|(?<!\\)\\[()\[\]]|\\+\s*$": "",  # delimiters, money, a blank at the end
    r"\\langle": "(",
    r"\\rangle": ")",
    r"\^\s*\{?\s*(?:\\(?:text|mathrm)\s*)?\{?(?:st|nd|rd|th)\b\}*": "",  # 7^{th}
    r"\\varnothing\b": r"\\emptyset ",
    r"\\(?:bf|boldsymbol|bm|underline|large|(?:text)?color\s*\{\w+\})(?![a-zA-Z])": "",
    r"\\mathrm\s*\{e\}": "e",
    r"\\?\bsqrt\s*\(([^()]*)\)": r"\\sqrt{\1}",
    r"(?<![\\a-zA-Z{])(sin|cos|tan|log|ln|exp|pi)(?![a-zA-Z])": r"\\\1 ",
    r"(?:\*\*|\^)\s*(-?\d{2,}|(?<=\*)-?\w)": r"^{\1}",  # 2^10, 2**3
    r"(?<![\d.,/])(\d+) (\d+)/(\d+)(?![\d/])": r"\1\\frac{\2}{\3}",  # 4 4/9
    r"\\text\s*\{\s*or\s*\}\s*[a-z]\s*\\in\b": r"\\cup ",  # x in A or x in B
    r"^\s*\\(?:text(?:bf|it|rm)?|math(?:rm|bf|it)|mbox)\s*\{([^{}]*)\}\s*$": r"\1",
    r"^(?i:(?:the |final )*answer\s*(?:is|=|:))\s*": "",
    r"^\s*[A-Z](?=\s*=)": lambda name: name[0].lower(),  # X = 5
    # commas of thousands, but not those of a tuple or a set
    r"[(\[].*[)\]]|\\\{.*\\\}|(?P<n>(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,]))":
        lambda match: match[0].replace(",", "") if match["n"] else match[0],
    r"^\s+|[.,;]*\s*\Z": "",
    # "12 apples" is 12, but "5 or 6" and "28 percent" are not 5 and 28
    rf"""(?x)
    ^ (\S*?[\d}}]) (?:\s|\\[,; ])+
    (?! .*\b (?: and|or|per[ ]?cent(?:age)?|pct|mod|to|over|dozen|hundred
        | thousand|million|billion|trillion|[十百千万亿或和到] )\b )
    (?: {SCRIPT}+ | [a-zA-Z]{{2,}}(?:[ ./-]+[a-zA-Z]+)* ) \.? \Z""": r"\1",
}  # fmt: skip
_PLAIN = re.compile(
    r"""(?x)
    (?! .{1001} )
    ( [+-]? (?: (?:\d{1,3}(?:[, ]\d{3})+|\d+)(?:\.\d*)? | \.\d+ ) )
    (?: [eE]([+-]?\d{1,3})                                            # 1e5
    | \s*\\(?:times|cdot)\s*10\^ (?: (\d) | \{([+-]?\d{1,3})\} )      # 2 \times 10^5
    | (?:\s|\\[,;: ])* (?:\\text\s*\{\s*)?                            # 3 million
      (thousand|million|billion|trillion|[万亿])s?\b.*
    )?"""
)
_SCALES = {
    "thousand": "3", "million": "6", "billion": "9", "trillion": "12", "万": "4", "亿": "8"
}  # fmt: skip
# math-verify leaves these aside: the base in 6_7, the unit in 70 \text{cm}
_NOTE = re.compile(
    r"""(?x)
    (?<=[0-9A-Za-z])_\{?(\d+)\}?$
    |\\(?:text|mathrm|mbox)\s*\{\s*((?:[mcdk]?m|in|ft|yd|mi|[mk]?g|lb|oz)\b)"""
)
_NO_SIGN = re.compile(r"(?<!\d)\s+|\s+(?!\d)|\\text\b|[{}]")
_BRACKETS = re.compile(
    r"""(?x)
    (?P<set>\\(?:left\\)?\{[^{}]*\\(?:right\\)?\}$)
    |(?P<tuple>(?:\\left)?[(\[][^()\[\]]*[)\]]$)"""
)
_ASSIGNMENTS = re.compile(r"[a-zA-Z]\s*=[^=,;(]+(?:,\s*[a-zA-Z]\s*=[^=,;(]+)+$")
_POINTS = re.compile("(?!YES|NO|ODD)[A-Z]{2,3}")  # AB is not ab
_WORDS = re.compile(r"[^\W\d_][^\W\d_]+(?:[ '-]+[^\W\d_]+)*\.?")


def clean(text: str) -> str:
    """An answer as math-verify reads it."""
    return rewrite(as_latex(boxed_answer(text) or text), _REWRITES)


def plain_number(text: str) -> Fraction | None:
    """The value of a clean text that is a plain number, or None. Examples: "073",
    "1,000.50", "45 000", "1e5", "3 million" and "2 \\times 10^{5}"; but not "50%",
    "1,2" or "\\frac12"."""
    match = _PLAIN.fullmatch(text.strip())
    if match is None:
        return None
    digits, *powers = match.groups()
    power = next(filter(None, powers), "0")
    return Fraction(f"{re.sub('[, ]', '', digits)}e{_SCALES.get(power, power)}")


@dataclass(frozen=True)
class Grade:
    """Whether an `answer` is right (None: not graded), and why."""

    right: bool | None
    answer: str | None
    why: str


@dataclass
class Grader(AbstractContextManager["Grader"]):
    """Grades texts, from one thread. Plain numbers and words are compared here, other
    mathematics by math-verify in a process of its own (`math_worker.py`), which starts
    when first needed and ends with the `with` block. A comparison that takes more than
    `seconds` counts as not equal. Programs run only with `code_limits`."""

    code_limits: CodeLimits | None = None
    seconds: float = 10.0
    _worker: Connection | None = None

    def grade(self, item: Item, text: str) -> Grade:
        """The grade of a model's text without the prompt; a thought in it does not
        count."""
        text = reply(text)
        if item.task is Task.CODE:
            answer = code_block(text, item.entry_point)
        elif item.task is Task.CHOICE:
            answer = chosen_letter(text, LETTERS[: len(item.choices)])
        else:
            answer = final_answer(text)
        if not item.gradable or (item.check and not self.code_limits):
            return Grade(None, answer, "not graded here")
        if answer is None:
            return Grade(False, None, "no answer was found")
        if self.code_limits and item.check:
            right, reason = passes(item, answer, self.code_limits)
        elif item.task is Task.CHOICE:
            right, reason = answer == item.gold, f"the letter is {item.gold}"
        else:
            right, reason = self.compare(str(item.gold), answer)
        return Grade(right, answer, reason)

    def compare(self, gold: str, answer: str) -> tuple[bool, str]:
        """Whether they are equal, and why. math-verify reads the second one more
        leniently."""
        if len(answer) > LONGEST + len(gold):
            return False, "the answer is too long"
        sides = clean(gold), clean(answer)
        numbers = [*map(plain_number, sides)]
        if None not in numbers:
            return numbers[0] == numbers[1], "compared as numbers"
        texts = [_NO_SIGN.sub("", side) for side in sides]
        # to math-verify "no" and "on" are n times o
        if all(map(_WORDS.fullmatch, sides)) or texts[0] == texts[1] != "":
            if not any(map(_POINTS.fullmatch, texts)):
                texts = [text.casefold() for text in texts]
            return texts[0] == texts[1], "compared as texts"
        kinds = {match.lastgroup for match in map(_BRACKETS.match, sides) if match}
        if len(kinds) == 2:
            return False, "the order counts in a tuple, not in a set"
        if "tuple" in kinds and _ASSIGNMENTS.match(sides[0]):
            values = re.sub(r"[a-zA-Z]\s*=", "", sides[0])
            sides = f"({values})", sides[1]
        notes = [*map(_NOTE.findall, sides)]
        if all(notes) and notes[0] != notes[1]:
            return False, "different bases or units"
        if self._worker is None:
            from lr.measure.math_worker import compare_pairs
            from lr.model.device import start_process

            _, self._worker = start_process(compare_pairs, self.seconds, name="lr math")
        try:
            self._worker.send(sides)
            verdict = self._worker.recv()
        except (OSError, EOFError):  # it has ended
            self.__exit__()
            verdict = f"comparing took more than {self.seconds:g} s or the memory"
        return verdict == "equal", verdict

    def __exit__(self, *exception: object) -> None:
        """End the process, if any. The next comparison starts another one."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None


def grade_programs(store: Store, items: Sequence[Item], grader: Grader) -> None:
    """Grade the stored answers of an earlier start that ran no programs."""
    tested = {item.number: item for item in items if item.check and grader.code_limits}
    for key, record in store.results():
        if key.number in tested and record["right"] is None:
            grade = grader.grade(tested[key.number], record["generation_text"])
            store.write(key.file, record | asdict(grade))
