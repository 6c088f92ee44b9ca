"""Block ids, refcounts, tables: the part of the cache without tensors."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lr.errors import OutOfBlocks, ProtocolError, SettingError
from lr.kvcache.branch import BlockTable, block_rows, blocks_for
from lr.kvcache.pool import BlockPool


def test_worked_example_of_the_pool() -> None:
    pool = BlockPool(4)
    assert pool.allocate(3) == [0, 1, 2]
    pool.share(1)
    assert [pool.refcount(block) for block in range(4)] == [1, 2, 1, 0]
    assert pool.drop(1) is False
    assert pool.drop(1) is True
    assert (pool.num_free, pool.num_used, pool.num_blocks) == (2, 2, 4)
    with pytest.raises(OutOfBlocks) as caught:
        pool.allocate(3)
    assert (caught.value.needed, caught.value.free, caught.value.total) == (3, 2, 4)
    assert [pool.refcount(block) for block in range(4)] == [1, 0, 1, 0]
    assert pool.allocate(2) == [1, 3]


@given(st.lists(st.integers(-5, 5), max_size=40))
def test_pool_never_hands_out_a_held_block(moves: list[int]) -> None:
    """Positive: allocate so many. Negative: drop that many of the oldest held blocks;
    zero shares the oldest.
    """
    pool, held = BlockPool(12), list[int]()
    for move in moves:
        if move > 0 and move > pool.num_free:
            with pytest.raises(OutOfBlocks):
                pool.allocate(move)
        elif move > 0:
            taken = pool.allocate(move)
            assert len(set(taken)) == move
            assert not set(taken) & set(held)
            held += taken
        elif move == 0 and held:
            pool.share(held[0])
            held.append(held[0])
        else:
            for block in held[:-move]:
                held.remove(block)
                assert pool.drop(block) is (block not in held)
        assert [pool.refcount(block) for block in range(12)] == [
            held.count(block) for block in range(12)
        ]
        assert pool.num_used == len(set(held)) == 12 - pool.num_free


def test_dropping_in_reverse_restores_the_order_of_ids() -> None:
    pool = BlockPool(6)
    for block in (pool.allocate(4))[1:3]:
        pool.drop(block)
    first = pool.allocate(3)
    for block in reversed(first):
        pool.drop(block)
    assert pool.allocate(3) == first == [2, 1, 4]


def test_misuse_of_the_pool() -> None:
    pool = BlockPool(2)
    for call in (pool.share, pool.drop):
        with pytest.raises(ProtocolError, match="block 0 is free"):
            call(0)
    for block in (-1, 2):
        with pytest.raises(ProtocolError, match="0 to 1"):
            pool.refcount(block)
    with pytest.raises(SettingError, match="is -1, expected 0 or more"):
        pool.allocate(-1)
    with pytest.raises(SettingError, match="num_blocks is 0"):
        BlockPool(0)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_slots_follow_the_definition(size: int) -> None:
    blocks = [11, 3, 8, 5]
    for length in range(4 * size + 1):
        need = blocks_for(length, size)
        assert need == len({position // size for position in range(length)})
        table = BlockTable(size, blocks[:need], length)
        assert table.room == need * size - length
        slots = [
            blocks[position // size] * size + position % size
            for position in range(length)
        ]
        for start in range(length + 1):
            for stop in range(start, length + 1):
                assert table.slots(start, stop) == slots[start:stop]


def test_worked_example_of_the_table() -> None:
    table = BlockTable(4, [7, 2], 6)
    assert table.slots(3, 6) == [31, 8, 9]
    assert table.room == 2
    for start, stop in ((-1, 2), (3, 2), (0, 7)):
        with pytest.raises(ProtocolError, match="branch has 6"):
            table.slots(start, stop)


def test_short_rows_repeat_a_block_of_their_own() -> None:
    tables = [BlockTable(4, [7, 2], 6), BlockTable(4, [5], 1)]
    assert block_rows(tables) == [[7, 2], [5, 5]]
    assert tables[1].blocks == [5]
    assert block_rows([]) == []
    with pytest.raises(ProtocolError, match="without tokens"):
        block_rows([*tables, BlockTable(4)])


@pytest.mark.parametrize("module", ["pool", "branch"])
def test_bookkeeping_does_not_import_torch(module: str) -> None:
    code = f"import sys, lr.kvcache.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
