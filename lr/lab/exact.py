"""The exact distribution of what a rule emits, by enumeration: every draft, every outcome, no
sampling. Here a rule shows that it is lossless. And how often two samples agree, in closed form.

Take a vocabulary of a few tokens, a target and a draft that are any functions of the prefix, and
list every proposal the drafter can make, with its probability. Each can end in a few outcomes: some
accepted tokens, then a distribution for the next. Adding up gives the distribution of what the
round emits. Rounds emit different numbers of tokens; to compare them, the target goes on writing
after the round until there are `length` tokens, which does not change whether the round was right.
The result must equal the target's own distribution of `length` tokens, to rounding.

Example: p = (0.5, 0.5), q = (0.8, 0.2), one draft, rejection. Draft 0 (0.8): stays with 0.625, else
1 follows. Draft 1 (0.2): stays. Token 0: 0.8 * 0.625 = 0.5; token 1: 0.8 * 0.375 + 0.2 = 0.5.
Exactly p. For tests and for inventing rules; nothing here runs when text is generated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product

import torch
from torch import Tensor

from lr.spec.acceptance import AcceptanceRule, Proposal, residual_certain

Model = Callable[[tuple[int, ...]], Tensor]
"""From the tokens so far to the distribution [v] of the next, fp64."""
Drafts = Iterable[tuple[float, Proposal]]
"""Every proposal that can come, with its probability; they sum to one."""


def context_free(row: Tensor) -> Model:
    """The model whose distribution [v] is the same whatever came before."""
    return lambda text: row


def round_distribution(rule: AcceptanceRule, target: Model, drafts: Drafts, length: int) -> Tensor:
    """The distribution [v, ..., v] of the first `length` tokens: one round of the rule, then the
    target alone. A text that is longer counts with its beginning."""
    emitted: dict[tuple[int, ...], Tensor] = {}
    for weight, proposal in drafts:
        for outcome in rule.outcomes(target_rows(target, proposal), proposal):
            if outcome.probability > 0:
                text = tuple(proposal.tokens[node] for node in outcome.nodes)
                mass = weight * outcome.probability * outcome.next_probs()
                emitted[text] = emitted.get(text, 0.0) + mass
    return _continued(target, emitted, length)


def plain_distribution(target: Model, length: int) -> Tensor:
    """The distribution [v, ..., v] of the first `length` tokens of the target alone."""
    return _continued(target, {(): target(())}, length)


def expected_accepted(rule: AcceptanceRule, target: Model, drafts: Drafts) -> float:
    """How many draft tokens a round accepts on average."""
    return sum(
        weight * outcome.probability * len(outcome.nodes)
        for weight, proposal in drafts
        for outcome in rule.outcomes(target_rows(target, proposal), proposal)
    )


def target_rows(target: Model, proposal: Proposal) -> Tensor:
    """What the target's forward over the proposal gives: [n + 1, v], at the branch's end and then
    after each node."""
    paths = [(), *(proposal.path(node) for node in range(len(proposal)))]
    return torch.stack([target(tuple(proposal.tokens[node] for node in path)) for path in paths])


def _continued(target: Model, emitted: dict[tuple[int, ...], Tensor], length: int) -> Tensor:
    """Add up in one tensor. `emitted` [text]: the joint probabilities [v] of a text and the token
    that follows it."""
    v = len(target(()))
    total = torch.zeros([v] * length, dtype=torch.float64)
    while emitted:
        text, mass = emitted.popitem()
        if len(text) >= length:
            total[text[:length]] += mass.sum()
        elif len(text) == length - 1:
            total[text] += mass
        else:
            for token in range(v):
                longer = (*text, token)
                emitted[longer] = emitted.get(longer, 0.0) + mass[token] * target(longer)
    return total


def drawn_drafts(
    draft: Model, parents: Sequence[int], *, replace: bool = True
) -> Iterator[tuple[float, Proposal]]:
    """Every way to fill a tree of the given shape by drawing each token from the draft's
    distribution after its path.

    `replace` False: a token does not repeat its earlier siblings (Gumbel-top-k drafts); its row of
    q lacks them."""
    v, n = len(draft(())), len(parents)
    for tokens in product(range(v), repeat=n):
        shape = Proposal(tokens, tuple(parents))
        rows: list[Tensor] = []
        for node in range(n):
            row = draft(tuple(tokens[i] for i in shape.path(node)[:-1]))
            if not replace:
                earlier = [tokens[i] for i in shape.families()[parents[node] + 1] if i < node]
                row = residual_certain(row, earlier)
            rows.append(row)
        weight = 1.0
        for row, token in zip(rows, tokens, strict=True):
            weight *= float(row[token])
        if weight > 0:
            yield weight, Proposal(tokens, tuple(parents), torch.stack(rows))


def certain_drafts(draft: Model, parents: Sequence[int]) -> Iterator[tuple[float, Proposal]]:
    """The one proposal of a drafter that takes the likeliest tokens: the first child the likeliest,
    the second the next, and so on."""
    tokens: list[int] = []
    for node, parent in enumerate(parents):
        shape = Proposal(tuple(tokens), tuple(parents[:node]))
        row = draft(tuple(tokens[i] for i in shape.path(parent)))
        rank = list(parents[:node]).count(parent)
        tokens.append(int(row.sort(descending=True, stable=True).indices[rank]))
    yield 1.0, Proposal(tuple(tokens), tuple(parents))


def shared_noise_agreement(p: Tensor, q: Tensor) -> Tensor:
    """For each token x, the probability that both samples are x if they share their noise: [v] from
    [v]; the sum is P(agree).

    `sampling.sample` takes argmax(log p + g) with Gumbel noise g keyed by the token. Write E =
    exp(-g), an exponential number of rate 1: the sample is the token whose E_y / p_y is smallest,
    the winner of a race. With the same noise the target picks the winner of E_y / p_y and the draft
    that of E_y / q_y. Both pick x iff every other y loses both races, E_y > E_x m_y with m_y =
    max(p_y / p_x, q_y / q_x). Given E_x = e that has probability exp(-e * sum over y != x of m_y);
    averaged over e with density exp(-e), and with m_x = 1,

        P(both = x) = 1 / sum over y of max(p_y / p_x, q_y / q_x)."""
    possible = (p > 0) & (q > 0)
    both = torch.zeros_like(p)
    ps, qs = p[possible], q[possible]
    both[possible] = 1.0 / torch.maximum(p / ps[:, None], q / qs[:, None]).sum(-1)
    return both


def independent_agreement(p: Tensor, q: Tensor) -> float:
    """P(agree) if each draws with noise of its own: sum of p q."""
    return float((p * q).sum())


def total_variation(p: Tensor, q: Tensor) -> float:
    """Half the sum of |p - q|: the largest difference between the probabilities of any event."""
    return float((p - q).abs().sum()) / 2
