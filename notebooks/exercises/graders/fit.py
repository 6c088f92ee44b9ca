"""The grader of fit.py: pairs whose true P(same) is known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType

import numpy as np
from exercise_kit import Examples, check, expect, outcome_of

PRAISE = "A verifier with known odds, tried on problems that it has not seen."
NEXT = None
PAIRS, PER_PROBLEM = 600, 60
INTERCEPT, WEIGHTS = 0.5, (2.0, -1.0)
CLOSE = 0.06


@dataclass(frozen=True)
class World:
    """Pairs drawn from a known regression: `chances` are their true P(same)."""

    values: list[list[float]]
    truth: list[bool]
    problems: list[int]
    chances: list[float]


def world(seed: int, scale: float = 1.0) -> World:
    """Pairs whose labels are drawn; the second signal is `scale` times as large."""
    chance = np.random.default_rng(seed)
    signals = chance.normal(size=(PAIRS, len(WEIGHTS)))
    chances = 1 / (1 + np.exp(-(INTERCEPT + signals @ np.array(WEIGHTS))))
    truth = chance.random(PAIRS) < chances
    values = signals * np.array((1.0, scale))
    problems = [number // PER_PROBLEM for number in range(PAIRS)]
    return World(values.tolist(), truth.tolist(), problems, chances.tolist())


def answered(answer: ModuleType, pairs: World) -> list[float]:
    """The answer's probabilities, one per pair."""
    given = answer.probabilities(pairs.values, pairs.truth, pairs.problems)
    says = f"probabilities returned {len(given)} numbers for {PAIRS} pairs."
    expect(len(given) == PAIRS, says)
    outside = [p for p in given if not (math.isfinite(p) and 0 <= p <= 1)]
    expect(not outside, f"{outside[:1]} is no probability.")
    return [float(p) for p in given]


def gap(given: list[float], pairs: World) -> float:
    """The mean distance from the true probabilities."""
    return float(np.mean(np.abs(np.array(given) - np.array(pairs.chances))))


@check(
    "600 pairs whose true P(same) is known",
    "Minimise the sum of log(1 + exp(-s (b + w · x))) with s = 1 for the same, else -1.",
)
def finds_the_odds(answer: ModuleType) -> None:
    pairs = world(0)
    distance = gap(answered(answer, pairs), pairs)
    says = f"On average P(same) is off by {distance:.3f}; {CLOSE} is allowed."
    expect(distance <= CLOSE, says)


@check(
    "a signal on another scale",
    "Scale every signal to mean 0 and deviation 1 before the fit: the penalty and the "
    "optimiser then treat them alike.",
)
def any_scale(answer: ModuleType) -> None:
    pairs = world(1, scale=1e-3)
    distance = gap(answered(answer, pairs), pairs)
    says = (
        f"With the second signal a thousandth as large, P(same) is off by "
        f"{distance:.3f} on average; {CLOSE} is allowed."
    )
    expect(distance <= CLOSE, says)


@check(
    "that no pair is judged by a fit that knows its problem",
    "For each problem: fit to all pairs of the others, then judge the pairs of this one.",
)
def problems_are_left_out(answer: ModuleType) -> None:
    pairs = world(2)
    before = answered(answer, pairs)
    for problem in (0, 7):
        members = [i for i, number in enumerate(pairs.problems) if number == problem]
        changed = list(pairs.truth)
        for i in members:
            changed[i] = not changed[i]
        after = answered(
            answer, World(pairs.values, changed, pairs.problems, pairs.chances)
        )
        moved = max(abs(before[i] - after[i]) for i in members)
        says = (
            f"With other labels in problem {problem}, P(same) of its own pairs changes by "
            f"up to {moved:.3f}: the fit has seen them."
        )
        expect(moved < 1e-4, says)


def examples(answer: ModuleType) -> Examples:
    """Its probabilities on small worlds."""
    for seed in (3, 4):
        pairs = world(seed)
        given = outcome_of(
            lambda pairs=pairs: [
                round(p, 2)
                for p in answer.probabilities(pairs.values, pairs.truth, pairs.problems)
            ]
        )
        yield str(seed), given
