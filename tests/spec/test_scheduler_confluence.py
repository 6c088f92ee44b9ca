"""Whatever happens first, the same comes out: random scripts, completed in random
orders, against a straight-line oracle.
"""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_kit import RandomScript, last_aligned, oracle, run_and_check
from tests_root import cases

from lr.spec.protocol import Limits, Schedule, SchedulerConfig
from lr.watch.scripted import ScriptedRun, newest, oldest, shuffled

chances = st.sampled_from([0.0, 0.05, 0.2])
scripts = st.builds(
    RandomScript,
    seed=st.integers(0, 2**32),
    aligned=st.sampled_from([0.0, 0.4, 0.7, 0.9, 1.0]),
    eos=chances,
    cut=chances,
    fails=chances,
    keeps=st.sampled_from([0.0, 0.7]),
)
limits = st.builds(
    Limits,
    max_tokens=st.integers(1, 40),
    max_step_tokens=st.integers(1, 6),
    ignore_half_sentence=st.booleans(),
)


@st.composite
def configs(draw):
    schedule = draw(st.sampled_from(Schedule))
    width = draw(st.sampled_from([1, 1, 2, 3]))
    compares = draw(st.sampled_from([True, True, True, False]))
    return SchedulerConfig(
        limits=draw(limits),
        schedule=schedule,
        depth=draw(
            st.integers(1 if schedule is Schedule.PAPER else 0, 6 if width == 1 else 3)
        ),
        width=width,
        max_target_rows=draw(st.one_of(st.none(), st.integers(1, 6))),
        needs_target_step=compares,
        choose=draw(st.sampled_from([None, last_aligned])),
    )


@settings(max_examples=cases(200), deadline=None)
@given(script=scripts, config=configs(), seed=st.integers(0, 2**32))
def test_any_order_gives_what_the_oracle_says(script, config, seed):
    """Same steps, same origins, same verdicts, same survivors; the books are checked on
    the way, stale events thrown in.
    """
    expected = oracle(script, config)
    for order in (oldest, newest, shuffled(seed), shuffled(seed + 1)):
        run = ScriptedRun(config, script, order)
        clerk = run_and_check(run, random.Random(seed))
        assert run.emitted == expected.chain
        assert clerk.survivors == expected.survivors


@settings(max_examples=cases(100), deadline=None)
@given(script=scripts, config=configs(), seed=st.integers(0, 2**32))
def test_late_drafts_rejected_still_ends_and_keeps_the_books(script, config, seed):
    """What is emitted depends on the order now; everything else holds."""
    config = replace(
        config, schedule=Schedule.DEPTH, reject_late=True, needs_target_step=True
    )
    run_and_check(ScriptedRun(config, script, shuffled(seed)), random.Random(seed))


@settings(max_examples=cases(100), deadline=None)
@given(
    script=scripts, limits=limits, width=st.integers(1, 2), seed=st.integers(0, 2**32)
)
def test_changing_depths_change_no_step(script, limits, width, seed):
    """As a controller sets them."""
    chance = random.Random(seed)
    for schedule in (Schedule.PAPER, Schedule.DEPTH):
        config = SchedulerConfig(limits, schedule, 2, width)
        run = ScriptedRun(config, script, shuffled(seed))
        while not run.done:
            run.step()
            run.scheduler.set_depth(chance.randint(1, 4))
        assert run.emitted == oracle(script, config).chain


@pytest.mark.parametrize("schedule", Schedule)
def test_the_row_limit_is_used(schedule):
    """Never more than the limit is checked above; here, that so many do run. Depth 3,
    width 2: a tree has up to 15 nodes.
    """
    script = RandomScript(5, aligned=0.9, eos=0, cut=0, fails=0)
    for rows in (1, 2, 3, 5):
        config = SchedulerConfig(Limits(60), schedule, 3, 2, max_target_rows=rows)
        assert run_and_check(ScriptedRun(config, script, shuffled(7))).most_rows == rows
