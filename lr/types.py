"""The data that all parts share: sampling parameters, steps, their authors, verdicts.

Plain frozen data, no torch. The glossary defines the words; `lookahead.py` has
Lookahead Reasoning itself (arXiv 2506.19830, section 3). Read next: `trace.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from lr.errors import SettingError


def require(condition: bool, name: str, value: object, expected: str) -> None:
    """Raise `SettingError`, with value and expectation, unless the condition holds."""
    if not condition:
        raise SettingError(f"{name} is {value!r}, expected {expected}.")


def require_whole(name: str, value: Any, lowest: int | None = None) -> None:
    """Raise `SettingError` unless the value is a whole number, at least `lowest`."""
    fits = isinstance(value, int) and not isinstance(value, bool)
    expected = "a whole number"
    if lowest is not None:
        expected += f" >= {lowest}"
        fits = fits and lowest <= value
    require(fits, name, value, expected)


def is_number(value: object) -> bool:
    """Whether the value is a number, and not True or False."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclass(frozen=True)
class SamplingParams:
    """How logits become a distribution: temperature (0: greedy), then top-k, top-p.

    `top_k` keeps the k likeliest tokens (0: all). `top_p` keeps the smallest set of
    likeliest tokens whose probabilities sum to at least `top_p` (1: all).
    """

    temperature: float = 0.6
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        t = self.temperature
        fits = is_number(t) and (t == 0 or 1e-6 <= t <= 1e6)
        require(fits, "temperature", t, "0 (greedy) or a number from 1e-6 to 1e6")
        require_whole("top_k (0 keeps every token)", self.top_k, 0)
        fits = is_number(self.top_p) and 0 < self.top_p <= 1
        require(fits, "top_p (1 keeps every token)", self.top_p, "a number in (0, 1]")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


class Finish(Enum):
    """Why a step ended."""

    BOUNDARY = "boundary"  # its boundary, by default a blank line, is complete
    EOS = "eos"  # it ends in one of the target's end-of-sequence tokens, which is part of the step
    LENGTH = (
        "length"  # cut at the step, token or context limit; never accepted as a draft
    )


class Role(Enum):
    """Which model acted."""

    DRAFT = "draft"
    TARGET = "target"


class Coupling(Enum):
    """Whether the draft draws with the target's noise: the two models then agree more
    often, while their distributions stay the same.
    """

    INDEPENDENT = "independent"
    SHARED = "shared"


@dataclass(frozen=True)
class Step:
    """A step as a model wrote it: its token ids, including those of the ending; why it
    ended."""

    tokens: tuple[int, ...]
    finish: Finish


@dataclass(frozen=True)
class Verdict:
    """What a verifier says about a draft step and the target's step from the same
    prefix.

    `why` is for people and for the trace. `score` is the verifier's own measure, if it
    has one. `failed`: it could not decide (a server is down, a pair is too long), which
    is a rejection. `keep`: of a rejected draft step, how many tokens stand; a correction
    begins with them, and the target continues.
    """

    aligned: bool
    why: str
    score: float | None = None
    failed: bool = False
    keep: int = 0


class Origin(Enum):
    """Why a step is part of the output."""

    ACCEPTED = "accepted"  # a draft step, kept as the draft wrote it
    CORRECTION = "correction"  # the target's step in place of a rejected draft step
    BONUS = (
        "bonus"  # the target's step after a cycle of accepted draft steps; never judged
    )
    TARGET = "target"  # the target's step without a draft: plain decoding, or after a cut step


@dataclass(frozen=True)
class EmittedStep:
    """Step `index` of the output, from 0. `rejected`: the draft step that a correction
    replaced."""

    index: int
    step: Step
    origin: Origin
    verdict: Verdict | None = None
    rejected: Step | None = None
