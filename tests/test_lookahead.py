"""The page `lr/lookahead.py` against everything else that knows the method: plain
decoding and the scheduler under any order of completion. The same tokens, origins and
verdicts, whatever the schedule, and every block of the cache given back.
"""

import random
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reasoner_kit import load_small, with_loader, write_checkpoint
from toy_kit import EOS, PIECES, PROMPT, random_model

from lr import lookahead as page
from lr import page_engine
from lr.engine.runner import ModelRunner
from lr.engine.verifiers import VerifierChoice
from lr.errors import OutOfBlocks, SettingError
from lr.kvcache.branch import Branch
from lr.lookahead import Lookahead, Writer, algorithm_1
from lr.reasoner import Reasoner
from lr.rng import Stream, uniform
from lr.spec.protocol import Limits, Schedule, SchedulerConfig
from lr.spec.verifiers.base import ExactVerifier, Pair, Verifier
from lr.spec.write import BlankLineSegmenter
from lr.types import (
    Finish,
    Origin,
    Role,
    SamplingParams,
    Step,
    Verdict,
)
from lr.watch.scripted import ScriptedRun, cut, shuffled

MODELS = random_model(2), random_model(0)
QUESTION = "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many coins does Ben have?"


class ByContent(Verifier):
    """Accepts with probability `rho`, by a draw that depends on the pair and on nothing
    else."""

    name = "by content"

    def __init__(self, rho):
        self.rho = rho

    def judge(self, pairs):
        verdicts = []
        for pair in pairs:
            key = (*pair.prefix, -1, *pair.draft.tokens, -2, *pair.target_step.tokens)
            drawn = uniform(Stream.root(0).fold_in(*key).key(0))
            verdicts.append(Verdict(drawn < self.rho, f"{drawn:.3f}"))
        return verdicts


class Keeps(ByContent):
    """Keeps some tokens of the draft steps that it rejects."""

    def judge(self, pairs):
        verdicts = []
        for pair, verdict in zip(pairs, super().judge(pairs), strict=True):
            keep = sum(pair.draft.tokens) % len(pair.draft.tokens)
            verdicts.append(verdict if verdict.aligned else replace(verdict, keep=keep))
        return verdicts


class Witness(Verifier):
    """Accepts everything and remembers what it was given."""

    name = "witness"

    def __init__(self):
        self.pairs = []

    def judge(self, pairs):
        self.pairs += pairs
        return [Verdict(True, "") for _ in pairs]


def writers(temperature=0.0, seed=0, *, num_blocks=900):
    """A draft and a target."""
    draft, target = (
        Writer(
            ModelRunner(model, num_blocks=num_blocks, block_size=4),
            SamplingParams(temperature),
            partial(BlankLineSegmenter, PIECES.__getitem__),
            frozenset({EOS}),
            Stream.root(seed).fold_in(role.value),
        )
        for role, model in zip(Role, MODELS, strict=True)
    )
    return draft, target


def all_released(*pair):
    return all(w.branches == [] and w.runner.cache.pool.num_used == 0 for w in pair)


class NoCache:
    """In place of a block table: how much of a branch was read."""

    def __init__(self, length=0):
        self.length = length


class NoModel:
    """In place of a `ModelRunner`: branches without a cache."""

    def open(self, tokens):
        return Branch(list(tokens), NoCache())

    def fork(self, branch):
        return Branch(list(branch.tokens), NoCache(branch.num_computed_tokens))

    def rewind(self, branch, length):
        branch.table.length = min(branch.num_computed_tokens, length)
        del branch.tokens[length:]

    def forward(self, branches):
        for branch in branches:
            branch.table.length = len(branch)

    def close(self, branch):
        assert branch.num_computed_tokens >= 0, "closed twice"
        branch.table.length = -1


class SeededScript:
    """Random steps, each a function of its role, its prefix and its stream: more varied
    than those of small models.
    """

    def __init__(self, seed, rho, eos, cut):
        self.seed, self.verifier, self.eos, self.cut = seed, ByContent(rho), eos, cut

    def step(self, role, tokens, stream):
        chance = random.Random(repr((self.seed, role, tuple(tokens), stream)))
        written = tuple(
            chance.randrange(50) for _ in range(chance.choice([1, 1, 2, 3, 5]))
        )
        drawn = chance.random()
        finish = Finish.LENGTH if drawn < self.eos + self.cut else Finish.BOUNDARY
        return Step(written, Finish.EOS if drawn < self.eos else finish)

    def draft(self, prefix, sibling):
        path = (len(prefix), sibling) if sibling else (len(prefix),)
        return self.step(
            Role.DRAFT, self._tokens(prefix), Stream.root(0).fold_in(*path)
        )

    def target(self, prefix):
        return self.step(
            Role.TARGET, self._tokens(prefix), Stream.root(0).fold_in(len(prefix))
        )

    def judge(self, prefix, draft, target):
        pair = Pair(tuple(self._tokens(prefix)), draft, target)
        return self.verifier.judge([pair])[0]

    def _tokens(self, prefix):
        return [*PROMPT, *(token for step in prefix for token in step.tokens)]


