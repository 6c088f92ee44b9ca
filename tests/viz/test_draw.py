"""The figures of a trace: they say what the trace says, twice the same, and the command's words for
what it cannot do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from player_kit import as_file, long, scripted, simulated, tiny

from lr.cli import main
from lr.lab.trace.state import Film
from lr.lab.viz.holders import cache_figure, sharing_moment
from lr.lab.viz.lives import lives_of
from lr.lab.viz.moment import telling_moment, tree_figure
from lr.lab.viz.style import WHO, write
from lr.lab.viz.timeline import timeline_figure


def words(made: Any) -> list[str]:
    """All that is written in a figure."""
    return [text.get_text() for axes in made.axes for text in axes.texts]


def test_the_timeline_has_the_lanes_and_the_decisions() -> None:
    trace = scripted()
    with timeline_figure(trace) as made:
        axes = made.axes[0]
        assert [label.get_text() for label in axes.get_yticklabels()] == [
            "draft",
            "target",
            "verifier",
        ]
        assert axes.get_yticklabels()[1].get_color() == WHO["target"]
        marks = [one for one in words(made) if one in "✓✗+•"]
        assert marks == [
            "✗" if mark.origin == "correction" else "✓" for mark in lives_of(trace).marks
        ]
        assert "hatched: cancelled" in axes.get_title(loc="right")
        assert axes.get_xlabel() == "time in turns"


def test_the_timeline_of_a_window_has_less_in_it() -> None:
    with (
        timeline_figure(simulated()) as whole,
        timeline_figure(simulated(), begin=2, end=6) as part,
    ):
        assert len(part.axes[0].patches) < len(whole.axes[0].patches)
        assert part.axes[0].get_xlim() == (2, 6)


def test_the_tree_says_what_the_state_says() -> None:
    film = Film(scripted())
    number = telling_moment(film)
    state = film.at(number)
    assert len(state.live) > 2, "a moment with something to see"
    with tree_figure(film, number) as made:
        said = words(made)
        assert f"root · step {state.nodes[state.root].index}" in said
        for node in state.live:
            if node.targeted and node.target is not None:
                assert node.target.text.strip() in said
            if node.name != state.root and node.draft is not None and node.drafted:
                assert node.draft.text.strip() in said
        assert sum(one == "✓ aligned" for one in said) == sum(
            bool(node.verdict and node.verdict["aligned"])
            for node in state.live
            if node.name != state.root
        )


def test_a_rejected_step_is_marked_by_more_than_colour() -> None:
    film = Film(scripted())
    refused = next(
        r.number + 1
        for r in film.trace.records
        if r.kind == "judged" and not r.data["verdict"]["aligned"]
    )
    with tree_figure(film, refused) as made:
        assert "✗ not aligned" in words(made)
        assert any(patch.get_hatch() for patch in made.axes[0].patches)


@pytest.mark.parametrize("number", [0, 1, 10_000_000])
def test_the_tree_can_be_drawn_at_any_moment(number: int, tmp_path: Path) -> None:
    with tree_figure(Film(scripted()), number) as made:
        write(made, tmp_path / "tree")


def test_the_cache_shows_who_holds_which_block() -> None:
    film = Film(tiny("lr+sd"))
    number = sharing_moment(film)
    state = film.at(number)
    with cache_figure(film, number) as made:
        said = words(made)
        for cache in state.caches.values():
            shared = [holders for holders in cache.holders_by_block().values() if len(holders) > 1]
            assert any(f"{len(shared)} shared" in one for one in said) or not cache.branches
            for branch in cache.branches.values():
                assert f"branch {branch.number}, {branch.length} tokens" in said
        assert any(one.startswith("×") for one in said)


def test_long_tables_show_their_ends() -> None:
    film = Film(long(40))
    with cache_figure(film, len(film) - 3) as made:
        said = words(made)
        assert any(one.startswith("⋯") for one in said)
        assert made.get_size_inches()[0] < 14


def test_the_command_draws_each_picture_twice_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = as_file(tiny("lr+sd"), tmp_path / "run.jsonl")
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        assert main(["draw", str(trace), "-o", str(tmp_path / folder / "run")]) == 0
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == [
        f"run-{what}.{kind}" for what in ("cache", "timeline", "tree") for kind in ("png", "svg")
    ]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert "run-tree.svg" in capsys.readouterr().out


def test_the_command_says_what_it_cannot_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = as_file(scripted(), tmp_path / "run.jsonl")
    assert main(["draw", str(trace), "--pictures", "cache"]) == 0
    assert "no blocks to draw" in capsys.readouterr().out
    for flags, message in (
        (["--pictures", "trees"], "expected some of timeline, tree, cache"),
        (["--event", "100000"], "this trace has events 0 to"),
        (["-o", str(tmp_path / "none" / "run")], "there is no folder"),
    ):
        assert main(["draw", str(trace), *flags]) == 2
        assert message in capsys.readouterr().err
