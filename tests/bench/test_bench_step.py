"""The cost model against arithmetic, the measuring loop on random models, and the command once,
small.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from door_kit import write_checkpoint

from lr.cli import main
from lr.lab.bench.cost import Load, PassCost, predicted_rate
from lr.lab.bench.step import fitted_costs, measure, rows
from lr.lab.bench.ways import Way, ways
from lr.reasoner import Reasoner
from lr.spec.protocol import Schedule
from lr.tiny.language import Split, problem
from lr.trace import ForwardPass
from lr.types import Role

COST = PassCost(first=4.0, row=0.5, token=0.25)
DRAFT = PassCost(first=1.0)


def test_the_fit_finds_the_line() -> None:
    shapes = [(1, 1), (3, 3), (2, 8), (5, 9), (1, 20)]
    passes = [ForwardPass(Role.TARGET, n, m, COST.seconds(n, m - n)) for n, m in shapes]
    found = PassCost.fit(passes)
    assert (found.first, found.row, found.token) == pytest.approx((4.0, 0.5, 0.25))


def test_what_does_not_vary_costs_nothing_and_no_part_is_negative() -> None:
    alike = [ForwardPass(Role.DRAFT, 1, 1, seconds) for seconds in (2.0, 4.0)]
    assert PassCost.fit(alike) == PassCost(pytest.approx(3.0))
    falling = [ForwardPass(Role.DRAFT, n, n, 3.0 - n) for n in (1, 2)]
    assert PassCost.fit(falling) == PassCost(pytest.approx(1.5))


def load(acceptance: float, steps: int, **more: float) -> Load:
    return Load(acceptance, [steps], [20], [10], **more)  # type: ignore[arg-type]


def test_nothing_accepted_costs_all_drafts_and_all_rows() -> None:
    """Lockstep, synchronous, depth 1, every draft rejected: a step is 10 draft passes, 20 passes
    over two rows, one verdict.
    """
    rate = predicted_rate(
        (Schedule.SYNC, 1), load(0.0, 7, verdict=3.0), (COST, DRAFT), draft_ticks=8
    )
    assert 20 / rate == pytest.approx(10 * 1.0 + 20 * COST.seconds(2) + 3.0)


def test_everything_accepted_in_one_cycle() -> None:
    """Depth 2, three steps an answer: two drafts, then three rows side by side; all in one
    cycle.
    """
    rate = predicted_rate((Schedule.SYNC, 2), load(1.0, 3), (COST, DRAFT), draft_ticks=5)
    assert 60 / rate == pytest.approx(2 * 10 * 1.0 + 20 * COST.seconds(3))


def test_overlapped_hides_the_draft() -> None:
    """Window of the paper, depth 1, nothing accepted: one row and the draft beside it, which is
    faster.
    """
    rate = predicted_rate((Schedule.PAPER, 1), load(0.0, 5), (COST, DRAFT), draft_ticks=None)
    assert 20 / rate == pytest.approx(20 * COST.first)


def test_every_remedy_is_one_change_to_the_naive_loop() -> None:
    made = {way.name: way for way in ways(3, 20)}
    naive = made["lr, naive loop"].settings
    for way in made.values():
        if way.alone is not None:
            shared = {
                name: value
                for name, value in way.settings.items()
                if naive.get(name, value) == value
            }
            assert len(set(way.settings) - set(naive)) <= 4
            assert shared == way.settings or way.alone == "rolling window, no barrier"
    assert made["ar"].mode == "ar"
    assert len(made) == len(ways(3, 20))


def test_measuring(tmp_path: Path) -> None:
    target = write_checkpoint(tmp_path / "target", seed=1, layers=2)
    draft = write_checkpoint(tmp_path / "draft", seed=2)
    chosen = [
        Way("ar", "ar"),
        Way("lr", "lr", {"schedule": "sync"}),
        Way("both", "lr+sd", {"drafter": "ngram", "driver": "overlapped"}),
    ]
    calls: list[None] = []
    settings = {
        "depth": 2,
        "draft_ticks": 8,
        "temperature": None,
        "max_tokens": 40,
        "segmenter": "fixed",
        "segment_tokens": 5,
    }
    with Reasoner(target, draft, "random:0.5") as reasoner:
        tasks = [problem(Split.TEST, number) for number in range(2)]
        tallies = measure(reasoner, chosen, tasks, 2, settings, lambda: calls.append(None))
    assert len(calls) == 3 * (1 + 2 * 2)
    made = rows(tallies, fitted_costs(tallies), 2, 8)
    assert [row.tally.answers for row in made] == [4, 4, 4]
    assert all(len(row.tally.rates) == 2 for row in made)
    assert made[0].speedup.median == 1.0
    assert made[0].predicted is not None
    assert made[1].predicted is not None
    assert made[1].predicted > 0
    for row in made:
        stats, tally = row.tally.stats, row.tally
        assert stats.tokens == sum(tally.tokens) == 160
        assert tally.share(stats.target_seconds) <= 1.0
        assert row.figures()["accuracy"] == tally.right / 4
    assert (Role.TARGET in made[2].tally.lengths) and made[
        2
    ].tally.stats.step_acceptance is not None


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "step.json"
    words = [
        "bench",
        "step",
        "--problems",
        "1",
        "--repeats",
        "2",
        "--only",
        "lr, naive loop",
        "--json",
        str(out),
    ]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "lr, naive loop" in shown
    assert "a pass of the target takes" in shown
    written = json.loads(out.read_text())
    assert [row["name"] for row in written["rows"]] == ["ar", "lr, naive loop"]
    assert written["pass_seconds"]["target"]["first"] > 0
    assert main(["bench", "step", "--repeats", "1"]) == 2
    assert "repeats is 1, expected at least 2" in capsys.readouterr().err
    assert main(["bench", "step", "--only", "nonsense"]) == 2
    assert "words of the rows' names" in capsys.readouterr().err
