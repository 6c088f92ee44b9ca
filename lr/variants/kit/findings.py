"""What the kit finds out about a part, and the question that all pure parts share."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from lr.reasoner import Reasoner
from lr.spec.variant import Variant

Make = Callable[[], Variant]
"""Makes the variant anew."""


@dataclass
class Findings:
    """What was found out about one part: statements that hold, those that do not (with
    what came instead), and remarks."""

    part: str
    held: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def must(self, holds: bool, statement: str, instead: object) -> None:
        """Note that a statement holds, or what came instead."""
        if holds and statement not in self.held:
            self.held.append(statement)
        broken = any(text.startswith(statement) for text in self.broken)
        if not holds and not broken:
            self.broken.append(f"{statement}; instead: {instead}")


@dataclass(frozen=True)
class World:
    """What random questions are made of: the vocabulary and the size of hidden
    states."""

    vocab_size: int = 64
    eos: int = 0
    hidden_size: int = 8

    @classmethod
    def of(cls, reasoner: Reasoner) -> World:
        codec = reasoner.codec
        size = reasoner.engine.target.config.hidden_size
        return cls(codec.vocab_size, min(codec.eos_ids), size)


def same_everywhere(
    findings: Findings,
    make: Callable[[], Any],
    ask: Callable[[Any, Any], Any],
    questions: Sequence[Any],
    *,
    equal: Callable[[Any, Any], bool] = lambda a, b: bool(a == b),
) -> list[Any]:
    """The answers to `questions`, which must depend on nothing else: not on the object,
    the order, a repetition, the clock, or the global random number generators."""

    def compare(answers: Sequence[Any], statement: str) -> None:
        for number, (a, b) in enumerate(zip(first, answers, strict=True)):
            same = equal(a, b)
            findings.must(same, statement, f"{a!r} and {b!r} for question {number}")

    def asked_in(order: Sequence[int], parts: Sequence[Any]) -> list[Any]:
        """Every part is asked; the answers are the first part's."""
        answers: dict[int, Any] = {}
        for number in order:
            random.seed(number)
            torch.manual_seed(number)
            every = [ask(part, questions[number]) for part in parts]
            answers[number] = every[0]
        return [answers[number] for number in range(len(questions))]

    part = make()
    first = [ask(part, question) for question in questions]
    again = [ask(part, question) for question in questions]
    compare(again, "the same question gets the same answer again")
    order = list(range(len(questions)))
    shuffled = random.Random(1).sample(order, len(order))
    states = random.getstate(), torch.get_rng_state()
    try:
        pure = "answers depend neither on the order nor on a global generator"
        compare(asked_in(order[::-1], [make()]), pure)
        compare(asked_in(shuffled, [make()]), pure)
        compare(asked_in(order, [make(), make()]), "two objects share no state")
    finally:
        random.setstate(states[0])
        torch.set_rng_state(states[1])
    return first
