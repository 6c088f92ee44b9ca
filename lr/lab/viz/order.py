"""Draws a whole run: in which order work was commanded, and in which order it was completed.

    draw_order(run)

A turn is one event, so the picture shows an order and no durations. It only reads. Read next:
`lab/scripted.py`, the same as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lr.lab.scripted import ScriptedRun, Turn
from lr.lab.viz.canvas import COLOURS, GONE, INK, canvas
from lr.spec.protocol import (
    Cancel,
    Command,
    Draft,
    Drafted,
    Emit,
    Event,
    Judge,
    Judged,
    Kind,
    Target,
    Targeted,
    Work,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass
class Life:
    """A piece of work: the turn that commanded it, and the turn that completed or cancelled it
    (None: still in flight).
    """

    work: Work
    begun: int
    ended: int | None = None
    cancelled: bool = False


def lives_of(turns: Sequence[Turn]) -> list[Life]:
    """Every piece of work of some turns, in the order in which it was commanded. The start is turn
    0.
    """
    lives: dict[Work, Life] = {}
    for number, turn in enumerate(turns):
        work = None if turn.event is None else _work(turn.event)
        if (
            work is not None and lives[work].ended is None
        ):  # else the event is stale: its work was cancelled before
            lives[work].ended = number
        for command in turn.commands:
            for begun in _begun(command):
                lives[begun] = Life(begun, number)
            if isinstance(command, Cancel):
                lives[command.work].ended, lives[command.work].cancelled = number, True
    return list(lives.values())


def draw_order(run: ScriptedRun) -> Figure:
    """One bar per piece of work, from the turn that commanded it to the turn that completed it
    (dot) or cancelled it (cross).

    A dotted line stands where a step joined the output, with the number of the step.
    """
    lives, last = lives_of(run.turns), len(run.turns) - 1
    figure, axes = canvas(7.5, 0.2 * len(lives) + 0.7)
    for y, life in enumerate(lives):
        colour, end = COLOURS[life.work.kind], last if life.ended is None else life.ended
        axes.plot(
            [life.begun, end], [y, y], color=colour, linewidth=5, alpha=0.35, solid_capstyle="butt"
        )
        if life.ended is not None:
            axes.plot(
                end,
                y,
                "X" if life.cancelled else "o",
                color=GONE if life.cancelled else colour,
                markersize=6,
            )
    for number, turn in enumerate(run.turns):
        emits = [
            str(command.emitted.index) for command in turn.commands if isinstance(command, Emit)
        ]
        if emits:
            axes.axvline(number, color=INK, linewidth=0.8, linestyle=":")
            axes.text(
                number,
                -0.7,
                "step " + ", ".join(emits),
                ha="center",
                va="bottom",
                fontsize=8,
                color=INK,
            )
    axes.set_yticks(
        range(len(lives)),
        [f"{life.work.kind.value} {life.work.node}" for life in lives],
        fontsize=8,
    )
    axes.set_xlabel("turn", fontsize=8)
    axes.set(ylim=(len(lives) - 0.4, -0.6), xlim=(-0.3, last + 0.5))
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _begun(command: Command) -> list[Work]:
    """The pieces of work that a command begins."""
    match command:
        case Draft(_, children):
            return [Work(Kind.DRAFT, child) for child in children]
        case Target(node):
            return [Work(Kind.TARGET, node)]
        case Judge(node):
            return [Work(Kind.JUDGE, node)]
        case _:
            return []


def _work(event: Event) -> Work:
    """The piece of work that an event completes."""
    match event:
        case Drafted(node):
            return Work(Kind.DRAFT, node)
        case Targeted(node):
            return Work(Kind.TARGET, node)
        case Judged(node):
            return Work(Kind.JUDGE, node)
