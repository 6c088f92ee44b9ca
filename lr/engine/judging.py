"""Asks the verifier about all pairs that are complete, of all problems at once, and tells the
chains what it said.

A verifier says what it `need`s. The target's own step is the scheduler's business;
log-probabilities and hidden states of the draft step are filled in here, by the prefill that the
target owes that step anyway: afterwards its branch holds the step and the next forward goes on
behind it. A verifier that has an early pass (a cascade whose cheap half needs no target step) is first
asked what it is sure of; only for the rest the target writes a step. Read next:
`spec/verifiers/base.py`; `chain.py`, which keeps the branches.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from lr.engine.chain import Chain
from lr.engine.runner import ModelRunner
from lr.kvcache.branch import Branch
from lr.spec.protocol import Judged, Work
from lr.spec.verifiers.base import Pair, Requires, Verifier, early_verdicts_of, verdicts_of
from lr.spec.verifiers.judge import step_logprobs
from lr.trace import VerifierCall
from lr.types import Verdict

READINGS = Requires.TARGET_LOGPROBS | Requires.HIDDEN


class Waiting(NamedTuple):
    """A pair that waits for the verifier, with the chain that asks."""

    chain: Chain
    work: Work
    pair: Pair


def judge_all(verifier: Verifier, chains: Sequence[Chain]) -> None:
    """Ask about all pairs at once; go on while verdicts make new pairs complete."""
    while waiting := [
        Waiting(chain, work, pair) for chain in chains for work, pair in chain.asked.items()
    ]:
        if verifier.requires & READINGS:
            waiting = read_drafts(waiting)
        started = time.perf_counter()
        verdicts = ask(verifier, waiting)
        share = (time.perf_counter() - started) / len(waiting)
        for (chain, work, _), verdict in zip(waiting, verdicts, strict=True):
            chain.trace.record(VerifierCall(1, share))
            if (
                chain.asked.pop(work, None) is None
            ):  # an earlier verdict of this batch has cancelled it
                continue
            chain.tell(Judged(work.node, verdict))


def ask(verifier: Verifier, waiting: Sequence[Waiting]) -> list[Verdict | None]:
    """A verdict for each; None for a pair without a target step of which the verifier is not
    sure.
    """
    glanced = [i for i, one in enumerate(waiting) if one.pair.target is None]
    whole = [i for i, one in enumerate(waiting) if one.pair.target is not None]
    verdicts: dict[int, Verdict | None] = {}
    if glanced:
        verdicts |= zip(
            glanced, early_verdicts_of(verifier, [waiting[i].pair for i in glanced]), strict=True
        )
    if whole:
        verdicts |= zip(whole, verdicts_of(verifier, [waiting[i].pair for i in whole]), strict=True)
    return [verdicts[i] for i in range(len(waiting))]


def read_drafts(waiting: Sequence[Waiting]) -> list[Waiting]:
    """The same pairs with what the target makes of their draft steps, by one forward over all that
    were not read yet.

    Example: the prefix ends in "x", the draft step is "a b c". Fed are x a b c; the logits after x,
    a, b are those of a, b, c, and the hidden states after a, b, c are those of the step. Then the
    branch is cut back by one: c is pending again, as behind every step.
    """
    unread = [one for one in waiting if one.pair.logprobs is None]
    branches: list[Branch] = []
    runner = unread[0].chain.target.runner if unread else None
    if unread:
        assert isinstance(runner, ModelRunner), "drivers on models have a ModelRunner"
        try:
            for chain, work, _ in unread:
                branches.append(chain.fork_before(work.node))
            for branch, (_, _, pair) in zip(branches, unread, strict=True):
                branch.extend(pair.draft.tokens)
            readings = runner.read(branches)
        except BaseException:
            for branch in branches:
                runner.close(branch)
            raise
        for (chain, work, pair), branch, (logits, hidden) in zip(
            unread, branches, readings, strict=True
        ):
            tokens = pair.draft.tokens
            runner.rewind(branch, len(branch) - 1)
            branch.append(tokens[-1])
            chain.take_reading(work.node, branch)
            logprobs = step_logprobs(logits[-len(tokens) - 1 : -1], tokens)
            chain.asked[work] = replace(pair, logprobs=logprobs, hidden=hidden[-len(tokens) :])
    return [one._replace(pair=one.chain.asked[one.work]) for one in waiting]
