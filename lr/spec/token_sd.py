"""One round of token-level speculation on any set of branches: propose, look, decide, settle.

1. The *drafter* proposes a few tokens behind every branch: a chain, a tree, or nothing.
2. The *target* looks at all of it in one ragged forward: a chain is fed behind its branch, a tree
   is spread over forks, one per leaf.
3. The acceptance *rule* decides per branch which tokens stay and which one follows.
4. The branches are *settled*: tokens and cache are cut back together to what was decided. The token
   that follows is left pending.

Branches never influence each other: each has its own proposal, its own draws, its own decision, and
they part with different lengths. A step may end in the middle of what was decided; then the caller
(`write.py`) takes fewer tokens, and the surplus goes. Nothing here knows steps, texts or
end-of-sequence tokens. Read next: `acceptance.py`, `drafters/base.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lr.errors import SettingError
from lr.kvcache.branch import Branch
from lr.spec.acceptance import EMPTY, AcceptanceRule, Proposal
from lr.spec.drafters.base import Context, Drafter
from lr.spec.round_detail import verify_in_detail
from lr.spec.runner import Runner
from lr.spec.sampling import distribution
from lr.trace import RoundDetail
from lr.types import Coupling, SamplingParams, require


@dataclass(frozen=True)
class Speculation:
    """How a model's tokens are guessed ahead: who drafts, how many tokens at most, and which rule
    decides.
    """

    drafter: Drafter
    rule: AcceptanceRule
    num_speculative_tokens: int

    def __post_init__(self) -> None:
        k = self.num_speculative_tokens
        require(
            isinstance(k, int) and k >= 1,
            "num_speculative_tokens",
            k,
            "a whole number >= 1 (leave speculation out for 0)",
        )
        if self.drafter.trees and not self.rule.trees:
            raise SettingError(
                f"rule {self.rule.name!r} verifies chains only, but drafter {self.drafter.name!r} proposes trees. "
                "Use rule 'reject' or 'match', or another drafter."
            )
        if self.rule.looks_ahead and self.drafter.coupling is Coupling.SHARED:
            raise SettingError(
                f"rule {self.rule.name!r} needs drafts whose noise is new in every round, and coupling 'shared' draws them with the "
                "target's. Use coupling 'independent', or rule 'match' or 'reject'."
            )


@dataclass(frozen=True)
class RoundEnd:
    """What a round decided for one branch: its next tokens, in order. The first `accepted` of
    `proposed` drafts, then one more.

    `depth` is the depth of the proposal (its length, for a chain); `detail` is there if it was
    asked for.
    """

    tokens: tuple[int, ...]
    accepted: int
    proposed: int
    depth: int
    detail: RoundDetail | None = None


def speculate(
    runner: Runner,
    sampling: SamplingParams,
    speculation: Speculation,
    contexts: Sequence[Context],
    *,
    detailed: bool = False,
) -> list[RoundEnd]:
    """One round on every context's branch. Afterwards each branch ends in its round's tokens, the
    last of them pending.

    `detailed`: say of every round what the trace wants to know.
    """
    branches = [context.branch for context in contexts]
    proposals = speculation.drafter.propose(contexts, speculation.num_speculative_tokens)
    proposals = [
        p if context.limit > 0 else EMPTY for p, context in zip(proposals, contexts, strict=True)
    ]
    starts = [len(branch) for branch in branches]
    looks = look(runner, branches, proposals)
    probs = distribution(torch.cat([rows for rows, _ in looks]), sampling)
    draws = [context.draws for context in contexts]
    details: Sequence[RoundDetail | None] = [None] * len(contexts)
    if detailed:
        decisions, details = verify_in_detail(speculation.rule, probs, proposals, draws)
    else:
        decisions = speculation.rule.verify(probs, proposals, draws)
    ends = []
    for branch, start, proposal, (_, forks), decision, detail in zip(
        branches, starts, proposals, looks, decisions, details, strict=True
    ):
        accepted = len(decision.nodes)
        _keep(runner, branch, forks, decision.nodes)
        runner.rewind(branch, start + accepted)
        branch.append(decision.token)
        tokens = (*(proposal.tokens[node] for node in decision.nodes), decision.token)
        ends.append(RoundEnd(tokens, accepted, len(proposal), max(proposal.depths()), detail))
    return ends


Forks = list[tuple[Branch, tuple[int, ...]]]
"""The branches that hold a tree's paths: each with its path of nodes. The first is the branch
itself.
"""


def look(
    runner: Runner, branches: Sequence[Branch], proposals: Sequence[Proposal]
) -> list[tuple[Tensor, Forks]]:
    """The target's rows [n + 1, v] over every proposal, in one forward, and the branches that now
    hold the proposals.

    Row 0 is at the branch's end, row i + 1 behind node i. Example: the tree 7 -> 9, 7 -> 2 has two
    paths; two branches of one shared past each get two tokens; node 7's row is read from the first,
    its twin is not used.
    """
    spread: list[Forks] = []
    for branch, proposal in zip(branches, proposals, strict=True):
        paths = _leaf_paths(proposal)
        if len(paths) > 1:
            _catch_up(runner, branch)
        forks = [branch, *(runner.fork(branch) for _ in paths[1:])]
        for fork, path in zip(forks, paths, strict=True):
            fork.extend(proposal.tokens[node] for node in path)
        spread.append(list(zip(forks, paths, strict=True)))
    rows = iter(
        runner.feed(
            [fork for forks in spread for fork, _ in forks],
            logits=[len(path) + 1 for forks in spread for _, path in forks],
        )
    )
    return [
        (_in_order([(next(rows), path) for _, path in forks], len(proposal)), forks)
        for forks, proposal in zip(spread, proposals, strict=True)
    ]


def _leaf_paths(proposal: Proposal) -> list[tuple[int, ...]]:
    """The paths from the root to each leaf; one empty path if there is nothing."""
    leaves = [node for node, family in enumerate(proposal.families()[1:]) if not family]
    return [proposal.path(leaf) for leaf in leaves] or [()]


def _catch_up(runner: Runner, branch: Branch) -> None:
    """Feed all pending tokens but the last, so that forks share them instead of repeating them."""
    if len(branch.pending) > 1:
        last = branch.tokens.pop()
        runner.feed([branch])
        branch.append(last)


def _in_order(rows: Sequence[tuple[Tensor, tuple[int, ...]]], nodes: int) -> Tensor:
    """Rows per path, [len(path) + 1, v] each, as rows per node [nodes + 1, v]."""
    if len(rows) == 1:
        return rows[0][0]  # a chain: its nodes are in order
    found: dict[int, Tensor] = {}
    for logits, path in rows:
        for place, node in enumerate((-1, *path)):
            found.setdefault(node, logits[place])
    return torch.stack([found[node] for node in range(-1, nodes)])


def _keep(runner: Runner, branch: Branch, forks: Forks, nodes: tuple[int, ...]) -> None:
    """Let the branch go on with the cache of a path that begins with the accepted nodes, and close
    the other paths.
    """
    if len(forks) == 1:
        return
    chosen = next(fork for fork, path in forks if path[: len(nodes)] == nodes)
    for fork, _ in forks[1:]:
        if fork is not chosen:
            runner.close(fork)
    if chosen is not branch:
        runner.become(branch, chosen)
