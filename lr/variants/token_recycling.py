"""Token Recycling (Luo et al., arXiv 2408.08696): the target's own candidates are the
next drafts.

    lr generate --variant token_recycling

A table maps every token to the target's likeliest successors, as it last judged them.
The draft is a tree read from this table, breadth first. One part: a drafter, whose
`learn` writes the table after every verification. It needs no draft model.

The table is shared by the branches of an answer, so only acceptance "match" keeps the
output independent of the batch. Different: the paper's tree is fixed and has 80 nodes;
here `branching` says how wide each level is."""

from collections.abc import Sequence

from torch import Tensor

from lr.reasoner import Reasoner
from lr.spec.proposal import ROOT, Proposal
from lr.spec.token_sd import Context, Drafter
from lr.spec.variant import Variant


class RecycledTree(Drafter):
    """Proposes the tree of the table's successors after the last token."""

    name = "recycled"
    trees = True
    shares_state = True

    def __init__(self, branching: Sequence[int]) -> None:
        self.branching = branching
        self.successors: dict[int, list[int]] = {}

    def learn(self, context: Context, proposal: Proposal, logits: Tensor) -> None:
        # the last token before the drafts: row 0 of the logits follows it
        last = context.tokens[context.length - 1]
        # [t + 1, v] -> for each place the most that a level can use
        best = logits.topk(max(self.branching), dim=-1).indices.tolist()
        # the latest wins, also where a draft was rejected: the target has read it
        self.successors |= zip((last, *proposal.tokens), best, strict=True)

    def propose(self, contexts: Sequence[Context], k: int) -> list[Proposal]:
        return [self.tree(c.tokens[-1], min(k, c.limit)) for c in contexts]

    def tree(self, last: int, depth: int) -> Proposal:
        tokens: list[int] = []
        parents: list[int] = []
        # (node, token) of the level whose children come next
        level = [(ROOT, last)]
        for width in self.branching[: max(0, depth)]:
            below = []
            for node, token in level:
                for successor in self.successors.get(token, ())[:width]:
                    # its own number is the next free one
                    below.append((len(tokens), successor))
                    tokens.append(successor)
                    parents.append(node)
            level = below
        return Proposal(tuple(tokens), tuple(parents))


def token_recycling(
    reasoner: Reasoner, *, branching: tuple[int, ...] = (4, 2, 1, 1)
) -> Variant:
    """A tree of `branching` candidates per level, read from what the target said."""
    # match: a token is kept if it is the one that the target draws
    settings = {"num_speculative_tokens": len(branching), "acceptance": "match"}
    return Variant(drafter=lambda setup: RecycledTree(branching), settings=settings)
