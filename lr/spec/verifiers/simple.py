"""Verifiers that ask no model: exact, random, oracle; and the shortcut for equal texts.

- `ExactVerifier`: equal token ids. With it Lookahead Reasoning at temperature 0 emits what greedy
  decoding of the target emits.
- `RandomVerifier`: accepts with probability rho, whatever the steps say; the control of the paper's
  Table 2 (arXiv 2506.19830).
- `OracleVerifier`: equal meaning, for a language that a program can read.
- `NormalisedMatch` wraps another verifier.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from lr.kvcache.branch import common_length
from lr.rng import Stream, uniform
from lr.spec.verifiers.base import Pair, Requires, Verifier, difference
from lr.types import Step, Verdict, require

Decode = Callable[[Sequence[int]], str]
"""Token ids to text."""
Parse = Callable[[str], Any]
"""A step's text to its meaning, a named tuple; None if it is not in the language."""


class ExactVerifier(Verifier):
    """Accepts if the token ids are equal, the end-of-sequence token included."""

    name = "exact"

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        verdicts = []
        for draft, target in ((pair.draft.tokens, pair.target_step.tokens) for pair in pairs):
            differ = f"tokens differ from offset {common_length(draft, target)} on"
            same = draft == target
            verdicts.append(Verdict(same, why="equal tokens" if same else differ))
        return verdicts


class RandomVerifier(Verifier):
    """Accepts a draft step with probability `rho`.

    The draw is keyed by seed, prefix and draft step: the same step always gets the same verdict, in
    any order and batch. As a control it stands in for a verifier that compares, so by default it
    requires the target's step, although it does not look at it.
    """

    def __init__(
        self, rho: float, seed: int = 0, *, requires: Requires = Requires.TARGET_STEP
    ) -> None:
        require(0 <= rho <= 1, "rho", rho, "a probability, 0 to 1")
        self.name, self.rho, self.requires = f"random:{rho:g}", rho, requires
        self.stream = Stream.root(seed).fold_in("random verifier")

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [self._draw(pair) for pair in pairs]

    def _draw(self, pair: Pair) -> Verdict:
        # The prefix's length is part of the key: no token can move from prefix to draft unnoticed.
        content = array("q", (len(pair.prefix), *pair.prefix, *pair.draft.tokens)).tobytes()
        digest = hashlib.blake2b(content, digest_size=8).digest()
        drawn = uniform(self.stream.key(int.from_bytes(digest, "little") >> 1))
        return Verdict(drawn < self.rho, why=f"drew {drawn:.3f}, accepts below {self.rho:g}")


class OracleVerifier(Verifier):
    """Accepts if `parse` reads both steps and finds the same meaning."""

    name = "oracle"

    def __init__(self, decode: Decode, parse: Parse) -> None:
        self.decode, self.parse = decode, parse

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [self._compare(pair) for pair in pairs]

    def _compare(self, pair: Pair) -> Verdict:
        draft, target = (
            self.parse(self.decode(step.tokens)) for step in (pair.draft, pair.target_step)
        )
        if draft is None or target is None:
            which = "draft" if draft is None else "target"
            return Verdict(aligned=False, why=f"the {which} step is not in the language")
        if draft == target:
            return Verdict(aligned=True, why="same meaning")
        return Verdict(aligned=False, why=difference(draft, target))


class NormalisedMatch(Verifier):
    """Accepts equal texts, ignoring case and outer white space; asks `verifier` about the others.

    A shortcut for verifiers that read text. White space inside a text counts: "x = 1 1" is not
    "x = 11", unlike in the official code, which deletes all white space.
    """

    def __init__(self, verifier: Verifier, decode: Decode) -> None:
        self.name, self.verifier, self.decode = verifier.name, verifier, decode
        self.requires = verifier.requires | Requires.TARGET_STEP
        self.fallible = verifier.fallible

    @property
    def passes(self) -> int:  # type: ignore[override]  # it only counts up
        return self.verifier.passes

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        def text(step: Step) -> str:
            return self.decode(step.tokens).strip().casefold()

        same = [text(pair.draft) == text(pair.target_step) for pair in pairs]
        others = [pair for pair, equal in zip(pairs, same, strict=True) if not equal]
        rest = iter(self.verifier.judge(others) if others else [])
        return [Verdict(aligned=True, why="equal text") if equal else next(rest) for equal in same]
