"""What the tests of verifiers share: steps made of text, a small random model that
speaks the tiny tokens, and what it was asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from spec_kit import random_model
from torch import Tensor
from torch.nn import functional as F

from lr.engine.runner import ModelRunner
from lr.model.codec import Codec
from lr.model.qwen import CausalLM
from lr.spec.verifiers.base import Pair, Requires, Verifier
from lr.spec.verifiers.judge import PromptedModel
from lr.tiny.vocabulary import build_tokenizer
from lr.types import Finish, Step, Verdict

ADD = "Then Ben has 3 more than Ann, so we get 7 + 3 = 10 coins."
ADD_OTHERWISE = "Since Ben owns 3 more than Ann, the number is 7 plus 3 is 10 coins."
ADD_WRONG = "Then Ben has 3 more than Ann, so we get 7 + 3 = 11 coins."
GIVEN = "Initially Ann has 7 coins."


@lru_cache
def codec() -> Codec:
    return Codec(build_tokenizer(), name="tiny")


@lru_cache
def model(seed: int = 0) -> CausalLM:
    return random_model(seed, vocab_size=codec().vocab_size)


def letters(texts: Sequence[str]) -> Tensor:
    """A poor man's sentence embedding: how often each letter occurs."""
    counts = [
        [text.count(letter) for letter in "abcdefghijklmnopqrstuvwxyz0123456789"]
        for text in texts
    ]
    return F.normalize(torch.tensor(counts, dtype=torch.float64), dim=-1)


class Watched:
    """A runner on a random model, with what went through it: (branches, tokens) of each
    forward."""

    def __init__(
        self, seed: int = 0, num_blocks: int = 200, block_size: int = 4
    ) -> None:
        self.forwards: list[tuple[int, int]] = []
        self.runner = ModelRunner(
            model(seed),
            num_blocks=num_blocks,
            block_size=block_size,
            observer=lambda branches, tokens, seconds: self.forwards.append(
                (branches, tokens)
            ),
        )

    @property
    def asked(self) -> PromptedModel:
        return PromptedModel(self.runner, codec())

    @property
    def used(self) -> int:
        return self.runner.cache.pool.num_used

    def last_logits(self, tokens: Sequence[int]) -> Tensor:
        """The logits [v] after `tokens`, by a forward of its own that leaves nothing
        behind."""
        branch = self.runner.open(tokens)
        [logits] = self.runner.forward([branch])
        self.runner.close(branch)
        return logits


def step(text: str, finish: Finish = Finish.BOUNDARY) -> Step:
    return Step(tuple(codec().encode(text + "\n\n")), finish)


def pair(
    draft: str, target: str | None = None, *, prefix: str = "How many coins?"
) -> Pair:
    return Pair(
        tuple(codec().encode(prefix)),
        step(draft),
        None if target is None else step(target),
    )


class Says(Verifier):
    """A verifier that says what it is told, by the text of the draft step, and
    remembers what it was asked.
    """

    name = "says"

    def __init__(
        self,
        answers: dict[str, Verdict | Exception],
        requires: Requires = Requires.TARGET_STEP,
    ) -> None:
        self.answers, self.requires = answers, requires
        self.asked: list[str] = []

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        verdicts = []
        for one in pairs:
            text = codec().decode(one.draft.tokens).strip()
            self.asked.append(text)
            answer = self.answers[text]
            if isinstance(answer, Exception):
                raise answer
            verdicts.append(answer)
        return verdicts
