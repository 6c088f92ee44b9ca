"""Drafters: they propose a few tokens after each branch. Whether these stay is decided elsewhere.

Two facts about a drafter matter to others. Does its proposal depend on the branch's own tokens
alone? (Then the output does not depend on what else is in the batch, whatever the rule.) And from
which distribution were the tokens drawn (`Proposal.q`; None where they were certain)? A wrong q
makes the output biased; `lr/lab/counterexamples.py` shows how.

Here: chains of a draft model (`ModelDrafter`), all branches in one batch, one forward per place.
`lr/parts/drafters.py` has trees, lookup in the text so far, the draft's version of the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from lr.kvcache.branch import Branch, common_length
from lr.rng import Stream
from lr.spec.acceptance import Draws, Proposal
from lr.spec.protocol import Note, silent
from lr.spec.runner import Runner, fork_longest
from lr.spec.sampling import distribution, sample
from lr.types import Coupling, SamplingParams, require


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
