"""The oracle: reads the meaning of a step of the tiny language, and compares two steps.

Each template of `grammar.py` gives one pattern with named groups for the slots. A slot
that occurs twice must hold the same value twice. Text that no pattern matches has no
meaning and equals no text, not even itself. `OracleVerifier` compares two steps of an answer."""

import re
from collections.abc import Callable, Sequence

from lr.spec.verifiers.base import Pair, Verifier, unseen_difference
from lr.tiny.grammar import PIECES, ROLES, TemplatePiece, glue, unglue
from lr.tiny.language import ITEMS, NAMES, NOTES, Meaning, StepKind
from lr.types import Verdict

_VALUES = {"{item}": "|".join(ITEMS)} | dict.fromkeys(
    ("{A}", "{B}", "{C}"), "|".join(NAMES)
)
_VALUES["{k}"] = f"(?:{'|'.join(NOTES)})(?: , the last)?"


def pattern(template: tuple[TemplatePiece, ...]) -> re.Pattern[str]:
    """The regular expression of a template over unglued text, in which one space
    follows each word. A slot without an entry in `_VALUES` holds a number."""
    parts = []
    slots = set()
    for alternatives in template:
        word = alternatives[0]
        if len(alternatives) == 1 and word.startswith("{") and word.endswith("}"):
            name = word[1:-1]
            value = _VALUES.get(word, "[0-9]+")
            parts.append(f"(?P={name}) " if name in slots else f"(?P<{name}>{value}) ")
            slots.add(name)
        else:
            words = (
                re.escape(choice) + " " if choice else "" for choice in alternatives
            )
            parts.append(f"(?:{'|'.join(words)})")
    return re.compile("".join(parts))


_PATTERNS = tuple(
    (key, pattern(template))
    for key, templates in PIECES.items()
    for template in templates
)


def parse(text: str) -> Meaning | None:
    """The meaning of a step, or None if it is not in the language. Ignores outer white
    space."""
    text = text.strip()
    spaced = unglue(text) + " "
    if glue(spaced.split()) != text:
        return None
    for (kind, operation), expression in _PATTERNS:
        match = expression.fullmatch(spaced)
        if match:
            return _meaning(kind, operation, match.groupdict())
    return None


def _meaning(kind: StepKind, operation: str, values: dict[str, str]) -> Meaning:
    """The meaning of the slots' values (`grammar.ROLES`)."""
    entity, references = ROLES[kind]
    operands = [int(values[slot]) for slot in "xny" if slot in values]
    if "x" in values and len(operands) == 1:
        operands.append(2)  # doubled and halved: the 2 is part of the template
    return Meaning(
        kind,
        operation,
        entity=values.get(entity, ""),
        references=tuple(values[slot] for slot in references if slot in values),
        operands=tuple(operands),
        result=int(values["z"]) if "z" in values else None,
        item=values.get("item", ""),
        note=values.get("k", "").replace(" ,", ","),
    )


def same_meaning(first: str, second: str) -> bool:
    """Whether both steps can be read and have equal meanings."""
    meaning = parse(first)
    return meaning is not None and meaning == parse(second)


class OracleVerifier(Verifier):
    """Accepts if `parse` reads both steps and finds the same meaning."""

    name = "oracle"

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self.decode = decode

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [
            unseen_difference(pair, self.decode) or self._compare(pair)
            for pair in pairs
        ]

    def _compare(self, pair: Pair) -> Verdict:
        draft = parse(self.decode(pair.draft_step.tokens))
        target = parse(self.decode(pair.target_step.tokens))
        if draft is None:
            return Verdict(aligned=False, why="the draft step is not in the language")
        if target is None:
            return Verdict(aligned=False, why="the target step is not in the language")
        if draft == target:
            return Verdict(aligned=True, why="same meaning")
        return Verdict(aligned=False, why=difference(draft, target))


def differing(draft: str, target: str) -> str:
    """How the meanings of two steps differ, in words; "" if they do not, or if one of
    the steps cannot be read."""
    of_draft = parse(draft)
    of_target = parse(target)
    if of_draft is None or of_target is None or of_draft == of_target:
        return ""
    return difference(of_draft, of_target)


def difference(draft: Meaning, target: Meaning) -> str:
    """The first field in which two meanings differ, in words."""
    for name, of_draft, of_target in zip(Meaning._fields, draft, target, strict=True):
        if of_draft != of_target:
            return f"the draft says {name} {_words(of_draft)}, the target {_words(of_target)}"
    raise AssertionError("the meanings are equal")


def _words(value: object) -> str:
    """A number, a word, a tuple of either, or a kind, in words."""
    parts = value if isinstance(value, tuple) else (value,)
    words = (part.value if isinstance(part, StepKind) else str(part) for part in parts)
    return " and ".join(words) or "none"
