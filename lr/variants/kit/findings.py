"""What the kit finds out about a part, and the question that all parts are asked."""

import operator
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

# Random questions are made for the tiny models, on which whole answers run.
VOCAB_SIZE = 461
EOS = 458

Subject = TypeVar("Subject")
Request = TypeVar("Request")


@dataclass
class Findings:
    """What was found out about one part: statements that hold, those that do not (with
    what came instead), remarks, and `answers` that another process must give too."""

    part: str
    held: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)

    def must(self, holds: bool, statement: str, instead: object) -> None:
        """Note that a statement holds, or what came instead."""
        if holds and statement not in self.held:
            self.held.append(statement)
        if not holds and not any(text.startswith(statement) for text in self.broken):
            self.broken.append(f"{statement}; instead: {instead}")

    def equal(self, first: object, second: object, statement: str) -> None:
        """Note that two values are equal, or both of them."""
        self.must(first == second, statement, f"{first!r} and {second!r}")


def same_everywhere(
    findings: Findings,
    anew: Callable[[], Subject],
    ask: Callable[[Subject, Request], Any],
    questions: Sequence[Request],
    *,
    equal: Callable[[Any, Any], bool] = operator.eq,
) -> list[Any]:
    """The part's answers to `questions`, which must depend on nothing else: not on
    earlier questions, another object, the clock, or the global random generators."""
    part = anew()
    answers = [ask(part, question) for question in questions]
    # another process must give these too, where texts have other hashes
    findings.answers.append(repr(answers))
    numbers = list(range(len(questions)))
    shuffled = random.Random(1).sample(numbers, len(numbers))
    repeated = "the same question gets the same answer again"
    pure = "answers depend neither on the order nor on a global generator"
    apart = "two objects share no state"
    trials = [
        (repeated, numbers, [part]),
        (pure, numbers[::-1], [anew()]),
        (pure, shuffled, [anew()]),
        (apart, numbers, [anew(), anew()]),
    ]
    # the caller's generators are as before afterwards
    state = random.getstate()
    with torch.random.fork_rng(devices=[]):
        for seed, (statement, order, parts) in enumerate(trials):
            random.seed(seed)
            torch.manual_seed(seed)
            for number in order:
                # two parts are asked in turn; the first one's answer counts
                answer, *_ = [ask(part, questions[number]) for part in parts]
                instead = f"{answers[number]!r} and {answer!r} for question {number}"
                findings.must(equal(answers[number], answer), statement, instead)
    random.setstate(state)
    return answers
