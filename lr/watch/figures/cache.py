"""The paged cache at one moment: the blocks of the pool, and below them one row per
branch with its block table. Shared blocks are filled and carry their refcount.

    with cache_figure(state) as made:
        write(made, Path("cache.png"))
    draw_blocks(cache, {"A": (table_a, "the cat sat"), "B": (table_b, "the cat ran")})

`cache_figure` draws the caches of a trace, `draw_blocks` a live cache in a notebook.
There one letter is one token, and the caller passes the texts because the cache knows
no tokens. Read next: `kvcache/pool.py`, whose counts are drawn here; `style.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lr.watch.figures.style import (
    COLOURS,
    INK,
    PAPER,
    SOFT,
    WASHES,
    figure,
    inches,
    put,
)
from lr.watch.trace.file import TraceFile
from lr.watch.trace.state import BranchState, CacheState, State, apply_event

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lr.kvcache.branch import BlockTable
    from lr.kvcache.cache import PagedKVCache

CELL, LETTER, LABEL, HEAD, MOST = 0.42, 0.2, 1.35, 0.42, 24
"""In inches: a block, a letter in it, room for names, a cache's heading. Then: blocks
per line."""


class Picture:
    """A cache to draw. `names`: of its branches; `letters`: the valid text of each
    block, where the tokens are known."""

    def __init__(
        self,
        title: str,
        cache: CacheState,
        names: Mapping[int, str],
        letters: Mapping[int, str],
    ) -> None:
        self.title, self.cache, self.names, self.letters = title, cache, names, letters
        self.owners = cache.owners_by_block()
        self.cell = max(CELL, LETTER * cache.block_size + 0.1) if letters else CELL
        self.per_line = max(4, int(MOST * CELL / self.cell))
        # Show the pool up to the last block in use; with letters the pool is small:
        # show it whole.
        used = max(self.owners, default=-1) + 1
        self.strip = cache.total if letters else min(max(used, 1), 3 * self.per_line)
        longest = max((len(one.blocks) for one in cache.branches.values()), default=0)
        columns = min(max(longest, self.strip), self.per_line)
        self.width = max(columns, round(13 * CELL / self.cell)) * self.cell
        lines = -(-self.strip // self.per_line) + len(cache.branches)
        self.height = HEAD + lines * (CELL + 0.08) + 0.12

    def draw(self, axes: Any, y: float) -> None:
        cache, size = self.cache, max(1, self.cache.block_size)
        shared = sum(len(one) > 1 for one in self.owners.values())
        put(axes, 0.1, y + 0.16, self.title, 10, COLOURS["cache"], weight="bold")
        counts = f"{len(self.owners)} of {cache.total} used, {shared} shared (filled, × refcount)"
        counts += f"; {cache.block_size} tokens in a block"
        put(axes, LABEL + 0.6, y + 0.16, counts, 7.5, SOFT)
        y += HEAD
        put(axes, 0.1, y + CELL / 2, "pool", 8.5, SOFT)
        for block in range(self.strip):
            if block and block % self.per_line == 0:
                y += CELL + 0.08
            filled = len(self.letters.get(block, "")) / size
            self._draw_block(axes, block % self.per_line, y, block, filled)
        y += CELL + 0.2
        for number, branch in sorted(cache.branches.items()):
            put(axes, 0.1, y + 0.13, self.names[number], 8.5, INK, weight="bold")
            name = "" if self.letters else f"branch {number}, "
            put(axes, 0.1, y + 0.31, f"{name}{branch.length} tokens", 6.5, SOFT)
            hidden = max(0, len(branch.blocks) - self.per_line)
            for place, block in enumerate(branch.blocks):
                if (
                    not hidden or not 0 < place < hidden + 2
                ):  # the first block and the last ones
                    filled = min(1.0, max(0.0, (branch.length - place * size) / size))
                    column = place - hidden if place else 0
                    self._draw_block(axes, column, y, block, filled)
                elif place == 1:
                    x = LABEL + self.cell + CELL / 2
                    put(axes, x, y + CELL / 2, f"⋯{hidden + 1}", 7, SOFT, ha="center")
            y += CELL + 0.08

    def _draw_block(
        self, axes: Any, column: int, y: float, block: int, filled: float
    ) -> None:
        """A block: its number, its refcount if shared, and its letters or a bar of its
        fill."""
        x, count = LABEL + column * self.cell, len(self.owners.get(block, ()))
        width, height = self.cell - 0.05, CELL - 0.05
        ground, ink = (COLOURS["cache"], PAPER) if count > 1 else (WASHES["cache"], INK)
        if count == 0:
            ground, ink = PAPER, SOFT
        style = {"facecolor": ground, "edgecolor": COLOURS["cache"], "linewidth": 0.8}
        axes.barh(y, width, height, x, align="edge", **style)
        letters = self.letters.get(block, "")[: round(filled * self.cache.block_size)]
        times, middle = f"×{count}" if count > 1 else "", x + width / 2
        if self.letters:
            put(axes, x + 0.05, y + 0.1, str(block), 7, ink, weight="bold")
            put(axes, x + width - 0.05, y + 0.1, times, 6.5, ink, ha="right")
            for place, letter in enumerate(letters):
                put(
                    axes,
                    x + 0.025 + (place + 0.5) * LETTER,
                    y + 0.24,
                    letter,
                    9,
                    ink,
                    ha="center",
                )
            return
        put(axes, middle, y + 0.12, str(block), 8, ink, weight="bold", ha="center")
        put(axes, middle, y + 0.235, times, 6, ink, ha="center")
        foot, full = y + height - 0.07, (width - 0.06) * filled
        axes.barh(foot, full, 0.04, x + 0.03, align="edge", color=ink, linewidth=0)


def most_sharing(trace: TraceFile) -> int:
    """The first number of events after which the most blocks of all caches are
    shared."""
    state, shared = State.begin(trace.header), {0: -1}
    for record in trace.records:
        apply_event(state, record)
        if record.kind in ("fork", "grow"):
            held = [cache.owners_by_block().values() for cache in state.caches.values()]
            shared[state.number] = sum(
                len(owners) > 1 for blocks in held for owners in blocks
            )
    return max(shared, key=shared.__getitem__)


def draw_blocks(
    cache: PagedKVCache, branches: Mapping[str, tuple[BlockTable, str]]
) -> Figure:
    """A live cache, for notebooks. `branches`: by name, a live table and a text of at
    least `table.length` letters."""
    state = CacheState("", cache.num_blocks, cache.block_size)
    letters = dict.fromkeys(range(cache.num_blocks), "")
    for number, (table, text) in enumerate(branches.values()):
        state.branches[number] = BranchState(number, list(table.blocks), table.length)
        valid = text[: table.length].replace(" ", "␣")
        for place, block in enumerate(table.blocks):
            seen = valid[place * cache.block_size :][: cache.block_size]
            letters[block] = max(letters[block], seen, key=len)
    picture = Picture("blocks", state, dict(enumerate(branches)), letters)
    with _drawn([picture]) as made:
        return made


@contextmanager
def cache_figure(state: State, of: int | None = None) -> Iterator[Any]:
    """All caches of a state. `of`: the number of events of the trace, to write on the
    figure."""
    pictures = []
    for cache in state.caches.values():
        branches = cache.branches.values()
        names = {
            one.number: f"node {one.node}" if one.node else "passing"
            for one in branches
        }
        if names:
            pictures.append(Picture(f"the {cache.name}'s cache", cache, names, {}))
    with _drawn(
        pictures, None if of is None else f"event {state.number} of {of}"
    ) as made:
        yield made


@contextmanager
def _drawn(pictures: list[Picture], head: str | None = None) -> Iterator[Any]:
    top = 0.1 if head is None else 0.4
    width = LABEL + 0.3 + max((one.width for one in pictures), default=6)
    height = top + sum(one.height for one in pictures) + 0.3
    with figure(width, height, size=9, salt="lr draw") as made:
        axes = inches(made, width, height)
        put(axes, 0.1, 0.2, head or "", 8, SOFT)
        for one in pictures:
            one.draw(axes, top)
            top += one.height
        if not pictures:
            put(axes, 0.1, top + 0.1, "no branch is live", 9, INK)
        yield made
