"""A live paged cache, for notebooks: the blocks of the pool, and below them one row per
branch with its block table. Shared blocks are filled and carry their refcount.

    draw_blocks(cache, {"A": (table_a, "the cat sat"), "B": (table_b, "the cat ran")})

One letter is one token; the caller passes the texts because the cache knows no tokens.
Read next: `kvcache/pool.py`, whose counts are drawn here."""

from __future__ import annotations

from collections.abc import Mapping
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

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lr.kvcache.branch import BlockTable
    from lr.kvcache.cache import PagedKVCache

BLOCK, LETTER, LABEL = 0.42, 0.2, 1.35
"""In inches: the height of a block, the width of a letter in it, room for names."""


def draw_blocks(
    cache: PagedKVCache, branches: Mapping[str, tuple[BlockTable, str]]
) -> Figure:
    """The pool and the block tables of `branches`: by name, a live table and a text of
    at least `table.length` letters."""
    size = cache.block_size
    texts = dict.fromkeys(range(cache.num_blocks), "")
    for table, text in branches.values():
        valid = text[: table.length].replace(" ", "␣")
        for i, block in enumerate(table.blocks):
            letters = valid[i * size : (i + 1) * size]
            texts[block] = max(texts[block], letters, key=len)
    cell = LETTER * size + 0.15
    width = LABEL + cell * max(cache.num_blocks, 6) + 0.2
    height = 0.6 + (BLOCK + 0.08) * (1 + len(branches))

    with figure(width, height, size=9) as drawing:
        axes = inches(drawing, width, height)
        counts = [cache.pool.refcount(block) for block in range(cache.num_blocks)]
        occupied = sum(count > 0 for count in counts)
        shared = sum(count > 1 for count in counts)
        head = (
            f"{occupied} of {cache.num_blocks} blocks used, {shared} shared (filled, ×)"
        )
        put(axes, 0.1, 0.2, head, 8, SOFT)
        y = 0.4
        put(axes, 0.1, y + BLOCK / 2, "pool", 9, SOFT)
        for block in range(cache.num_blocks):
            at = (LABEL + block * cell, y)
            _draw_block(axes, at, cell, block, counts[block], texts[block])
        y += BLOCK + 0.2
        for name, (table, _) in branches.items():
            put(axes, 0.1, y + 0.13, name, 9, INK, weight="bold")
            put(axes, 0.1, y + 0.31, f"{table.length} tokens", 7, SOFT)
            for i, block in enumerate(table.blocks):
                letters = texts[block][: table.length - i * size]
                at = (LABEL + i * cell, y)
                _draw_block(axes, at, cell, block, counts[block], letters)
            y += BLOCK + 0.08
    return drawing


def _draw_block(
    axes: Any, at: tuple[float, float], cell: float, block: int, count: int, text: str
) -> None:
    """A block: its number, its refcount if it is shared, and its letters."""
    x, y = at
    ground, ink = WASHES["cache"], INK
    if count == 0:
        ground, ink = PAPER, SOFT
    elif count > 1:
        ground, ink = COLOURS["cache"], PAPER
    style = {"facecolor": ground, "edgecolor": COLOURS["cache"], "linewidth": 0.8}
    axes.barh(y, cell - 0.05, BLOCK - 0.05, x, align="edge", **style)
    put(axes, x + 0.05, y + 0.1, str(block), 7, ink, weight="bold")
    if count > 1:
        put(axes, x + cell - 0.1, y + 0.1, f"×{count}", 6.5, ink, ha="right")
    for i, letter in enumerate(text):
        middle = x + 0.05 + (i + 0.5) * LETTER
        put(axes, middle, y + 0.25, letter, 9, ink, ha="center")
