"""`lr demo`: two answers side by side in real time, and a rejection in slow motion."""

from __future__ import annotations

import io
import math
import re

import pytest
from reasoner_kit import with_loader
from rich.console import Console

from lr.commands.cli import main
from lr.model.weights import load_model
from lr.reasoner import Reasoner
from lr.tiny.language import Split
from lr.tiny.stories import story
from lr.watch import race as race_module
from lr.watch.race import Race, Racer, slow_motion

SHORT = {"max_tokens": 60, "detailed": True}


@pytest.fixture(scope="module")
def reasoner() -> Reasoner:
    with with_loader(load_model):
        return Reasoner()


def test_the_demo_in_a_pipe_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--problems", "1", "--max_tokens", "40"]
    assert main(["demo", *words]) == 0
    output = capsys.readouterr()
    assert "\x1b" not in output.out + output.err
    assert "plain decoding" in output.out
    rows = [line.split() for line in output.out.splitlines() if "1.00" in line]
    assert rows[0][0] == "ar"
    for mode in ("sd", "lr", "lr+sd"):
        assert re.search(rf"^ {re.escape(mode)} ", output.out, re.MULTILINE)


def test_the_demos_problem_has_a_rejection_that_a_reader_can_see(
    reasoner: Reasoner,
) -> None:
    question = story(Split.TEST, 197, 0).question
    lookahead = Racer("lookahead", reasoner.run(question, detailed=True, depth=6))
    lookahead.answer.finish()
    lookahead.follow(math.inf)
    rejection = lookahead.rejection()
    assert rejection is not None
    lines = [line.plain for line in slow_motion(rejection)]
    assert "takes 3 cards out" in lines[0]
    assert "puts 22 cards in" in lines[1]
    assert "22 cards in" in question
    assert "take" in lines[2]


def test_no_line_is_torn_at_80_columns(
    reasoner: Reasoner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(race_module, "PAUSE", 0.0)
    question = story(Split.TEST, 0, 0).question
    race = Race(
        reasoner.run(question, mode="ar", **SHORT),
        reasoner.run(question, mode="lr", **SHORT),
    )
    screen = io.StringIO()
    race.show(Console(file=screen, force_terminal=True, width=80, height=24))
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue()).splitlines()
    assert max(map(len, lines)) <= 80
    last = [line for line in lines if line.startswith("plain decoding")][-1]
    assert "lookahead" in last
    words = race.lookahead.answer.result.steps[0].text.split()
    shown = " ".join(line[40:].strip() for line in lines)
    assert " ".join(words) in shown


def test_a_column_shows_what_had_happened_by_then(reasoner: Reasoner) -> None:
    run = reasoner.run(story(Split.TEST, 0, 0).question, mode="lr", **SHORT)
    racer = Racer("lookahead", run)
    racer.total = run.finish().stats.seconds
    passes = []
    for part in (0.0, 0.3, 0.6, 2.0):
        racer.follow(part * racer.total)
        passes.append(racer.state.forwards.get("target", 0))
    assert passes == sorted(passes)
    assert passes[0] == 0
    assert passes[-1] == run.result.stats.target_passes
    assert racer.done
