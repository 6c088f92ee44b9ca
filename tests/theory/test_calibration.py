"""From traces to parameters to predictions: invented runs whose parameters are known, files that
are broken, a twin that must agree.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from lr.errors import SettingError
from lr.spec.protocol import Emit, Schedule, SchedulerConfig
from lr.theory.calibration import Calibration, CalibrationError, Estimate, exactly
from lr.theory.chance import Constant, Replay, Resampled
from lr.theory.estimate import PARAMETERS, calibrate
from lr.theory.observe import (
    Answered,
    LookaheadRun,
    PairRun,
    PlainRun,
    Seen,
    TokenRun,
    outcomes,
    step_lengths,
)
from lr.theory.reality import Way, ratio_with_error
from lr.theory.replayed import acceptance_of, replayed
from lr.theory.simulate import ENDLESS, World, simulate
from lr.theory.synchronous import lr_sync_cycle_speedup
from lr.theory.token_level import sd_tokens
from lr.theory.twin import LADDER, Twin, drawn_rounds, round_law, rounds_per_step
from lr.trace import Event, ForwardPass, StepWritten, TokenRound, VerifierCall, emission
from lr.types import EmittedStep, Finish, Origin, Role, Step, Verdict

TINY = Path(__file__).parents[2] / "docs" / "results" / "tiny_calibration.json"
TOKEN, DRAFT, TURN, ROW, DRAFT_ROW, POSITION, READ, VERDICT, PROMPT = (
    2.0,
    0.3,
    0.4,
    0.1,
    0.2,
    0.05,
    3.0,
    0.01,
    5.0,
)
"""Of the invented machine: a target token, a draft token, ... in seconds; ROW and POSITION are
shares.
"""


class Tape:
    """Events with times, written one after the other."""

    def __init__(self) -> None:
        self.now, self.events = 0.0, list[tuple[float, Event]]()

    def add(self, seconds: float, event: Event) -> None:
        self.now += seconds
        self.events.append((self.now, event))

    def forward(self, role: Role, seconds: float, rows: int = 1, tokens: int | None = None) -> None:
        self.add(seconds, ForwardPass(role, rows, rows if tokens is None else tokens, seconds))


def step(length: int) -> Step:
    return Step((1,) * length, Finish.BOUNDARY)


def emitted(index: int, length: int) -> Emit:
    return emission(EmittedStep(index, step(length), Origin.TARGET))


def judged(index: int, *aligned: bool, length: int = 4) -> Emit:
    """A step that was decided by verdicts."""
    origin = Origin.ACCEPTED if aligned[-1] else Origin.CORRECTION
    verdicts = [Verdict(one, "") for one in aligned]
    return emission(EmittedStep(index, step(length), origin, verdicts[-1]), *verdicts)


def plain_run(lengths: tuple[int, ...]) -> PlainRun:
    tape = Tape()
    tape.forward(Role.TARGET, PROMPT, tokens=40)
    for index, length in enumerate(lengths):
        for _ in range(length - (index == 0)):
            tape.forward(Role.TARGET, TOKEN)
        tape.add(0, emitted(index, length))
    return PlainRun.of(tape.events)


def lookahead_run(verdicts: tuple[bool, ...], length: int = 10) -> LookaheadRun:
    """Cycles of two drafts, all of the same shape: drafts, a lone read, a read with three rows,
    rows that finish one by one.
    """
    tape = Tape()
    tape.forward(Role.DRAFT, PROMPT / 2, tokens=40)
    for cycle, aligned in enumerate(verdicts):
        for _ in range(2):
            for _ in range(length):
                tape.forward(Role.DRAFT, DRAFT)
            tape.add(0, StepWritten(Role.DRAFT, cycle, step(length)))
        if cycle == 0:
            tape.forward(Role.TARGET, PROMPT / 2, tokens=40)
        tape.forward(Role.TARGET, READ, tokens=length)
        tape.forward(Role.TARGET, READ + TOKEN * (1 + 2 * ROW), rows=3, tokens=length + 2)
        for rows in (3, 3, 2, 2, 1, 1):
            tape.forward(Role.TARGET, TOKEN * (1 + ROW * (rows - 1)), rows=rows)
        tape.add(0, VerifierCall(1, VERDICT))
        tape.add(0, judged(cycle, aligned))
    return LookaheadRun.of(tape.events)


def token_run(accepted: tuple[int, ...], k: int = 3) -> TokenRun:
    tape = Tape()
    tape.forward(Role.DRAFT, PROMPT, tokens=40)
    tape.forward(Role.TARGET, PROMPT, tokens=40)
    for n in accepted:
        for place in range(k):
            tape.forward(Role.DRAFT, DRAFT + (TURN / 4 if place == 0 else 0.0))
        tape.forward(Role.TARGET, TOKEN * (1 + POSITION * k) + TURN * 3 / 4, tokens=k + 1)
        tape.add(0, TokenRound(Role.TARGET, 0, k, k, n, n + 1))
    return TokenRun.of(tape.events)


def pair_run() -> PairRun:
    """The draft writes two rows, then one; the first of two alternatives is rejected, the second
    accepted; then the first accepted.
    """
    tape = Tape()
    tape.forward(Role.DRAFT, PROMPT, tokens=40)
    for rows in (2, 2, 1):
        tape.forward(Role.DRAFT, DRAFT * (1 + DRAFT_ROW * (rows - 1)), rows=rows)
    tape.add(0, judged(0, False, True))
    tape.add(0, judged(1, True))
    return PairRun.of(tape.events)


def seen(verdicts: tuple[bool, ...] = (True, True, False, True)) -> Seen:
    return Seen(
        plain_run((8, 12)),
        lookahead_run(verdicts),
        token_run((3, 1, 0)),
        token_run((1, 0), k=1),
        pair_run(),
    )


def test_the_parameters_of_an_invented_machine_are_found() -> None:
    found = calibrate([seen()] * 5, "invented", {"clock": "none"})
    T = 10 * TOKEN
    expected = {
        "step_seconds": T,
        "alpha1": 3 / 4,
        "c1": 10 * DRAFT / T,
        "b": ROW,
        "b_draft": DRAFT_ROW,
        "reading": READ / T,
        "reading_alone": READ / T,
        "pace": 1.0,
        "v": VERDICT / T,
        "start": PROMPT / T,
        "alpha2": 4 / 6,  # accepted 3 + 1 + 0, tried 3 + 2 + 1
        "c2": DRAFT / TOKEN,
        "turn": TURN / TOKEN,
        "b_positions": POSITION,
        "second_chance": 1.0,
    }
    assert {name: getattr(found, name).value for name in PARAMETERS} == pytest.approx(
        expected, rel=1e-9
    )
    assert found.target_lengths == (8, 12) * 5 and found.chain_lengths == (2,) * 5
    assert (
        found.alpha1.low == found.alpha1.high == 3 / 4
    )  # problems that are all alike leave no doubt


def test_intervals_come_from_the_problems() -> None:
    """Half of the problems accept all, half nothing: alpha1 is 1/2, and what 8 coins can show lies
    between 1/8 and 7/8.
    """
    problems = [seen((True,) * 4)] * 4 + [seen((False,) * 4)] * 4
    found = calibrate(problems, "invented", {}).alpha1
    assert found.value == 0.5
    assert 0.1 < found.low < 0.25 and 0.75 < found.high < 0.9
    assert calibrate(problems, "invented", {}).alpha1 == found  # the same seed


def test_too_few_problems_are_refused() -> None:
    with pytest.raises(CalibrationError, match="there are 3 problems"):
        calibrate([seen()] * 3, "invented", {})


def test_a_file_comes_back_as_it_was() -> None:
    found = calibrate([seen()] * 4, "invented", {"clock": "none"})
    assert Calibration.from_json(found.to_json()) == found
    assert Calibration.load(TINY).name == "tiny-target / tiny-draft"


def broken(change: dict[str, object]) -> str:
    return json.dumps(json.loads(TINY.read_text(encoding="utf-8")) | change)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "is not JSON"),
        ("[]", "calibration version None, expected 2"),
        (broken({"version": 7}), "calibration version 7, expected 2"),
        (
            broken({"alpha1": {"value": 1.5, "low": 1, "high": 2}}),
            "alpha1 is 1.5, expected a probability",
        ),
        (broken({"c1": "fast"}), "c1 is 'fast'"),
        (broken({"c1": {"value": -1, "low": 0, "high": 0}}), "numbers >= 0"),
        (broken({"target_lengths": [0]}), "target_lengths"),
        (broken({"colour": "red"}), "colour"),
        (json.dumps({"version": 2}), "lacks"),
    ],
)
def test_broken_files_are_refused_by_name(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CalibrationError, match=str(path.name)) as caught:
        Calibration.load(path)
    assert complaint in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="cannot be read"):
        Calibration.load(tmp_path / "none.json")
    assert str(Estimate(0.5, 0.25, 0.75)) == "0.5 [0.25, 0.75]"


def test_without_refinements_the_twin_is_the_formula() -> None:
    """6 standard errors of a rate over 4000 steps are about 6 %."""
    found = Calibration.load(TINY)
    for depth in (1, 3):
        formula = float(lr_sync_cycle_speedup(found.alpha1.value, depth, found.c1.value))
        assert Twin(found, ()).speedup(Schedule.SYNC, depth, 4000) == pytest.approx(
            formula, rel=0.06
        )


def test_each_refinement_costs_speed() -> None:
    found = Calibration.load(TINY)
    for schedule in (Schedule.SYNC, Schedule.DEPTH):
        ladder = [Twin(found, LADDER[:n]).speedup(schedule, 3, 800) for n in range(len(LADDER) + 1)]
        assert all(more <= less * 1.05 for less, more in pairwise(ladder))
        assert ladder[-1] < 0.75 * ladder[0]


def test_refinements_one_by_one() -> None:
    found = replace(
        Calibration.load(TINY),
        alpha1=exactly(1.0),
        b=exactly(0.5),
        c1=exactly(0.25),
        v=exactly(0.1),
        reading=exactly(0.05),
        reading_alone=exactly(0.05),
        pace=exactly(1.0),
        chain_lengths=(3,),
        start=exactly(1.0),
    )
    speed = {
        name: Twin(found, (name,)).speedup(Schedule.SYNC, 2, 30)
        for name in ("chains", "batch", "judge", "reading")
    }
    assert speed["chains"] == pytest.approx(
        3.5 / (1 + 1.5), rel=1e-9
    )  # prompt 0.5 and 3 steps; prompts 1, one cycle 0.5 + 1
    assert speed["batch"] == pytest.approx(3 / (0.5 + 2), rel=1e-9)
    assert speed["judge"] == pytest.approx(3 / (0.5 + 1 + 0.1), rel=1e-9)
    assert speed["reading"] == pytest.approx(3 / (0.6 + 1), rel=1e-9)


def test_a_recorded_run_is_replayed_in_the_simulation() -> None:
    """Accepted, rejected, accepted at the places 0, 1, 2; draft steps of 2 and 4 tokens, a target
    step of 3.
    """
    tape = Tape()
    for role, length in ((Role.DRAFT, 2), (Role.TARGET, 3), (Role.DRAFT, 4)):
        tape.add(1.0, StepWritten(role, 0, step(length)))
    for index, aligned in ((2, True), (0, True), (1, False)):
        tape.add(0, judged(index, aligned))
    assert outcomes(tape.events) == (True, False, True)
    assert (step_lengths(tape.events, Role.DRAFT), step_lengths(tape.events, Role.TARGET)) == (
        (2, 4),
        (3,),
    )
    law = Resampled([n * 0.1 for n in step_lengths(tape.events, Role.TARGET)])
    world = World(Replay(outcomes(tape.events)), target=law, draft=Constant(0.1))
    run = simulate(SchedulerConfig(ENDLESS, Schedule.SYNC, 1), world, 3, history=True)
    assert [emitted.origin for _, emitted in run.emissions] == [
        Origin.ACCEPTED,
        Origin.BONUS,
        Origin.ACCEPTED,
    ]
    assert run.seconds == pytest.approx(2 * (0.1 + 0.3), abs=1e-12)


def test_rounds_per_step() -> None:
    """k = 0: a token a round; alpha = 1: ceil(n / (k + 1)); alpha = 1/2, k = 1, n = 2: 1 + P(N = 1)
    = 1.5.
    """
    assert rounds_per_step(0.3, 0, 5) == [0, 1, 2, 3, 4, 5]
    assert rounds_per_step(1.0, 3, 9) == [0, 1, 1, 1, 1, 2, 2, 2, 2, 3]
    assert rounds_per_step(0.5, 1, 2)[2] == pytest.approx(1.5)


def test_drawn_rounds_are_those_on_average() -> None:
    """20,000 draws; a step of 15 tokens takes 5 to 6 rounds, give or take 1.5: 6 standard errors
    are 0.064.
    """
    law, chance = round_law(0.7, 3), random.Random(1)
    draws = [drawn_rounds(law, 15, chance) for _ in range(20_000)]
    assert sum(draws) / len(draws) == pytest.approx(rounds_per_step(0.7, 3, 15)[15], abs=0.064)
    assert min(draws) == 4  # ceil(15 / 4)
    assert drawn_rounds([1.0], 7, chance) == 7


def test_unknown_refinements_are_refused() -> None:
    with pytest.raises(SettingError, match="luck"):
        Twin(Calibration.load(TINY), ("luck",))


def test_ways_and_their_formulas() -> None:
    found = Calibration.load(TINY)
    assert [
        way.name for way in (Way(), Way(tokens=2), Way(Schedule.PAPER, 3), Way(Schedule.SYNC, 4, 2))
    ] == [*("ar", "sd 2", "paper 3", "sync 4 + sd 2")]
    assert Way().formula(found) == 1.0
    rejected = [Answered((False,) * 6, (20,) * 6, (20,) * 6)]
    first, *_, last = Way(Schedule.SYNC, 2).predictions(found, (rejected, rejected), steps=60)
    assert first == pytest.approx(
        float(lr_sync_cycle_speedup(found.alpha1.value, 2, found.c1.value))
    )
    assert last < 0.8  # nothing accepted: lookahead only costs


def test_known_answers_are_replayed_place_by_place() -> None:
    """A target token takes 0.1, a draft token 0.05; a draft of 8 tokens, then target steps of 10
    and 30 side by side: 0.4 + 3 for both. Plain decoding takes 1 + 3, or with the lengths of
    another answer 2."""
    found = replace(
        Calibration.load(TINY),
        c1=exactly(0.5),
        start=exactly(0.0),
        target_lengths=(10,),
        draft_lengths=(10,),
    )
    answer = Answered((True, False), (10, 30), (8, 30))
    twin = Twin(found, ("chains", "lengths"))
    assert replayed(twin, Schedule.SYNC, 1, [answer], [answer]) == pytest.approx(4 / 3.4, rel=1e-12)
    assert replayed(
        twin, Schedule.SYNC, 1, [answer], [replace(answer, target_lengths=(10, 10))]
    ) == pytest.approx(2 / 3.4)


def test_known_rounds_cost_what_rounds_cost() -> None:
    """Two drafted tokens, c2 = 0.2, without the cost of width: 5 rounds of 1.4 passes instead of 10
    passes.
    """
    found = replace(
        Calibration.load(TINY), c2=exactly(0.2), start=exactly(0.0), target_lengths=(10,)
    )
    answer = Answered((False,), (10,), (10,), rounds=5, tokens_accepted=5)
    twin = Twin(found, ("chains", "lengths"), tokens=2)
    assert replayed(twin, Schedule.SYNC, 0, [answer], [answer]) == pytest.approx(10 / 7)


@pytest.mark.parametrize(("alpha", "k"), [(0.0, 1), (0.3, 4), (0.9, 2), (1.0, 3)])
def test_acceptance_from_tokens_per_round(alpha: float, k: int) -> None:
    assert acceptance_of(float(sd_tokens(alpha, k)), k) == pytest.approx(alpha, abs=1e-9)


def test_what_is_known_of_an_answer() -> None:
    """Two places: at the first the draft's 4 tokens against the target's 3, accepted; at the second
    the target's own 5.
    """
    tape = Tape()
    for role, index, length in ((Role.DRAFT, 0, 4), (Role.TARGET, 0, 3), (Role.TARGET, 1, 5)):
        tape.add(1.0, StepWritten(role, index, step(length)))
    tape.add(0, TokenRound(Role.TARGET, 0, 2, 2, 1, 2))
    tape.add(0, judged(0, True))
    tape.add(0, emitted(1, 5))
    assert Answered.of(tape.events) == Answered(
        (True, False), (3, 5), (4, 5), rounds=1, tokens_accepted=1
    )


def test_ratio_with_error() -> None:
    """sum / sum; leaving out each of (2, 1), (4, 2), (9, 3): 13/5, 11/4, 6/3."""
    value, error = ratio_with_error([2.0, 4.0, 9.0], [1.0, 2.0, 3.0])
    parts = [13 / 5, 11 / 4, 6 / 3]
    mean = sum(parts) / 3
    assert value == 15 / 6
    assert error == pytest.approx((2 / 3 * sum((p - mean) ** 2 for p in parts)) ** 0.5)
