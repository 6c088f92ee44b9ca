"""Token-level speculation: a drafter proposes a few tokens after each branch, the
target runs over all of them at once, and a rule decides which stay. `speculate` runs
one round on any set of branches; `docs/token_level.md` explains it step by step, with
an example.

Branches never influence each other. A step may end in the middle of a round's tokens;
then the caller drops the rest (`write.py`). This module knows neither steps nor text.

The guarantees depend on two properties of a drafter. First, does its proposal depend
only on the branch's own tokens? Then the output does not depend on the rest of the
batch, whatever the rule. Second, from which distribution were the tokens drawn
(`Proposal.q`; None if they were certain)? A wrong q biases the output;
`lr/theory/counterexamples.py` shows how. The drafters are in `lr/spec/drafters.py`.
Read next: `acceptance.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from lr.errors import SettingError
from lr.kvcache.branch import Branch
from lr.options import GenerateOptions
from lr.spec.acceptance import AcceptanceRule, Decision
from lr.spec.checks import check_list, refuse
from lr.spec.proposal import (
    ROOT,
    Draws,
    Proposal,
    check_proposal,
    check_widths,
    probs_of_tokens,
)
from lr.spec.runner import Runner, read_up_to
from lr.spec.sampling import distribution, step_logprobs
from lr.spec.verifiers.base import TakesEvidence
from lr.trace import DraftToken, RoundDetail
from lr.types import Coupling, SamplingParams


@dataclass(frozen=True)
class Context:
    """A branch that needs a proposal at most `limit` deep, and the target's draws in
    this round. `length`: of the branch before the round.
    """

    branch: Branch
    limit: int
    draws: Draws
    length: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", len(self.branch))

    @property
    def tokens(self) -> list[int]:
        """All tokens of the branch, including uncomputed ones. Do not change the
        list."""
        return self.branch.tokens


@dataclass(frozen=True)
class DrafterSetup:
    """What a drafter can be made from. `runner` runs the draft model (None in a mode
    without one), `sampling` is the target's, `eos_ids` end the text, `options` are those
    of the answer."""

    runner: Runner | None
    sampling: SamplingParams
    eos_ids: frozenset[int] = frozenset()
    options: GenerateOptions = field(default_factory=GenerateOptions)


class Drafter(ABC, TakesEvidence):
    """Proposes tokens for branches of the model it serves.

    `trees`: it may propose trees, not only chains. `coupling`: whether its noise is the
    target's. `shares_state`: what it learns from one branch may change its proposals
    for another. Then only rule "match" keeps the output independent of the batch.
    `requires`: the evidence that `learn` finds in the proposal; `layer`: hidden states
    after which layer. `reads`: those of `DRAFTER_OPTIONS` that it reads in its setup;
    the others are refused.
    `memory`: what it saw in earlier answers of this process may change its proposals,
    so a later answer may be faster. `lr check` then asks that the tokens stay the same,
    not the proposals; a benchmark times the first answer and later ones separately.
    """

    name: str
    trees: bool = False
    coupling: Coupling = Coupling.INDEPENDENT
    shares_state: bool = False
    memory: bool = False
    reads: tuple[str, ...] = ()

    @abstractmethod
    def propose(self, contexts: Sequence[Context], k: int) -> list[Proposal]:
        """One proposal per context, in order, at most min(k, limit) deep; `EMPTY` for
        none."""

    def learn(self, context: Context, proposal: Proposal, logits: Tensor) -> None:
        """Learn from what the target said about a proposal, after every verification.

        `logits` [n + 1, v], raw: row 0 at the branch's end before the round (after
        token `context.length - 1`), row i + 1 after node i. The branch already ends in
        the round's new tokens, `context.tokens[context.length :]`.
        """
        return

    def forget(self, branches: Iterable[Branch]) -> None:
        """Free everything that is kept for these branches, which are closed."""
        return


@dataclass(frozen=True)
class Speculation:
    """A drafter, a rule, and the most tokens per round. `SettingError` if they do not
    fit. `checked`: a variant brings the drafter, so its proposals are checked."""

    drafter: Drafter
    rule: AcceptanceRule
    num_speculative_tokens: int
    checked: bool = False

    def __post_init__(self) -> None:
        rule = self.rule
        drafter = self.drafter
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


@dataclass(frozen=True, eq=False)
class RoundEnd:
    """What a round decided for one branch: its next tokens, namely the accepted ones of
    the proposal and one more. `logits` and `p_rows` [n + 1, v]: the target's, raw and
    as distributions; row 0 at the branch's end, row i + 1 after node i.
    """

    tokens: tuple[int, ...]
    proposal: Proposal
    decision: Decision
    logits: Tensor
    p_rows: Tensor

    def logprobs(self) -> tuple[float, ...]:
        """Those of the tokens under the model's raw logits."""
        path_rows = [0, *(node + 1 for node in self.decision.nodes)]  # one before each
        return step_logprobs(self.logits[path_rows], self.tokens)


