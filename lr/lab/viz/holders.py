"""Draws the caches of a trace at one moment for a slide: a row per branch with its blocks in order,
shared ones filled with their refcount.

    with cache_figure(Film(trace), number) as made:
        write(made, Path("cache.png"))

The picture of the player's cache. `blocks.py` draws a live cache instead, token by token. Read
next: `style.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lr.lab.trace.state import BranchState, CacheState, Film, State, fold
from lr.lab.viz.style import INK, PAPER, SOFT, WASH, WHO, figure, inches

CELL, LINE, LABEL, HEAD, MOST = 0.42, 0.5, 1.35, 0.42, 24
"""In inches: a block, the distance of rows, room for names, a cache's heading; blocks shown per
row.
"""
TITLES = {
    "target": "the target's cache",
    "draft": "the draft's cache",
    "guesser": "the guesser's cache",
}


def sharing_moment(film: Film) -> int:
    """After how many events the most blocks are shared, over all caches; the first such moment."""
    best, most = 0, -1
    state = State.begin(film.trace.header)
    for record in film.trace.records:
        fold(state, record)
        if record.kind in ("fork", "grow"):
            held = [cache.holders_by_block().values() for cache in state.caches.values()]
            shared = sum(len(holders) > 1 for blocks in held for holders in blocks)
            if shared > most:
                best, most = record.number + 1, shared
    return best


@contextmanager
def cache_figure(film: Film, number: int) -> Iterator[Any]:
    """All caches after `number` events. Raises nothing where there is none: the figure says so."""
    caches = [cache for cache in film.at(number).caches.values() if cache.branches]
    longest = max(
        (min(len(one.blocks), MOST) for cache in caches for one in cache.branches.values()),
        default=4,
    )
    width = LABEL + max(longest, 13) * CELL + 0.3
    height = 0.4 + sum(HEAD + LINE * len(cache.branches) for cache in caches) + 0.1
    with figure(width, height, size=9, salt="lr draw") as made:
        axes = inches(made, width, height)
        axes.text(0.1, 0.2, f"event {number} of {len(film)}", color=SOFT, fontsize=8, va="center")
        y = 0.4
        for cache in caches:
            y = _draw_cache(axes, cache, y)
        if not caches:
            axes.text(0.1, 0.42, "no branch is live", fontsize=9, color=INK, va="center")
        yield made


def _draw_cache(axes: Any, cache: CacheState, y: float) -> float:
    holders = cache.holders_by_block()
    shared = sum(len(one) > 1 for one in holders.values())
    heading = TITLES.get(cache.name, cache.name)
    axes.text(0.1, y + 0.16, heading, fontsize=10, weight="bold", color=WHO["cache"], va="center")
    counts = f"{len(holders)} of {cache.total} blocks used, {shared} shared (×: refcount); {cache.block_size} tokens in a block"
    axes.text(LABEL + 0.6, y + 0.16, counts, fontsize=7.5, color=SOFT, va="center")
    y += HEAD
    for number in sorted(cache.branches):
        _draw_branch(axes, cache, cache.branches[number], y, holders)
        y += LINE
    return y


def _draw_branch(
    axes: Any, cache: CacheState, branch: BranchState, y: float, holders: dict[int, list[int]]
) -> None:
    """One row. Of a table longer than the row, the first block and the last ones."""
    name = "passing" if branch.node is None else f"node {branch.node}"
    axes.text(
        0.1,
        y + 0.13,
        name,
        fontsize=8.5,
        weight="bold",
        color=INK if branch.node else SOFT,
        va="center",
    )
    length = f"branch {branch.number}, {branch.length} tokens"
    axes.text(0.1, y + 0.31, length, fontsize=6.5, color=SOFT, va="center")
    hidden = len(branch.blocks) - MOST
    places: list[int | None] = list(range(len(branch.blocks)))
    if hidden > 0:
        places = [0, None, *range(hidden + 2, len(branch.blocks))]
    for column, place in enumerate(places):
        x = LABEL + column * CELL
        if place is None:
            axes.text(
                x + CELL / 2,
                y + CELL / 2,
                f"⋯{hidden + 1}",
                fontsize=7,
                color=SOFT,
                ha="center",
                va="center",
            )
            continue
        block = branch.blocks[place]
        size = max(1, cache.block_size)
        filled = min(1.0, max(0.0, (branch.length - place * size) / size))
        _draw_block(axes, (x, y), block, len(holders[block]), filled)


def _draw_block(axes: Any, at: tuple[float, float], block: int, count: int, filled: float) -> None:
    """A block: its number, its refcount if it is shared, and a bar that says how full the branch
    sees it.
    """
    x, y = at
    side = CELL - 0.05
    ground, ink = (WHO["cache"], PAPER) if count > 1 else (WASH["cache"], INK)
    axes.fill(
        [x, x + side, x + side, x],
        [y, y, y + side, y + side],
        facecolor=ground,
        edgecolor=WHO["cache"],
        linewidth=0.8,
    )
    middle = x + side / 2
    axes.text(
        middle, y + 0.12, str(block), fontsize=8, weight="bold", color=ink, ha="center", va="center"
    )
    if count > 1:
        axes.text(middle, y + 0.235, f"×{count}", fontsize=6, color=ink, ha="center", va="center")
    left, foot = x + 0.03, y + side - 0.07
    right = left + (side - 0.06) * filled
    axes.fill(
        [left, right, right, left], [foot, foot, foot + 0.04, foot + 0.04], color=ink, linewidth=0
    )
