"""Exercise: fit a verifier and say honestly how good it is. Grade it with
`make grade EX=fit`.

Each pair of steps has some signals (how likely the target finds the draft step, whether
the numbers agree, ...) and a label: do the two mean the same? A logistic regression
turns signals x into P(same) = 1 / (1 + exp(-(b + w · x))). Its weights are those that
make the labels likeliest; a small penalty on them keeps them finite.

How good is it? Only pairs that the weights have not seen can tell. Pairs of one problem
share their names, numbers and wording, so all pairs of a problem have to be left out
together. NumPy and SciPy (`scipy.optimize.minimize`) are there.
"""

from __future__ import annotations


def probabilities(
    values: list[list[float]], truth: list[bool], problems: list[int]
) -> list[float]:
    """P(same) of every pair, by a fit to the pairs of all other problems.

    `values[i]`: the signals of pair i, on any scale. `truth[i]`: its label.
    `problems[i]`: the number of its problem."""
    raise NotImplementedError(
        "write probabilities in notebooks/exercises/fit.py: one number per pair"
    )
