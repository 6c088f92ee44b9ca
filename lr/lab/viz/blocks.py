"""Draws a paged cache as it is now: which block is free, who holds the others, and what stands in
them.

    draw_blocks(cache, {"A": (table_a, "the cat sat"), "B": (table_b, "the cat ran")})

One letter stands for one token; the cache itself knows no tokens, so the texts come along. It only
reads. Read next: `kvcache/pool.py`, whose counts are drawn here; `canvas.py` for the colours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lr.kvcache.cache import PagedKVCache
from lr.kvcache.table import BlockTable
from lr.lab.viz.canvas import IDLE, INK, canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OWN, SHARED, FREE = "#bee3f8", "#fbd38d", "#ffffff"
"""Colours of a block with one holder, with several, and of one that nobody holds."""
PER_LINE = 8


def draw_blocks(cache: PagedKVCache, branches: Mapping[str, tuple[BlockTable, str]]) -> Figure:
    """Every block of the cache with its id, its holders' names and, letter by letter, the tokens
    that are valid in it.

    `branches`: by name a live table and a text of at least `table.length` letters.
    """
    lines = -(-cache.num_blocks // PER_LINE)
    figure, axes = canvas(min(cache.num_blocks, PER_LINE) * 1.1 + 0.2, 0.95 * lines + 0.35)
    for block in range(cache.num_blocks):
        holders = [name for name, (table, _) in branches.items() if block in table.blocks]
        letters = _letters(cache.block_size, block, branches)
        _draw_block(axes, block, cache.pool.refcount(block), holders, letters)
    width = min(cache.num_blocks, PER_LINE)
    axes.set(xlim=(-0.05, width), ylim=(-lines + 0.1, 0.45), aspect="auto")
    axes.axis("off")
    for i, (meaning, colour) in enumerate(
        (("one holder", OWN), ("shared", SHARED), ("free", FREE))
    ):
        axes.text(
            0.14 * i,
            0.0,
            f"  {meaning}  ",
            transform=axes.transAxes,
            fontsize=7,
            color=INK,
            bbox={"facecolor": colour, "edgecolor": IDLE, "pad": 1.5, "linewidth": 0.6},
        )
    return figure


def _letters(size: int, block: int, branches: Mapping[str, tuple[BlockTable, str]]) -> list[str]:
    """What is valid at each place of a block, for any of its holders.

    Example, size 4, A "the cat" in blocks 0 and 1: block 1 has "c", "a", "t" and nothing at its
    last place.
    """
    letters = [""] * size
    for table, text in branches.values():
        if block in table.blocks:
            first = table.blocks.index(block) * size
            for place in range(min(size, table.length - first)):
                letters[place] = text[first + place].replace(" ", "␣")
    return letters


def _draw_block(
    axes: Axes, block: int, refcount: int, holders: list[str], letters: list[str]
) -> None:
    """One block: its id and holders above, its places below."""
    x, y = block % PER_LINE, -(block // PER_LINE) * 0.95
    colour = FREE if refcount == 0 else OWN if refcount == 1 else SHARED
    width = 0.9 / len(letters)
    axes.text(x, y + 0.06, f"{block}", fontsize=8, color=INK, weight="bold")
    axes.text(x + 0.9, y + 0.06, " ".join(holders), fontsize=8, color=INK, ha="right")
    for place, letter in enumerate(letters):
        left = x + place * width
        axes.fill(
            [left, left + width, left + width, left],
            [y, y, y - 0.42, y - 0.42],
            facecolor=colour,
            edgecolor=IDLE,
            linewidth=0.8,
        )
        axes.text(
            left + width / 2, y - 0.21, letter, ha="center", va="center", fontsize=9, color="black"
        )
