"""One round of token-level speculation on any set of branches.

1. The *drafter* proposes a few tokens after every branch: a chain, a tree, or nothing.
2. The *target* runs over all of it in one ragged forward: a chain is fed at the end of its branch,
   a tree is spread over forks, one per leaf.
3. The acceptance *rule* decides per branch which tokens stay and which one follows.
4. Tokens and cache of each branch are cut back together to what was decided. The token that follows
   is left pending.

Branches never influence each other. A step may end in the middle of what was decided; then the
caller (`write.py`, or `Writer.write` of `lr/lookahead.py`) drops the rest. Nothing here knows steps
or texts. Read next: `acceptance.py`, `drafters.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lr.errors import SettingError
from lr.kvcache.branch import Branch
from lr.spec.acceptance import EMPTY, ROOT, AcceptanceRule, Decision, Draws, Proposal
from lr.spec.drafters import Context, Drafter
from lr.spec.rules import probs_of_tokens
from lr.spec.runner import Runner, read_up_to
from lr.spec.sampling import distribution
from lr.trace import Guess, RoundDetail
from lr.types import Coupling, SamplingParams, require


@dataclass(frozen=True)
class Speculation:
    """Who drafts, how many tokens at most, which rule decides. `SettingError` for a misfit."""

    drafter: Drafter
    rule: AcceptanceRule
    num_speculative_tokens: int

    def __post_init__(self) -> None:
        k, rule, drafter = self.num_speculative_tokens, self.rule, self.drafter
        expected = "a whole number >= 1 (leave speculation out for 0)"
        require(isinstance(k, int) and k >= 1, "num_speculative_tokens", k, expected)
        if drafter.trees and not rule.trees:
            raise SettingError(
                f"rule {rule.name!r} verifies chains only, but drafter {drafter.name!r} proposes "
                "trees. Use rule 'reject' or 'match', or another drafter."
            )
        if rule.needs_fresh_noise and drafter.coupling is Coupling.SHARED:
            raise SettingError(
                f"rule {rule.name!r} needs drafts whose noise is new in every round, and coupling "
                "'shared' draws them with the target's. Use coupling 'independent', or rule "
                "'match' or 'reject'."
            )


@dataclass(frozen=True)
class RoundEnd:
    """What a round decided for one branch: its next tokens, namely `accepted` of `proposed` draft
    tokens and one more. `depth`: the depth of the proposal (its length, for a chain).
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
    last of them pending. `detailed`: with what the trace records of every round.
    """
    made = speculation.drafter.propose(contexts, speculation.num_speculative_tokens)
    proposals = [
        p if context.limit > 0 else EMPTY for p, context in zip(made, contexts, strict=True)
    ]
    branches = [context.branch for context in contexts]
    starts = [len(branch) for branch in branches]
    runs = run_target(runner, branches, proposals)
    probs = distribution(torch.cat([rows for rows, _ in runs]), sampling)  # [sum of (n + 1), v]
    # The draft model may be on another device.
    proposals = [p if p.q is None else replace(p, q=p.q.to(probs.device)) for p in proposals]
    draws = [context.draws for context in contexts]
    decisions = speculation.rule.verify(probs, proposals, draws)

    ends, row = [], 0
    for branch, start, proposal, (_, forks), decision, draw in zip(
        branches, starts, proposals, runs, decisions, draws, strict=True
    ):
        # The branch goes on with the cache of a path that begins with the accepted nodes.
        accepted = len(decision.nodes)
        chosen = next(fork for fork, path in forks if path[:accepted] == decision.nodes)
        for fork, _ in forks[1:]:
            if fork is not chosen:
                runner.close(fork)
        if chosen is not branch:
            runner.swap(branch, chosen)
        runner.rewind(branch, start + accepted)
        branch.append(decision.token)

        tokens = (*(proposal.tokens[node] for node in decision.nodes), decision.token)
        detail, p_rows = None, probs[row : row + len(proposal) + 1]  # [n + 1, v]
        if detailed:
            detail = round_detail(speculation.rule, p_rows, proposal, draw, decision)
        ends.append(RoundEnd(tokens, accepted, len(proposal), max(proposal.depths()), detail))
        row += len(p_rows)
    return ends


Forks = list[tuple[Branch, tuple[int, ...]]]
"""The branches that hold a proposal, each with its path of nodes. The first is the branch."""


def run_target(
    runner: Runner, branches: Sequence[Branch], proposals: Sequence[Proposal]
) -> list[tuple[Tensor, Forks]]:
    """The target's logits [n + 1, v] over every proposal, in one forward, and the branches that now
    hold the proposals. Row 0 is at the branch's end, row i + 1 after node i.

    Example: the tree 7 -> 9, 7 -> 2 has two paths; two branches that share their past get two
    tokens each; node 7's row is read from the first.
    """
    spread: list[Forks] = []
    for branch, proposal in zip(branches, proposals, strict=True):
        leaves = [node for node, family in enumerate(proposal.families()[1:]) if not family]
        paths = [proposal.path(leaf) for leaf in leaves] or [()]
        if len(paths) > 1:
            read_up_to(runner, branch, len(branch) - 1)
        forks = [branch, *(runner.fork(branch) for _ in paths[1:])]
        for fork, path in zip(forks, paths, strict=True):
            fork.extend(proposal.tokens[node] for node in path)
        spread.append(list(zip(forks, paths, strict=True)))
    fed = [fork for forks in spread for fork, _ in forks]
    counts = [len(path) + 1 for forks in spread for _, path in forks]
    logits = iter(runner.forward(fed, logits=counts))
    return [(_by_node([(next(logits), path) for _, path in forks]), forks) for forks in spread]


def _by_node(rows: Sequence[tuple[Tensor, tuple[int, ...]]]) -> Tensor:
    """Rows per path, [len(path) + 1, v] each, as rows per node [n + 1, v]."""
    if len(rows) == 1:
        return rows[0][0]  # a chain: its nodes are in order
    found: dict[int, Tensor] = {}
    for logits, path in rows:
        for place, node in enumerate((ROOT, *path)):
            found.setdefault(node, logits[place])
    return torch.stack([found[node] for node in sorted(found)])


def round_detail(
    rule: AcceptanceRule, p_rows: Tensor, proposal: Proposal, draws: Draws, decision: Decision
) -> RoundDetail:
    """What a trace says of one branch's round: every draft token with its probabilities, the
    uniform number that decided, the token after them. `p_rows` [n + 1, v]: the target's rows.

    All of it follows from the rule's own list of outcomes. If the outcomes in which a token stays
    have probability S, then once it is tried (its parent stayed, its earlier siblings did not) it
    stays with probability S / (S of the parent - S of those siblings).

    Example, rule reject, a chain of two tokens with min(1, p/q) 0.8 and 0.5: outcomes "none", "the
    first", "both" have 0.2, 0.4, 0.4. The tokens stay with 0.8, and with 0.4 / 0.8 = 0.5. With the
    number 0.5 "the first" is taken. Seen from the end, 1 - 0.5 = 0.5: the first stays because 0.5 <
    0.8; given that, the number is uniform on [0, 0.8], as a share of that 0.625, and the second
    goes because 0.625 > 0.5.
    """
    kept, token, offset = decision.nodes, decision.token, draws.offset
    p = p_rows[kept[-1] + 1 if kept else 0, token].item()
    if not proposal.tokens:
        return RoundDetail(offset, (), None, None, token, p, False, draws.sample_key(0))
    outcomes = rule.outcomes(p_rows, proposal)
    stay = [0.0] * len(proposal)  # the probability of the outcomes in which a token stays
    for outcome in outcomes:
        for node in outcome.nodes:
            stay[node] += outcome.probability

    number = draws.uniform() if rule.draws_uniform else None
    seen = number if proposal.is_chain else None
    if seen is not None and not outcomes[0].nodes:  # the outcomes begin with "nothing stays"
        seen = 1.0 - seen
    # Of the root and of every node: what its next child can still get, and whether it is tried.
    left = [1.0, *stay]
    reached = [True, *(node in kept for node in range(len(proposal)))]
    guesses = []
    ps, qs = probs_of_tokens(p_rows, proposal)
    for node, parent in enumerate(proposal.parents):
        room, tried, stays = left[parent + 1], reached[parent + 1], reached[node + 1]
        accept = min(1.0, stay[node] / room) if room > 0 else None
        share = seen / room if seen is not None and tried and room > 0 else None
        what = (proposal.tokens[node], parent, ps[node], qs[node], accept, share)
        guesses.append(Guess(*what, stays if tried else None))
        left[parent + 1] -= stay[node]
        reached[parent + 1] = tried and not stays

    residual = number is not None and not any(
        outcome.untouched for outcome in outcomes if outcome.nodes == kept
    )
    key = draws.residual_key(len(kept)) if residual else draws.sample_key(len(kept))
    uniform_key = None if number is None else draws.uniform_key
    return RoundDetail(offset, tuple(guesses), number, uniform_key, token, p, residual, key)
