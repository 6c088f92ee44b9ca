"""The scheduler, synchronous, against the straight-line loop of `lr/spec/reference.py`, with the
same random models behind both.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spec_kit import PROMPT, random_model, writer

from lr.lab.scripted.scripted import Prefix, ScriptedRun, shuffled
from lr.rng import Stream, uniform
from lr.spec.protocol import Limits, Schedule, SchedulerConfig
from lr.spec.reference import lookahead
from lr.spec.verifiers.base import Pair, Requires, Verifier
from lr.spec.write import StepJob, StepWriter
from lr.types import Role, Step, Verdict

MODELS = [random_model(seed, layers=1) for seed in range(2)]


class ContentCoin(Verifier):
    """A verifier whose answer depends on the pair and on nothing else."""

    name = "content"
    requires = Requires.TARGET_STEP

    def judge(self, pairs: list[Pair]) -> list[Verdict]:
        return [self.verdict(pair.prefix, pair.draft, pair.target_step) for pair in pairs]

    def verdict(self, prefix: tuple[int, ...], draft: Step, target: Step) -> Verdict:
        number = uniform(
            Stream.root(0).child(*prefix, -1, *draft.tokens, -2, *target.tokens).key(0)
        )
        return Verdict(number < 0.7, f"{number:.3f}")


class ModelScript:
    """Writes each step with a model, on a new branch for each."""

    def __init__(self, target: StepWriter, draft: StepWriter, max_step_tokens: int) -> None:
        self.writers = {Role.TARGET: target, Role.DRAFT: draft}
        self.max_step_tokens = max_step_tokens

    def write(self, role: Role, prefix: Prefix) -> Step:
        writer = self.writers[role]
        branch = writer.runner.open([*PROMPT, *(token for step in prefix for token in step.tokens)])
        [step] = writer.write([StepJob(branch, len(prefix), self.max_step_tokens)])
        writer.close(branch)
        return step

    def draft(self, prefix: Prefix, sibling: int) -> Step:
        return self.write(Role.DRAFT, prefix)

    def target(self, prefix: Prefix) -> Step:
        return self.write(Role.TARGET, prefix)

    def judge(self, prefix: Prefix, draft: Step, target: Step | None) -> Verdict:
        assert target is not None
        tokens = (*PROMPT, *(token for step in prefix for token in step.tokens))
        return ContentCoin().verdict(tokens, draft, target)


@settings(max_examples=25, deadline=None)
@given(
    depth=st.integers(0, 4),
    seed=st.integers(0, 1000),
    max_step_tokens=st.integers(2, 8),
    ignore=st.booleans(),
)
def test_sync_emits_what_the_reference_loop_emits(
    depth: int, seed: int, max_step_tokens: int, ignore: bool
) -> None:
    """Steps, origins, verdicts and what was rejected."""
    limits = Limits(24, max_step_tokens, ignore)
    target = writer(Role.TARGET, MODELS[0], temperature=1.0, seed=seed)
    draft = writer(Role.DRAFT, MODELS[1], temperature=1.0, seed=seed)
    expected = list(lookahead(PROMPT, target, draft, ContentCoin(), limits, depth))
    script = ModelScript(target, draft, max_step_tokens)
    run = ScriptedRun(SchedulerConfig(limits, Schedule.SYNC, depth), script, shuffled(seed))
    assert run.run() == expected


@pytest.mark.parametrize("seed", range(3))
def test_what_was_compared_is_not_trivial(seed: int) -> None:
    """Or the test above would compare runs in which nothing happens."""
    target = writer(Role.TARGET, MODELS[0], temperature=1.0, seed=seed)
    draft = writer(Role.DRAFT, MODELS[1], temperature=1.0, seed=seed)
    emitted = list(lookahead(PROMPT, target, draft, ContentCoin(), Limits(60, 8), 2))
    assert len({e.origin for e in emitted}) >= 2
