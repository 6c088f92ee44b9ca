"""From traces to a cost line to predictions: invented runs whose parameters are known."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from lr.errors import LRError
from lr.options import GenerateOptions
from lr.page_engine import emission
from lr.spec.protocol import Emit
from lr.theory.calibration import (
    Calibration,
    ProblemRuns,
    calibrate,
    closed_form,
    plain_seconds,
    predicted_speedup,
)
from lr.theory.cost import Answers, Load, PassCost, Timed, seconds_per_step
from lr.theory.synchronous import lr_sync_cycle_speedup
from lr.trace import ForwardPass, RunEvent, StepWritten, TokenRound, VerifierCall
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
        self, role: Role, rows: int = 1, extra: int = 0, seconds: float = 0.0
    ) -> None:
        cost = TARGET if role is Role.TARGET else DRAFT
        seconds = seconds or cost.seconds(rows, extra)
        self.add(seconds, ForwardPass(role, rows, rows + extra, seconds / 2))

    def prompt(self, *roles: Role) -> None:
        for role in roles:
            self.forward(role, extra=39, seconds=PROMPT / 2)


def step(length: int) -> Step:
    return Step((1,) * length, Finish.BOUNDARY)


def emitted(index: int, length: int) -> Emit:
    return emission(EmittedStep(index, step(length), Origin.TARGET))


def judged(index: int, *aligned: bool) -> Emit:
    """A step that was decided by verdicts."""
    origin = Origin.ACCEPTED if aligned[-1] else Origin.CORRECTION
    verdicts = [Verdict(same, "") for same in aligned]
    return emission(EmittedStep(index, step(4), origin, verdicts[-1]), *verdicts)


def invented(verdicts: tuple[bool, ...] = (True, True, False, True)) -> ProblemRuns:
    """All runs of one problem: two steps of plain decoding, cycles of two drafts of 10
    tokens, token rounds, and rows of several tokens."""
    plain, lookahead, tokens, hybrid = (Tape() for _ in range(4))
    plain.prompt(Role.TARGET)
    for index, length in enumerate((8, 12)):
        for _ in range(length - (index == 0)):
            plain.forward(Role.TARGET, seconds=PLAIN)
        plain.add(0, emitted(index, length))
    lookahead.prompt(Role.DRAFT, Role.TARGET)
    for cycle, aligned in enumerate(verdicts):
        for _ in range(20):
            lookahead.forward(Role.DRAFT)
        for _ in range(2):
            lookahead.add(0, StepWritten(Role.DRAFT, cycle, step(10)))
        lookahead.forward(Role.TARGET, extra=9)
        for rows in (3, 3, 2, 1):
            lookahead.forward(Role.TARGET, rows=rows)
        lookahead.add(VERDICT, VerifierCall(1, VERDICT))
        lookahead.add(0, judged(cycle, aligned))
    tokens.prompt(Role.DRAFT, Role.TARGET)
    for accepted in (3, 1, 0):
        for _ in range(3):
            tokens.forward(Role.DRAFT, extra=1)
        tokens.forward(Role.TARGET, extra=3)
        tokens.add(0, TokenRound(Role.TARGET, 0, 3, 3, accepted, accepted + 1))
    hybrid.prompt(Role.DRAFT, Role.TARGET)
    for rows in (2, 2, 1):
        hybrid.forward(Role.DRAFT, rows=rows)
    return {
        "plain": plain.events,
        "lookahead": lookahead.events,
        "tokens": tokens.events,
        "hybrid": hybrid.events,
    }


def test_the_parameters_of_an_invented_machine_are_found() -> None:
    calibration = calibrate([invented()] * 5, "invented", {"clock": "none"})
    assert asdict(calibration.target) == pytest.approx(asdict(TARGET))
    assert asdict(calibration.draft) == pytest.approx(asdict(DRAFT))
    # accepted 3 + 1 + 0 tokens, tried 3 + 2 + 1
    assert (calibration.alpha1, calibration.alpha2) == pytest.approx((3 / 4, 4 / 6))
    assert (calibration.plain_token, calibration.verdict) == pytest.approx(
        (PLAIN, VERDICT)
    )
    assert calibration.start == pytest.approx(PROMPT)
    step_time = 10 * PLAIN
    assert calibration.step_seconds == pytest.approx(step_time)
    assert (calibration.c1, calibration.c2) == pytest.approx(
        (3 / step_time, 0.3 / PLAIN)
    )
    assert (calibration.b, calibration.v) == pytest.approx((0.125, VERDICT / step_time))
    assert (
        calibration.target_lengths == (8, 12) * 5
        and calibration.chain_lengths == (2,) * 5
    )
    assert max(calibration.errors.values()) == pytest.approx(
        0
    )  # all problems are alike


def test_errors_come_from_the_problems() -> None:
    """Half accept all, half nothing: of 8 coins, sqrt(1/4 / 7)."""
    problems = [invented((True,) * 4)] * 4 + [invented((False,) * 4)] * 4
    calibration = calibrate(problems, "invented", {})
    assert calibration.alpha1 == 0.5
    assert calibration.errors["alpha1"] == pytest.approx((0.25 / 7) ** 0.5)


def test_the_fit_finds_the_line() -> None:
    shapes = [(1, 0), (3, 0), (2, 6), (5, 4), (1, 19)]
    line = PassCost.fit([{shape: (2, 2 * TARGET.seconds(*shape)) for shape in shapes}])
    assert asdict(line) == pytest.approx(asdict(TARGET))
    # what does not vary costs nothing, and no part is negative
    assert PassCost.fit([{(1, 0): (2, 6.0)}]) == PassCost(pytest.approx(3.0))
    falling = [{(1, 0): (1, 2.0)}, {(2, 0): (1, 1.0)}]
    assert PassCost.fit(falling) == PassCost(pytest.approx(1.5))
    assert PassCost.fit([]) == PassCost(0.0)


def test_the_time_between_passes_belongs_to_the_pass_that_ends_it() -> None:
    """Verdicts excepted. Where models run at the same time, each pass has its own."""
    tape = Tape()
    tape.prompt(Role.DRAFT, Role.TARGET)
    tape.forward(Role.TARGET, rows=2, extra=3, seconds=4.0)
    tape.add(0.5, VerifierCall(1, 0.5))
    tape.forward(Role.TARGET, seconds=1.0)
    lockstep, overlapped = Answers(), Answers()
    lockstep.add(tape.events)
    overlapped.add(tape.events, alone=False)
    assert lockstep.start == PROMPT
    [passes], [apart] = lockstep.passes, overlapped.passes
    assert passes[Role.TARGET] == {(2, 3): (1, 4.0), (1, 0): (1, 1.0)}
    assert not passes[Role.DRAFT]
    assert apart[Role.TARGET] == {(2, 3): (1, 2.0), (1, 0): (1, 0.5)}


def test_a_file_comes_back_as_it_was(tmp_path: Path) -> None:
    calibration = calibrate([invented()] * 4, "invented", {"clock": "none"})
    path = tmp_path / "calibration.json"
    path.write_text(calibration.to_json(), encoding="utf-8")
    assert Calibration.load(path) == calibration
    assert Calibration.load(TINY).name == "tiny-target / tiny-draft"


@pytest.mark.parametrize("change", [{"alpha1": 1.5}, {"draft": "fast"}, None])
def test_broken_files_are_refused_by_name(change, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    if change is not None:
        path.write_text(json.dumps(json.loads(TINY.read_text()) | change))
    with pytest.raises(LRError, match=path.name):
        Calibration.load(path)


COST, CHEAP = PassCost(4.0, 0.5), PassCost(1.0)


DECODING = GenerateOptions(mode="ar")


def ahead(schedule: str, depth: int) -> GenerateOptions:
    return GenerateOptions(mode="lr", schedule=schedule, depth=depth)


def load(acceptance: float, steps: int, **more: float) -> Load:
    return Load(acceptance, [20], [10], [steps], **more)


def test_nothing_accepted_costs_all_drafts_and_all_rows() -> None:
    """Lockstep, sync 1, all rejected: 10 draft passes, 20 passes of two rows, a verdict
    a step. The last step of an answer is written alone."""
    work, way = load(0.0, 7, verdict=3.0), ahead("sync", 1)
    seconds = seconds_per_step(way, work, (COST, CHEAP), 8, steps=7)
    step_seconds = 10 * 1.0 + 20 * COST.seconds(2) + 3.0
    assert 6 * step_seconds < 7 * seconds <= 7 * step_seconds + 1e-9


def test_overlapped_hides_the_draft() -> None:
    """Window of the paper, k = 1, nothing accepted: one row, and a draft that is
    faster."""
    way = ahead("paper", 1)
    seconds = seconds_per_step(way, load(0.0, 5), (COST, CHEAP), draft_forwards=None)
    assert seconds == pytest.approx(20 * COST.first)


def test_in_the_world_of_the_formula_the_prediction_is_the_formula() -> None:
    """Free rows and verdicts, endless chains, equal steps: 6 standard errors are about
    8 %."""
    calibration = Calibration("free", 0.83, 0.5, 1.0, PassCost(1.0), PassCost(0.2))
    for depth in (1, 3):
        formula = float(lr_sync_cycle_speedup(0.83, depth, 0.2))
        way = ahead("sync", depth)
        assert closed_form(way, calibration) == pytest.approx(formula)
        assert predicted_speedup(way, calibration, None) == pytest.approx(
            formula, rel=0.08
        )
    assert (
        plain_seconds(calibration) == 1.0 and closed_form(DECODING, calibration) == 1.0
    )


def test_a_kept_step_counts_with_its_own_tokens() -> None:
    """Of four emitted steps three are the draft's, of 20 tokens; the target's have 10."""
    free = PassCost(1.0), PassCost(0.0)
    calibration = Calibration(
        "long", 0.75, 0.5, 1.0, *free, target_lengths=(10,), draft_lengths=(20,)
    )
    assert calibration.step_tokens(DECODING) == 10
    assert calibration.step_tokens(ahead("sync", 1)) == 0.75 * 20 + 0.25 * 10
    plain_draft = replace(calibration, draft_lengths=(10,))
    ways = [predicted_speedup(ahead("sync", 1), c) for c in (calibration, plain_draft)]
    assert ways[0] == pytest.approx(1.75 * ways[1])
