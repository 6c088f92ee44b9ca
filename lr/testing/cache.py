"""The law of the paged cache: free + used = total, and every block has as many owners as its count
says. The tests check it after each test, on every cache that was made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from lr.kvcache.branch import BlockTable, blocks_for
from lr.kvcache.cache import PagedKVCache


def check_cache(cache: PagedKVCache, tables: Iterable[BlockTable] | None = None) -> None:
    """Raise `AssertionError` unless free + used = total and every refcount is how many live tables
    hold the block. `tables`: all that should be live, so that a branch is found that somebody
    forgot to release.
    """
    tables, pool = list(cache.live_tables if tables is None else tables), cache.pool
    forgotten = cache.live_tables.difference(tables)
    assert not forgotten, f"{len(forgotten)} live tables were not given: {list(forgotten)}"
    for table in tables:
        assert table in cache.live_tables, f"not a live table of this cache: {table}"
        fits = len(table.blocks) == blocks_for(table.length, cache.block_size)
        assert fits, f"blocks and length do not fit: {table}"
    counts = [pool.refcount(block) for block in range(pool.num_blocks)]
    free = counts.count(0)
    assert pool.num_free == free, f"{pool.num_free} blocks are free, {free} are held by nobody"
    held = Counter(block for table in tables for block in table.blocks)
    for block, count in enumerate(counts):
        if count != held[block]:
            owners = [table for table in tables if block in table.blocks]
            raise AssertionError(f"block {block} has refcount {count}, held by {owners}")
