"""Acceptance rules: which draft tokens stay, and which token follows them.

A drafter makes a `Proposal` per branch (`proposal.py`), and the target runs over all of
it in one forward. An acceptance rule then makes a `Decision`: a path of accepted nodes
from the root down, and one more token. `p` is the target's distribution, `q` the
draft's.

A rule lists every way a round can end, with its probability (`outcomes`). The program
runs on this list: a round draws one uniform number, selects the outcome on which it
falls, and draws the last token. So `lr/theory/exact.py`, which sums over the outcomes,
checks the program itself, not a copy. Read next: `drafters.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from lr.kvcache.cache import integers
from lr.rng import uniform
from lr.spec.checks import TOLERANCE, refuse
from lr.spec.proposal import ROOT, Draws, Proposal, probs_of_tokens, with_probs
from lr.spec.sampling import sample
from lr.spec.verifiers.base import TakesEvidence


@dataclass(frozen=True)
class Decision:
    """The accepted nodes from the root down, and the token that follows."""

    nodes: tuple[int, ...]
    token: int


@dataclass(frozen=True, eq=False)
class Outcome:
    """One way a round can end: its probability given the drafts, the accepted nodes,
    and the distribution [v] of the token after them."""

    probability: float
    nodes: tuple[int, ...]
    next_probs: Callable[[], Tensor]

    @property
    def end(self) -> int:
        """The last accepted node, or `ROOT`."""
        return self.nodes[-1] if self.nodes else ROOT


class AcceptanceRule(ABC, TakesEvidence):
    """A rule, defined by its outcomes. A subclass sets `name` and writes `outcomes`.

    `lossless`: the output has the target's distribution if the drafts have theirs; each
    rule's docstring has the proof. `trees`: it can verify trees, not only chains.
    `needs_fresh_noise`: its decision depends on drafts *after* the position where it
    stops, so the next round must not draw with the same noise (`BlockRule` explains).
    `requires`: the evidence that proposals must hold, for rules that need more than p
    (one-hot at temperature 0). `layer`: hidden states after which layer.
    """

    name: str
    lossless: bool = False
    trees: bool = False
    needs_fresh_noise: bool = False

    @abstractmethod
    def outcomes(self, p_rows: Tensor, proposal: Proposal) -> list[Outcome]:
        """Every way the round can end, given the drafts. The probabilities sum to one.

        `p_rows` [n + 1, v]: the target's distributions at the branch's end and after
        each node.
        """

    def verify(
        self, probs: Tensor, proposals: Sequence[Proposal], draws: Sequence[Draws]
    ) -> list[Decision]:
        """Decide for each branch, independently of the others.

        `probs` [sum of (n + 1), v] holds for each branch the target's row at its end,
        then one row after each node, in order.
        """
        if not proposals:
            return []
        # [n + 1, v] per branch
        tables = probs.split([len(proposal) + 1 for proposal in proposals])
        outcomes = [
            self.select(p_rows, proposal, draw) if proposal.tokens else untried(p_rows)
            for p_rows, proposal, draw in zip(
                tables, with_probs(tables, proposals), draws, strict=True
            )
        ]
        last_keys = []
        for outcome, proposal, draw in zip(outcomes, proposals, draws, strict=True):
            depth = len(outcome.nodes)  # of the token that follows
            # A draft that was tried here may have been drawn with the key of plain
            # decoding (coupling "shared"), so the token after it needs another.
            tried = outcome.end in proposal.parents
            last_keys.append(
                draw.residual_key(depth) if tried else draw.sample_key(depth)
            )
        rows = torch.stack([outcome.next_probs() for outcome in outcomes])  # [b, v]
        return [
            Decision(outcome.nodes, token)
            for outcome, token in zip(outcomes, sample(rows, last_keys), strict=True)
        ]

    def select(self, p_rows: Tensor, proposal: Proposal, draws: Draws) -> Outcome:
        """How a round with at least one draft token ends."""
        outcomes = self.outcomes(p_rows, proposal)
        check_outcomes(self, outcomes)
        return pick(outcomes, uniform(draws.uniform_key))


def check_outcomes(rule: Any, outcomes: Sequence[Outcome]) -> None:
    """Probabilities that sum to one."""
    chances = [outcome.probability for outcome in outcomes]
    if abs(sum(chances) - 1) > TOLERANCE or min(chances) < -1e-9:
        refuse("rule", rule.outcomes, chances, "probabilities >= 0 that sum to 1")


def untried(p_rows: Tensor) -> Outcome:
    """The only outcome if nothing was proposed."""
    return Outcome(1.0, (), lambda: p_rows[0])


def pick(outcomes: Sequence[Outcome], number: float) -> Outcome:
    """The outcome on which a number in [0, 1) falls if each covers an interval as long
    as its probability, in order. Example: of probabilities (0.5, 0, 0.5), 0.5 falls on
    the third.
    """
    covered = 0.0
    for outcome in outcomes:
        covered += outcome.probability
        if number < covered:
            return outcome
    # Rounding left something at the end: it belongs to the last possible one.
    return next(outcome for outcome in reversed(outcomes) if outcome.probability > 0)


class RejectRule(AcceptanceRule):
    """Rejection sampling: keep a draft with probability min(1, p/q), else draw from the
    residual.

    *Why it is correct.* x is emitted as an accepted draft with probability q(x) min(1, p(x)/q(x)) =
    min(p(x), q(x)), and as a replacement with P(rejected) * (p(x) - min(p(x), q(x))) / P(rejected),
    since the numerator, summed over x, is exactly P(rejected). The sum is p(x). The same holds at
    every later position, given the tokens before it (Leviathan et al., arXiv 2211.17192, appendix
    A.1; Chen et al., arXiv 2302.01318).

    Several candidates for one position (a tree) are tried in order. After a rejection
    the target distribution is no longer p but the residual, so the next candidate,
    drawn from its own q, is tried against *that*: the argument above holds with the
    residual in place of p (SpecInfer, Miao et al., arXiv 2305.09781, section 4; without
    replacement: Sequoia, arXiv 2402.12374). A chain is a tree with one candidate per
    position. Drafts after the position where it stops have no effect.
    """

    name = "reject"
    lossless = True
    trees = True

    def outcomes(self, p_rows: Tensor, proposal: Proposal) -> list[Outcome]:
        """One outcome per node, including the root: the walk ends there, all children
        rejected."""
        # reach[row]: the probability that the walk gets there. Parents come before
        # their children.
        reach = [1.0] + [0.0] * len(proposal)
        probs_of = probs_of_tokens(p_rows, proposal)
        outcomes = []
        for row, family in enumerate(proposal.families()):
            left = reach[row]  # what no child has taken yet
            chances = acceptance_chances(p_rows[row], proposal, family, *probs_of)
            for node, chance in zip(family, chances, strict=True):
                reach[node + 1] = left * chance  # the walk goes on there
                left *= 1.0 - chance
            probs = partial(replacement, p_rows[row], proposal, family)
            outcomes.append(Outcome(left, proposal.path(row - 1), probs))
        return outcomes


def acceptance_chances(
    p: Tensor,
    proposal: Proposal,
    family: Sequence[int],
    ps: Sequence[float],
    qs: Sequence[float],
) -> Iterator[float]:
    """For each of these siblings, the probability of accepting it once it is tried,
    after the earlier ones. `p` [v]: the target's row there; `ps`, `qs`: of all tokens.

    Example: p = (0.5, 0.3, 0.2), siblings 0 and 1, both certain: 0.5, then 0.3 / 0.5 =
    0.6.
    """
    left = 1.0  # the probability of the tokens that were not tried
    tried: set[int] = set()
    for node in family:
        token = proposal.tokens[node]
        if len(family) == 1:
            yield accept_prob(ps[node], qs[node])
        elif proposal.q is not None:
            # Against what the earlier rejections left of p.
            yield accept_prob(float(p[token]), qs[node])
            p = residual(p, proposal.q[node])
        elif token in tried:
            yield 0.0  # the same token again: rejected already
        else:
            yield accept_prob(ps[node], left)
            left -= ps[node]
            tried.add(token)


def replacement(
    p: Tensor, proposal: Proposal, tried: Sequence[int], weight: float = 1.0
) -> Tensor:
    """The distribution [v] of the next token after all of `tried` were rejected, in
    this order."""
    if not tried:
        return p
    if proposal.q is None:
        return residual_certain(p, [proposal.tokens[node] for node in tried])
    for node in tried:
        p = residual(p, proposal.q[node], weight)
    return p


def accept_prob(p: float, q: float) -> float:
    """min(1, p / q): the probability that a token with target probability p and draft
    probability q stays. A token with q = 0 cannot have been drawn; it stays iff p > 0.
    """
    if q <= 0:
        return 1.0 if p > 0 else 0.0
    return min(1.0, p / q)


def residual(p: Tensor, q: Tensor, weight: float = 1.0) -> Tensor:
    """(weight p - q)+ / sum: the distribution [v] after a rejection; p if the sum is
    0."""
    return _normalised((p * weight).sub_(q).clamp_min_(0.0), otherwise=p)


def residual_certain(p: Tensor, tokens: Sequence[int]) -> Tensor:
    """The residual if all `tokens` were certain drafts: p without them,
    renormalised."""
    # p without the tried tokens
    left = p.index_fill(0, integers(tokens, p.device), 0.0)
    return _normalised(left, otherwise=p)


def _normalised(weights: Tensor, otherwise: Tensor) -> Tensor:
    total = weights.sum()  # stays on the device, which is not waited for
    return torch.where(total > 0, weights / total, otherwise)


class MatchRule(AcceptanceRule):
    """Sample matching: the target draws at every position, and a draft stays iff it is
    that token.

    The target draws with the keys of plain decoding. So not only the distribution but
    every token is that of plain decoding, whatever was drafted and in whatever batch
    (fp64); the draft only affects speed. With independent noise, draft and target agree
    with probability sum of p q, which is tiny at high temperature. With the target's
    keys (coupling "shared"), the same noise mostly selects the same token
    (`lr/theory/exact.py`).
    """

    name = "match"
    lossless = True
    trees = True

    def outcomes(self, p_rows: Tensor, proposal: Proposal) -> list[Outcome]:
        """As for certain drafts, if the drafts' noise is independent of the target's:
        child x stays with probability p(x), else the token is drawn from p without the
        children.
        """
        return RejectRule().outcomes(p_rows, replace(proposal, q=None))

    def verify(
        self, probs: Tensor, proposals: Sequence[Proposal], draws: Sequence[Draws]
    ) -> list[Decision]:
        """Draw a token at every row with the key of plain decoding, and compare."""
        keys = [
            draw.sample_key(depth)
            for proposal, draw in zip(proposals, draws, strict=True)
            for depth in proposal.depths()
        ]
        drawn = iter(sample(probs, keys))
        return [
            follow(proposal, list(islice(drawn, len(proposal) + 1)))
            for proposal in proposals
        ]


def follow(proposal: Proposal, drawn: Sequence[int]) -> Decision:
    """Walk from the root to the child that equals the token drawn there, as long as one
    does.

    `drawn` [n + 1]: the target's own token at the branch's end, then after each node.
    Of equal siblings the first is taken.
    """
    families = proposal.families()
    nodes: list[int] = []
    node = ROOT
    while True:
        token = drawn[node + 1]
        children = families[node + 1]
        node = next((c for c in children if proposal.tokens[c] == token), ROOT)
        if node == ROOT:
            return Decision(tuple(nodes), token)
        nodes.append(node)


class BlockRule(AcceptanceRule):
    """Judges the draft tokens of a chain together, from the last to the first.

    Sun et al., "Block verification accelerates speculative decoding", arXiv 2403.10444,
    prove that it is lossless and that no rule which sees only the drafts' own rows
    keeps more on average. Token-wise rejection is wasteful: if p(x) > q(x), the token
    is kept for sure, and the surplus p(x)/q(x) - 1 is lost. This rule keeps the surplus
    as credit for the tokens before x.

    Let w_0 = 1 and w_i = min(1, w_{i-1} p(x_i)/q(x_i)), the probability with which
    x_1..x_i may be kept. After x_i let S_i = sum over x of (w_i p(x) - q(x))+, the part
    that no draft can cover. From the end backwards, the block is cut after the last
    token with probability h_n = w_n, after x_i with probability h_i = S_i / (S_i + 1 -
    w_i), and else before the first token. The next token is drawn from p at the end,
    else from (w_i p - q)+, normalised.

    *Proof.* Claim: P(at least x_1..x_i are kept, given them) = w_i. It is true at the end. If it is
    true for i + 1, then, averaged over x_{i+1} ~ q, a longer block is kept with probability
    sum min(w_i p, q) = w_i - S_i, and else the block is cut here with h_i:
    w_i - S_i + (1 - w_i + S_i) h_i = w_i. So x_1..x_i x is emitted with x as a draft with
    probability min(w_i p(x), q(x)), and with x as a replacement with probability
    S_i * (w_i p(x) - q(x))+ / S_i. The sum is w_i p(x), the target's distribution given that
    x_1..x_i are kept.

    *A trap.* The decision depends on drafts after the cut, so their noise is no longer fresh. If
    the next round drew its drafts at those places with the same keys, they would be correlated with
    the cut, and the output would be biased. Hence `needs_fresh_noise`."""

    name = "block"
    lossless = True
    trees = False
    needs_fresh_noise = True

    def outcomes(self, p_rows: Tensor, proposal: Proposal) -> list[Outcome]:
        """One outcome per place where the block can be cut. The end is first."""
        n = len(proposal)
        ps, qs = probs_of_tokens(p_rows, proposal)
        weights = block_weights(ps, qs)  # w_0 .. w_n
        if proposal.q is None:  # certain drafts cover only p(x)
            uncovered = [w * (1.0 - p) for w, p in zip(weights[:-1], ps, strict=True)]
        else:
            scale = p_rows.new_tensor(weights[:-1])[:, None]  # [n, 1]
            surplus = (p_rows[:-1] * scale).sub_(proposal.q).clamp_min_(0.0)
            uncovered = surplus.sum(-1).tolist()  # S_0 .. S_n-1
        outcomes = [Outcome(weights[n], tuple(range(n)), lambda: p_rows[n])]
        left = 1.0 - weights[n]
        for i in reversed(range(n)):
            total = uncovered[i] + 1.0 - weights[i]
            cut = uncovered[i] / total if total > 0 else 0.0  # 0: p = q from here on
            if i == 0:
                cut = 1.0
            probs = partial(replacement, p_rows[i], proposal, [i], weights[i])
            outcomes.append(Outcome(left * cut, tuple(range(i)), probs))
            left *= 1.0 - cut
        return outcomes


def block_weights(ps: list[float], qs: list[float]) -> list[float]:
    """w_0 .. w_n from the draft tokens' own p and q.

    Example: for p/q = 2, then 1/2, token-wise rejection keeps both drafts with
    probability 1/2, and so does w = 1, 1, 1/2. For p/q = 1/2, then 2, token-wise
    rejection again keeps both with 1/2, but w = 1, 1/2, 1 keeps them for sure."""
    weights = [1.0]
    for p, q in zip(ps, qs, strict=True):
        weights.append(accept_prob(weights[-1] * p, q))
    return weights


RULES: dict[str, Callable[[], AcceptanceRule]] = {
    "match": MatchRule,
    "reject": RejectRule,
    "block": BlockRule,
}
"""The rules by name, all checked by `tests/spec/test_acceptance.py`."""
