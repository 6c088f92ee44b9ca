"""Token-level speculation: drafters propose a few tokens after each branch, the target runs over
all of them at once, a rule decides which stay. `speculate` is one round on any set of branches;
`docs/token_level.md` tells it step by step, with an example.

Branches never influence each other. A step may end in the middle of what was decided; then the
caller drops the rest or, with rule "match", lets the next step begin with it (`write.py`). Nothing
here knows steps or texts.

Two facts about a drafter matter to others. Does its proposal depend on the branch's own tokens
alone? (Then the output does not depend on what else is in the batch, whatever the rule.) And from
which distribution were the tokens drawn (`Proposal.q`; None where they were certain)? A wrong q
makes the output biased; `lr/lab/counterexamples.py` shows how. Here: chains of a draft model
(`ModelDrafter`), all branches in one batch, one forward per place; `lr/parts/drafters.py` has
trees, lookup in the text so far, the draft's version of the same step. Read next: `acceptance.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from lr.errors import SettingError
from lr.kvcache.branch import Branch, common_length
from lr.registry import find
from lr.rng import Stream
from lr.spec.acceptance import EMPTY, ROOT, AcceptanceRule, Draws, MatchRule, Proposal
from lr.spec.protocol import Note, silent
from lr.spec.runner import Runner, fork_longest, read_up_to
from lr.spec.sampling import distribution, sample
from lr.trace import RoundDetail
from lr.types import Coupling, SamplingParams, require, require_whole


@dataclass(frozen=True)
class Context:
    """A branch that wants a proposal, at most `limit` deep, and the target's draws this round.
    `note` tells the trace something. `after`: what `Draws.after` is if these tokens come next.
    """

    branch: Branch
    limit: int
    draws: Draws
    note: Note = field(default=silent, compare=False, repr=False)
    after: Callable[[Sequence[int]], tuple[int, Stream] | None] | None = None

    def along(self, tokens: Sequence[int]) -> Draws:
        """The draws if these tokens come next."""
        return self.draws if self.after is None else replace(self.draws, after=self.after(tokens))

    @property
    def tokens(self) -> list[int]:
        """All tokens of the branch, pending ones included. Not to be changed."""
        return self.branch.tokens


class Drafter(Protocol):
    """Proposes tokens for branches of the model it serves. Subclass it to inherit the defaults.

    `trees`: it may propose more than chains. `coupling`: whether its noise is the target's.
    """

    name: str
    trees: bool = False
    coupling: Coupling = Coupling.INDEPENDENT

    def propose(self, contexts: Sequence[Context], k: int) -> list[Proposal]:
        """One proposal per context, in order, at most min(k, limit) deep; `EMPTY` for none."""
        ...

    def offer(self, branch: Branch, start: int, tokens: Sequence[int]) -> None:
        """The draft model wrote these tokens, so far, for the step from position `start` on."""
        return

    def forget(self, branches: Iterable[Branch]) -> None:
        """These branches are closed: free what is kept for them, if anything is."""
        return


@dataclass(eq=False)
class OwnBranches(Drafter):
    """The draft model's own branches, one for each branch of the target, kept in step with it.

    After a round the target's branch holds tokens that the draft did not write (a correction), or
    that it has not read (the token after a fully accepted proposal).
    """

    runner: Runner
    _own: dict[Branch, Branch] = field(default_factory=dict, init=False)

    def follow(self, branch: Branch) -> Branch:
        """The draft's branch for `branch`, made to hold exactly its tokens: what it has beyond the
        common beginning goes, the rest becomes pending, at least one token.
        """
        own, tokens = self._own.get(branch), branch.tokens
        if own is None:
            own = self._own[branch] = fork_longest(self.runner, self._own.values(), tokens)
        else:
            self.runner.rewind(own, min(common_length(own.tokens, tokens), len(tokens) - 1))
            own.extend(tokens[len(own) :])
        return own

    def forget(self, branches: Iterable[Branch]) -> None:
        for branch in branches:
            if branch in self._own:
                self.runner.close(self._own.pop(branch))


def draft_key(context: Context, depth: int, coupling: Coupling, tokens: Sequence[int] = ()) -> int:
    """The key of the draft's token `depth` places on, after `tokens` (if it is a chain). With
    coupling "shared" it is the target's own there: the distributions stay and the two agree far
    more often (`lr/lab/exact.py`), which pays with sample matching. Else it is new in every round.
    """
    if coupling is Coupling.SHARED:
        return context.along(tokens).sample_key(depth)
    return context.draws.stream.fold_in("token draft", context.draws.offset).key(depth)


@dataclass(eq=False)
class ModelDrafter(OwnBranches):
    """Chains of tokens, each with its distribution (`Proposal.q`), made as the target's is made.

    Nothing is drafted after a token of `eos_ids`. `min_confidence` ends a proposal *after* a token
    drawn from a distribution whose likeliest token has less; what was drawn is kept and judged,
    since to drop it unseen would bias the output.
    """

    name = "draft"

    sampling: SamplingParams
    coupling: Coupling = Coupling.INDEPENDENT
    min_confidence: float = 0.0
    eos_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        likely, expected = self.min_confidence, "a probability in [0, 1] (0 never stops early)"
        require(0 <= likely <= 1, "min_confidence", likely, expected)

    def propose(self, contexts: Sequence[Context], k: int) -> list[Proposal]:
        depths = [min(k, context.limit) for context in contexts]
        tokens: list[list[int]] = [[] for _ in contexts]
        rows: list[list[Tensor]] = [[] for _ in contexts]  # [v] each: what a token was drawn from
        live = [i for i, depth in enumerate(depths) if depth > 0]
        own = {i: self.follow(contexts[i].branch) for i in live}
        while live:
            logits = torch.stack(self.runner.forward([own[i] for i in live]))  # [b, v]
            probs = distribution(logits, self.sampling)  # [b, v]
            keys = [draft_key(contexts[i], len(tokens[i]), self.coupling, tokens[i]) for i in live]
            for i, row, token in zip(live, probs, sample(probs, keys), strict=True):
                tokens[i].append(token)
                rows[i].append(row)
            sure = probs.amax(-1).tolist() if self.min_confidence else [1.0] * len(live)
            live = [
                i
                for i, confidence in zip(live, sure, strict=True)
                if len(tokens[i]) < depths[i]
                and tokens[i][-1] not in self.eos_ids
                and confidence >= self.min_confidence
            ]
            for i in live:
                own[i].append(tokens[i][-1])
        certain = self.sampling.greedy
        return [
            Proposal.chain(chain, torch.stack(qs) if qs and not certain else None)  # [n, v]
            for chain, qs in zip(tokens, rows, strict=True)
        ]


@dataclass(frozen=True)
class Speculation:
    """Who drafts, how many tokens at most, which rule decides. `SettingError` for a misfit."""

    drafter: Drafter
    rule: AcceptanceRule
    num_speculative_tokens: int

    def __post_init__(self) -> None:
        rule, drafter = self.rule, self.drafter
        require_whole("num_speculative_tokens", self.num_speculative_tokens, 1)
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

    @property
    def goes_on(self) -> bool:
        """Whether the next step may begin with what a round decides after the end of one: rule
        "match" draws the target's own tokens, whatever was guessed (in a tree, by its path).
        """
        return type(self.rule) is MatchRule and not self.drafter.trees


@dataclass(frozen=True)
class RoundEnd:
    """What a round decided for one branch: its next tokens, namely `accepted` of `proposed` draft
    tokens and one more. `depth`: of the proposal. `note`: what the rule tells the trace.
    """

    tokens: tuple[int, ...]
    accepted: int
    proposed: int
    depth: int
    detail: RoundDetail | None = None
    note: Mapping[str, object] = field(default_factory=dict)


def speculate(
    runner: Runner,
    sampling: SamplingParams,
    speculation: Speculation,
    contexts: Sequence[Context],
    *,
    detailed: bool = False,
) -> list[RoundEnd]:
    """One round on every context's branch. Afterwards each branch ends in its round's tokens, the
    last of them pending. `detailed`: with what a detailed trace records of every round.
    """
    made = speculation.drafter.propose(contexts, speculation.num_speculative_tokens)
    proposals = [p if c.limit > 0 else EMPTY for p, c in zip(made, contexts, strict=True)]
    branches = [context.branch for context in contexts]
    starts = [len(branch) for branch in branches]
    runs = run_target(runner, branches, proposals)
    probs = distribution(torch.cat([rows for rows, _ in runs]), sampling)  # [sum of (n + 1), v]
    # The draft model may be on another device.
    proposals = [p if p.q is None else replace(p, q=p.q.to(probs.device)) for p in proposals]
    draws = [context.along(p.tokens) for context, p in zip(contexts, proposals, strict=True)]
    decisions = speculation.rule.verify(probs, proposals, draws)

    describe = find("lr.lab.trace.rounds:round_detail") if detailed else None
    ends = []
    p_rows = probs.split([len(proposal) + 1 for proposal in proposals])  # [n + 1, v] each
    for branch, start, proposal, (_, forks), decision, draw, p in zip(
        branches, starts, proposals, runs, decisions, draws, p_rows, strict=True
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
        rule, depth = speculation.rule, max(proposal.depths())
        detail = describe(rule, p, proposal, draw, decision) if describe else None
        ends.append(RoundEnd(tokens, accepted, len(proposal), depth, detail, decision.note))
    return ends


Forks = list[tuple[Branch, tuple[int, ...]]]
"""The branches that hold a proposal, each with its path of nodes. The first is the branch."""


def run_target(
    runner: Runner, branches: Sequence[Branch], proposals: Sequence[Proposal]
) -> list[tuple[Tensor, Forks]]:
    """The target's logits [n + 1, v] over every proposal, in one forward, and the branches that now
    hold the proposals. Row 0 is at the branch's end, row i + 1 after node i.

    Example: the tree 7 -> 9, 7 -> 2 has two paths, a branch for each; node 7 is read on the first.
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
