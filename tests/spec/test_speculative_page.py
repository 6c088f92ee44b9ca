"""`lr/speculative.py` emits the target's law, by enumeration: every draw and every
decision of the page goes both ways, on models with a cache, until no way is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import pytest
import torch
from spec_kit import EOS, PROMPT, random_model
from torch import Tensor

from lr import speculative
from lr.engine.runner import ModelRunner
from lr.rng import Stream
from lr.spec.sampling import distribution
from lr.types import SamplingParams

LENGTH = 3


class Choices:
    """Runs a function once per way that its choices can fall, depth first."""

    def __init__(self) -> None:
        self.path: list[tuple[int, list[float]]] = []  # chosen, and the chances

    def choose(self, chances: Sequence[float]) -> int:
        """The choice on this way. A new one begins with the first that is possible."""
        if self.depth == len(self.path):
            first = next(i for i, chance in enumerate(chances) if chance > 0)
            self.path.append((first, list(chances)))
        chosen, chances = self.path[self.depth]
        self.depth += 1
        self.weight *= chances[chosen]
        return chosen

    def enumerate(self, run: Callable[[], tuple[int, ...]]) -> dict[tuple, float]:
        """The probability of each result."""
        law: dict[tuple, float] = {}
        while True:
            self.depth, self.weight = 0, 1.0
            result = run()
            law[result] = law.get(result, 0.0) + self.weight
            while self.path:  # the last choice that can still fall otherwise does
                chosen, chances = self.path.pop()
                later = [i for i in range(chosen + 1, len(chances)) if chances[i] > 0]
                if later:
                    self.path.append((later[0], chances))
                    break
            else:
                return law

    def sample(self, probs: Tensor, keys: Sequence[int]) -> list[int]:
        return [self.choose(row.tolist()) for row in probs]

    def uniform(self, key: int) -> Toss:
        return Toss(self)


class Toss:
    """A uniform number that is compared with a chance, once."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices

    def __lt__(self, chance: float) -> bool:
        return bool(self.choices.choose([1 - chance, chance]))


def runner(seed: int, vocab_size: int = 3) -> ModelRunner:
    model = random_model(seed, vocab_size=vocab_size)
    return ModelRunner(model, num_blocks=40, block_size=2)


def plain_law(
    target: ModelRunner, prompt: list[int], params: SamplingParams
) -> dict[tuple, float]:
    law = {}
    branch = target.open(prompt)
    for text in product(range(3), repeat=LENGTH):
        target.rewind(branch, 0)
        branch.extend([*prompt, *text])
        [logits] = target.forward([branch], logits=[LENGTH + 1])
        rows = distribution(logits[:-1], params)
        law[text] = rows.gather(1, torch.tensor(text)[:, None]).prod().item()
    target.close(branch)
    return law


@pytest.mark.parametrize(
    ("draft_seed", "sampling"),
    [
        (1, SamplingParams(1.0)),
        (1, SamplingParams(0.7, top_k=2)),  # distributions with zeros
        (0, SamplingParams(1.0)),  # the draft is the target: p = q everywhere
        (1, SamplingParams(0.0)),
    ],
)
def test_the_page_emits_the_law_of_the_target(
    draft_seed: int, sampling: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    choices = Choices()
    monkeypatch.setattr(speculative, "sample", choices.sample)
    monkeypatch.setattr(speculative, "uniform", choices.uniform)
    draft, target = runner(draft_seed), runner(0)
    prompt = [2, 0, 1]

    def run() -> tuple[int, ...]:
        rounds = speculative.speculative_sampling(
            prompt, draft, target, sampling, Stream.root(0), LENGTH, k=2
        )
        return tuple(token for tokens in rounds for token in tokens)

    law = choices.enumerate(run)
    for text, chance in plain_law(target, prompt, sampling).items():
        assert law.get(text, 0.0) == pytest.approx(chance, abs=1e-12)
    assert draft.cache.pool.num_used == target.cache.pool.num_used == 0


@pytest.mark.parametrize("k", [1, 4])
def test_at_temperature_0_the_page_is_greedy_decoding(k: int) -> None:
    sampling = SamplingParams(0.0)
    draft, target = runner(1, 12), runner(0, 12)
    rounds = speculative.speculative_sampling(
        PROMPT, draft, target, sampling, Stream.root(0), 30, frozenset({EOS}), k
    )
    written = [token for tokens in rounds for token in tokens]
    branch = target.open(PROMPT)
    for token in written:
        [logits] = target.forward([branch])
        assert token == logits.argmax()
        branch.append(token)
    assert len(written) == 30 or written[-1] == EOS


def test_no_decision_uses_the_number_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys: list[int] = []

    def uniform(key: int) -> float:
        keys.append(key)
        return 0.7

    monkeypatch.setattr(speculative, "uniform", uniform)
    draft, target = runner(1, 12), runner(0, 12)
    sampling = SamplingParams(1.0)
    [*_] = speculative.speculative_sampling(
        PROMPT, draft, target, sampling, Stream.root(3), 40
    )
    assert len(keys) > 20 and len(set(keys)) == len(keys)


def test_the_residual_of_equal_distributions_is_p() -> None:
    p = torch.tensor([0.25, 0.75])
    assert speculative.residual(p, p).equal(p)
    q = torch.tensor([0.5, 0.5])
    assert speculative.residual(p, q).tolist() == [0, 1]
