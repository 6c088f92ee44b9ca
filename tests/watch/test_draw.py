"""The figures say what the trace, the run or the cache says, twice the same; and the
command says what it cannot do.
"""

from __future__ import annotations

import inspect
import sys
from functools import partial
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib as mpl
import pytest
import torch
from player_kit import as_file, long, scripted, tiny

from lr.commands.cli import main
from lr.kvcache.cache import PagedKVCache
from lr.spec.protocol import Limits, NodeId, SchedulerConfig, Work, WorkKind
from lr.watch.figures import plots
from lr.watch.figures.cache import cache_figure, draw_blocks, most_sharing
from lr.watch.figures.clock import (
    CANCELLED,
    OPEN,
    draw_order,
    timeline_figure,
    timeline_of,
)
from lr.watch.figures.plots import (
    draw_bars,
    draw_curves,
    draw_field,
    draw_lines_of,
    draw_waterfall,
    with_sliders,
)
from lr.watch.figures.style import COLOURS, PAPER, SERIES, WASHES, write
from lr.watch.figures.tree import draw_tree, fullest_tree, places_of, tree_figure
from lr.watch.scripted import ScriptedRun, TextScript, newest, oldest
from lr.watch.trace.state import state_at
from lr.watch.trace.virtual import scripted_trace

SCRIPT = TextScript(["a.", "b.", "c$"], ["A.|X.", "Y.|B.", "C$|Z$"])


def a_run(width: int = 1, order: Any = oldest) -> ScriptedRun:
    return ScriptedRun(SchedulerConfig(Limits(50), depth=2, width=width), SCRIPT, order)


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
        assert axes.get_yticklabels()[1].get_color() == COLOURS["target"]
        marks = [one for one in words(made) if one in ("✓", "✗", "+", "•")]
        assert marks == [
            "✗" if mark.origin == "correction" else "✓"
            for mark in timeline_of(trace).marks
        ]
        assert "hatched: cancelled" in axes.get_title(loc="right")
        assert axes.get_xlabel() == "time in turns"


def test_the_tree_says_what_the_state_says() -> None:
    trace = scripted()
    number = fullest_tree(trace)
    state = state_at(trace, number)
    assert len(state.live) > 2, "a moment with something to see"
    with tree_figure(state, len(trace.records)) as made:
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
    trace = scripted()
    refused = next(
        r.number + 1
        for r in trace.records
        if r.kind == "judged" and not r.data["verdict"]["aligned"]
    )
    with tree_figure(state_at(trace, refused)) as made:
        assert "✗ not aligned" in words(made)
        assert any(patch.get_hatch() for patch in made.axes[0].patches)


@pytest.mark.parametrize("number", [0, 1, 10_000_000])
def test_the_tree_can_be_drawn_at_any_moment(number: int, tmp_path: Path) -> None:
    with tree_figure(state_at(scripted(), number)) as made:
        write(made, tmp_path / "tree")


def test_the_cache_shows_who_holds_which_block() -> None:
    trace = tiny("lr+sd")
    number = most_sharing(trace)
    state = state_at(trace, number)
    with cache_figure(state, len(trace.records)) as made:
        said = words(made)
        for cache in state.caches.values():
            shared = [
                owners for owners in cache.owners_by_block().values() if len(owners) > 1
            ]
            assert (
                any(f"{len(shared)} shared" in one for one in said)
                or not cache.branches
            )
            for branch in cache.branches.values():
                assert f"branch {branch.number}, {branch.length} tokens" in said
        assert any(one.startswith("×") for one in said)


def test_long_tables_show_their_ends() -> None:
    trace = long(40)
    with cache_figure(state_at(trace, len(trace.records) - 3)) as made:
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
        f"run-{what}.{kind}"
        for what in ("cache", "timeline", "tree")
        for kind in ("png", "svg")
    ]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (
            tmp_path / "two" / name
        ).read_bytes()
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


def colours(figure: Any) -> dict[str, str]:
    """What is written in a drawing, with its colour."""
    return {text.get_text(): text.get_color() for text in figure.axes[0].texts}


