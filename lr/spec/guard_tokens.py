"""Token drafters and acceptance rules of a variant, checked as they are used; see
`guard.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lr.kvcache.branch import Branch
from lr.spec.acceptance import AcceptanceRule, Decision, Draws, Outcome, Proposal
from lr.spec.ask import (
    Guarded,
    Notes,
    VariantError,
    called,
    list_of,
    no_notes,
    refuse,
    within,
)
from lr.spec.runner import Runner
from lr.spec.token_sd import Context, Drafter
from lr.types import SamplingParams

MEMBERS = ("name", "trees", "coupling", "propose", "offer", "forget")
"""The attributes that a drafter must have."""


def guarded_drafter(
    inner: Any, notes: Notes = no_notes
) -> Callable[[Runner | None, SamplingParams], Drafter]:
    """See `Drafter`. Its notes go through `Context.note`, not through `notes`."""

    def make(runner: Runner | None, sampling: SamplingParams) -> Drafter:
        with within("drafter", inner):
            made = inner(runner, sampling)
        missing = [name for name in MEMBERS if not hasattr(made, name)]
        if missing:
            expected = "an object of a subclass of lr.spec.token_sd.Drafter"
            refuse(
                "drafter", inner, "__call__", made, f"{expected}; {missing} are missing"
            )
        return GuardedDrafter(made)

    return make


class GuardedDrafter(Guarded, Drafter):
    """See `Drafter`."""

    point = "drafter"

    def __post_init__(self) -> None:
        self.name, self.trees = self.inner.name, self.inner.trees
        self.coupling = self.inner.coupling

    def propose(self, contexts: Sequence[Context], k: int) -> list[Proposal]:
        lengths = [len(context.tokens) for context in contexts]
        fits = list_of(Proposal, len(contexts))
        expected = f"a list of {len(contexts)} Proposals, one per context"
        made: list[Proposal] = self.ask(
            "propose", contexts, k, fits=fits, expected=expected
        )
        for context, proposal, length in zip(contexts, made, lengths, strict=True):
            if len(context.tokens) != length:
                self.refuse("propose", "a changed context", "no change to it")
            deepest, most = max(proposal.depths()), max(0, min(k, context.limit))
            if deepest > most:
                what = f"proposals at most min(k, limit) = {most} deep; this one is {deepest} deep"
                self.refuse("propose", proposal.tokens, what)
            if not self.trees and not proposal.is_chain:
                self.refuse("propose", proposal.parents, "chains: trees is False")
            if proposal.q is not None and not are_distributions(proposal.q):
                what = "a q whose rows are distributions: not negative, each with sum 1"
                self.refuse("propose", proposal.q.sum(-1), what)
        return made

    def offer(self, branch: Branch, start: int, tokens: Sequence[int]) -> None:
        with within(self.point, self.inner):
            self.inner.offer(branch, start, tokens)

    def forget(self, branches: Iterable[Branch]) -> None:
        with within(self.point, self.inner):
            self.inner.forget(branches)


def are_distributions(rows: Tensor) -> bool:
    """Whether every row has no negative entry and sums to 1."""
    close = torch.allclose(
        rows.sum(-1).double(), torch.ones(rows.shape[:-1]).double(), atol=1e-4
    )
    return bool((rows >= 0).all()) and close


def guarded_rule(rule: AcceptanceRule, notes: Notes = no_notes) -> AcceptanceRule:
    """See `AcceptanceRule`. Its notes go through `Outcome.note`, not through
    `notes`."""
    for name, kind in (("name", str), ("lossless", bool), ("trees", bool)):
        if not isinstance(getattr(rule, name, None), kind):
            raise VariantError(
                f"the variant's rule {called(rule)} has no {name}; expected a {kind.__name__} in "
                "its class (see lr.spec.acceptance.AcceptanceRule)."
            )
    return GuardedRule(rule)


class GuardedRule(Guarded, AcceptanceRule):
    """See `AcceptanceRule`. An overridden `verify` is checked for the type of its
    decisions."""

    point = "rule"

    def __post_init__(self) -> None:
        inner = self.inner
        self.name, self.lossless, self.trees = inner.name, inner.lossless, inner.trees
        self.needs_fresh_noise, self.draws_uniform = (
            inner.needs_fresh_noise,
            inner.draws_uniform,
        )

    def outcomes(self, p_rows: Tensor, proposal: Proposal) -> list[Outcome]:
        fits, expected = list_of(Outcome), "a list of Outcomes, at least one"
        made: list[Outcome] = self.ask(
            "outcomes", p_rows, proposal, fits=fits, expected=expected
        )
        odds = [one.probability for one in made]
        if abs(sum(odds) - 1) >= 1e-4 or min(odds) <= -1e-9:
            self.refuse("outcomes", odds, "probabilities >= 0 that sum to 1")
        for one in made:
            steps = zip((-1, *one.nodes), one.nodes, strict=False)
            inside = all(0 <= node < len(proposal) for node in one.nodes)
            if not inside or any(
                proposal.parents[node] != above for above, node in steps
            ):
                what = (
                    f"nodes that are a path from the root (parents {proposal.parents})"
                )
                self.refuse("outcomes", one.nodes, what)
            following = one.next_probs() if one.probability > 0 else p_rows[0]
            if following.shape != p_rows[0].shape or not are_distributions(
                following[None]
            ):
                what = f"next_probs() of shape [{p_rows.shape[1]}], not negative, with sum 1"
                self.refuse("outcomes", following, what)
            if not isinstance(one.note, Mapping):
                what = "outcomes whose note is a mapping of names to values"
                self.refuse("outcomes", one.note, what)
        return made

    def verify(
        self,
        probs: Tensor,
        proposals: Sequence[Proposal],
        draws: Sequence[Draws],
        ids: Tensor | None = None,
    ) -> list[Decision]:
        if type(self.inner).verify is AcceptanceRule.verify:
            return super().verify(probs, proposals, draws)
        fits = list_of(Decision, len(proposals))
        expected = f"a list of {len(proposals)} Decisions, one per proposal"
        return self.ask("verify", probs, proposals, draws, fits=fits, expected=expected)
