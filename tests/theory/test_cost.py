"""From traces to a cost line to predictions: invented runs whose parameters are known."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from lr.errors import LRError
from lr.measure.store import write_json
from lr.options import GenerateOptions
from lr.page_engine import emission
from lr.theory.calibration import (
    Calibration,
    calibrate,
    closed_form,
    plain_seconds,
    predicted_speedup,
)
from lr.theory.cost import PassCost
from lr.theory.synchronous import lr_sync_cycle_speedup
from lr.trace import ForwardPass, StepWritten, TokenRound, VerifierCall
from lr.types import EmittedStep, Finish, Origin, Role, Step, Verdict

TINY = Path(__file__).parents[2] / "docs" / "results" / "tiny_calibration.json"
PLAIN, PROMPT, VERDICT = 1.5, 5.0, 0.01
TARGET, DRAFT = PassCost(2.0, 0.25, 0.125), PassCost(0.3, 0.05, 0.01)
"""The invented machine, in seconds."""


class Tape:
    """Events with times, written one after the other."""

    def __init__(self):
        self.now, self.events = 0.0, []

    def add(self, seconds, event):
        self.now += seconds
        self.events.append((self.now, event))

    def forward(self, role, rows=1, extra=0, seconds=0.0):
        cost = TARGET if role is Role.TARGET else DRAFT
        seconds = seconds or cost.seconds(rows, extra)
        self.add(seconds, ForwardPass(role, rows, rows + extra, seconds / 2))

    def prompt(self, *roles):
        for role in roles:
            self.forward(role, extra=39, seconds=PROMPT / 2)


def step(length):
    return Step((1,) * length, Finish.BOUNDARY)


def judged(index, aligned):
    origin = Origin.ACCEPTED if aligned else Origin.CORRECTION
    verdict = Verdict(aligned, "")
    return emission(EmittedStep(index, step(4), origin, verdict), verdict)


def invented():
    """All runs of one problem: two steps of plain decoding, cycles of two drafts of 10
    tokens, token rounds, and rows of several tokens."""
    plain, lookahead, tokens, hybrid = (Tape() for _ in range(4))
    plain.prompt(Role.TARGET)
    for index, length in enumerate((8, 12)):
        for _ in range(length - (index == 0)):
            plain.forward(Role.TARGET, seconds=PLAIN)
        emitted = EmittedStep(index, step(length), Origin.TARGET)
        plain.add(0, emission(emitted))
    lookahead.prompt(Role.DRAFT, Role.TARGET)
    for cycle, aligned in enumerate((True, True, False, True)):
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
    tapes = {"plain": plain, "lookahead": lookahead, "tokens": tokens, "hybrid": hybrid}
    return {name: tape.events for name, tape in tapes.items()}


def test_the_parameters_of_an_invented_machine_are_found(tmp_path):
    calibration = calibrate([invented()] * 5, "invented", {"clock": "none"})
    assert asdict(calibration.target) == pytest.approx(asdict(TARGET))
    assert asdict(calibration.draft) == pytest.approx(asdict(DRAFT))
    step_time = 10 * PLAIN
    expected = {
        "alpha1": 3 / 4,
        "alpha2": 4 / 6,  # accepted 3 + 1 + 0 tokens, tried 3 + 2 + 1
        "plain_token": PLAIN,
        "verdict": VERDICT,
        "start": PROMPT,
        "step_seconds": step_time,
        "c1": 3 / step_time,
        "c2": 0.3 / PLAIN,
        "b": 0.125,
        "v": VERDICT / step_time,
    }
    found = {name: getattr(calibration, name) for name in expected}
    assert found == pytest.approx(expected)
    assert calibration.target_lengths == (8, 12) * 5
    assert calibration.chain_lengths == (2,) * 5
    assert max(calibration.errors.values()) == pytest.approx(0)  # all are alike
    path = tmp_path / "calibration.json"
    write_json(asdict(calibration), path)
    assert Calibration.load(path) == calibration


@pytest.mark.parametrize("change", [{"alpha1": 1.5}, {"draft": "fast"}, None])
def test_broken_files_are_refused_by_name(change, tmp_path):
    path = tmp_path / "calibration.json"
    if change is not None:
        path.write_text(json.dumps(json.loads(TINY.read_text()) | change))
    with pytest.raises(LRError, match=path.name):
        Calibration.load(path)


def test_with_free_rows_the_prediction_is_the_formula():
    """Free rows and verdicts, endless chains, equal steps: 6 standard errors are about
    8 %."""
    calibration = Calibration("free", 0.83, 0.5, 1.0, PassCost(1.0), PassCost(0.2))
    assert plain_seconds(calibration) == 1.0
    assert closed_form(GenerateOptions(mode="ar"), calibration) == 1.0
    for depth in (1, 3):
        formula = float(lr_sync_cycle_speedup(0.83, depth, 0.2))
        ahead = GenerateOptions(mode="lr", schedule="sync", depth=depth)
        assert closed_form(ahead, calibration) == pytest.approx(formula)
        predicted = predicted_speedup(ahead, calibration, None)
        assert predicted == pytest.approx(formula, rel=0.08)
