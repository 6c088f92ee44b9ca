"""The drawings say what the run says: who wrote what, what is rejected, in which order all was
completed.
"""

from __future__ import annotations

import builtins
from typing import Any

import pytest

from lr.errors import LRError
from lr.lab.scripted import ScriptedRun, TextScript, newest, oldest, text_of
from lr.lab.viz.canvas import COLOURS, GONE, KEPT
from lr.lab.viz.order import draw_order, lives_of
from lr.lab.viz.tree import draw_tree, place
from lr.spec.protocol import Kind, Limits, NodeId, SchedulerConfig, Work

SCRIPT = TextScript(["a.", "b.", "c$"], ["A.|X.", "Y.|B.", "C$|Z$"])


def a_run(width: int = 1, depth: int = 2, order: Any = oldest) -> ScriptedRun:
    return ScriptedRun(SchedulerConfig(Limits(50), depth=depth, width=width), SCRIPT, order)


def labels(figure: Any) -> dict[str, str]:
    """What is written in a drawing, with its colour."""
    return {text.get_text(): text.get_color() for text in figure.axes[0].texts}


def test_the_tree_shows_who_wrote_what() -> None:
    run = a_run()
    assert "…" in labels(draw_tree(run, text_of)), "both first steps are being written"
    run.step(Work(Kind.DRAFT, NodeId(0, 1)))
    assert labels(draw_tree(run, text_of))["A."] == COLOURS[Kind.DRAFT]
    run.step(Work(Kind.TARGET, NodeId(0, 0)))
    shown = labels(draw_tree(run, text_of))
    assert shown["A. ?"] == COLOURS[Kind.DRAFT]
    assert shown["a."] == COLOURS[Kind.TARGET]


def test_a_rejected_draft_is_red_until_the_tree_is_cut() -> None:
    run = a_run(order=newest)
    while (
        run.scheduler.root.children[0].children == []
        or run.scheduler.root.children[0].children[0].verdict is None
    ):
        run.step()
    shown = labels(draw_tree(run, text_of))
    assert shown["Y. ✗"] == GONE
    run.run()
    shown = labels(draw_tree(run, text_of))
    assert (shown["A."], shown["b."], shown["C$"]) == (KEPT, COLOURS[Kind.TARGET], KEPT)
    assert "Y. ✗" not in shown


def test_alternatives_stand_below_each_other() -> None:
    run = a_run(width=2)
    for work in (Work(Kind.DRAFT, NodeId(0, 1)), Work(Kind.DRAFT, NodeId(0, 1, 1))):
        run.step(work)
    heights = {str(node): height for node, height in place(run.scheduler.root).items()}
    assert heights == {
        "0:0": 0,
        "0:1": 0,
        "0:2": 0,
        "0:2.1": -1,
        "0:1.1": -2,
        "0:2.2": -2,
        "0:2.3": -3,
    }


@pytest.mark.parametrize("order", [oldest, newest])
@pytest.mark.parametrize("width", [1, 2])
def test_every_piece_of_work_has_a_bar(order: Any, width: int) -> None:
    run = a_run(width, order=order)
    half = [run.step() for _ in range(3)]
    assert [life.work for life in lives_of(run.turns) if life.ended is None] == run.work
    run.run()
    lives = lives_of(run.turns)
    assert (
        len({life.work for life in lives})
        == len(lives)
        == len(draw_order(run).axes[0].get_yticks())
    )
    assert all(life.ended is not None and life.ended > life.begun for life in lives)
    finished = sorted(life.ended for life in lives if life.ended is not None and not life.cancelled)
    assert finished == list(range(1, len(run.turns))), (
        "each turn but the start completes one piece of work"
    )
    assert len(half) == 3


def test_a_stale_event_moves_no_bar() -> None:
    run = a_run(width=2)
    run.run()
    [late, *_] = [life.work for life in lives_of(run.turns) if life.cancelled]
    before = lives_of(run.turns)
    run.tell(run.event_of(late))
    assert lives_of(run.turns) == before


def test_without_matplotlib_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(LRError, match="pip install matplotlib"):
        draw_tree(a_run(), text_of)
