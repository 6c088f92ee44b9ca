"""What the graders share: what a check is, and small worlds of distributions and
models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import product
from types import ModuleType

import torch
from torch import Tensor

from lr.rng import Stream
from lr.spec.acceptance import AcceptanceRule, Outcome
from lr.spec.proposal import ROOT, Proposal
from lr.theory.exact import (
    Model,
    drawn_drafts,
    plain_distribution,
    round_distribution,
)

EXACT = 1e-12
WORDS = 3
CHAINS = ((ROOT,), (ROOT, 0), (ROOT, 0, 1))
"""Chains of one, two and three draft tokens, by their parents."""
Outcomes = Iterable[tuple[float, int, Callable[[], Tensor]]]
KINDS = ("random", "zeros", "equal", "disjoint", "sure target")


class Rule(AcceptanceRule):
    """The rule that a student's functions describe. `outcomes_of(p_rows, proposal)` gives
    its outcomes as (probability, number of draft tokens kept, distribution of the next
    token)."""

    name, lossless, trees, needs_fresh_noise = "taught", True, False, True

    def __init__(self, outcomes_of: Callable[[Tensor, Proposal], Outcomes]) -> None:
        self.outcomes_of = outcomes_of

    def outcomes(self, p_rows: Tensor, proposal: Proposal) -> list[Outcome]:
        """The outcomes as the package's exact tools want them."""
        return [
            Outcome(float(chance), tuple(range(kept)), after)
            for chance, kept, after in self.outcomes_of(p_rows, proposal)
        ]


class Wrong(Exception):
    """An answer is wrong: one plain sentence. `bias`: how far what comes out is from
    what should, as a difference of probabilities, where that is known."""

    def __init__(self, says: str, bias: float | None = None) -> None:
        super().__init__(says)
        self.bias = bias


def expect(right: bool, says: str, bias: float | None = None) -> None:
    """`Wrong`, with this sentence, unless it is `right`."""
    if not right:
        raise Wrong(says, bias)


@dataclass(frozen=True)
class Check:
    """One thing that is tested: what it is, in words; a hint for who fails; the test
    itself, which raises `Wrong`. A grader's checks are those that its module defines,
    in order."""

    tests: str
    hint: str
    run: Callable[[ModuleType], None]


def check(tests: str, hint: str) -> Callable[[Callable[[ModuleType], None]], Check]:
    """Make a function of a student's module a `Check`."""
    return lambda run: Check(tests, hint, run)


def check_output(rule: Rule) -> None:
    """`Wrong` if any text comes out with another probability than under the target
    alone; adds up every case."""
    for kind, chain in product(KINDS, CHAINS):
        target, draft = models(kind, seed=1)
        length = len(chain) + 1
        output = round_distribution(rule, target, drawn_drafts(draft, chain), length)
        gap = float((output - plain_distribution(target, length)).abs().max())
        plural = "s" * (len(chain) > 1)
        says = (
            f"With {len(chain)} draft token{plural} the texts of {length} words are not "
            f"distributed as the target alone would write (worlds of the kind “{kind}”)."
        )
        expect(gap < EXACT, says, gap)


Examples = Iterator[tuple[str, object]]
"""What an answer does on some examples, by their names: so answers can be compared."""


def outcome_of(call: Callable[[], object]) -> object:
    """What a call returns, or the name of what it raises."""
    try:
        return call()
    except Exception as error:
        return type(error).__name__


def numbers(tensor: Tensor, digits: int = 3) -> str:
    """A distribution in print: (0.5, 0.5)."""
    return "(" + ", ".join(f"{float(x):.{digits}g}" for x in tensor) + ")"


class Decide(Enum):
    """What `accept_rule.decide` may say beside the number of an alternative."""

    WAIT = "wait"
    CORRECT = "correct"


def pair_of(kind: str, seed: int) -> tuple[Tensor, Tensor]:
    """Two distributions p and q [3] in fp64, of one of the KINDS."""
    p, q = _drawn(kind, seed)
    return p.clone(), q.clone()  # whoever changes them changes nothing for the next


@cache
def _drawn(kind: str, seed: int) -> tuple[Tensor, Tensor]:
    noise = torch.Generator().manual_seed(Stream.root(seed).fold_in(kind).key(0) >> 2)
    scores = 2 * torch.randn(2, WORDS, dtype=torch.float64, generator=noise)
    if kind == "zeros":
        scores[0, seed % WORDS] = scores[1, (seed + 1) % WORDS] = -torch.inf
    if kind == "disjoint":
        scores[0, 1:] = scores[1, 0] = -torch.inf
    if kind == "sure target":
        scores[0, 1:] = -torch.inf
    p, q = scores.softmax(-1)
    return (p, p.clone()) if kind == "equal" else (p, q)


def models(kind: str, seed: int) -> tuple[Model, Model]:
    """A target and a draft whose distributions after every text are a pair of that
    kind, made anew but always the same.
    """

    def number(text: tuple[int, ...]) -> int:
        return Stream.root(seed).fold_in(*text).key(0) >> 40

    def model(role: int) -> Model:
        return lambda text: pair_of(kind, number(text))[role]

    return model(0), model(1)