def speculate(
    runner: Runner,
    sampling: SamplingParams,
    speculation: Speculation,
    contexts: Sequence[Context],
) -> list[RoundEnd]:
    """Run one round on every context's branch. Afterwards each branch ends in its new
    tokens, the last of them uncomputed.
    """
    drafter = speculation.drafter
    rule = speculation.rule

    # 1. Propose.
    proposals = propose(speculation, contexts)  # one per branch

    # 2. Run the target over all proposals, in one forward.
    runs = run_target(runner, [context.branch for context in contexts], proposals)
    rows = torch.cat([logits for logits, *_ in runs])  # [sum of (n + 1), v]: logits
    if speculation.checked:
        check_widths(drafter, proposals, rows.shape[-1])
    # The draft model may be on another device.
    proposals = [
        p if p.q is None else replace(p, q=p.q.to(rows.device)) for p in proposals
    ]
    if rule.requires or drafter.requires:
        proposals = [
            replace(p, logits=logits, hidden=hidden)
            for p, (logits, hidden, _) in zip(proposals, runs, strict=True)
        ]

    # 3. Decide.
    draws = [context.draws for context in contexts]
    probs = distribution(rows, sampling)
    decisions = rule.verify(probs, proposals, draws)

    # 4. Keep the cache of a path that begins with the accepted nodes.
    tables = probs.split([len(proposal) + 1 for proposal in proposals])  # [n + 1, v]
    ends = []
    for context, proposal, (logits, _, forks), decision, p_rows in zip(
        contexts, proposals, runs, decisions, tables, strict=True
    ):
        branch = context.branch
        accepted = len(decision.nodes)  # n of k
        chosen = next(fork for fork, path in forks if path[:accepted] == decision.nodes)
        for fork, _ in forks[1:]:
            if fork is not chosen:
                runner.close(fork)
        if chosen is not branch:
            runner.replace(branch, chosen)
        runner.rewind(branch, context.length + accepted)  # K/V of rejected tokens go
        branch.append(decision.token)  # uncomputed
        # 5. Let the drafter learn.
        drafter.learn(context, proposal, logits)
        tokens = tuple(context.tokens[context.length :])
        ends.append(RoundEnd(tokens, proposal, decision, logits, p_rows))
    return ends


def propose(speculation: Speculation, contexts: Sequence[Context]) -> list[Proposal]:
    """The drafter's proposals; those of a variant are checked."""
    drafter = speculation.drafter
    k = speculation.num_speculative_tokens
    if not speculation.checked:
        return drafter.propose(contexts, k)
    # a drafter must not touch the branch
    before = [list(context.tokens) for context in contexts]
    proposals = drafter.propose(contexts, k)
    check_list("drafter", drafter.propose, proposals, Proposal, len(contexts))
    for context, proposal, tokens in zip(contexts, proposals, before, strict=True):
        check_proposal(drafter, proposal, max(0, min(k, context.limit)))
        if context.tokens != tokens:
            changed = context.tokens[-9:]
            refuse("drafter", drafter.propose, changed, "an unchanged branch")
    return proposals


Forks = list[tuple[Branch, tuple[int, ...]]]
"""The branches that hold a proposal, each with its path of nodes. The first is the
original."""


