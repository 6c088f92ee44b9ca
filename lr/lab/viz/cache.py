"""The paged cache at one moment: the pool's blocks by number, and below them a row per branch with
its block table. Shared blocks are filled and carry their refcount.

    with cache_figure(state) as made:
        write(made, Path("cache.png"))
    draw_blocks(cache, {"A": (table_a, "the cat sat"), "B": (table_b, "the cat ran")})

The first draws the caches of a trace, the second a live cache in a notebook, where one letter
stands for one token; the cache itself knows no tokens, so the texts come along. It only reads. Read
next: `kvcache/pool.py`, whose counts are drawn here; `style.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lr.lab.trace.state import BranchState, CacheState, State, TraceStates, fold
from lr.lab.viz.style import COLOURS, INK, PAPER, SOFT, WASHES, figure, inches, put

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lr.kvcache.branch import BlockTable
    from lr.kvcache.cache import PagedKVCache

CELL, LETTER, LABEL, HEAD, MOST = 0.42, 0.2, 1.35, 0.42, 24
"""In inches: a block, a letter in it, room for names, a cache's heading; blocks in a line."""


@dataclass(frozen=True)
class Picture:
    """A cache to be drawn. `names`: of its branches; `letters`: by block what is valid in it, where
    the tokens are known."""

    title: str
    cache: CacheState
    names: Mapping[int, str]
    letters: Mapping[int, str]

    @property
    def cell(self) -> float:
        """Width of a block, in inches."""
        return max(CELL, LETTER * self.cache.block_size + 0.1) if self.letters else CELL

    @property
    def strip(self) -> int:
        """Blocks of the pool that are shown: up to the last one in use, or all of a small pool."""
        used = max(self.cache.used, default=-1) + 1
        return self.cache.total if self.letters else min(max(used, 1), 3 * self.per_line)

    @property
    def per_line(self) -> int:
        return max(4, int(MOST * CELL / self.cell))

    @property
    def width(self) -> float:
        longest = max((len(one.blocks) for one in self.cache.branches.values()), default=0)
        columns = min(max(longest, self.strip), self.per_line)
        return max(columns, round(13 * CELL / self.cell)) * self.cell

    @property
    def height(self) -> float:
        lines = -(-self.strip // self.per_line) + len(self.cache.branches)
        return HEAD + lines * (CELL + 0.08) + 0.12


def sharing_moment(film: TraceStates) -> int:
    """After how many events the most blocks are shared, over all caches; the first such moment."""
    best, most, state = 0, -1, State.begin(film.trace.header)
    for record in film.trace.records:
        fold(state, record)
        if record.kind in ("fork", "grow"):
            held = [cache.holders_by_block().values() for cache in state.caches.values()]
            shared = sum(len(holders) > 1 for blocks in held for holders in blocks)
            if shared > most:
                best, most = record.number + 1, shared
    return best


def draw_blocks(cache: PagedKVCache, branches: Mapping[str, tuple[BlockTable, str]]) -> Figure:
    """A live cache, for notebooks. `branches`: by name a live table and a text of at least
    `table.length` letters."""
    state = CacheState("", cache.num_blocks, cache.block_size)
    letters = dict.fromkeys(range(cache.num_blocks), "")
    for number, (table, text) in enumerate(branches.values()):
        state.branches[number] = BranchState(number, list(table.blocks), table.length)
        for place, block in enumerate(table.blocks):
            first = place * cache.block_size
            seen = text[first : min(first + cache.block_size, table.length)]
            letters[block] = max(letters[block], seen.replace(" ", "␣"), key=len)
    picture = Picture("blocks", state, dict(enumerate(branches)), letters)
    with _drawn([picture]) as made:
        return made


@contextmanager
def cache_figure(state: State, of: int | None = None) -> Iterator[Any]:
    """All caches of a state. `of`: how many events the trace has, to be written on the figure."""
    pictures = []
    for cache in state.caches.values():
        branches = cache.branches.values()
        names = {one.number: f"node {one.node}" if one.node else "passing" for one in branches}
        if names:
            pictures.append(Picture(f"the {cache.name}'s cache", cache, names, {}))
    head = None if of is None else f"event {state.number} of {of}"
    with _drawn(pictures, head) as made:
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
            _draw_cache(axes, one, top)
            top += one.height
        if not pictures:
            put(axes, 0.1, top + 0.1, "no branch is live", 9, INK)
        yield made


def _draw_cache(axes: Any, picture: Picture, y: float) -> None:
    cache, holders = picture.cache, picture.cache.holders_by_block()
    shared = sum(len(one) > 1 for one in holders.values())
    put(axes, 0.1, y + 0.16, picture.title, 10, COLOURS["cache"], weight="bold")
    counts = (
        f"{len(holders)} of {cache.total} used, {shared} shared (filled, × refcount); "
        f"{cache.block_size} tokens in a block"
    )
    put(axes, LABEL + 0.6, y + 0.16, counts, 7.5, SOFT)
    y += HEAD
    put(axes, 0.1, y + CELL / 2, "pool", 8.5, SOFT)
    size = max(1, cache.block_size)
    for block in range(picture.strip):
        x = LABEL + block % picture.per_line * picture.cell
        if block % picture.per_line == 0:
            y += (CELL + 0.08) * (block > 0)
        filled = len(picture.letters.get(block, "")) / size
        _draw_block(axes, picture, (x, y), block, len(holders.get(block, ())), filled)
    y += CELL + 0.2
    for number, branch in sorted(cache.branches.items()):
        put(axes, 0.1, y + 0.13, picture.names[number], 8.5, INK, weight="bold")
        name = "" if picture.letters else f"branch {number}, "
        put(axes, 0.1, y + 0.31, f"{name}{branch.length} tokens", 6.5, SOFT)
        hidden = len(branch.blocks) - picture.per_line
        places: list[int | None] = list(range(len(branch.blocks)))
        if hidden > 0:  # the first block and the last ones
            places = [0, None, *range(hidden + 2, len(branch.blocks))]
        for column, place in enumerate(places):
            x = LABEL + column * picture.cell
            if place is None:
                put(axes, x + CELL / 2, y + CELL / 2, f"⋯{hidden + 1}", 7, SOFT, ha="center")
                continue
            block = branch.blocks[place]
            filled = min(1.0, max(0.0, (branch.length - place * size) / size))
            _draw_block(axes, picture, (x, y), block, len(holders[block]), filled)
        y += CELL + 0.08


def _draw_block(
    axes: Any, picture: Picture, at: tuple[float, float], block: int, count: int, filled: float
) -> None:
    """A block: its number, its refcount if it is shared, the letters in it, and at its foot a bar
    that says how full it is."""
    x, y = at
    width, height = picture.cell - 0.05, CELL - 0.05
    ground, ink = (COLOURS["cache"], PAPER) if count > 1 else (WASHES["cache"], INK)
    if count == 0:
        ground, ink = PAPER, SOFT
    corners = ([x, x + width, x + width, x], [y, y, y + height, y + height])
    axes.fill(*corners, facecolor=ground, edgecolor=COLOURS["cache"], linewidth=0.8)
    letters = picture.letters.get(block, "")[: round(filled * picture.cache.block_size)]
    times, middle = f"×{count}" if count > 1 else "", x + width / 2
    if picture.letters:
        put(axes, x + 0.05, y + 0.1, str(block), 7, ink, weight="bold")
        put(axes, x + width - 0.05, y + 0.1, times, 6.5, ink, ha="right")
        for place, letter in enumerate(letters):
            put(axes, x + 0.025 + (place + 0.5) * LETTER, y + 0.24, letter, 9, ink, ha="center")
        return
    put(axes, middle, y + 0.12, str(block), 8, ink, weight="bold", ha="center")
    put(axes, middle, y + 0.235, times, 6, ink, ha="center")
    left, foot = x + 0.03, y + height - 0.07
    right = left + (width - 0.06) * filled
    axes.fill([left, right, right, left], [foot] * 2 + [foot + 0.04] * 2, color=ink, linewidth=0)
