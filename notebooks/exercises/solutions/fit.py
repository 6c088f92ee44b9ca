"""A reference solution of fit.py: scale, fit, leave out one problem at a time."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize


def weights_of(scaled: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """The intercept and the weights that make the signs likeliest."""

    def loss(weights: np.ndarray) -> float:
        margins = signs * (weights[0] + scaled @ weights[1:])
        penalty = 0.5 * weights[1:] @ weights[1:]
        return float(np.logaddexp(0, -margins).sum() + penalty)

    return minimize(loss, np.zeros(1 + scaled.shape[1])).x


def probabilities(
    values: list[list[float]], truth: list[bool], problems: list[int]
) -> list[float]:
    """By a fit to all other problems."""
    signals = np.array(values)
    scaled = (signals - signals.mean(0)) / (signals.std(0) + 1e-12)
    signs = np.where(truth, 1.0, -1.0)
    groups = np.array(problems)
    answers = np.zeros(len(signs))
    for problem in set(problems):
        tried = groups == problem
        weights = weights_of(scaled[~tried], signs[~tried])
        answers[tried] = 1 / (1 + np.exp(-(weights[0] + scaled[tried] @ weights[1:])))
    return answers.tolist()
