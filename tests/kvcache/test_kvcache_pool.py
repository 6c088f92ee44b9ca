"""Block ids, refcounts, tables: the part of the cache without tensors."""

import pytest

from lr.kvcache.branch import BlockTable, block_rows
from lr.kvcache.pool import BlockPool


def test_misuse_of_the_pool():
    pool = BlockPool(2)
    for call in (pool.share, pool.drop):
        for block in (0, -1, 2):  # free, or no block
            with pytest.raises(AssertionError):
                call(block)
    with pytest.raises(AssertionError):
        pool.allocate(-1)


def test_short_rows_repeat_a_block_of_their_own():
    tables = [BlockTable(4, [7, 2], 6), BlockTable(4, [5], 1)]
    assert block_rows(tables) == [[7, 2], [5, 5]]
    assert tables[1].blocks == [5]
    with pytest.raises(AssertionError, match="empty"):
        block_rows([*tables, BlockTable(4)])
