"""The oracle: reads the meaning of a step of the tiny language, and compares two steps.

Each template of `grammar.py` gives one pattern with named groups for the slots. A slot
that occurs twice must hold the same value twice. Text that no pattern matches has no
meaning and equals no text, not even itself. `OracleVerifier` is the verifier of both
tiny languages."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lr.spec.verifiers.base import Pair, Verifier
from lr.tiny.grammar import PIECES, ROLES, TemplatePiece, glue, unglue
from lr.tiny.language import ITEMS, NAMES, NOTES, Meaning, StepKind
from lr.types import Verdict

WordingKey = tuple[StepKind, str]  # (kind, operation)
_VALUES = {"{item}": "|".join(ITEMS)} | dict.fromkeys(
    ("{A}", "{B}", "{C}"), "|".join(NAMES)
)
_VALUES["{k}"] = f"(?:{'|'.join(NOTES)})(?: , the last)?"


def pattern(
    template: tuple[TemplatePiece, ...], values: Mapping[str, str]
) -> re.Pattern[str]:
    """The regular expression of a template over unglued text, in which one space
    follows each word.

    `values`: the regular expression for each slot, by default a number."""
    parts, seen = [], set()
    for alternatives in template:
        word = alternatives[0]
        if len(alternatives) == 1 and word.startswith("{") and word.endswith("}"):
            name = word[1:-1]
            value = values.get(word, "[0-9]+")
            parts.append(f"(?P={name}) " if name in seen else f"(?P<{name}>{value}) ")
            seen.add(name)
        else:
            words = (re.escape(one) + " " if one else "" for one in alternatives)
            parts.append(f"(?:{'|'.join(words)})")
    return re.compile("".join(parts))


_PATTERNS = tuple(
    (key, pattern(template, _VALUES))
    for key, templates in PIECES.items()
    for template in templates
)


def parse(text: str) -> Meaning | None:
    """The meaning of a step, or None if it is not in the language. Ignores outer white
    space."""
    known = read(text, _PATTERNS)
    if known is None:
        return None
    (kind, operation), found = known  # the inverse of `grammar.slots`
    entity, references = ROLES[kind]
    operands = [int(found[slot]) for slot in "xny" if slot in found]
    if "x" in found and len(operands) == 1:
        operands.append(2)  # doubled and halved: the 2 is part of the template
    return Meaning(
        kind,
        operation,
        found.get(entity, ""),
        tuple(found[slot] for slot in references if slot in found),
        tuple(operands),
        int(found["z"]) if "z" in found else None,
        found.get("item", ""),
        found.get("k", "").replace(" ,", ","),
    )


def read(
    text: str, patterns: Sequence[tuple[WordingKey, re.Pattern[str]]]
) -> tuple[WordingKey, dict[str, str]] | None:
    """The key and the slot values of the first pattern that matches a step, or None."""
    text = text.strip()
    spaced = unglue(text) + " "
    if glue(spaced.split()) != text:
        return None
    for key, one in patterns:
        match = one.fullmatch(spaced)
        if match:
            return key, match.groupdict()
    return None


def same_meaning(first: str, second: str) -> bool:
    """Whether both steps can be read and have equal meanings."""
    meaning = parse(first)
    return meaning is not None and meaning == parse(second)


class OracleVerifier(Verifier):
    """Accepts if `parse` reads both steps and finds the same meaning."""

    name = "oracle"

    def __init__(
        self, decode: Callable[[Sequence[int]], str], parse: Callable[[str], Any]
    ) -> None:
        self.decode, self.parse = decode, parse

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [self._compare(pair) for pair in pairs]

    def _compare(self, pair: Pair) -> Verdict:
        draft, target = (
            self.parse(self.decode(step.tokens))
            for step in (pair.draft, pair.target_step)
        )
        if draft is None or target is None:
            which = "draft" if draft is None else "target"
            return Verdict(
                aligned=False, why=f"the {which} step is not in the language"
            )
        if draft == target:
            return Verdict(aligned=True, why="same meaning")
        return Verdict(aligned=False, why=difference(draft, target))


def difference(draft: Any, target: Any) -> str:
    """The first field in which two meanings (named tuples) differ, in words."""

    def said(
        part: object,
    ) -> str:  # a number, a word, a tuple of words, or an enum member
        parts = part if isinstance(part, tuple) else (part,)
        return " and ".join(str(getattr(one, "value", one)) for one in parts) or "none"

    parts = zip(draft._fields, map(said, draft), map(said, target), strict=True)
    name, drafts, targets = next(part for part in parts if part[1] != part[2])
    return f"the draft says {name} {drafts}, the target {targets}"
