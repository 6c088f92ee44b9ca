"""Small worlds for the acceptance rules: conditional tables for target and draft,
shapes of trees, rounds ready to be verified.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor

from lr.rng import Stream
from lr.spec.proposal import ROOT, Draws, Proposal
from lr.theory.exact import Model

EXACT = 1e-12
CHAINS = [tuple(range(ROOT, n - 1)) for n in (1, 2, 3)]
TREES = [
    (ROOT, ROOT),
    (ROOT, ROOT, ROOT),
    (ROOT, 0, 0),
    (ROOT, ROOT, 0, 1),
    (ROOT, 0, ROOT, 2),
    (ROOT, ROOT, 1, 1, 2),
]
KINDS = ["random", "peaked", "zeros", "equal", "disjoint", "one-hot", "one-hot draft"]


def table(make: Callable[[torch.Generator], Tensor], seed: int) -> Model:
    """A model whose law after every prefix is made anew, but is always the same for the
    same prefix.
    """
    known: dict[tuple[int, ...], Tensor] = {}

    def after(text: tuple[int, ...]) -> Tensor:
        if text not in known:
            generator = torch.Generator().manual_seed(
                random.Random(f"{seed} {text}").getrandbits(60)
            )
            known[text] = make(generator)
        return known[text]

    return after


def pair(kind: str, seed: int, v: int) -> tuple[Model, Model]:
    """Target and draft over v tokens, in fp64, of one of the KINDS."""

    def soft(
        generator: torch.Generator, spread: float = 1.0, drop: float = 0.0
    ) -> Tensor:
        scores = torch.randn(v, dtype=torch.float64, generator=generator) * spread
        dropped = torch.rand(v, generator=generator) < drop
        dropped[int(torch.randint(v, (), generator=generator))] = False
        return scores.masked_fill(dropped, -torch.inf).softmax(-1)

    def half(generator: torch.Generator, first: int) -> Tensor:
        """Only the tokens first, first + 2, ... are possible."""
        law = torch.zeros(v, dtype=torch.float64)
        law[first::2] = (
            torch.rand(len(law[first::2]), dtype=torch.float64, generator=generator)
            + 0.1
        )
        return law / law.sum()

    makers = {
        "random": (soft, soft),
        "peaked": (lambda g: soft(g, 3.0), lambda g: soft(g, 3.0)),
        "zeros": (lambda g: soft(g, 1.0, 0.5), lambda g: soft(g, 1.0, 0.5)),
        "equal": (soft, soft),
        "disjoint": (lambda g: half(g, 0), lambda g: half(g, 1)),
        "one-hot": (lambda g: soft(g, 1.0, 1.0), lambda g: soft(g, 1.0, 1.0)),
        "one-hot draft": (soft, lambda g: soft(g, 1.0, 1.0)),
    }
    target, draft = makers[kind]
    return table(target, seed), table(draft, seed if kind == "equal" else seed + 1)


def random_proposal(
    rng: random.Random, v: int, *, trees: bool, longest: int = 4
) -> Proposal:
    """A proposal of 0 to `longest` tokens: a chain or, where allowed, a tree; certain
    or with random rows of q.
    """
    n = rng.randint(0, longest)
    parents = tuple(
        rng.randint(ROOT, node - 1) if trees else node - 1 for node in range(n)
    )
    tokens = tuple(rng.randrange(v) for _ in range(n))
    q = random_rows(rng, n, v) if rng.random() < 0.5 else None
    return Proposal(tokens, parents, q)


def random_rows(rng: random.Random, n: int, v: int) -> Tensor:
    """n random laws [n, v] in fp64, a third of the entries zero."""
    generator = torch.Generator().manual_seed(rng.getrandbits(60))
    scores = torch.randn(n, v, dtype=torch.float64, generator=generator)
    dropped = torch.rand(n, v, generator=generator) < 1 / 3
    dropped[:, 0] = False
    return scores.masked_fill(dropped, -torch.inf).softmax(-1)


def draws(*path: int, offset: int = 0) -> Draws:
    """Randomness of its own for every path of numbers."""
    return Draws(Stream.root(2024).fold_in(*path), offset)
