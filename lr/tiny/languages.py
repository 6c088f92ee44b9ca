"""The interface of a tiny language, as training, evaluation and the engine see it.

`QUANTITIES` (who has how many things, `language.py`) and `PLANS` (a robot carries out
orders, `plans.py`) both provide problems with solutions in steps, wording for a step,
and an oracle that reads a step back. A third language would be one more `TinyLanguage`
in `LANGUAGES`. No torch. Read next: `vocabulary.py`, a language's tokenizer."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lr.tiny import grammar, language, oracle, plans, stories
from lr.tiny.grammar import Style, TemplatePiece
from lr.tiny.language import Problem, Split, StepKind


@dataclass(frozen=True, eq=False)
class TinyLanguage:
    """One language.

    `family` begins the names of its checkpoints ("plans-target"). `about`: its topic in
    words. `questions`: the form of its questions. `datasets` draw its problems, each a
    function of (split, index, seed); `problem` is the data set named like the family.
    `render(meaning, style, rng)` words a step. `parse` reads its meaning back: a named
    tuple with a `kind`, or None if it is not a sentence of the language. `templates`:
    all templates by kind and operation. `slot_words`, `boxed_words`: the words that can
    fill their slots and the box."""

    family: str
    about: str
    questions: tuple[re.Pattern[str], ...]
    datasets: Mapping[str, Callable[[Split, int, int], Problem[Any]]]
    render: Callable[[Any, Style, random.Random], str]
    parse: Callable[[str], Any]
    templates: Mapping[tuple[StepKind, str], Sequence[tuple[TemplatePiece, ...]]]
    slot_words: tuple[str, ...]
    boxed_words: tuple[str, ...]

    @property
    def problem(self) -> Callable[[Split, int, int], Problem[Any]]:
        return self.datasets[self.family]

    def asks(self, text: str) -> bool:
        return any(one.fullmatch(text.strip()) for one in self.questions)

    def same_meaning(self, first: str, second: str) -> bool:
        """Whether both steps can be read and have equal meanings."""
        meaning = self.parse(first)
        return meaning is not None and meaning == self.parse(second)


DIGITS = tuple("0123456789")
QUANTITIES = TinyLanguage(
    family="tiny",
    about="sums of what people have or put into a jar",
    questions=(language.QUESTION, stories.QUESTION),
    datasets={"tiny": language.problem, "stories": stories.story},
    render=grammar.render,
    parse=oracle.parse,
    templates=grammar.PIECES,
    slot_words=(
        *language.NAMES,
        *language.ITEMS,
        *DIGITS,
        *language.NOTES,
        "the",
        "last",
    ),
    boxed_words=DIGITS,
)
PLANS = TinyLanguage(
    family="plans",
    about="orders to a robot in a house",
    questions=(plans.QUESTION,),
    datasets={"plans": plans.plan},
    render=plans.render,
    parse=plans.parse,
    templates=plans.PIECES,
    slot_words=(*plans.ROOMS, *plans.THINGS, *plans.DIRECTIONS, *plans.NUMBERS),
    boxed_words=(*plans.ROOMS, *plans.THINGS),
)
LANGUAGES = {one.family: one for one in (QUANTITIES, PLANS)}
DATASETS = {
    name: draw for one in LANGUAGES.values() for name, draw in one.datasets.items()
}
"""The function that draws the problems of each data set (`tiny:20`, `stories:20`,
`plans:20`)."""