def run_target(
    runner: Runner, branches: Sequence[Branch], proposals: Sequence[Proposal]
) -> list[tuple[Tensor, Tensor | None, Forks]]:
    """What the target makes of every proposal, in one forward: logits [n + 1, v], hidden
    states [n + 1, e] if the runner watches a layer, and the branches that now hold the
    tokens. Row 0 is at the branch's end, row i + 1 after node i.

    Example: the tree 7 -> 9, 7 -> 2 has two paths, each on a branch. The first one
    gives node 7.
    """
    spread: list[Forks] = []
    for branch, proposal in zip(branches, proposals, strict=True):
        leaves = [
            node for node, family in enumerate(proposal.families()[1:]) if not family
        ]
        paths = [proposal.path(leaf) for leaf in leaves] or [()]
        if len(paths) > 1:
            read_up_to(runner, branch, len(branch) - 1)
        # the first path needs no fork
        forks = [branch, *(runner.fork(branch) for _ in paths[1:])]
        for fork, path in zip(forks, paths, strict=True):
            fork.extend(proposal.tokens[node] for node in path)
        spread.append(list(zip(forks, paths, strict=True)))
    fed = [fork for forks in spread for fork, _ in forks]  # all branches of all trees
    # rows per branch: its end, then each node
    counts = [len(path) + 1 for forks in spread for _, path in forks]
    logits = iter(runner.forward(fed, logits=counts))
    states = runner.hidden
    hidden = iter(torch.cat(states).split(counts)) if states else None
    return [
        (_by_node(logits, forks), _by_node(hidden, forks) if hidden else None, forks)
        for forks in spread
    ]


def _by_node(tables: Iterator[Tensor], forks: Forks) -> Tensor:
    """Take the next tables, rows per path [len(path) + 1, v] each, and convert them to
    rows per node [n + 1, v]."""
    if len(forks) == 1:
        return next(tables)  # a chain: its nodes are in order
    by_node: dict[int, Tensor] = {}
    for _, path in forks:
        for row, node in zip(next(tables), (ROOT, *path), strict=True):
            by_node.setdefault(node, row)  # the paths share their first nodes
    return torch.stack([by_node[node] for node in sorted(by_node)])


def round_detail(rule: AcceptanceRule, end: RoundEnd, offset: int) -> RoundDetail:
    """A round in full, as a detailed trace shows it. `offset`: tokens of the step before
    the round.

    How likely a token was to stay follows from the rule's list of outcomes. Let S be
    the probability of the outcomes in which it stays. Once it is tried (its parent
    stayed, its earlier siblings did not), it stays with probability S / (S of the
    parent - S of those siblings).

    Example: rule reject, a chain of two tokens whose min(1, p/q) are 0.8 and 0.5. The
    outcomes "none", "the first" and "both" have probabilities 0.2, 0.4 and 0.4. The
    first token stays with probability 0.8, the second with 0.4 / 0.8 = 0.5."""
    proposal = end.proposal
    nodes = end.decision.nodes
    stay = {ROOT: 1.0} | dict.fromkeys(range(len(proposal)), 0.0)  # S of each node
    for outcome in rule.outcomes(end.p_rows, proposal) if proposal.tokens else ():
        for node in outcome.nodes:
            stay[node] += outcome.probability
    families = proposal.families()
    ps, qs = probs_of_tokens(end.p_rows, proposal)
    draft_tokens = []
    for node, parent in enumerate(proposal.parents):
        siblings = families[parent + 1]
        earlier = siblings[: siblings.index(node)]  # tried before this one
        # the probability that it is tried
        above = stay[parent] - sum(stay[sibling] for sibling in earlier)
        tried = parent in (ROOT, *nodes) and not set(earlier) & set(nodes)
        draft_tokens.append(
            DraftToken(
                token=proposal.tokens[node],
                parent=parent,
                p=ps[node],
                q=qs[node],
                accept=min(1.0, stay[node] / above) if above > 0 else None,
                kept=node in nodes if tried else None,
            )
        )
    last_row = nodes[-1] + 1 if nodes else 0  # row i + 1 follows node i
    return RoundDetail(
        offset=offset,
        draft_tokens=tuple(draft_tokens),
        token=end.decision.token,
        p=end.p_rows[last_row, end.decision.token].item(),
    )
