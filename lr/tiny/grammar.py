"""The wording of the tiny language: templates with synonyms, for two styles over the same
grammar.

A template is a line of words. `{B}` is a slot, `[so|thus|hence]` a choice among synonyms (an empty
synonym omits the word), `@HAS` a named phrase from `PHRASES`. Every choice, including the choice of
template, begins with the target's favourite and ends with the draft's. A style weights the list
geometrically, from the front or from the back. Both styles can say everything, so a model of one
style can read and continue the other. The difference in wording lowers the acceptance of
token-level speculation, but not of step-level speculation, which compares meanings.

The oracle (`oracle.py`) is built from the same templates, so it can read all that can
be worded; `training/tiny_training/wording.py` words a meaning with them."""

import re
from collections.abc import Iterable

from lr.tiny.language import StepKind

PHRASES = {
    "HAS": "[has|owns|holds]",
    "HAVE": "[have|own|hold]",
    "WE": "[we|you|I]",
    "GET": "[get|find|obtain]",
    "EQ": "[=|is|makes]",
    "SO": "[so|thus|hence]",
    "END": "[|altogether|now] .",
    "BOX": "\\boxed{ {z} }",
}

RELATIONS = {
    "add": ("{n} more than {A}", "{x} [+|plus] {n} @EQ {z}"),
    "subtract": ("{n} [fewer|less] than {A}", "{x} [-|minus] {n} @EQ {z}"),
    "times": ("{n} times as many as {A}", "{x} [*|times] {n} @EQ {z}"),
    "half": ("half as many as {A}", "{x} [/|over] 2 @EQ {z}"),
    "sum": ("as many as {A} and {C} [together|combined]", "{x} [+|plus] {y} @EQ {z}"),
}

QUESTION_TEMPLATES = {
    "value": "how many {item} {A} @HAS",
    "total": "how many {item} {A} and {B} @HAVE [together|combined|altogether]",
    "difference": "by how many {item} {A} and {B} differ",
}

CALCULATIONS = {
    "total": ("[together|combined] they have", "{x} [+|plus] {y} @EQ {z}"),
    "difference": ("they [differ by|are apart by]", "{x} [-|minus] {y} @EQ {z}"),
}

TURNS = {
    "put": "{A} puts {n} {item} [in|into the jar]",
    "take": "{A} takes {n} {item} out",
    "then put": "[after|following] {B} , {A} puts {n} {item} in",
    "then take": "[after|following] {B} , {A} takes {n} {item} out",
    "doubles": "{A} doubles the {item} [|in the jar]",
    "halves": "{A} takes half of the {item} out",
}

CHANGED = {
    "plus": "[+|plus] {n}",
    "minus": "[-|minus] {n}",
    "doubled": "[*|times] 2",
    "halved": "[/|over] 2",
}


def _templates() -> dict[tuple[StepKind, str], tuple[str, ...]]:
    """The templates of every (kind, operation), the target's favourite first."""
    table: dict[tuple[StepKind, str], tuple[str, ...]] = {}
    for query, question in QUESTION_TEMPLATES.items():
        table[StepKind.GOAL, query] = (
            f"[We|You|I] [need|want|have] to [find|determine|compute] {question} .",
            f"The [question|text|story] [asks|says] to [find|determine|compute] {question} .",
            f"[Our|My|One] [goal|task|aim] is to [find|determine|compute] {question} .",
        )
    table[StepKind.GIVEN, ""] = (
        "[Initially|Originally|First] {A} has {z} {item} @END",
        "The [question|text|story] [says|states] that {A} has {z} {item} @END",
        "[We|You|I] [know|see|read] that {A} has {z} {item} @END",
    )
    for operation, (relation, expression) in RELATIONS.items():
        table[StepKind.OPERATION, operation] = (
            f"[Then|Next|Now] {{B}} @HAS {relation} , @SO @WE @GET {expression} {{item}} @END",
            f"[Since|As|Because] {{B}} @HAS {relation} , the [number|count|tally] [is|becomes] "
            f"{expression} {{item}} @END",
            f"[We|You|I] [know|see|read] that {{B}} @HAS {relation} [,|:] @WE @GET "
            f"{expression} {{item}} @END",
        )
    table[StepKind.ANSWER, "value"] = (
        "[So|Thus] the [answer|result] [is|equals] @BOX .",
        "[Finally|Therefore] , @WE @GET @BOX .",
    )
    for query, (words, expression) in CALCULATIONS.items():
        table[StepKind.ANSWER, query] = (
            f"[So|Thus] {words} {expression} , and the [answer|result] [is|equals] @BOX .",
            f"[Finally|Therefore] , {words} {expression} , [giving|making] @BOX .",
        )
    table[StepKind.GOAL, "jar"] = (
        "[We|I] [need|want] to find how many {item} are in the jar in the end .",
        "The [question|text] [asks|says] to find how many {item} are in the jar in the end .",
    )
    table[StepKind.GIVEN, "jar"] = (
        "[Initially|First] the jar has {z} {item} .",
        "We [know|see] that the jar has {z} {item} .",
    )
    table[StepKind.ANSWER, "jar"] = (
        "[So|Thus] in the end the jar has {z} {item} , and the [answer|result] [is|equals] @BOX .",
    )
    for turn, wording in TURNS.items():
        table[StepKind.NOTE, turn] = (f"Turn {{k}} : {wording} .",)
    for operation, expression in CHANGED.items():
        table[StepKind.OPERATION, operation] = (
            f"The jar had {{x}} {{item}} [,|:] {{x}} {expression} [=|is] {{z}} , [so|and] now the "
            "jar has {z} {item} .",
        )
    return table


TemplatePiece = tuple[str, ...]
"""The alternatives at one place of a template. Each is a run of words; a slot is a word
such as `{B}`. A single alternative leaves no choice."""

_PIECE = re.compile(r"\[([^\]]*)\]|(\S+)")


def template_pieces(template: str) -> tuple[TemplatePiece, ...]:
    """The places of a template in order, with phrases expanded.

    Example: "{B} [has|owns] ." -> ("{B}",), ("has", "owns"), (".",)."""
    expanded = re.sub(r"@(\w+)", lambda match: PHRASES[match.group(1)], template)
    return tuple(
        (match.group(2),) if match.group(2) else tuple(match.group(1).split("|"))
        for match in _PIECE.finditer(expanded)
    )


PIECES = {
    key: tuple(template_pieces(template) for template in templates)
    for key, templates in _templates().items()
}


ROLES = {
    StepKind.GOAL: ("", "AB"),
    StepKind.GIVEN: ("A", ""),
    StepKind.NOTE: ("A", "B"),
    StepKind.OPERATION: ("B", "AC"),
    StepKind.ANSWER: ("B", "AC"),
}
"""By kind: the slot of the entity, and the slots of the references. Other slots are the
operands {n} {x} {y}, the result {z}, {item} and the turn {k}."""


def glue(words: Iterable[str]) -> str:
    """Join words with one space, but none before punctuation or inside the box."""
    text = " ".join(word for word in words if word)
    return re.sub(r" ([,.;:}])", r"\1", text).replace("{ ", "{")


def unglue(text: str) -> str:
    """The inverse of `glue`: every punctuation mark becomes a separate word."""
    return re.sub(r"([,.;:}])", r" \1", text).replace("{", "{ ")
