"""Block ids, refcounts, tables: the part of the cache without tensors."""

import pytest

from lr.kvcache.branch import BlockTable, block_rows, blocks_for
from lr.kvcache.pool import BlockPool


def test_misuse_of_the_pool():
    pool = BlockPool(2)
    for call in (pool.share, pool.drop):
        for block in (0, -1, 2):  # free, or no block
            with pytest.raises(AssertionError):
                call(block)
    with pytest.raises(AssertionError):
        pool.allocate(-1)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_slots_follow_the_definition(size):
    blocks = [11, 3, 8, 5]
    for length in range(4 * size + 1):
        count = blocks_for(length, size)
        assert count == len({position // size for position in range(length)})
        table = BlockTable(size, blocks[:count], length)
        assert table.room == count * size - length
        slots = [blocks[t // size] * size + t % size for t in range(length)]
        for start in range(length + 1):
            for stop in range(start, length + 1):
                assert table.slots(start, stop) == slots[start:stop]
        for start, stop in ((-1, 2), (1, 0), (0, length + 1)):
            with pytest.raises(AssertionError):
                table.slots(start, stop)


def test_short_rows_repeat_a_block_of_their_own():
    tables = [BlockTable(4, [7, 2], 6), BlockTable(4, [5], 1)]
    assert block_rows(tables) == [[7, 2], [5, 5]]
    assert tables[1].blocks == [5]
    with pytest.raises(AssertionError, match="empty"):
        block_rows([*tables, BlockTable(4)])
