"""The exact distribution of a rule's output, by enumeration; it shows whether the rule
is lossless. Also rejection sampling on whole steps, and the probability that two
samples agree, in closed form.

Take a small vocabulary, and a target and a draft that are any functions of the prefix.
List every proposal of the drafter with its probability. Each has a few outcomes: some
accepted tokens, then a distribution of the next. Their sum is the distribution of what
the round emits. Rounds emit different numbers of tokens; to compare them, the target
continues after the round up to `length` tokens, which does not change whether the round
was right. For a lossless rule the result equals the target's own distribution of
`length` tokens, up to rounding.

Example: p = (0.5, 0.5), q = (0.8, 0.2), one draft, rejection. Draft 0 (0.8) stays with
probability 0.625, else 1 follows. Draft 1 (0.2) stays. Token 0: 0.8 * 0.625 = 0.5;
token 1: 0.8 * 0.375 + 0.2 = 0.5. Exactly p. For tests and for inventing rules; text
generation uses nothing of this module."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product

import torch
from torch import Tensor

from lr.spec.acceptance import AcceptanceRule, residual_certain
from lr.spec.proposal import Proposal

Model = Callable[
    [tuple[int, ...]], Tensor
]  # Prefix to the next token's distribution [v], fp64.
Drafts = Iterable[
    tuple[float, Proposal]
]  # All proposals and their probabilities; these sum to 1.


def context_free(row: Tensor) -> Model:
    """The model with the distribution `row` [v] after any prefix."""
    return lambda text: row


def round_distribution(
    rule: AcceptanceRule, target: Model, drafts: Drafts, length: int
) -> Tensor:
    """The distribution [v, ..., v] of the first `length` tokens after one round of the
    rule, and then the target alone. A longer text counts by its beginning."""
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
    """The expected number of draft tokens that a round accepts."""
    return sum(
        weight * outcome.probability * len(outcome.nodes)
        for weight, proposal in drafts
        for outcome in rule.outcomes(target_rows(target, proposal), proposal)
    )


def target_rows(target: Model, proposal: Proposal) -> Tensor:
    """The target's distributions [n + 1, v]: at the branch's end, then after each
    node."""
    paths = [(), *(proposal.path(node) for node in range(len(proposal)))]
    return torch.stack(
        [target(tuple(proposal.tokens[node] for node in path)) for path in paths]
    )


def _continued(
    target: Model, emitted: dict[tuple[int, ...], Tensor], length: int
) -> Tensor:
    """Sum into one tensor. `emitted[text]`: the probabilities [v] of text plus next
    token."""
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
                emitted[longer] = emitted.get(longer, 0.0) + mass[token] * target(
                    longer
                )
    return total


def drawn_drafts(
    draft: Model, parents: Sequence[int], *, replace: bool = True
) -> Iterator[tuple[float, Proposal]]:
    """Every way to fill a tree of the given shape with tokens drawn from the draft
    after each path. `replace` False: never equal to an earlier sibling, which q
    excludes (Gumbel-top-k drafts)."""
    v = len(draft(()))
    n = len(parents)
    for tokens in product(range(v), repeat=n):
        shape = Proposal(tokens, tuple(parents))
        rows: list[Tensor] = []
        for node in range(n):
            row = draft(tuple(tokens[i] for i in shape.path(node)[:-1]))
            if not replace:
                earlier = [
                    tokens[i] for i in shape.families()[parents[node] + 1] if i < node
                ]
                row = residual_certain(row, earlier)
            rows.append(row)
        weight = 1.0
        for row, token in zip(rows, tokens, strict=True):
            weight *= float(row[token])
        if weight > 0:
            yield weight, Proposal(tokens, tuple(parents), torch.stack(rows))


def certain_drafts(
    draft: Model, parents: Sequence[int]
) -> Iterator[tuple[float, Proposal]]:
    """The one proposal of a drafter for which child i of a node is the i-th likeliest
    token."""
    tokens: list[int] = []
    for node, parent in enumerate(parents):
        shape = Proposal(tuple(tokens), tuple(parents[:node]))
        row = draft(tuple(tokens[i] for i in shape.path(parent)))
        rank = list(parents[:node]).count(parent)
        tokens.append(int(row.sort(descending=True, stable=True).indices[rank]))
    yield 1.0, Proposal(tuple(tokens), tuple(parents))


def step_rejection(p: Tensor, q: Tensor) -> tuple[Tensor, float]:
    """Speculative sampling on whole steps: the distribution [s] of the step that is
    emitted, and how many steps the target writes for it on average.

    `p`, `q` [s]: the probability of each step under target and draft; q is 0 for a cut
    step, which is never accepted. A draft step y stays with probability min(1, p(y) /
    q(y)). After a rejection the target writes steps until one stays: t does so with
    probability (1 - q(t) / p(t))+, which draws from the residual (p - q)+ without
    listing it.

    The result is p. If draft steps are rejected with probability r, the target writes
    1 / r steps after each rejection, so one per position: latency is saved, but no work
    of the target.
    """
    accepted = torch.zeros_like(p)
    redrawn = torch.zeros_like(p)
    for step in range(len(p)):
        if q[step] > 0:
            accepted[step] = q[step] * min(1.0, float(p[step] / q[step]))
        if p[step] > 0:
            redrawn[step] = p[step] * max(0.0, float(1 - q[step] / p[step]))
    rejected = 1 - accepted.sum()
    if redrawn.sum() == 0:  # no draft step is ever rejected
        return accepted, 0.0
    attempts = float(rejected / redrawn.sum())
    return accepted + attempts * redrawn, attempts


def shared_noise_agreement(p: Tensor, q: Tensor) -> Tensor:
    """For each token x, the probability [v] that both samples are x if they share their
    noise. The sum is P(agree).

    `sampling.sample` takes argmax(log p + g) with Gumbel noise g keyed by the token. E
    = exp(-g) is exponential with rate 1, and the sample is the token that wins a race:
    E_y / p_y is smallest. With shared noise the target picks the winner of E_y / p_y
    and the draft that of E_y / q_y. Both pick x iff every other y loses both races: E_y
    > E_x m_y with m_y = max(p_y / p_x, q_y / q_x). Given E_x = e this has probability
    exp(-e * sum over y != x of m_y). Averaged over e with density exp(-e), and with m_x
    = 1,

        P(both = x) = 1 / sum over y of max(p_y / p_x, q_y / q_x)."""
    possible = (p > 0) & (q > 0)
    agreement = torch.zeros_like(p)
    ps = p[possible]
    qs = q[possible]
    agreement[possible] = 1.0 / torch.maximum(p / ps[:, None], q / qs[:, None]).sum(-1)
    return agreement


def independent_agreement(p: Tensor, q: Tensor) -> float:
    """P(agree) with independent noise: the sum of p q."""
    return float((p * q).sum())


def total_variation(p: Tensor, q: Tensor) -> float:
    """Half the sum of |p - q|: the largest difference between the probabilities of any event."""
    return float((p - q).abs().sum()) / 2
