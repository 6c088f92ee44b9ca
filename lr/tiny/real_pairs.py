"""Pairs of steps from real runs: at every place of a chain, draft and target write one step from
the same prefix.

The chain goes on as in Lookahead Reasoning with the oracle as verifier: with the draft's step where
it means the same, else with the target's. What never reaches a judge is left out: pairs that are
decided by their form, and equal texts (`spec/eligibility.py`, `spec/verifiers/folded.py`). Read
next: `judge_eval.py`, which measures a judge on such pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from lr.kvcache.branch import Branch
from lr.model.codec import Codec
from lr.model.weights import load_model
from lr.rng import Stream
from lr.tiny.evaluate import BATCH, LIMITS, EvalSettings, Voice
from lr.tiny.language import Problem, Split, problem
from lr.tiny.oracle import same_meaning
from lr.tiny.pairs import TextPair
from lr.types import Role

MAX_STEP_TOKENS = 100


class PairSource:
    """A target and a draft that solve problems together, step by step, and what they wrote at the
    same places.
    """

    def __init__(
        self,
        target: str | Path = "tiny-target",
        draft: str | Path = "tiny-draft",
        *,
        temperature: float = 0.6,
    ) -> None:
        settings = EvalSettings(temperature=temperature)
        self.target, self.draft = (
            Voice(role, load_model(name, dtype=torch.float32), Codec.load(name), settings)
            for role, name in ((Role.TARGET, target), (Role.DRAFT, draft))
        )

    def pairs(self, split: Split, batch: int, seed: int = 0) -> list[TextPair]:
        """The pairs (target's step, draft's step) of batch number `batch` of a split's problems, 32
        problems each.
        """
        problems = [problem(split, batch * BATCH + i, seed) for i in range(BATCH)]
        chains = [self.target.codec.chat(what.question) for what in problems]
        branches = [
            [voice.runner.open(chain) for chain in chains] for voice in (self.target, self.draft)
        ]
        ends = [len(chain) + LIMITS.max_tokens for chain in chains]
        found: list[TextPair] = []
        live, index = list(range(BATCH)), 0
        while live:
            own, guesses = (
                voice.write(
                    [row[i] for i in live], [_number(problems[i], index, seed) for i in live]
                )
                for voice, row in zip((self.target, self.draft), branches, strict=True)
            )
            for i, step, guess in zip(live, own, guesses, strict=True):
                chosen = self._settle(step, guess, found)
                chains[i] = [*chains[i], *chosen]
                for voice, row in zip((self.target, self.draft), branches, strict=True):
                    _go_on(voice, row[i], chains[i], len(chosen))
            live = [
                i for i in live if not self.target.ended(chains[i]) and len(chains[i]) < ends[i]
            ]
            index += 1
        for voice, row in zip((self.target, self.draft), branches, strict=True):
            for branch in row:
                voice.runner.close(branch)
        return found

    def _settle(
        self, step: tuple[int, ...], guess: tuple[int, ...], found: list[TextPair]
    ) -> tuple[int, ...]:
        """Note the pair if a judge would see it; the step that the chain goes on with."""
        first, second = (self.target.codec.decode(tokens).strip() for tokens in (step, guess))
        same = same_meaning(first, second)
        alike = self.target.ended(step) == self.target.ended(guess)
        whole = max(len(step), len(guess)) < MAX_STEP_TOKENS
        if alike and whole and first.casefold() != second.casefold():
            found.append(TextPair(first, second, same))
        return guess if alike and whole and same else step


def balanced(pairs: Sequence[TextPair], count: int) -> list[TextPair]:
    """`count` pairs of each class, the first that come; fewer where there are not so many."""
    return [
        pair
        for same in (True, False)
        for pair in [pair for pair in pairs if pair.same is same][:count]
    ]


def _go_on(voice: Voice, branch: Branch, chain: Sequence[int], new: int) -> None:
    voice.runner.rewind(branch, len(chain) - new)
    branch.extend(chain[len(branch) :])


def _number(what: Problem, index: int, seed: int) -> int:
    """A number of its own for every step that is ever written: the key of its draws."""
    return Stream.root(seed).child("judge pairs", what.question, index).key(0) >> 1
