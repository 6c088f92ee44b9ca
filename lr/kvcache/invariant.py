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
    tables = list(cache.live_tables if tables is None else tables)
    pool = cache.pool
    forgotten = cache.live_tables.difference(tables)  # branches that nobody released
    assert not forgotten, (
        f"{len(forgotten)} live tables were not given: {list(forgotten)}"
    )
    for table in tables:
        assert table in cache.live_tables, f"not a live table of this cache: {table}"
        fits = len(table.blocks) == blocks_for(table.length, cache.block_size)
        assert fits, f"blocks and length do not match: {table}"
    # what the pool believes
    counts = [pool.refcount(block) for block in range(pool.num_blocks)]
    free = counts.count(0)
    assert pool.num_free == free, (
        f"{pool.num_free} blocks are free, {free} have no owner"
    )
    # what the tables say
    held = Counter(block for table in tables for block in table.blocks)
    for block, count in enumerate(counts):
        if count != held[block]:
            owners = [table for table in tables if block in table.blocks]
            raise AssertionError(
                f"block {block} has refcount {count}, held by {owners}"
            )
