"""What all formulas share: checked arguments, and the geometric sum G_n.

    G_n(a) = 1 + a + ... + a^(n-1) = (1 - a^n) / (1 - a),    G_n(1) = n

Arguments are numbers, or numpy arrays that broadcast against each other. Plain numbers
give a plain float. All formulas of this package raise `DomainError`, with name and
value, for an argument outside their domain; none returns nan. Read next:
`synchronous.py`."""

from typing import Any, TypeAlias

import numpy as np

from lr.errors import SettingError

Reals: TypeAlias = "float | np.ndarray"
"""A number or an array of numbers."""


class DomainError(SettingError):
    """An argument of a formula lies outside its domain. `value` is the first bad
    value."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        self.name = name
        self.value = value
        self.expected = expected
        super().__init__(f"{name} is {value!r}, expected {expected}.")


def numbers(name: str, value: Reals) -> Any:
    """`value` as an array of float64."""
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise DomainError(name, value, "a number or an array of numbers") from None


def inside(good: Any, name: str, value: Any, expected: str) -> Any:
    """Return `value` if all of it is `good`; else raise `DomainError` with the first
    bad value."""
    bad = ~np.broadcast_to(good, np.shape(value))
    if np.any(bad):
        raise DomainError(name, np.asarray(value)[bad].flat[0].item(), expected)
    return value


def probability(name: str, value: Reals) -> Any:
    """Numbers in [0, 1]."""
    x = numbers(name, value)
    return inside((x >= 0) & (x <= 1), name, x, "a probability, 0 to 1")


def nonnegative(name: str, value: Reals) -> Any:
    """Finite numbers >= 0."""
    x = numbers(name, value)
    return inside((x >= 0) & np.isfinite(x), name, x, "a finite number >= 0")


def positive(name: str, value: Reals) -> Any:
    """Finite numbers > 0."""
    x = numbers(name, value)
    return inside((x > 0) & np.isfinite(x), name, x, "a finite number > 0")


def checked_ratio(name: str, value: Reals) -> Any:
    """Time of a draft over time of a target, in [0, 1): the asynchronous formulas need
    c < 1."""
    x = numbers(name, value)
    expected = "a ratio in [0, 1): the draft is faster than the target"
    return inside((x >= 0) & (x < 1), name, x, expected)


def whole(name: str, value: Reals, least: int) -> Any:
    """Whole numbers >= `least`."""
    x = numbers(name, value)
    good = np.isfinite(x) & (x >= least)
    good &= np.floor(np.where(good, x, 0)) == x
    return inside(good, name, x, f"a whole number >= {least}")


def as_float(value: Any) -> Reals:
    """A float for a 0-dimensional array; everything else unchanged."""
    shown: Reals = np.asarray(value).item() if np.ndim(value) == 0 else value
    return shown


def geometric(a: Any, n: Any) -> Any:
    """G_n(a), to full precision even if a is close to 1. Example: G_3(0.5) = 1.75.

    If P(X >= i) = a^i, then E min(X, n - 1) + 1 = G_n(a): the mean number of steps (or
    tokens) that a cycle emits if it can emit at most n."""
    a, n = np.broadcast_arrays(
        np.asarray(a, dtype=np.float64), np.asarray(n, dtype=np.float64)
    )
    inner = np.where((a > 0) & (a < 1), a, 0.5)
    sums = np.expm1(n * np.log(inner)) / (inner - 1)
    edge = np.where(
        a >= 1, n, np.minimum(n, 1.0)
    )  # a = 1: n ones; a = 0: the first term alone
    return np.where((a > 0) & (a < 1), sums, edge)