def test_the_tree_of_a_scripted_run_shows_who_wrote_what() -> None:
    run = a_run()
    assert words(draw_tree(run)).count("… writing") == 2, (
        "both first steps are being written"
    )
    run.step(Work(WorkKind.DRAFT, NodeId(0, 1)))
    assert colours(draw_tree(run))["A."] == COLOURS["draft"]
    run.step(Work(WorkKind.TARGET, NodeId(0, 0)))
    shown = colours(draw_tree(run))
    assert "? judging" in shown
    assert shown["a."] == COLOURS["target"]


def test_a_rejected_step_is_still_seen_beside_its_correction() -> None:
    run = a_run(order=newest)
    run.run()
    shown = colours(draw_tree(run))
    assert {"A.", "Y.", "b.", "C$"} <= set(shown), (
        "all steps of the answer, and the rejected one"
    )
    assert shown["✗ step 1 rejected"] == COLOURS["rejected"]
    assert shown["✗ step 1 correction"] == COLOURS["target"]
    assert shown["✓ step 0 accepted"] == COLOURS["accepted"]


def test_alternatives_stand_below_each_other() -> None:
    run = a_run(width=2)
    for work in (
        Work(WorkKind.DRAFT, NodeId(0, 1)),
        Work(WorkKind.DRAFT, NodeId(0, 1, 1)),
    ):
        run.step(work)
    trace = scripted_trace(run)
    places, _ = places_of(state_at(trace, len(trace.records)))
    assert {name: index for name, (index, _) in places.items()} == {
        "0:0": 0,
        "0:1": 1,
        "0:1.1": 1,
    }
    assert places["0:0"][1] == places["0:1"][1] == 0 < places["0:1.1"][1]


@pytest.mark.parametrize("order", [oldest, newest])
@pytest.mark.parametrize("width", [1, 2])
def test_every_piece_of_work_has_a_bar(order: Any, width: int) -> None:
    run = a_run(width, order=order)
    for _ in range(3):
        run.step()
    spans = timeline_of(scripted_trace(run)).spans
    unfinished = sorted(
        (span.work, span.node) for span in spans if span.outcome == OPEN
    )
    assert unfinished == sorted((work.kind.value, str(work.node)) for work in run.work)
    run.run()
    spans = timeline_of(scripted_trace(run)).spans
    assert all(span.end > span.begin for span in spans)
    finished = sorted(span.end for span in spans if span.outcome != CANCELLED)
    assert finished == list(range(1, len(run.turns))), (
        "each turn completes one piece of work"
    )
    assert words(draw_order(run)).count("✓") == 2 + (width == 2)


def test_a_stale_event_moves_no_bar() -> None:
    run = a_run(width=2)
    run.run()
    before = timeline_of(scripted_trace(run)).spans
    late = next(span for span in before if span.outcome == CANCELLED)
    index, _, number = late.node.split(":")[1].partition(".")
    stem = int(late.node.split(":")[0])
    run.tell(
        run.event_of(
            Work(WorkKind(late.work), NodeId(stem, int(index), int(number or 0)))
        )
    )
    assert timeline_of(scripted_trace(run)).spans == before


def test_blocks_show_owners_and_valid_tokens_only() -> None:
    sizes = {"num_layers": 1, "num_kv_heads": 1, "head_dim": 1}
    cache = PagedKVCache(
        **sizes, num_blocks=4, block_size=2, dtype=torch.float32, device="cpu"
    )
    table = cache.new()
    with cache.append([table], [3]):
        pass
    twin = cache.fork(table)
    with cache.append([twin], [1]):
        pass
    cache.truncate(twin, 3)
    figure = draw_blocks(cache, {"A": (table, "xyz!"), "B": (twin, "xyzw")})
    said = " ".join(word for word in words(figure) if word)
    # block 0 is shared, 1 is A's, 2 is B's copy of it, 3 is free
    assert (
        "pool 0 ×2 x y 1 z 2 z 3 A 3 tokens 0 ×2 x y 1 z B 3 tokens 0 ×2 x y 2 z"
        in said
    )
    grounds = [
        mpl.colors.to_hex(patch.get_facecolor()) for patch in figure.axes[0].patches
    ]
    assert grounds[:4] == [COLOURS["cache"], WASHES["cache"], WASHES["cache"], PAPER]


