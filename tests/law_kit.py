"""Laws of small worlds: conditional tables for target and draft, the enumeration of all
choices, and whether counts may have come from given chances.
"""

from collections import Counter
from functools import cache

import torch
from scipy.stats import chisquare

from lr.rng import Stream
from lr.spec.proposal import Draws
from lr.variants.kit.tokens import random_rows as random_law

ZEROS = {  # shares of impossible tokens in target and draft; 1: all but one
    "random": (0.0, 0.0),
    "zeros": (0.5, 0.5),
    "one-hot": (1.0, 1.0),
    "one-hot draft": (0.0, 1.0),
}
KINDS = [*ZEROS, "equal", "disjoint"]


def pair(kind, seed, v):
    """Target and draft over v tokens, in fp64, of one of the KINDS."""
    if kind == "disjoint":
        return every_other(seed, v, 0), every_other(seed + 1, v, 1)
    zeros = ZEROS.get(kind, (0.0, 0.0))
    target = cache(random_law(seed, v, zeros[0]))
    if kind == "equal":
        return target, target
    return target, cache(random_law(seed + 1, v, zeros[1]))


def every_other(seed, v, first):
    """Only the tokens first, first + 2, ... are possible."""
    model = random_law(seed, v)

    def law_after(text):
        law = torch.zeros(v, dtype=torch.float64)
        law[first::2] = model(text)[first::2]
        return law / law.sum()

    return cache(law_after)


def may_be(counts, chances):
    """Whether so many draws may have these chances: chi-square, with a false alarm of
    at most one in a million. Cells of a mean below 5 are one; impossible ones are
    empty."""
    total = sum(counts)
    pooled = [0.0, 0.0]
    cells = [pooled]
    for count, chance in zip(counts, chances, strict=True):
        if chance * total >= 5:
            cells.append([count, chance * total])
        elif chance < 1e-9:
            assert count == 0
        else:
            pooled[:] = pooled[0] + count, pooled[1] + chance * total
    observed, means = zip(*[cell for cell in cells if cell[1] > 0.5], strict=True)
    scale = sum(observed) / sum(means)
    # Of a single cell it is NaN.
    return not chisquare(observed, [scale * mean for mean in means]).pvalue < 1e-6


def draws(*path, offset=0):
    """Randomness of its own for every path of numbers."""
    return Draws(Stream.root(2024).fold_in(*path), offset)


class Choices:
    """Runs a function once per way in which its choices can fall."""

    def enumerate(self, run):
        """The probability of each result."""
        law = Counter()
        self.waiting = [[]]  # ways, by the choices they begin with
        while self.waiting:
            self.way = self.waiting.pop()
            self.made, self.weight = 0, 1.0
            law[run()] += self.weight
        return law

    def choose(self, chances):
        if self.made == len(self.way):  # the other possible choices wait
            first, *later = [i for i, chance in enumerate(chances) if chance > 0]
            self.waiting += [[*self.way, i] for i in later]
            self.way.append(first)
        choice = self.way[self.made]
        self.made += 1
        self.weight *= chances[choice]
        return choice

    def pick(self, outcomes, number):
        """In the place of `acceptance.pick`."""
        return outcomes[self.choose([o.probability for o in outcomes])]

    def sample(self, probs, keys):
        return [self.choose(row.tolist()) for row in probs]

    def uniform(self, key):
        return self

    def __lt__(self, chance):
        """A uniform number is compared with a chance, once."""
        return bool(self.choose([1 - chance, chance]))
