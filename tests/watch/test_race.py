"""`lr demo`: two answers side by side in real time."""

from __future__ import annotations

import io
import math
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from reasoner_kit import with_loader
from rich.console import Console

from lr.commands.cli import main
from lr.engine.answer import Answer
from lr.model.weights import load_model
from lr.reasoner import Reasoner
from lr.tiny.language import Split
from lr.tiny.stories import story
from lr.watch import race as race_module
from lr.watch.race import Column, answer_within, race, show_end, slow_motion


@pytest.fixture(scope="module")
def reasoner() -> Reasoner:
    with with_loader(load_model):
        return Reasoner()


def beginner(reasoner: Reasoner, number: int, **options: Any) -> Callable[..., Answer]:
    """What begins answers to a test story."""
    question = story(Split.TEST, number, 0).question

    def begin(mode: Any, max_tokens: int | None = 60) -> Answer:
        settings = {"mode": mode, "max_tokens": max_tokens} | options
        return reasoner.run(question, detailed=True, **settings)

    return begin


def test_the_demo_in_a_pipe_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--max_tokens", "40"]) == 0
    output = capsys.readouterr()
    assert "\x1b" not in output.out + output.err
    assert "plain decoding" in output.out
    for mode in ("ar", "sd", "lr", "lr+sd"):
        assert re.search(rf"^ {re.escape(mode)} ", output.out, re.MULTILINE)


def test_the_demos_problem_has_a_rejection_that_a_reader_can_see(
    reasoner: Reasoner,
) -> None:
    answer = beginner(reasoner, 197, depth=6)("lr", None)
    answer.finish()
    column = Column("lookahead", answer)
    column.follow(math.inf)
    rejection = column.rejection()
    assert rejection is not None
    lines = [line.plain for line in slow_motion(rejection)]
    assert "takes 3 cards out" in lines[0]
    assert "puts 22 cards in" in lines[1]
    assert "22 cards in" in answer.question.text
    assert "take" in lines[2]


def test_no_line_is_torn_at_80_columns(
    reasoner: Reasoner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(race_module, "PAUSE", 0.0)
    begin = beginner(reasoner, 0)
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    racers = [Column("plain decoding", begin("ar"))]
    race(racers, 60, console)
    racers.append(Column("lookahead", begin("lr")))
    words = race(racers, 60, console).steps[0].text.split()
    show_end(racers, console)
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue()).splitlines()
    assert max(map(len, lines)) <= 80
    last = [line for line in lines if line.startswith("plain decoding")][-1]
    assert "lookahead" in last
    shown = " ".join(line[40:].strip() for line in lines)
    assert " ".join(words) in shown


def test_slow_models_show_the_beginnings_of_their_answers(reasoner: Reasoner) -> None:
    def nap(*_: object) -> None:
        time.sleep(0.02)

    answer = beginner(reasoner, 197)("ar", None)  # some 900 tokens
    slowed = reasoner.engine.target.register_forward_hook(nap)
    started = time.perf_counter()
    result = answer_within(answer, 1.5)
    slowed.remove()
    # So many seconds; for a step that was begun as many again.
    assert time.perf_counter() - started < 10
    assert not result.finished
    assert result.stats.tokens > 0


def test_a_column_shows_what_had_happened_by_then(reasoner: Reasoner) -> None:
    answer = beginner(reasoner, 0)("lr")
    result = answer.finish()
    column = Column("lookahead", answer)
    column.total = result.stats.seconds
    passes = []
    for part in (0.0, 0.3, 0.6, 2.0):
        column.follow(part * column.total)
        passes.append(column.state.forwards.get("target", 0))
    assert passes == sorted(passes)
    assert passes[0] == 0
    assert passes[-1] == result.stats.target_passes
    assert column.done
