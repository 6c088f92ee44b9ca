"""The exact law of a rule, by enumeration: every draft, every outcome, no sampling. Where a rule
shows that it is lossless.

Take a vocabulary of a few tokens, a target and a draft that are any functions of the prefix, and
list every proposal the drafter can make, with its probability. Each proposal can end in a few
outcomes: some accepted tokens, then a law for the next. Adding up gives the law of what the round
emits. Rounds emit different numbers of tokens; to compare them, the target goes on writing after
the round until `length` tokens are there, which changes nothing about whether the round was right.
The result is to equal the target's own law of `length` tokens, to rounding.

Example: p = (0.5, 0.5), q = (0.8, 0.2), one draft, rejection. Draft 0 (0.8): stays with 0.625, else
1 follows. Draft 1 (0.2): stays. Token 0: 0.8 * 0.625 = 0.5; token 1: 0.8 * 0.375 + 0.2 = 0.5.
Exactly p.

For tests, for the museum and for people who invent rules; nothing here runs when text is generated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product

import torch
from torch import Tensor

from lr.spec.acceptance import AcceptanceRule, Proposal, normalised

Model = Callable[[tuple[int, ...]], Tensor]
"""From the tokens so far to the distribution [v] of the next, fp64."""
Drafts = Iterable[tuple[float, Proposal]]
"""Every proposal that can come, with its probability; they sum to one."""


def context_free(row: Tensor) -> Model:
    """The model whose law [v] is the same whatever came before."""
    return lambda text: row


def round_law(rule: AcceptanceRule, target: Model, drafts: Drafts, length: int) -> Tensor:
    """The law [v, ..., v] of the first `length` tokens: one round of the rule, then the target
    alone.

    `length` must be more than the longest path of any proposal.
    """
    emitted: dict[tuple[int, ...], Tensor] = {}
    for weight, proposal in drafts:
        for outcome in rule.outcomes(target_rows(target, proposal), proposal):
            if outcome.probability > 0:
                text = tuple(proposal.tokens[node] for node in outcome.nodes)
                emitted[text] = (
                    emitted.get(text, 0.0) + weight * outcome.probability * outcome.law()
                )
    return _go_on(target, emitted, length)


def plain_law(target: Model, length: int) -> Tensor:
    """The law [v, ..., v] of the first `length` tokens of the target alone."""
    return _go_on(target, {(): target(())}, length)


def expected_accepted(rule: AcceptanceRule, target: Model, drafts: Drafts) -> float:
    """How many draft tokens a round accepts on average."""
    return sum(
        weight * outcome.probability * len(outcome.nodes)
        for weight, proposal in drafts
        for outcome in rule.outcomes(target_rows(target, proposal), proposal)
    )


def target_rows(target: Model, proposal: Proposal) -> Tensor:
    """What the target's forward over the proposal gives: [n + 1, v], at the branch's end and then
    behind each node.
    """
    paths = [(), *(proposal.path(node) for node in range(len(proposal)))]
    return torch.stack([target(tuple(proposal.tokens[node] for node in path)) for path in paths])


def _go_on(target: Model, emitted: dict[tuple[int, ...], Tensor], length: int) -> Tensor:
    """Add up in one tensor. `emitted` [text]: the joint probabilities [v] of a text and the token
    that follows it.
    """
    v = len(target(()))
    law = torch.zeros([v] * length, dtype=torch.float64)
    while emitted:
        text, mass = emitted.popitem()
        if len(text) == length - 1:
            law[text] += mass
            continue
        for token in range(v):
            longer = (*text, token)
            emitted[longer] = emitted.get(longer, 0.0) + mass[token] * target(longer)
    return law


def drawn_drafts(
    draft: Model, parents: Sequence[int], *, replace: bool = True
) -> Iterator[tuple[float, Proposal]]:
    """Every way to fill a tree of the given shape by drawing each token from the draft's law after
    its path.

    `replace` False: a token does not repeat its earlier siblings (Gumbel-top-k drafts); its row of
    q lacks them.
    """
    v, n = len(draft(())), len(parents)
    for tokens in product(range(v), repeat=n):
        shape = Proposal(tokens, tuple(parents))
        rows: list[Tensor] = []
        for node in range(n):
            row = draft(tuple(tokens[i] for i in shape.path(node)[:-1]))
            if not replace:
                row = _without(row, [tokens[i] for i in shape.children(parents[node]) if i < node])
            rows.append(row)
        weight = 1.0
        for row, token in zip(rows, tokens, strict=True):
            weight *= float(row[token])
        if weight > 0:
            yield weight, Proposal(tokens, tuple(parents), torch.stack(rows))


def certain_drafts(draft: Model, parents: Sequence[int]) -> Iterator[tuple[float, Proposal]]:
    """The one proposal of a drafter that takes the likeliest tokens: the first child the likeliest,
    the second the next, and so on.
    """
    tokens: list[int] = []
    for node, parent in enumerate(parents):
        shape = Proposal(tuple(tokens), tuple(parents[:node]))
        row = draft(tuple(tokens[i] for i in shape.path(parent)))
        rank = list(parents[:node]).count(parent)
        tokens.append(int(row.sort(descending=True, stable=True).indices[rank]))
    yield 1.0, Proposal(tuple(tokens), tuple(parents))


def _without(row: Tensor, tokens: Sequence[int]) -> Tensor:
    """The law [v] without some tokens, renormalised; the law itself where nothing else is
    possible.
    """
    left = row.clone()
    left[list(tokens)] = 0.0
    return normalised(left, otherwise=row)
