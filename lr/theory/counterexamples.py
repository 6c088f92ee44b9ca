"""Counterexamples: plausible but wrong ways to accept drafts. Each was found in real
code, looks right, runs, and is biased.

Each is a round at one token position: what the drafter does and *says* it did, and how
the rule decides. The mistake is in one of the two. `bias` measures it with the same
enumeration that proves the real rules right (`exact.py`): the total variation between
actual and right output, averaged over random p and q.
`tests/spec/test_counterexamples.py` has the numbers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from lr.spec.acceptance import (
    AcceptanceRule,
    Outcome,
    RejectRule,
    residual_certain,
    untried,
)
from lr.spec.proposal import ROOT, Proposal
from lr.spec.sampling import distribution
from lr.theory.exact import (
    Drafts,
    Model,
    context_free,
    drawn_drafts,
    plain_distribution,
    round_distribution,
    total_variation,
)
from lr.types import SamplingParams

ONE = (ROOT,)  # a chain of one draft
TWO = (ROOT, ROOT)  # two candidates for one place


class RedrawRule(RejectRule):
    """After a rejection, draws the next token from p itself."""

    name = "redraw"
    lossless = False

    def outcomes(self, p_rows: Tensor, proposal: Proposal) -> list[Outcome]:
        """The outcomes of rejection, but followed by p."""
        # outcome i ends after row i
        right = zip(super().outcomes(p_rows, proposal), p_rows, strict=True)
        return [replace(outcome, next_probs=row.clone) for outcome, row in right]


class DropUnsureRule(RejectRule):
    """Drops a token that its own drafter finds unlikely, unverified; draws the next
    from p."""

    name = "drop-unsure"
    lossless = False
    threshold = 0.3  # The draft's probability below which a token is dropped.

    def outcomes(self, p_rows: Tensor, proposal: Proposal) -> list[Outcome]:
        """The outcomes of rejection on the chain before the first unsure token."""
        q = proposal.q
        assert proposal.is_chain and q is not None
        unsure = (
            i
            for i, token in enumerate(proposal.tokens)
            if float(q[i, token]) < self.threshold
        )
        count = next(unsure, len(proposal))  # how many come before it
        if count == 0:
            return [untried(p_rows)]
        sure = Proposal.chain(proposal.tokens[:count], q[:count])
        return super().outcomes(p_rows[: count + 1], sure)


class FreshSamplesRule(AcceptanceRule):
    """Compares each sibling with a new target sample; if none matches, emits the last
    sample."""

    name = "fresh-samples"
    lossless = False
    trees = True

    def outcomes(self, p_rows: Tensor, proposal: Proposal) -> list[Outcome]:
        """Sibling j with token x is reached if none before it matched, and matches with
        p(x)."""
        reach = [1.0] + [0.0] * len(proposal)
        outcomes = []
        for row, family in enumerate(proposal.families()):
            p = p_rows[row]
            left = reach[row]
            for node in family:
                chance = float(p[proposal.tokens[node]])
                reach[node + 1] = left * chance
                left *= 1.0 - chance
            after = partial(
                residual_certain, p, [proposal.tokens[node] for node in family[-1:]]
            )
            outcomes.append(Outcome(left, proposal.path(row + ROOT), after))
        return outcomes


def greedy_but_soft(draft: Model) -> Iterator[tuple[float, Proposal]]:
    """The draft takes its likeliest token, but says that it drew from its softmax."""
    row = draft(())
    yield 1.0, Proposal((int(row.argmax()),), ONE, row[None])  # q should be one-hot


def drawn_warped_said_raw(draft: Model) -> Iterator[tuple[float, Proposal]]:
    """The draft draws from its top-p set but says that it drew from its whole
    softmax."""
    for weight, proposal in drawn_drafts(lambda text: top_p(draft(text)), ONE):
        yield weight, replace(proposal, q=draft(())[None])


def top_p(row: Tensor) -> Tensor:
    """A distribution [v] cut to top-p 0.8."""
    return distribution(row.log()[None], SamplingParams(temperature=1.0, top_p=0.8))[0]


@dataclass(frozen=True)
class Counterexample:
    """A wrong round with its possible `drafts`. `warp` first changes the target's
    distribution."""

    name: str
    why: str
    rule: AcceptanceRule
    drafts: Callable[[Model], Drafts]
    warp: Callable[[Tensor], Tensor] = lambda row: row


def counterexamples() -> list[Counterexample]:
    """All counterexamples, the worst first."""
    return [
        Counterexample(
            "greedy draft, softmax q in the ratio",
            "the token was certain, q(x) = 1; dividing by less than 1 accepts too often",
            RejectRule(),
            greedy_but_soft,
        ),
        Counterexample(
            "redraw from p after a rejection",
            "accepting has already emitted min(p, q); only the rest, (p - q)+, is still due",
            RedrawRule(),
            partial(drawn_drafts, parents=ONE),
        ),
        Counterexample(
            "unsure drafts dropped unverified",
            "whether a draft is dropped depends on the token drawn; those that stay are no longer "
            "drawn from q",
            DropUnsureRule(),
            partial(drawn_drafts, parents=ONE),
        ),
        Counterexample(
            "unwarped q in the ratio",
            "the draft drew from its top-p set, where its tokens are likelier than its softmax "
            "says",
            RejectRule(),
            drawn_warped_said_raw,
            warp=top_p,
        ),
        Counterexample(
            "a fresh target sample per candidate",
            "the target draws until something matches, so what the draft likes comes out more "
            "often than p allows",
            FreshSamplesRule(),
            partial(drawn_drafts, parents=TWO),
        ),
    ]


def bias(counterexample: Counterexample, *, cases: int = 200) -> float:
    """The mean total variation between output and target, over random p, q (softmax of
    normals)."""
    generator = torch.Generator().manual_seed(0)
    total = 0.0
    for _ in range(cases):
        # [v] each
        p, q = torch.randn(2, 6, dtype=torch.float64, generator=generator).softmax(-1)
        target = context_free(counterexample.warp(p))
        # one position is drafted; sum over the token after it
        two = round_distribution(
            counterexample.rule,
            target,
            counterexample.drafts(context_free(q)),
            length=2,
        )
        total += total_variation(two.sum(-1), plain_distribution(target, 1))
    return total / cases
