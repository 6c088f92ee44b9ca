"""A variant's parts, in answers of random checkpoints: each is used, checked, and made
for each answer anew."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reasoner_kit import write_checkpoint
from scheduler_kit import RandomScript, run_and_check

from lr.errors import SettingError
from lr.model.quantize import Int8Linear
from lr.reasoner import Reasoner
from lr.spec.acceptance import MatchRule, RejectRule
from lr.spec.checks import VariantError
from lr.spec.drafters import LookupDrafter, ModelDrafter
from lr.spec.proposal import Proposal
from lr.spec.protocol import Limits, Schedule, SchedulerConfig
from lr.spec.segmenters import FixedSegmenter
from lr.spec.token_sd import Context, Drafter, DrafterSetup
from lr.spec.variant import (
    PARTS,
    Controller,
    Corrector,
    Progress,
    StepSource,
    Variant,
)
from lr.spec.verifiers.base import Pair, Requires, Verifier
from lr.spec.verifiers.named import RandomVerifier
from lr.spec.write import Segmenter
from lr.types import Origin, Step, Verdict
from lr.variants.self_draft import first_layers, quantised_draft, self_draft
from lr.watch.scripted import ScriptedRun, newest, shuffled

QUESTION = "How many coins does Ann have?"
HOW: dict[str, Any] = {
    "segmenter": "fixed",
    "segment_tokens": 6,
    "max_tokens": 96,
    "temperature": 1.0,
}


@pytest.fixture(scope="module")
def reasoner(tmp_path_factory: pytest.TempPathFactory) -> Reasoner:
    folder = tmp_path_factory.mktemp("checkpoints")
    target = write_checkpoint(folder / "target", seed=1, layers=2)
    draft = write_checkpoint(folder / "draft", seed=2)
    return Reasoner(target, draft, "exact", dtype=torch.float64)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Reasoner:
    """Its target has matrices that can be quantised."""
    folder = tmp_path_factory.mktemp("wide")
    target = write_checkpoint(folder / "target", seed=1, layers=2, heads=(4, 2))
    draft = write_checkpoint(folder / "draft", seed=2)
    return Reasoner(target, draft, "exact", dtype=torch.float64)


# Steps


class Zigzag(Controller):
    """Depths in turn; keeps what it was told."""

    told: ClassVar[list[Progress]] = []

    def __init__(self) -> None:
        self.told.clear()

    def depth(self, progress: Progress) -> int:
        self.told.append(progress)
        return (3, 0, 99, 1)[len(self.told) % 4]


@pytest.mark.parametrize("schedule", ["sync", "paper", "depth"])
def test_a_controller_hears_of_every_step_and_changes_no_token(
    reasoner: Reasoner, schedule: str
) -> None:
    how = {**HOW, "coupling": "shared"}
    plain = reasoner.generate(QUESTION, mode="ar", **how)
    variant = Variant(controller=Zigzag)
    ahead = reasoner.generate(QUESTION, variant=variant, schedule=schedule, **how)
    assert ahead.tokens == plain.tokens
    assert [told.steps for told in Zigzag.told] == [
        n + 1 for n in range(len(ahead.steps))
    ]


def test_a_controller_that_gives_up_stops_the_drafts(reasoner: Reasoner) -> None:
    class GiveUp(Controller):
        def depth(self, progress: Progress) -> int:
            progress.note("gives up", steps=progress.steps)
            return 0

    variant = Variant(RandomVerifier(0.0), controller=GiveUp)
    result = reasoner.generate(QUESTION, variant=variant, depth=2, **HOW)
    assert {step.origin for step in result.steps[4:]} == {Origin.TARGET}
    assert result.stats.drafted < len(result.steps)


def test_a_segmenter_of_ones_own(reasoner: Reasoner) -> None:
    def fours(token_bytes: Callable[[int], bytes]) -> Segmenter:
        return FixedSegmenter(token_bytes, 4)

    how = {"max_tokens": 40, "temperature": 1.0}
    result = reasoner.generate(QUESTION, variant=Variant(segmenter=fours), **how)
    fixed = {"segmenter": "fixed", "segment_tokens": 4, **how}
    assert result.tokens == reasoner.generate(QUESTION, mode="ar", **fixed).tokens


class Recorded(StepSource):
    """Knows the answer."""

    def __init__(self, prompt: int, steps: Sequence[Sequence[int]]) -> None:
        self.prompt = prompt
        self.steps = steps

    def steps_after(
        self, tokens: Sequence[int], prompt: int, width: int
    ) -> list[Sequence[int] | None]:
        assert prompt == self.prompt
        written = len(tokens) - prompt
        for step in self.steps:
            if written == 0:
                return [step]
            written -= len(step)
        return [None]


def test_a_step_source_writes_drafts_without_a_model(reasoner: Reasoner) -> None:
    plain = reasoner.generate(QUESTION, mode="ar", **HOW)
    steps = [step.tokens for step in plain.steps]
    variant = Variant(step_source=Recorded(len(plain.prompt), steps))
    result = reasoner.generate(QUESTION, variant=variant, **HOW)
    assert result.tokens == plain.tokens
    assert result.stats.accepted >= len(steps) - 2


class Sure(Verifier):
    """Accepts or rejects early by the sum of the tokens; else compares later."""

    name = "sure"
    early_requires = Requires.NOTHING

    def __init__(self, parallel: bool) -> None:
        self.parallel = parallel

    def judge_early(self, pairs: Sequence[Pair]) -> list[Verdict | None]:
        kinds = [sum(pair.draft.tokens) % 4 for pair in pairs]
        return [None if kind == 0 else Verdict(kind > 1, "early") for kind in kinds]

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [Verdict(sum(pair.draft.tokens) % 8 == 0, "late") for pair in pairs]


@pytest.mark.parametrize("schedule", ["paper", "depth"])  # "sync" has a bonus
def test_early_verdicts_can_keep_the_parallel_target_step(
    reasoner: Reasoner, schedule: str
) -> None:
    """The same answer, with fewer passes in a row."""
    passes = {True: 0, False: 0}
    for sample in range(3):
        how = {**HOW, "schedule": schedule, "depth": 3, "sample": sample}
        waits = reasoner.generate(QUESTION, variant=Variant(Sure(False)), **how)
        writes = reasoner.generate(QUESTION, variant=Variant(Sure(True)), **how)
        assert writes.tokens == waits.tokens
        passes[False] += waits.stats.target_passes
        passes[True] += writes.stats.target_passes
    assert passes[True] < passes[False]


CONFIGS = st.builds(
    SchedulerConfig,
    limits=st.builds(
        Limits, max_tokens=st.integers(1, 40), max_step_tokens=st.integers(1, 6)
    ),
    schedule=st.sampled_from(Schedule),
    depth=st.integers(1, 4),
    width=st.sampled_from([1, 2]),
    needs_target_step=st.booleans(),
    parallel_target=st.booleans(),
)


@settings(max_examples=200, deadline=None)
@given(
    script=st.builds(RandomScript, seed=st.integers(0, 2**32)),
    config=CONFIGS,
    seed=st.integers(0, 2**32),
)
def test_a_parallel_target_keeps_the_output_independent_of_the_order(
    script: RandomScript, config: SchedulerConfig, seed: int
) -> None:
    orders = newest, shuffled(seed), shuffled(seed + 1)
    runs = [ScriptedRun(config, script, order) for order in orders]
    for run in runs:
        run_and_check(run, random.Random(seed))
        assert run.emitted == runs[0].emitted


@settings(max_examples=100, deadline=None)
@given(
    script=st.builds(RandomScript, seed=st.integers(0, 2**32)),
    config=CONFIGS.filter(lambda config: config.schedule is not Schedule.SYNC),
    seed=st.integers(0, 2**32),
)
def test_changing_depths_change_no_step(
    script: RandomScript, config: SchedulerConfig, seed: int
) -> None:
    still = ScriptedRun(config, script)
    still.run()
    run = ScriptedRun(config, script, shuffled(seed))
    chance = random.Random(seed)
    while not run.done:
        run.step()
        run.scheduler.set_depth(chance.randint(1, 4))
    assert [(e.step, e.origin) for e in run.emitted] == [
        (e.step, e.origin) for e in still.emitted
    ]


# Tokens


class Table(Drafter):
    """Proposes what the target found likeliest after a token, when it last stood
    there."""

    name = "table"
    made = 0

    def __init__(self, setup: DrafterSetup) -> None:
        type(self).made += 1
        self.after: dict[int, int] = {}

    def propose(self, contexts: Sequence[Context], k: int) -> list[Proposal]:
        return [self.chain(c.tokens[-1], min(k, c.limit)) for c in contexts]

    def chain(self, token: int, k: int) -> Proposal:
        tokens: list[int] = []
        while len(tokens) < k and token in self.after:
            token = self.after[token]
            tokens.append(token)
        return Proposal.chain(tokens)

    def learn(self, context: Context, proposal: Proposal, logits: torch.Tensor) -> None:
        read = [context.tokens[context.length - 1], *proposal.tokens]
        assert len(read) == len(logits) == len(proposal) + 1
        new = context.tokens[context.length :]
        assert 1 <= len(new) <= len(proposal) + 1
        for token, row in zip(read, logits.argmax(-1).tolist(), strict=True):
            self.after[token] = row


def test_a_drafter_learns_from_every_verification(reasoner: Reasoner) -> None:
    how = {**HOW, "temperature": 0.0}
    plain = reasoner.generate(QUESTION, mode="ar", **how)
    before = Table.made
    for _ in range(2):
        result = reasoner.generate(QUESTION, variant=Variant(drafter=Table), **how)
        assert result.mode == "sd", "a variant of tokens implies mode sd"
        assert result.tokens == plain.tokens
        assert result.stats.rounds.accepted > 0
    assert Table.made == before + 2, "one for each answer"


class Stops(ModelDrafter):
    """Never draws where the likeliest token has less than half of the probability."""

    def goes_on(self, logits: torch.Tensor) -> list[bool]:
        stays: list[bool] = (logits.softmax(-1).amax(-1) > 0.02).tolist()
        return stays


def test_a_drafter_can_stop_before_a_draw(reasoner: Reasoner) -> None:
    def make(setup: DrafterSetup) -> Drafter:
        assert setup.runner is not None and setup.eos_ids
        return Stops(setup.runner, setup.sampling, eos_ids=setup.eos_ids)

    how = {**HOW, "acceptance": "match"}
    result = reasoner.generate(QUESTION, variant=Variant(drafter=make), **how)
    usual = reasoner.generate(QUESTION, mode="sd", **how)
    assert result.tokens == usual.tokens
    assert 0 < result.stats.rounds.drafted < usual.stats.rounds.drafted


def test_a_rule_is_used_as_if_it_were_named(reasoner: Reasoner) -> None:
    named = reasoner.generate(QUESTION, mode="sd", acceptance="match", **HOW)
    given_ = reasoner.generate(QUESTION, variant=Variant(rule=MatchRule), **HOW)
    assert given_.tokens == named.tokens
    assert given_.stats.target_passes == named.stats.target_passes


# What is refused


class Bare(Verifier):
    name = "bare"

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [Verdict(True, "all") for _ in pairs]


class Misspelt(Bare):
    early_requires = Requires.NOTHING

    def judge_erly(self, pairs: Sequence[Pair]) -> list[Verdict | None]:
        return [None for _ in pairs]


class OnlyEarly(Bare):
    def judge_early(self, pairs: Sequence[Pair]) -> list[Verdict | None]:
        return [None for _ in pairs]


class Keeps(Corrector):
    def keeps(self, correction: object, step: Step, number: float) -> bool:
        return False


@pytest.mark.parametrize(
    ("parts", "noun"),
    [
        ({"verifier": Bare}, "verifier"),
        ({"verifier": "exact"}, "verifier"),
        ({"verifier": Misspelt()}, "judge_early"),
        ({"verifier": OnlyEarly()}, "judge_early"),
        ({"controller": Zigzag()}, "controller"),
        ({"corrector": Keeps()}, "keep"),
        ({"rule": RejectRule()}, "rule"),
        ({"drafter": LookupDrafter()}, "drafter"),
        ({"step_source": object()}, "step_source"),
        ({"draft": 3}, "draft"),
    ],
)
def test_a_part_that_cannot_be_one_is_refused_where_it_is_given(
    parts: dict[str, Any], noun: str
) -> None:
    with pytest.raises(VariantError, match=noun):
        Variant(**parts)


def test_a_setting_that_no_option_has_is_refused_with_the_nearest() -> None:
    with pytest.raises(SettingError, match="width"):
        Variant(settings={"widht": 3})


@pytest.mark.parametrize(
    ("variant", "mode"),
    [(Variant(Bare()), "sd"), (Variant(rule=MatchRule), "lr"), (Variant(Bare()), "ar")],
)
def test_parts_that_do_nothing_in_a_mode_are_refused(
    reasoner: Reasoner, variant: Variant, mode: str
) -> None:
    with pytest.raises(SettingError, match="makes no use"):
        reasoner.generate(QUESTION, variant=variant, mode=mode, **HOW)  # type: ignore[arg-type]


def test_there_are_eight_parts() -> None:
    assert len(PARTS) == 8
    fields = set(Variant.__dataclass_fields__)
    assert {part.field for part in PARTS} == fields - {"settings", "name", "file"}


# A draft of one's own


@pytest.mark.parametrize("mode", ["sd", "lr"])
@pytest.mark.parametrize("driver", ["lockstep", "overlapped"])
@pytest.mark.parametrize(
    ("make", "agreement"),
    [
        (partial(self_draft, layers=2), 1.0),
        (partial(self_draft, layers=1), 0.0),
        (partial(quantised_draft, weights="int8"), 0.8),
        (partial(quantised_draft, weights="int4"), 0.2),
    ],
)
def test_the_target_drafts_for_itself(
    wide: Reasoner, mode: Any, driver: Any, make: Any, agreement: float
) -> None:
    """The tokens are those of plain decoding, the more of them from the draft the more
    it is like the target; and afterwards the usual draft drafts as before."""
    how = {**HOW, "acceptance": "match", "coupling": "shared", "max_tokens": 40}
    plain = wide.generate(QUESTION, mode="ar", **how)
    before = wide.generate(QUESTION, mode=mode, **how)
    variant = make(wide)
    result = wide.generate(QUESTION, variant=variant, mode=mode, driver=driver, **how)
    assert result.tokens == plain.tokens
    rounds, stats = result.stats.rounds, result.stats
    if mode == "sd":
        assert rounds.tried > 0 and rounds.accepted >= agreement * rounds.tried
    elif agreement == 1:
        assert stats.accepted >= stats.judged - 1 > 0
    after = wide.generate(QUESTION, mode=mode, **how)
    assert after.tokens == before.tokens
    assert after.stats.draft_tokens == before.stats.draft_tokens


def test_a_quantised_copy_leaves_the_target_as_it_is(wide: Reasoner) -> None:
    draft = quantised_draft(wide).draft
    assert callable(draft)
    target = wide.engine.target
    kinds = {type(module) for module in draft(target).modules()}
    assert Int8Linear in kinds
    assert Int8Linear not in {type(module) for module in target.modules()}


def test_a_draft_can_be_a_checkpoint_or_a_model_and_nothing_else(
    reasoner: Reasoner, tmp_path: Path
) -> None:
    folder = write_checkpoint(tmp_path / "other", seed=5)
    how = {**HOW, "max_tokens": 20}
    plain = reasoner.generate(QUESTION, mode="ar", **how)
    model = first_layers(reasoner.engine.target, 1)
    for draft in (folder, model):
        result = reasoner.generate(QUESTION, variant=Variant(draft=draft), **how)
        assert result.tokens == plain.tokens
    with pytest.raises(VariantError, match="draft"):
        reasoner.generate(QUESTION, variant=Variant(draft=lambda target: 7), **how)  # type: ignore[arg-type, return-value]
