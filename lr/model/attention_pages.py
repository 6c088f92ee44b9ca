"""How keys and values are read out of a paged cache: in place where the blocks lie side by side,
else gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from lr.kvcache.cache import PagedKVCache
from lr.model.batch import integers

Reader = Callable[[int], tuple[Tensor, Tensor]]
"""read(layer) -> keys and values, each [g, kv, s, d]."""


def reader(cache: PagedKVCache, rows: Sequence[Sequence[int]], span: int) -> Reader:
    """How the first `span` slots of each of g rows of blocks (all of one length) are read.

    A branch that grows alone gets blocks in a row, such as [4, 5, 6]; then one view of all layers
    is made here, once.
    """
    if len(rows) == 1 and in_a_row(rows[0]):
        start = rows[0][0] * cache.block_size
        keys, values = (
            memory.flatten(1, 2)[:, None, start : start + span].transpose(2, 3).unbind(0)
            for memory in (cache.keys, cache.values)
        )
        return lambda layer: (keys[layer], values[layer])
    pages = integers(rows, cache.keys.device)

    def read(layer: int) -> tuple[Tensor, Tensor]:
        keys, values = cache.gather(layer, pages)
        return keys[:, :span].transpose(1, 2), values[:, :span].transpose(1, 2)

    return read


def in_a_row(blocks: Sequence[int]) -> bool:
    """Whether the blocks (at least one) lie side by side in memory, in this order."""
    return list(blocks) == list(range(blocks[0], blocks[0] + len(blocks)))
