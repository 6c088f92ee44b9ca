"""A live paged cache, for notebooks: the blocks of the pool, and below them one row per
branch with its block table. Shared blocks are filled and carry their refcount.

    draw_blocks(cache, {"A": (table_a, "the cat sat"), "B": (table_b, "the cat ran")})

One letter is one token; the caller passes the texts because the cache knows no tokens.
Read next: `kvcache/pool.py`, whose counts are drawn here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lr.watch.figures.style import COLOURS, PAPER, SOFT, WASHES, figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lr.kvcache.branch import BlockTable
    from lr.kvcache.cache import PagedKVCache

LETTER = 0.14  # Inches for a letter in a block.
ROW_HEIGHT = 0.45  # Inches of a row.


def draw_blocks(
    cache: PagedKVCache, branches: Mapping[str, tuple[BlockTable, str]]
) -> Figure:
    """The pool and the block tables of `branches`: by name, a live table and a text of
    at least `table.length` letters."""
    size = cache.block_size
    counts = [cache.pool.refcount(block) for block in range(cache.num_blocks)]
    letters = dict.fromkeys(range(cache.num_blocks), "")  # what each block holds
    rows = {}
    for name, (table, text) in branches.items():
        valid = text[: table.length].replace(" ", "␣")  # later letters are uncomputed
        row = []
        for i, block in enumerate(table.blocks):
            held = valid[i * size : (i + 1) * size]
            letters[block] = max(letters[block], held, key=len)  # of its owners' views
            row.append((block, held))
        rows[f"{name}, {table.length} tokens"] = row
    rows = {"pool": list(letters.items())} | rows

    width = max(map(len, rows.values())) * (LETTER * size + 0.25) + 1.4
    with figure(width, ROW_HEIGHT * len(rows) + 0.5, size=9) as drawing:
        axes = drawing.subplots()
        axes.axis("off")
        used = sum(count > 0 for count in counts)
        shared = sum(count > 1 for count in counts)
        head = f"{used} of {len(counts)} blocks used, {shared} shared (filled, ×)"
        axes.set_title(head, fontsize=8, color=SOFT, loc="left")
        columns = max(map(len, rows.values()))
        grid = axes.table(
            [[""] * columns] * len(rows),
            rowLabels=list(rows),
            cellLoc="left",
            bbox=(0, 0, 1, 1),
        )
        for y, row in enumerate(rows.values()):
            for x in range(columns):
                cell = grid[y, x]
                if x >= len(row):  # rows differ in length
                    cell.set_visible(False)
                    continue
                block, held = row[x]
                count = counts[block]
                filled = count > 1  # shared
                ground = COLOURS["cache"] if filled else WASHES["cache"]
                cell.set_facecolor(ground if count else PAPER)
                text = cell.get_text()
                text.set_text(f"{block}" + f" ×{count}" * filled + f"\n{held}")
                text.set_color(PAPER if filled else "black")
    return drawing
