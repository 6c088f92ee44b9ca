"""Traversal Verification (Weng et al., arXiv 2505.12398): all paths of a token tree at
once.

    lr generate --variant "traversal(branching=(3, 2, 1))"

Paths are judged from the leaves up, so that a likely ending can save an unlikely
beginning. Faithful: the rule. Ours: the tree is drawn by Gumbel top-k, so siblings
without replacement.

Let w be the probability with which a path may be kept: 1 at the root, min(1, w p(x) /
q(x)) for its child x. The subtree below x is tried first, then x as the last kept
token, then the next sibling, for which p and w become (w p - q)+ / S and S / (S + 1 -
w) with S = sum of (w p - q)+. On a chain this is block verification, and the proof in
`lr.spec.block_rule` holds for each family."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lr.errors import SettingError
from lr.spec.acceptance import (
    ROOT,
    AcceptanceRule,
    Outcome,
    Proposal,
    accept_prob,
    replacement,
)
from lr.spec.drafters import TreeDrafter
from lr.spec.runner import Runner
from lr.spec.sampling import perturbed
from lr.spec.token_sd import Context
from lr.spec.variant import Variant
from lr.types import SamplingParams


class Traversal(AcceptanceRule):
    """Keeps at least as much of a tree as rejection sampling on average."""

    name, lossless, trees, needs_fresh_noise = "traversal", True, True, True

    def outcomes(self, p_rows: Tensor, proposal: Proposal) -> list[Outcome]:
        """One outcome per node, in the order in which they are tried. The root is
        last."""
        families, q, made, left = proposal.families(), proposal.q, list[Outcome](), 1.0

        def visit(node: int, w: float) -> None:
            nonlocal left  # the probability that no node tried so far was kept
            p = p_rows[node + 1]
            for child in families[node + 1]:
                token = proposal.tokens[child]
                p_x, q_x = float(p[token]), 1.0 if q is None else float(q[child, token])
                visit(child, accept_prob(w * p_x, q_x))
                above = (
                    w - w * p_x
                    if q is None
                    else (p * w - q[child]).clamp_min(0.0).sum()
                )
                p, s = replacement(p, proposal, [child], w), float(above)
                w = s / (s + (1.0 - w)) if s > 0 else 0.0
            stays, untouched = 1.0 if node == ROOT else w, not families[node + 1]
            made.append(
                Outcome(
                    left * stays, proposal.path(node), lambda: p, untouched=untouched
                )
            )
            left *= 1.0 - stays

        visit(ROOT, 1.0)
        return made


class DrawnTree(TreeDrafter):
    """Draws its tokens. Every place has its own noise, since cousins must be
    independent."""

    def candidates(
        self, probs: Tensor, places: Sequence[tuple[Context, int, int]], width: int
    ) -> list[tuple[list[int], list[Tensor]]]:
        keys = [
            c.draws.stream.fold_in("tree", c.draws.offset, n).key(at)
            for c, n, at in places
        ]
        ranked = (
            perturbed(probs, keys).topk(min(width, probs.shape[-1])).indices.tolist()
        )
        drawn = [
            [t for t in row if p[t] > 0] for row, p in zip(ranked, probs, strict=True)
        ]
        rest = [[replacement(p, Proposal.chain(tokens), range(j)) for j in range(len(tokens))]
                for tokens, p in zip(drawn, probs, strict=True)]  # fmt: skip
        return list(zip(drawn, rest, strict=True))


def traversal(*, branching: tuple[int, ...] = (3, 2, 1, 1)) -> Variant:
    """A drawn tree (certain at temperature 0), verified from the leaves up."""

    def tree(runner: Runner | None, sampling: SamplingParams) -> TreeDrafter:
        if runner is None:
            raise SettingError(
                "drafter has no draft model to draw its tree with; use 'draft'."
            )
        kind = TreeDrafter if sampling.greedy else DrawnTree
        return kind(runner, sampling, branching=branching)

    return Variant(rule=Traversal(), drafter=tree, settings={"mode": "sd"})
