"""What the kit finds out about a part, and the question that all parts are asked."""

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
        if not holds and not any(text.startswith(statement) for text in self.broken):
            self.broken.append(f"{statement}; instead: {instead}")


@dataclass(frozen=True)
class Material:
    """What random questions are made of: the vocabulary and the size of hidden
    states."""

    vocab_size: int = 64
    eos: int = 0
    hidden_size: int = 8

    @classmethod
    def of(cls, reasoner: Reasoner) -> Material:
        codec = reasoner.codec
        size = reasoner.engine.target.config.hidden_size
        return cls(codec.vocab_size, min(codec.eos_ids), size)


def same_everywhere(
    findings: Findings,
    make: Make,
    ask: Callable[[Variant, Any], Any],
    questions: Sequence[Any],
    *,
    equal: Callable[[Any, Any], bool] = lambda a, b: bool(a == b),
) -> list[Any]:
    """The variant's answers to `questions`, which must depend on nothing else: not on
    earlier questions, another object, the clock, or the global random generators."""
    variant = make()
    first = [ask(variant, question) for question in questions]

    def compare(order: Sequence[int], variants: Sequence[Variant], what: str) -> None:
        for number in order:
            random.seed(number)
            torch.manual_seed(number)
            answer, *_ = [ask(variant, questions[number]) for variant in variants]
            instead = f"{first[number]!r} and {answer!r} for question {number}"
            findings.must(equal(first[number], answer), what, instead)

    order = list(range(len(questions)))
    shuffled = random.Random(1).sample(order, len(order))
    states = random.getstate(), torch.get_rng_state()
    try:
        compare(order, [variant], "the same question gets the same answer again")
        pure = "answers depend neither on the order nor on a global generator"
        compare(order[::-1], [make()], pure)
        compare(shuffled, [make()], pure)
        compare(order, [make(), make()], "two objects share no state")
    finally:
        random.setstate(states[0])
        torch.set_rng_state(states[1])
    return first
