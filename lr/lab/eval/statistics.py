"""The statistics of a report: intervals for accuracy and for ratios, with problems as the unit that
is drawn.

Samples of one problem are not independent, so problems are drawn with replacement, each with all
its samples (a cluster bootstrap). With one sample per problem the accuracy has Wilson's interval,
which is right for few problems and near 0 and 1. The draws are keyed: the same results give the
same interval. Standard library only.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from statistics import fmean

Z95 = 1.959963984540054
DRAWS = 2000
"""Bootstrap draws: the ends of a 95 % interval then move by about a twentieth of its width from
seed to seed.
"""
Interval = tuple[float, float]


def wilson(right: int, total: int) -> Interval:
    """The 95 % interval for a proportion (Wilson 1927). Example: 9 of 10 gives (0.596, 0.982)."""
    if total == 0:
        return 0.0, 1.0
    p, z2 = right / total, Z95 * Z95
    middle = (p + z2 / (2 * total)) / (1 + z2 / total)
    half = Z95 / (1 + z2 / total) * math.sqrt(p * (1 - p) / total + z2 / (4 * total * total))
    return max(0.0, middle - half), min(1.0, middle + half)


def accuracy(grades: Sequence[Sequence[bool]]) -> tuple[float, Interval]:
    """pass@1, the mean over problems of the mean over their samples, with its 95 % interval.
    `grades`: the samples of each problem.
    """
    means = [fmean(map(float, samples)) for samples in grades]
    if all(len(samples) == 1 for samples in grades):
        return fmean(means), wilson(sum(samples[0] for samples in grades), len(grades))
    return fmean(means), bootstrap(len(means), lambda drawn: fmean(means[i] for i in drawn))


def ratio(
    pairs: Sequence[tuple[tuple[float, float], tuple[float, float]]],
) -> tuple[float, Interval]:
    """A speedup and its 95 % interval: total tokens over total seconds, ours against the
    baseline's, paired by problem.

    Each pair is ((our tokens, our seconds), (its tokens, its seconds)) of one problem. Example: one
    problem, 10 tokens in 1 s against 10 in 2 s: 2.
    """

    def of(drawn: Sequence[int]) -> float:
        ours = _rate([pairs[i][0] for i in drawn])
        theirs = _rate([pairs[i][1] for i in drawn])
        return ours / theirs if theirs else math.nan

    return of(range(len(pairs))), bootstrap(len(pairs), of)


def bootstrap(count: int, statistic: Callable[[Sequence[int]], float], seed: int = 0) -> Interval:
    """The 95 % percentile interval of a statistic of `count` things, given as the numbers that were
    drawn.
    """
    if count < 2:
        return math.nan, math.nan
    draw = random.Random(f"bootstrap/{seed}/{count}")
    values = sorted(statistic([draw.randrange(count) for _ in range(count)]) for _ in range(DRAWS))
    return values[int(0.025 * DRAWS)], values[int(0.975 * DRAWS) - 1]


def sign_test(better: int, worse: int) -> float:
    """The two-sided p-value that flips in both directions are equally likely (McNemar's exact
    test).
    """
    total = better + worse
    if total == 0:
        return 1.0
    tail = sum(math.comb(total, i) for i in range(min(better, worse) + 1)) / 2**total
    return min(1.0, 2 * tail)


def _rate(sums: Sequence[tuple[float, float]]) -> float:
    seconds = sum(one[1] for one in sums)
    return sum(one[0] for one in sums) / seconds if seconds else 0.0
