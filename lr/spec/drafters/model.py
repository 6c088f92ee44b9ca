"""A draft model as drafter: it writes up to k tokens ahead of every branch, all branches in one
batch, one forward per place.

The law of each token is kept (`Proposal.q`), made by the same function and the same sampling
parameters as the target's. With coupling "independent" the draft draws with noise of its own, new
in every round; with "shared" it draws with the very keys with which the target would draw at those
places, which changes neither law but makes them agree far more often (`rules/coupling.py`); use
that with sample matching. A proposal can be cut short where the draft becomes unsure:
`min_confidence` ends it *after* a token drawn from a law whose likeliest token has less; what was
drawn is kept and judged, since dropping it unseen would bias the output.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lr.kvcache.branch import Branch
from lr.spec.acceptance import EMPTY, Proposal
from lr.spec.drafters.base import Context
from lr.spec.drafters.mirror import Mirror
from lr.spec.runner import Runner
from lr.spec.sampling import distribution, sample
from lr.types import Coupling, SamplingParams, require


@dataclass
class _Draft:
    """A proposal in the making."""

    context: Context
    branch: Branch
    depth: int
    tokens: list[int] = field(default_factory=list)
    laws: list[Tensor] = field(default_factory=list)
    open: bool = True


class ModelDrafter:
    """Chains of tokens from a draft model on a runner of its own. `eos_ids`: nothing is drafted
    behind one of these.
    """

    name = "draft"
    trees = False

    def __init__(
        self,
        runner: Runner,
        sampling: SamplingParams,
        *,
        coupling: Coupling = Coupling.INDEPENDENT,
        min_confidence: float = 0.0,
        eos_ids: frozenset[int] = frozenset(),
    ) -> None:
        require(
            0 <= min_confidence <= 1,
            "min_confidence",
            min_confidence,
            "a probability in [0, 1] (0 never stops early)",
        )
        self.runner, self.sampling, self.coupling = runner, sampling, coupling
        self.min_confidence, self.eos_ids = min_confidence, eos_ids
        self._mirror = Mirror(runner)

    def propose(self, contexts: Sequence[Context], k: int) -> list[Proposal]:
        drafts = [
            _Draft(c, self._mirror.follow(c.branch), min(k, c.limit))
            for c in contexts
            if min(k, c.limit) > 0
        ]
        live = drafts
        while live:
            rows = self.runner.feed([draft.branch for draft in live])
            probs = distribution(torch.stack(rows), self.sampling)
            tokens = sample(probs, [self._key(draft) for draft in live])
            sure = probs.amax(-1).tolist() if self.min_confidence else [1.0] * len(live)
            for draft, law, token, confidence in zip(live, probs, tokens, sure, strict=True):
                draft.tokens.append(token)
                draft.laws.append(law)
                full = len(draft.tokens) == draft.depth
                draft.open = not (full or token in self.eos_ids or confidence < self.min_confidence)
                if draft.open:
                    draft.branch.append(token)
            live = [draft for draft in live if draft.open]
        made = {draft.context.branch: self._proposal(draft) for draft in drafts}
        return [made.get(context.branch, EMPTY) for context in contexts]

    def forget(self, branches: Iterable[Branch]) -> None:
        self._mirror.forget(branches)

    def _proposal(self, draft: _Draft) -> Proposal:
        return Proposal.chain(
            draft.tokens, None if self.sampling.greedy else torch.stack(draft.laws)
        )

    def _key(self, draft: _Draft) -> int:
        return draft_key(draft.context, len(draft.tokens), self.coupling)


def draft_key(context: Context, depth: int, coupling: Coupling) -> int:
    """The key of the draft's token `depth` places behind the branch's end: the target's own, or one
    that belongs to this round.
    """
    draws = context.draws
    if coupling is Coupling.SHARED:
        return draws.sample_key(depth)
    return draws.stream.child("token draft", draws.offset).key(depth)
