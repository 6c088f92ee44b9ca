"""The page `lr/lookahead.py` against everything else that knows the method: plain
decoding and the engine. The same tokens, origins and
verdicts, whatever the schedule, and every block of the cache given back.
"""

from dataclasses import replace
from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_kit import random_model, runner_on
from tests_root import cases
from toy_kit import (
    EOS,
    PIECES,
    PROMPT,
    QUESTIONS,
    OneByOne,
    ask,
    random_options,
    require_clean,
    toy_engine,
)

from lr import page_engine
from lr.errors import OutOfBlocks, SettingError
from lr.lookahead import Lookahead, Writer, algorithm_1
from lr.page_engine import serve_page
from lr.reasoner import Reasoner
from lr.rng import Stream, uniform
from lr.spec.protocol import Limits, Schedule
from lr.spec.segmenters import FixedSegmenter
from lr.spec.verifiers.base import ExactVerifier
from lr.spec.verifiers.named import RandomVerifier
from lr.spec.write import BlankLineSegmenter
from lr.types import Origin, Role, SamplingParams, Verdict

MODELS = random_model(2), random_model(0)
QUESTION = "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many coins does Ben have?"


class ByContent(OneByOne):
    """Accepts with probability `rho`, by a draw that depends on the pair and on nothing
    else."""

    name = "by content"

    def __init__(self, rho):
        self.rho = rho

    def verdict(self, pair):
        key = (*pair.prefix, -1, *pair.draft_step.tokens, -2, *pair.target_step.tokens)
        drawn = uniform(Stream.root(0).fold_in(*key).key(0))
        return Verdict(drawn < self.rho, f"{drawn:.3f}")


class Keeps(ByContent):
    """Keeps some tokens of the draft steps that it rejects."""

    def verdict(self, pair):
        verdict, tokens = super().verdict(pair), pair.draft_step.tokens
        keep = 0 if verdict.aligned else sum(tokens) % len(tokens)
        return replace(verdict, keep=keep)


class Witness(OneByOne):
    """Accepts everything and remembers what it was given."""

    name = "witness"

    def __init__(self):
        self.pairs = []

    def verdict(self, pair):
        self.pairs.append(pair)
        return Verdict(True, "")


def writers(temperature=0.0, seed=0, *, num_blocks=900):
    """A draft and a target."""
    draft, target = (
        Writer(
            runner_on(model, num_blocks),
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


ENGINE = toy_engine()


@settings(max_examples=cases(50), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_page_emits_what_the_engine_emits(seed):
    """Steps, origins and verdicts, token for token, with every drafter and rule; every
    ending, every budget, steps of different lengths. (The scheduler emits the same in
    every order: `test_scheduler_confluence.py`.)"""
    rng = Random(seed)
    options = random_options(
        rng,
        mode=["lr", "lr+sd"],
        acceptance=["reject", "match", "block"],
        temperature=[0.0, 0.8, 1.2],
        max_step_tokens=range(3, 15),
        driver=["lockstep"],
        draft_floor=[None],
    )
    question = rng.choice(QUESTIONS)
    rho = rng.choice([0.0, 0.4, 0.7, 0.9, 1.0])
    kinds = [ByContent, Keeps, Keeps, RandomVerifier]
    verifier = rng.choice(kinds)(rho)
    by_engine, by_page = (
        ask(ENGINE, question, verifier, **vars(options)) for _ in range(2)
    )
    by_page.served = serve_page(ENGINE, by_page)
    assert by_page.finish().steps == by_engine.finish().steps
    require_clean(ENGINE)


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


def test_the_page_says_what_it_cannot_run():
    reasoner = Reasoner()
    with pytest.raises(SettingError, match="late_drafts"):
        page_engine.run(reasoner, QUESTION, late_drafts="reject").finish()
    with pytest.raises(SettingError, match="mode"):
        page_engine.run(reasoner, QUESTION, mode="ar").finish()


@pytest.mark.parametrize("gamma", [1, 2, 4])
def test_algorithm_1_is_the_synchronous_schedule(gamma):
    parts = ByContent(0.7), Limits(40, 12)
    emitted = list(algorithm_1(PROMPT, *writers(1.1, gamma), *parts, gamma))
    config = {"schedule": Schedule.SYNC, "depth": gamma}
    steps = Lookahead(PROMPT, *writers(1.1, gamma), *parts, **config).steps()
    assert emitted == list(steps)


def test_a_cycle_of_three_drafts_has_four_rows_and_a_bonus():
    """Steps of four tokens. One forward reads the trunk; those after it are one batch of
    four rows."""
    fours = partial(FixedSegmenter, PIECES.__getitem__, 4)
    endless = {"segmenter": fours, "eos_ids": frozenset()}
    pair = [replace(writer, **endless) for writer in writers(1.2)]
    forwards = []
    pair[1].runner.observer = lambda rows, tokens, _: forwards.append((rows, tokens))
    verifier = Witness()
    cycle = list(algorithm_1(PROMPT, *pair, verifier, Limits(16, 9), 3))
    assert [e.origin for e in cycle] == [Origin.ACCEPTED] * 3 + [Origin.BONUS]
    assert cycle[3].verdict is None
    assert verifier.pairs[1].prefix == (*PROMPT, *cycle[0].step.tokens)
    assert forwards == [(1, len(PROMPT) + 3 * 4 - 1)] + [(4, 4)] * 4
