"""What the tests of token-level speculation share: small worlds for the acceptance rules
(conditional tables for target and draft, shapes of trees, rounds ready to be verified),
and every drafter and every rule by name, on random models.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor
from toy_kit import EOS, random_model

from lr.engine.runner import ModelRunner
from lr.model.qwen import CausalLM
from lr.rng import Stream
from lr.spec.acceptance import AcceptanceRule, BlockRule, MatchRule, RejectRule
from lr.spec.drafters import LookupDrafter, ModelDrafter, TreeDrafter
from lr.spec.proposal import EMPTY, ROOT, Draws, Proposal
from lr.spec.token_sd import Context, Drafter
from lr.theory.exact import Model
from lr.types import Coupling, SamplingParams
from lr.variants.kit.tokens import random_rows as random_law

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
ZEROS = {  # shares of impossible tokens in target and draft; 1: all but one
    "random": (0.0, 0.0),
    "zeros": (0.5, 0.5),
    "one-hot": (1.0, 1.0),
    "one-hot draft": (0.0, 1.0),
}
KINDS = [*ZEROS, "equal", "disjoint"]


def pair(kind: str, seed: int, v: int) -> tuple[Model, Model]:
    """Target and draft over v tokens, in fp64, of one of the KINDS."""
    if kind == "disjoint":
        return every_other(seed, v, 0), every_other(seed + 1, v, 1)
    zeros = ZEROS.get(kind, (0.0, 0.0))
    target = cache(random_law(seed, v, zeros[0]))
    if kind == "equal":
        return target, target
    return target, cache(random_law(seed + 1, v, zeros[1]))


def every_other(seed: int, v: int, first: int) -> Model:
    """Only the tokens first, first + 2, ... are possible."""
    model = random_law(seed, v)

    def law_after(text: tuple[int, ...]) -> Tensor:
        law = torch.zeros(v, dtype=torch.float64)
        law[first::2] = model(text)[first::2]
        return law / law.sum()

    return cache(law_after)


def random_proposal(
    rng: random.Random, v: int, *, trees: bool, longest: int = 4
) -> Proposal:
    """A proposal of 0 to `longest` tokens: a chain or, where allowed, a tree; certain
    or with random rows of q.
    """
    n = rng.randint(0, longest)
    parents = [rng.randint(ROOT, i - 1) if trees else i - 1 for i in range(n)]
    tokens = tuple(rng.randrange(v) for _ in range(n))
    q = random_rows(rng, n, v) if n and rng.random() < 0.5 else None
    return Proposal(tokens, tuple(parents), q)


def random_rows(rng: random.Random, n: int, v: int) -> Tensor:
    """n random laws [n, v] in fp64, a third of the entries zero."""
    model = random_law(rng.getrandbits(60), v, 1 / 3)
    return torch.stack([model((i,)) for i in range(n)])


def draws(*path: int, offset: int = 0) -> Draws:
    """Randomness of its own for every path of numbers."""
    return Draws(Stream.root(2024).fold_in(*path), offset)


DRAFT = random_model(7)
END = frozenset({EOS})
UNSURE = 0.42  # half of this random model's places are less sure than that


def runner_of(model: CausalLM) -> ModelRunner:
    return ModelRunner(model, num_blocks=400, block_size=4)


class Stubborn(Drafter):
    """Proposes the same tokens whatever the text: mostly wrong, sometimes with the end
    of the text or a boundary inside.
    """

    name = "stubborn"

    def __init__(self, tokens: Sequence[int] = (5, EOS, 0, 6, 0)) -> None:
        self.tokens = tuple(tokens)

    def propose(self, contexts: Sequence[Context], k: int) -> list[Proposal]:
        return [
            Proposal.chain(self.tokens[: min(k, c.limit)]) if c.limit > 0 else EMPTY
            for c in contexts
        ]


DRAFTERS: dict[str, Callable[[SamplingParams], Drafter]] = {
    "ngram": lambda s: LookupDrafter(3, 1),
    "draft": lambda s: ModelDrafter(runner_of(DRAFT), s, eos_ids=END),
    "draft unsure": lambda s: ModelDrafter(runner_of(DRAFT), s, confidence=UNSURE),
    "draft shared": lambda s: ModelDrafter(
        runner_of(DRAFT), s, coupling=Coupling.SHARED
    ),
    "tree": lambda s: TreeDrafter(
        runner_of(DRAFT), s, branching=(3, 2, 1), eos_ids=END
    ),
    "tree shared": lambda s: TreeDrafter(
        runner_of(DRAFT), s, branching=(2, 2, 2), coupling=Coupling.SHARED
    ),
    "stubborn": lambda s: Stubborn(),
}
RULES: dict[str, AcceptanceRule] = {
    "reject": RejectRule(),
    "block": BlockRule(),
    "match": MatchRule(),
}
OF_TREES = {"tree", "tree shared"}
COUPLED = {"draft shared", "tree shared"}


def fits(drafter: str, rule: str) -> bool:
    """Block verification takes chains, and drafts whose noise is new in every round."""
    return rule != "block" or drafter not in OF_TREES | COUPLED
