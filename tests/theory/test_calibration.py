"""From traces to parameters to predictions: invented runs whose parameters are
known."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from theory_kit import emitted_steps

from lr.engine.page import emission
from lr.spec.protocol import Emit, Schedule, SchedulerConfig
from lr.theory.calibration import (
    Calibration,
    CalibrationError,
    Estimate,
    calibrate,
    drawn_rounds,
    exactly,
)
from lr.theory.distributions import Constant, Replay
from lr.theory.predicted import (
    DEEPEST,
    Tried,
    Way,
    drawn_ways,
    plain_seconds,
    predicted_speedup,
    ratio_with_error,
    seconds_per_step,
    what_if,
)
from lr.theory.simulate import ENDLESS, World, simulate
from lr.theory.synchronous import lr_sync_cycle_speedup
from lr.theory.trace_metrics import Answers, Load, PassCost, Seen, Timed
from lr.trace import ForwardPass, RunEvent, StepWritten, TokenRound, Trace, VerifierCall
from lr.types import EmittedStep, Finish, Origin, Role, Step, Verdict

TINY = Path(__file__).parents[2] / "docs" / "results" / "tiny_calibration.json"
PLAIN, PROMPT, VERDICT = 1.5, 5.0, 0.01
TARGET, DRAFT = PassCost(2.0, 0.25, 0.125), PassCost(0.3, 0.05, 0.01)
"""The invented machine, in seconds."""


class Tape:
    """Events with times, written one after the other."""

    def __init__(self) -> None:
        self.now, self.events = 0.0, list[Timed]()

    def add(self, seconds: float, event: RunEvent) -> None:
        self.now += seconds
        self.events.append((self.now, event))

    def forward(
        self, role: Role, rows: int = 1, more: int = 0, seconds: float = 0.0
    ) -> None:
        cost = TARGET if role is Role.TARGET else DRAFT
        took = seconds or cost.seconds(rows, more)
        self.add(took, ForwardPass(role, rows, rows + more, took / 2))

    def prompt(self, *roles: Role) -> None:
        for role in roles:
            self.forward(role, more=39, seconds=PROMPT / 2)


def step(length: int) -> Step:
    return Step((1,) * length, Finish.BOUNDARY)


def emitted(index: int, length: int) -> Emit:
    return emission(EmittedStep(index, step(length), Origin.TARGET))


def judged(index: int, *aligned: bool, length: int = 4) -> Emit:
    """A step that was decided by verdicts."""
    origin = Origin.ACCEPTED if aligned[-1] else Origin.CORRECTION
    verdicts = [Verdict(one, "") for one in aligned]
    return emission(EmittedStep(index, step(length), origin, verdicts[-1]), *verdicts)


def seen(
    verdicts: tuple[bool, ...] = (True, True, False, True), length: int = 10
) -> Seen:
    """All runs of one problem: two steps of plain decoding, cycles of two drafts, token
    rounds."""
    found = Seen()
    plain = Tape()
    plain.prompt(Role.TARGET)
    for index, tokens in enumerate((8, 12)):
        for _ in range(tokens - (index == 0)):
            plain.forward(Role.TARGET, seconds=PLAIN)
        plain.add(0, emitted(index, tokens))
    found.plain.add(plain.events)
    tape = Tape()
    tape.prompt(Role.DRAFT, Role.TARGET)
    for cycle, aligned in enumerate(verdicts):
        for _ in range(2 * length):
            tape.forward(Role.DRAFT)
        for _ in range(2):
            tape.add(0, StepWritten(Role.DRAFT, cycle, step(length)))
        tape.forward(Role.TARGET, more=length - 1)
        tape.forward(Role.TARGET, rows=3, more=length - 1)
        for rows in (3, 2, 1):
            tape.forward(Role.TARGET, rows=rows)
        tape.add(VERDICT, VerifierCall(1, VERDICT))
        tape.add(0, judged(cycle, aligned))
    found.lookahead.add(tape.events)
    for k, accepted in ((3, (3, 1, 0)), (1, (1, 0))):
        tape = Tape()
        tape.prompt(Role.DRAFT, Role.TARGET)
        for n in accepted:
            for _ in range(k):
                tape.forward(Role.DRAFT, more=1)
            tape.forward(Role.TARGET, more=k)
            if k == 3:
                tape.add(0, TokenRound(Role.TARGET, 0, k, k, n, n + 1))
        found.tokens.add(tape.events)
    tape = Tape()
    tape.prompt(Role.DRAFT)
    for rows in (2, 2, 1):
        tape.forward(Role.DRAFT, rows=rows)
    tape.add(0, judged(0, False, True))
    tape.add(0, judged(1, True))
    found.pairs.add(tape.events)
    return found


def test_the_parameters_of_an_invented_machine_are_found() -> None:
    found = calibrate([seen()] * 5, "invented", {"clock": "none"})
    assert asdict(found.target) == pytest.approx(asdict(TARGET))
    assert asdict(found.draft) == pytest.approx(asdict(DRAFT))
    values = {
        name: getattr(found, name).value
        for name in ("alpha1", "alpha2", "second_chance")
    }
    # accepted 3 + 1 + 0 tokens, tried 3 + 2 + 1
    assert values == pytest.approx(
        {"alpha1": 3 / 4, "alpha2": 4 / 6, "second_chance": 1.0}
    )
    assert (found.plain_token.value, found.verdict.value) == pytest.approx(
        (PLAIN, VERDICT)
    )
    assert found.start.value == pytest.approx(PROMPT)
    T = 10 * PLAIN
    assert found.step_seconds == pytest.approx(T)
    assert (found.c1, found.c2) == pytest.approx((3 / T, 0.3 / PLAIN))
    assert (found.b, found.v) == pytest.approx((0.125, VERDICT / T))
    assert found.reading == pytest.approx(10 * 0.125 / T)
    assert found.target_lengths == (8, 12) * 5 and found.chain_lengths == (2,) * 5
    # problems that are all alike leave no doubt
    assert found.alpha1.low == found.alpha1.high == 3 / 4


def test_intervals_come_from_the_problems() -> None:
    """Half accept all, half nothing: alpha1 is 1/2, and 8 coins can show 1/8 to 7/8."""
    problems = [seen((True,) * 4)] * 4 + [seen((False,) * 4)] * 4
    found = calibrate(problems, "invented", {}).alpha1
    assert found.value == 0.5
    assert 0.1 < found.low < 0.25 and 0.75 < found.high < 0.9
    assert calibrate(problems, "invented", {}).alpha1 == found  # the same seed
    with pytest.raises(CalibrationError, match="there are 3 problems"):
        calibrate([seen()] * 3, "invented", {})


def test_the_fit_finds_the_line() -> None:
    shapes = [(1, 0), (3, 0), (2, 6), (5, 4), (1, 19)]
    found = PassCost.fit([{shape: (2, 2 * TARGET.seconds(*shape)) for shape in shapes}])
    assert asdict(found) == pytest.approx(asdict(TARGET))
    # what does not vary costs nothing, and no part is negative
    assert PassCost.fit([{(1, 0): (2, 6.0)}]) == PassCost(pytest.approx(3.0))
    falling = [{(1, 0): (1, 2.0)}, {(2, 0): (1, 1.0)}]
    assert PassCost.fit(falling) == PassCost(pytest.approx(1.5))
    assert PassCost.fit([]) == PassCost(0.0)


def test_passes_of_a_run() -> None:
    """Time between passes belongs to the pass that ends it, verdicts excepted."""
    tape = Tape()
    tape.prompt(Role.DRAFT, Role.TARGET)
    tape.forward(Role.TARGET, rows=2, more=3, seconds=4.0)
    tape.add(0.5, VerifierCall(1, 0.5))
    tape.forward(Role.TARGET, seconds=1.0)
    answers, overlapped = Answers(), Answers()
    answers.add(tape.events)
    overlapped.add(tape.events, alone=False)
    assert answers.start == PROMPT
    [found], [apart] = answers.passes, overlapped.passes
    assert (
        found[Role.TARGET] == {(2, 3): (1, 4.0), (1, 0): (1, 1.0)}
        and not found[Role.DRAFT]
    )
    assert apart[Role.TARGET] == {(2, 3): (1, 2.0), (1, 0): (1, 0.5)}


def filed(found: Calibration, folder: Path) -> Calibration:
    """What comes back from a file."""
    path = folder / "calibration.json"
    path.write_text(found.to_json(), encoding="utf-8")
    return Calibration.load(path)


def test_a_file_comes_back_as_it_was(tmp_path: Path) -> None:
    found = calibrate([seen()] * 4, "invented", {"clock": "none"})
    assert filed(found, tmp_path) == found
    assert Calibration.load(TINY).name == "tiny-target / tiny-draft"
    assert str(Estimate(0.5, 0.25, 0.75)) == "0.5 [0.25, 0.75]"


def broken(change: dict[str, object]) -> str:
    return json.dumps(json.loads(TINY.read_text(encoding="utf-8")) | change)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "Expecting property name"),
        ("[]", "calibration version None, expected 3"),
        (broken({"version": 2}), "calibration version 2, expected 3"),
        (broken({"alpha1": {"value": 1.5, "low": 1, "high": 2}}), "alpha1 is 1.5"),
        (broken({"draft_first": "fast"}), "$.draft_first"),
        (
            broken({"draft_first": {"value": -1, "low": 0, "high": 0}}),
            "$.draft_first.value",
        ),
        (broken({"target_lengths": [0]}), "target_lengths"),
        (broken({"colour": "red"}), "colour"),
        (json.dumps({"version": 3}), "missing required field"),
        (None, "cannot be read"),
    ],
)
def test_broken_files_are_refused_by_name(
    text: str | None, complaint: str, tmp_path: Path
) -> None:
    path = tmp_path / "calibration.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(CalibrationError, match=path.name) as caught:
        Calibration.load(path)
    assert complaint in str(caught.value)


COST, CHEAP = PassCost(4.0, 0.5), PassCost(1.0)


def load(acceptance: float, steps: int, **more: float) -> Load:
    return Load(acceptance, [20], [10], [steps], **more)


def test_nothing_accepted_costs_all_drafts_and_all_rows() -> None:
    """Lockstep, sync 1, all rejected: 10 draft passes, 20 passes of two rows, a verdict
    a step.

    The last step of an answer is written alone. The new row reads the draft step for 10
    tokens.
    """
    way = Way(Schedule.SYNC, 1)
    seconds = seconds_per_step(
        way, load(0.0, 7, verdict=3.0), (COST, CHEAP), 8, steps=7
    )
    both = 10 * 1.0 + 20 * COST.seconds(2) + 3.0
    assert 6 * both < 7 * seconds <= 7 * both + 1e-9


def test_everything_accepted_in_one_cycle() -> None:
    """Three steps an answer, sync 2: two drafts, then three rows side by side, one read
    alone."""
    way = Way(Schedule.SYNC, 2)
    seconds = seconds_per_step(
        way, load(1.0, 3), (COST, CHEAP), draft_forwards=5, steps=3
    )
    assert (
        2 * 10 + 20 * COST.seconds(3)
        <= 3 * seconds
        <= 2 * 10 + 21 * COST.seconds(3) + 1e-9
    )


def test_overlapped_hides_the_draft() -> None:
    """Window of the paper, k = 1, nothing accepted: one row, and a draft that is
    faster."""
    way = Way(Schedule.PAPER, 1)
    seconds = seconds_per_step(way, load(0.0, 5), (COST, CHEAP), draft_forwards=None)
    assert seconds == pytest.approx(20 * COST.first)


def test_token_rounds_without_lookahead() -> None:
    """4 rounds of 3 drafted tokens a step, each drafted by a pass; two steps and a
    prompt of 8."""
    work = Load(0.0, [4], [10], [2], proposed=3, draft_passes=3, start=8.0)
    cost = PassCost(4.0, 0.5, 0.25)
    assert (
        seconds_per_step(Way(tokens=3), work, (cost, CHEAP))
        == 4 * (4 + 3 * 0.25 + 3) + 4
    )
    looked_up = replace(work, draft_passes=0)
    assert (
        seconds_per_step(Way(tokens=3), looked_up, (cost, CHEAP))
        == 4 * (4 + 3 * 0.25) + 4
    )


def test_what_if() -> None:
    cost = PassCost(4.0, 0.5, 0.25)
    cases = what_if(Way(Schedule.SYNC, 2), load(0.6, 5, verdict=3.0), (cost, CHEAP))
    measured, *others, all_of_them = cases.values()
    assert all(other < measured * 1.02 for other in others)
    assert all_of_them < min(others) * 1.02 < measured


def test_in_the_world_of_the_formula_the_prediction_is_the_formula() -> None:
    """Free rows and verdicts, endless chains, equal steps: 6 standard errors are about
    8 %."""
    found = free_world()
    for depth in (1, 3):
        formula = float(lr_sync_cycle_speedup(found.alpha1.value, depth, 0.2))
        way = Way(Schedule.SYNC, depth)
        assert way.formula(found) == pytest.approx(formula)
        assert predicted_speedup(way, found, None) == pytest.approx(formula, rel=0.08)
    assert plain_seconds(found) == 1.0
    names = [w.name for w in (Way(), Way(tokens=2), Way(Schedule.SYNC, 4, 2))]
    assert names == ["ar", "sd 2", "sync 4 + sd 2"] and Way().formula(found) == 1.0


def free_world(**changes: Estimate) -> Calibration:
    """Free rows and verdicts, endless chains, steps of one token, a draft step of 0.2
    seconds."""
    nothing = dict.fromkeys(
        ("target_row", "target_token", "verdict", "draft_row"), exactly(0.0)
    )
    none = dict.fromkeys(("target_lengths", "draft_lengths", "chain_lengths"), ())
    one = {
        "target_first": exactly(1.0),
        "plain_token": exactly(1.0),
        "draft_first": exactly(0.2),
    }
    return replace(Calibration.load(TINY), **(nothing | none | one | changes))


@pytest.mark.parametrize("schedule", Schedule)
def test_alternatives_are_predicted_from_the_second_chance(schedule: Schedule) -> None:
    """In a world of the formulas, where a place with two alternatives is accepted with
    probability alpha + (1 - alpha) second_chance; 6 standard errors are about 8 %.
    """
    found = free_world(alpha1=exactly(0.5), second_chance=exactly(0.4))
    one, two = (Way(schedule, 3, width=width) for width in (1, 2))
    same = replace(found, alpha1=exactly(0.5 + 0.5 * 0.4))
    assert two.formula(found) == pytest.approx(one.formula(same), rel=1e-5)
    assert two.formula(found) > 1.05 * one.formula(found)
    assert predicted_speedup(two, found, None) == pytest.approx(
        two.formula(found), rel=0.08
    )
    alike = replace(found, second_chance=exactly(0.0))
    assert two.formula(alike) == pytest.approx(one.formula(found), rel=2e-3)


def test_first_alternatives_alone_are_the_acceptance_of_answers() -> None:
    """Second alternatives have a rate of their own: the second chance."""
    tape = Tape()
    for index, aligned in enumerate([(True,), (False, True), (False, False), ()]):
        tape.add(0, judged(index, *aligned) if aligned else emitted(index, 4))
    answers = Answers()
    answers.add(tape.events)
    assert (answers.judged[0], answers.accepted[0]) == (3, 1)
    assert answers.load(lookup=False).acceptance == 1 / 3


def at(temperature: float, draft: float = 0.2) -> Calibration:
    found = free_world(draft_first=exactly(draft))
    return replace(found, conditions={"temperature": temperature})


def test_ways_are_drawn_by_the_seed_and_by_what_was_measured(tmp_path: Path) -> None:
    found = [at(0.0), at(0.6)]
    ways = drawn_ways(12, 7, found)
    assert drawn_ways(12, 7, found) == ways and len(set(ways)) == 12
    again = [filed(one, tmp_path) for one in found]
    assert drawn_ways(12, 7, again) == ways  # from the files, too
    assert drawn_ways(12, 8, found) != ways
    assert drawn_ways(12, 7, [at(0.0), at(0.6, draft=0.2 + 1e-12)]) != ways
    assert {way.driver for way in drawn_ways(12, 7, found, "lockstep")} == {"lockstep"}
    assert drawn_ways(0, 7, found) == []


def test_everything_is_drawn() -> None:
    """Of 200 ways; that one value of six or fewer is missing has a probability below
    1e-6."""
    ways = drawn_ways(200, 1, [at(0.0), at(0.6), at(1.0)])
    deep = [way for way in ways if way.depth]
    assert {way.temperature for way in ways} == {0.0, 0.6, 1.0}
    assert {way.schedule for way in deep} == set(Schedule)
    assert {way.driver for way in deep} == {"lockstep", "overlapped"}
    assert {way.width for way in deep} == {1, 2, 3}
    assert {way.tokens for way in ways} == set(range(7))
    assert {way.tokens > 0 for way in deep} == {True, False} and len(deep) < len(ways)
    assert all(1 <= way.depth <= DEEPEST[way.width] for way in deep)
    assert all(
        sum(way.width**level for level in range(way.depth + 1)) <= 40 for way in deep
    )
    shallow = [way for way in ways if not way.depth]
    assert all(
        way == Tried(tokens=way.tokens, temperature=way.temperature) for way in shallow
    )
    assert len({way.name for way in ways}) == 200


def test_names_of_ways() -> None:
    way = Tried(Schedule.PAPER, 3, 2, 2, "overlapped", 0.6)
    assert way.name == "paper 3, width 2 + sd 2, overlapped, T 0.6"
    assert Tried(Schedule.SYNC, 4).name == "sync 4" and Tried(tokens=2).name == "sd 2"


def test_drawn_rounds() -> None:
    """alpha = 1: ceil(n / (k + 1)); k = 0: n; else between the two."""
    chance = random.Random(1)
    assert [drawn_rounds(1.0, 3, n, chance) for n in (1, 4, 5, 9)] == [1, 1, 2, 3]
    assert drawn_rounds(0.3, 0, 7, chance) == 7
    draws = [drawn_rounds(0.5, 1, 2, chance) for _ in range(4000)]
    assert set(draws) == {1, 2} and sum(draws) / 4000 == pytest.approx(1.5, abs=0.05)


def test_recorded_outcomes_are_replayed_in_the_simulation() -> None:
    """Accepted, rejected, accepted at the places 0, 1, 2."""
    world = World(
        Replay((True, False, True)), target=Constant(0.3), draft=Constant(0.1)
    )
    trace = Trace()
    run = simulate(SchedulerConfig(ENDLESS, Schedule.SYNC, 1), world, 3, trace)
    assert [step.origin for step in emitted_steps(trace)] == [
        Origin.ACCEPTED,
        Origin.BONUS,
        Origin.ACCEPTED,
    ]
    assert run.seconds == pytest.approx(2 * (0.1 + 0.3), abs=1e-12)


def test_the_work_of_answers() -> None:
    """The draft's 4 tokens against the target's 3, accepted; then the target's own
    5."""
    tape = Tape()
    for role, index, length in (
        (Role.DRAFT, 0, 4),
        (Role.TARGET, 0, 3),
        (Role.TARGET, 1, 5),
    ):
        tape.add(1.0, StepWritten(role, index, step(length)))
    tape.add(0, VerifierCall(2, 0.5))
    tape.add(0, TokenRound(Role.TARGET, 0, 3, 3, 1, 2))
    tape.add(0, judged(0, True))
    tape.add(0, emitted(1, 5))
    answers = Answers()
    answers.add(tape.events)
    found = answers.load(lookup=False)
    assert found == Load(1.0, [1.5, 2.5], [4], [2], 3.0, 3.0, verdict=0.25)
    assert answers.load(lookup=True).draft_passes == 0


def test_ratio_with_error() -> None:
    """sum / sum; leaving out each of (2, 1), (4, 2), (9, 3): 13/5, 11/4, 6/3."""
    value, error = ratio_with_error([2.0, 4.0, 9.0], [1.0, 2.0, 3.0])
    parts = [13 / 5, 11 / 4, 6 / 3]
    mean = sum(parts) / 3
    assert value == 2.5
    assert error == pytest.approx((2 / 3 * sum((p - mean) ** 2 for p in parts)) ** 0.5)
