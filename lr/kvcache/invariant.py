"""The invariant of the paged cache: free + used = total, and each refcount is the
number of owners. The test suite checks it after each test on every cache."""

from collections import Counter
from collections.abc import Iterable

from lr.kvcache.branch import BlockTable, blocks_for
from lr.kvcache.cache import PagedKVCache


def check_cache(
    cache: PagedKVCache, tables: Iterable[BlockTable] | None = None
) -> None:
    """Raise `AssertionError` if the invariant does not hold.

    `tables`: all tables that should be live, to find branches that were not
    released."""
    live = cache.live_tables
    tables = live if tables is None else set(tables)
    # branches that nobody released, or that were released too early
    assert tables == live, f"not both given and live: {[*tables ^ live]}"
    for table in tables:
        fits = len(table.blocks) == blocks_for(table.length, cache.block_size)
        assert fits, f"blocks and length do not match: {table}"
    # what the tables say, and what the pool believes
    held = Counter(block for table in tables for block in table.blocks)
    for block in range(cache.pool.num_blocks):
        count = cache.pool.refcount(block)
        assert count == held[block], (
            f"block {block} has refcount {count}, held by "
            f"{[table for table in tables if block in table.blocks]}"
        )
    used = cache.pool.num_used
    assert used == len(held), f"{used} blocks are in use, {len(held)} have an owner"