def test_bars_have_the_heights_of_their_series() -> None:
    figure = draw_bars({"p": (0.5, 0.25), "q": (1.0, 0.0)}, places=("a", "b"))
    assert [bar.get_height() for bar in figure.axes[0].patches] == [0.5, 0.25, 1.0, 0.0]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == [
        "a",
        "b",
    ]
    figure = draw_bars(
        {"p": (0.5,), "?": (1.0,), "q": (1.0,)}, ("a",), who=("target", None, "draft")
    )
    shown = [mpl.colors.to_hex(bar.get_facecolor()) for bar in figure.axes[0].patches]
    assert shown == [COLOURS["target"], SERIES[0], COLOURS["draft"]]
    assert not set(SERIES) & set(COLOURS.values()), (
        "a colour of a role stands for that role alone"
    )


def test_curves_points_and_labels_of_neighbours_in_one_list() -> None:
    points = {"seen": [(0.0, 0.0), (1.0, 1.0), (1.0, 0.99)]}
    names = ["low", "high", "nearly"]
    figure = draw_curves(
        {"line": [(0, 0), (1, 1)]},
        x="x",
        y="y",
        points=points,
        errors=[0.1] * 3,
        labels=names,
    )
    axes = figure.axes[0]
    assert axes.lines[0].get_ydata().tolist() == [0, 1]
    assert words(figure) == ["low", "high\nnearly"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "line",
        "seen",
    ]


def test_no_list_of_labels_lies_upon_another() -> None:
    """Points in the middle of the picture, next to each other, with long names."""
    dots = [(0.0, 0.0), (0.5, 0.5), (0.6, 0.53), (0.45, 0.42), (0.52, 0.62), (1.0, 1.0)]
    names = [f"verifier number {i}" for i in range(len(dots))]
    figure = draw_curves({}, x="x", y="y", points={"seen": dots}, labels=names)
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(boxes) == len(names)
    assert not [(a, b) for a, b in combinations(boxes, 2) if a.overlaps(b)]


def test_a_waterfall_goes_from_level_to_level() -> None:
    levels = {"formula": 2.0, "chance": 2.25, "rows": 1.5, "stopwatch": 1.5}
    figure = draw_waterfall(levels, wholes=("formula", "stopwatch"), x="speedup")
    bars = [
        (bar.get_x(), bar.get_x() + bar.get_width()) for bar in figure.axes[0].patches
    ]
    assert bars == [(0, 2.0), (2.0, 2.25), (2.25, 1.5), (0, 1.5)]
    assert [text.strip() for text in words(figure)] == [
        "2.00",
        "+0.25",
        "-0.75",
        "1.50",
    ]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == list(
        levels
    )


def test_a_field_marks_what_holds() -> None:
    figure = draw_field([[True, False], [True, True]], x="key", y="query")
    marked = [line.get_color() == SERIES[0] for line in figure.axes[0].lines]
    assert marked == [True, False, True, True]


def test_lines_of_a_function_with_and_without_sliders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def make(slope: float) -> list[Any]:
        return [("line", [(0, 0), (1, slope)])]

    draw = partial(draw_lines_of, make, x="x", y="y")
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    assert with_sliders(draw, slope=(0.0, 2.0, 1.5)).axes[0].lines[
        0
    ].get_ydata().tolist() == [
        0,
        1.5,
    ]
    widgets = ModuleType("ipywidgets")
    widgets.FloatSlider = lambda start, **settings: (
        start,
        settings["min"],
        settings["max"],
    )

    def interactive(draw: Any, how: dict[str, bool], **sliders: Any) -> Any:
        inspect.getcallargs(draw, **sliders)  # as the real one does: it needs a name
        return how["auto_display"] and sliders

    widgets.interactive = interactive  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ipywidgets", widgets)
    monkeypatch.setattr(plots, "find_spec", lambda name: object())
    draw = partial(draw)
    assert with_sliders(draw, slope=(0.0, 2.0, 1.5)) == {"slope": (1.5, 0.0, 2.0)}