class ScriptWriter(Writer):
    """Writes the steps of a script, each as a whole in one of the next forwards."""

    def __init__(self, script, role):
        runner = NoModel()
        segmenter = partial(BlankLineSegmenter, PIECES.__getitem__)
        super().__init__(
            runner, SamplingParams(), segmenter, frozenset(), Stream.root(0)
        )
        self.script, self.role, self.pace = script, role, random.Random(script.seed)

    def write(self, live):
        self.runner.forward([w.branch for w in live])
        for w in live:
            if self.pace.random() < 0.5:
                w.step = cut(
                    self.script.step(self.role, w.branch.tokens, w.stream), w.limit
                )
                w.tokens += w.step.tokens
                w.branch.extend(w.tokens)


@settings(max_examples=300, deadline=None)
@given(
    script=st.builds(
        SeededScript,
        st.integers(0, 2**32),
        st.sampled_from([0.0, 0.4, 0.7, 0.9, 1.0]),
        st.sampled_from([0.0, 0.05, 0.2]),
        st.sampled_from([0.0, 0.05, 0.2]),
    ),
    schedule=st.sampled_from(Schedule),
    depth=st.integers(0, 6),
    width=st.integers(1, 3),
    rows=st.one_of(st.none(), st.integers(1, 6)),
    limits=st.builds(Limits, st.integers(1, 40), st.integers(1, 6), st.booleans()),
    forwards=st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
def test_page_and_scheduler_agree_on_random_scripts(
    script, schedule, depth, width, rows, limits, forwards, seed
):
    """Without models: every ending, every budget, steps that take different times; the
    scheduler's work is completed in a random order."""
    shallowest = 1 if schedule is Schedule.PAPER else 0
    depth = max(shallowest, depth)
    config = {
        "schedule": schedule,
        "depth": depth,
        "width": width,
        "max_target_rows": rows,
    }
    pair = ScriptWriter(script, Role.DRAFT), ScriptWriter(script, Role.TARGET)
    parts = (PROMPT, *pair, script.verifier, limits)
    emitted = list(Lookahead(*parts, **config, draft_forwards=forwards).steps())
    assert pair[0].branches == pair[1].branches == []
    scheduled = ScriptedRun(SchedulerConfig(limits, **config), script, shuffled(seed))
    assert emitted == scheduled.run()
    if schedule is Schedule.SYNC and width == 1:
        assert emitted == list(
            algorithm_1(PROMPT, *pair, script.verifier, limits, depth)
        )


# With models


def lookahead(*parts):
    return Lookahead(*parts).steps()


@pytest.mark.parametrize("loop", [algorithm_1, lookahead])
def test_an_answer_that_ends_early_releases_everything(loop):
    pair = writers()
    steps = loop(PROMPT, *pair, ExactVerifier(), Limits(100, 10))
    next(steps)
    steps.close()
    assert all_released(*pair)
    small_pair = writers(num_blocks=4)
    with pytest.raises(OutOfBlocks, match="blocks"):
        list(loop(PROMPT, *small_pair, ExactVerifier(), Limits(100, 30)))
    assert all_released(*small_pair)


# Through `Reasoner`

DRAFTERS = (None, "ngram", "draft", "tree")


@pytest.fixture(scope="module")
def reasoners(tmp_path_factory):
    """In fp64: a tiny pair whose target has two layers, and a random pair that hardly
    ever agrees with itself.
    """
    folder = tmp_path_factory.mktemp("random")
    write_checkpoint(folder / "target", seed=1)
    write_checkpoint(folder / "draft", seed=2)
    pairs = [("tiny-target", "tiny-draft")]
    pairs.append((folder / "target", folder / "draft"))
    with with_loader(load_small):
        return [Reasoner(*pair, "exact", dtype=torch.float64) for pair in pairs]


@settings(max_examples=60, deadline=None)
@given(
    pair=st.sampled_from([0, 0, 1]),
    verifier=st.sampled_from(["exact", "random:0.7", "oracle", Keeps(0.5)]),
    drafter=st.sampled_from(DRAFTERS),
    acceptance=st.sampled_from(["reject", "match", "block"]),
    schedule=st.sampled_from(["sync", "paper", "depth"]),
    depth=st.integers(1, 6),
    width=st.integers(1, 3),
    max_target_rows=st.sampled_from([None, 1, 3]),
    draft_forwards=st.sampled_from([1, 3, 8]),
    temperature=st.sampled_from([0.0, 0.9]),
    coupling=st.sampled_from(["independent", "shared"]),
    segmenter=st.sampled_from(["blank_line", "fixed"]),
    max_tokens=st.sampled_from([5, 30, 50]),
    max_step_tokens=st.sampled_from([4, 20]),
    ignore_half_sentence=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_page_emits_what_the_engine_emits(
    reasoners, pair, verifier, drafter, **config
):
    """Steps, origins and verdicts, with every token drafter and rule, token for token;
    with the exact verifier and rule `match` those of plain decoding."""
    config["depth"] = min(config["depth"], (6, 6, 4)[config["width"] - 1])
    if drafter == "tree" and config["acceptance"] == "block":
        config["acceptance"] = "reject"  # block verifies chains
    if config["acceptance"] == "block":
        config["coupling"] = "independent"  # and needs fresh noise
    config |= {"mode": "lr+sd", "drafter": drafter} if drafter else {"mode": "lr"}
    config |= {"num_speculative_tokens": 3, "segment_tokens": 3}
    reasoner = reasoners[pair]
    choice = VerifierChoice(verifier, reasoner.codec)  # a name, or an object
    reasoner.verifier = choice.build(reasoner.engine.target_model)
    by_page = page_engine.run(reasoner, QUESTION, **config).finish()
    by_engine = reasoner.generate(QUESTION, **config)
    assert by_page.steps == by_engine.steps
    if verifier == "exact" and (config["acceptance"] == "match" or not drafter):
        plain = reasoner.generate(QUESTION, **(config | {"mode": "ar"}))
        assert by_page.tokens == plain.tokens


def test_the_page_says_what_it_cannot_run():
    reasoner = Reasoner()
    with pytest.raises(SettingError, match="late_drafts"):
        page_engine.run(reasoner, QUESTION, late_drafts="reject").finish()
    with pytest.raises(SettingError, match="mode"):
        page_engine.run(reasoner, QUESTION, mode="ar").finish()


def test_the_page_runs_from_the_command_line(monkeypatch, capsys):
    flags = ["--depth", "2", "--seed", "3"]
    monkeypatch.setattr(sys, "argv", ["lookahead", QUESTION, *flags])
    page.main()
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines} <= {origin.value for origin in Origin}
    assert "\\boxed{" in lines[-1]


@pytest.mark.parametrize("gamma", [1, 2, 4])
def test_algorithm_1_is_the_synchronous_schedule(gamma):
    parts = ByContent(0.7), Limits(40, 12)
    emitted = list(algorithm_1(PROMPT, *writers(1.1, gamma), *parts, gamma))
    config = {"schedule": Schedule.SYNC, "depth": gamma}
    steps = Lookahead(PROMPT, *writers(1.1, gamma), *parts, **config).steps()
    assert emitted == list(steps)


@pytest.fixture(scope="module")
def clean_seed():
    """A seed whose first cycle of depth 3 consists of steps that end in a boundary."""
    for seed in range(300):
        pair = writers(1.2, seed)
        verifier = Witness()
        first = list(algorithm_1(PROMPT, *pair, verifier, Limits(150, 60), 3))[:4]
        pairs = [
            step
            for pair in verifier.pairs[:3]
            for step in (pair.draft, pair.target_step)
        ]
        steps = [*(e.step for e in first), *pairs]
        origins = [e.origin for e in first]
        complete = all(step.finish is Finish.BOUNDARY for step in steps)
        if complete and origins == [Origin.ACCEPTED] * 3 + [Origin.BONUS]:
            return seed
    raise AssertionError("no such seed")


def test_a_cycle_of_three_drafts_has_four_target_rows_and_a_bonus(clean_seed):
    """One forward reads the trunk; those after it are one batch of four rows that end
    one by one.
    """
    forwards = []
    pair = writers(1.2, clean_seed)
    pair[1].runner.observer = lambda rows, tokens, _: forwards.append((rows, tokens))
    verifier = Witness()
    cycle = list(algorithm_1(PROMPT, *pair, verifier, Limits(150, 60), 3))[:4]
    assert [e.origin for e in cycle] == [Origin.ACCEPTED] * 3 + [Origin.BONUS]
    assert cycle[3].verdict is None
    assert verifier.pairs[1].prefix == (*PROMPT, *cycle[0].step.tokens)
    drafts = [len(e.step.tokens) for e in cycle[:3]]
    targets = [len(pair.target_step.tokens) for pair in verifier.pairs[:3]]
    lengths = [*targets, len(cycle[3].step.tokens)]
    expected = [sum(length > t for length in lengths) for t in range(max(lengths))]
    assert forwards[0] == (1, len(PROMPT) + sum(drafts) - 1)
    assert [rows for rows, _ in forwards[1 : 1 + len(expected)]] == expected
