"""Every drafter and every rule by name, on random models, for the tests of token-level
speculation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spec_kit import EOS, random_model

from lr.engine.runner import ModelRunner
from lr.model.qwen import CausalLM
from lr.spec.acceptance import AcceptanceRule, BlockRule, MatchRule, RejectRule
from lr.spec.drafters import (
    LookupDrafter,
    ModelDrafter,
    TreeDrafter,
)
from lr.spec.proposal import EMPTY, Proposal
from lr.spec.token_sd import Context, Drafter
from lr.types import Coupling, SamplingParams

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
TREES = {"tree", "tree shared"}
COUPLED = {"draft shared", "tree shared"}


def fits(drafter: str, rule: str) -> bool:
    """Block verification takes chains, and drafts whose noise is new in every round."""
    return rule != "block" or drafter not in TREES | COUPLED
