"""The grader of copy_on_write.py: a cache of paper whose tokens can be read back, beside the
package's own.
"""

from __future__ import annotations

import random
from types import ModuleType

import pytest
import torch

from lr.errors import OutOfBlocks
from lr.kvcache.cache import PagedKVCache
from lr.kvcache.pool import BlockPool
from lr.kvcache.table import BlockTable, blocks_for

SIZE = 4


class Paper:
    """A cache that remembers a token per slot, and what every branch should contain."""

    def __init__(self, answer: ModuleType, blocks: int = 12) -> None:
        self.answer, self.pool = answer, BlockPool(blocks)
        self.memory: list[int | None] = [None] * (blocks * SIZE)
        self.branches: list[tuple[BlockTable, list[int]]] = []
        self.copied = self.written = 0

    def open(self) -> int:
        """A new branch; returns its number."""
        self.branches.append((BlockTable(SIZE), []))
        return len(self.branches) - 1

    def fork(self, number: int) -> int:
        """A branch that shares every block."""
        table, tokens = self.branches[number]
        for block in table.blocks:
            self.pool.share(block)
        self.branches.append((BlockTable(SIZE, list(table.blocks), table.length), list(tokens)))
        return len(self.branches) - 1

    def release(self, number: int) -> None:
        """Give all blocks back."""
        table, _ = self.branches.pop(number)
        for block in reversed(table.blocks):
            self.pool.drop(block)

    def write(self, number: int, count: int) -> list[tuple[int, int]]:
        """Append `count` new tokens by your function; returns its copies."""
        table, tokens = self.branches[number]
        slots, copies = self.answer.append(self.pool, table, count)
        for source, copy in copies:
            self.memory[copy * SIZE : (copy + 1) * SIZE] = self.memory[
                source * SIZE : (source + 1) * SIZE
            ]
        assert len(slots) == count, "one slot per new token"
        for slot in slots:
            self.written += 1
            self.memory[slot] = self.written
            tokens.append(self.written)
        self.copied += len(copies)
        return copies

    def check(self) -> None:
        """Every branch reads what it wrote, and every block has as many holders as the pool
        says.
        """
        for table, tokens in self.branches:
            assert table.length == len(tokens) and len(table.blocks) == blocks_for(
                table.length, SIZE
            )
            read = [self.memory[slot] for slot in table.slots(0, table.length)]
            assert read == tokens, (
                f"a branch wrote {tokens} and reads {read}: somebody else wrote there"
            )
        for block in range(self.pool.num_blocks):
            holders = sum(block in table.blocks for table, _ in self.branches)
            assert self.pool.refcount(block) == holders, f"block {block} is counted wrongly"


def test_the_example_of_the_exercise(answer: ModuleType) -> None:
    """Blocks of 4, six tokens, the last block shared, three more tokens."""
    pool = BlockPool(6)
    table = BlockTable(SIZE, pool.allocate(2), 6)
    pool.share(0)
    pool.share(1)
    assert answer.append(pool, table, 3) == ([10, 11, 12], [(1, 2)])
    assert (table.blocks, table.length, pool.refcount(1)) == ([0, 2, 3], 9, 1)


def test_a_branch_alone_never_copies(answer: ModuleType) -> None:
    """It fills its blocks, one after the other."""
    paper = Paper(answer)
    branch = paper.open()
    for count in (1, 2, 3, 0, 5, 1):
        assert paper.write(branch, count) == []
        paper.check()


def test_forks_do_not_touch_each_other(answer: ModuleType) -> None:
    """Two branches go on from the same half-filled block."""
    paper = Paper(answer)
    first = paper.open()
    paper.write(first, 6)
    second = paper.fork(first)
    paper.write(second, 1)
    paper.write(first, 1)
    paper.check()


def test_a_full_block_is_never_copied(answer: ModuleType) -> None:
    """Nobody writes into it any more, so it may be shared for ever."""
    paper = Paper(answer)
    first = paper.open()
    paper.write(first, 8)
    assert paper.write(paper.fork(first), 3) == []
    paper.check()


def test_nothing_to_write_is_nothing_to_copy(answer: ModuleType) -> None:
    """No new tokens: no block is touched."""
    paper = Paper(answer)
    first = paper.open()
    paper.write(first, 6)
    assert paper.write(paper.fork(first), 0) == []
    paper.check()


def test_the_last_holder_does_not_copy(answer: ModuleType) -> None:
    """When the others have left a block, it is one's own."""
    paper = Paper(answer)
    first = paper.open()
    paper.write(first, 6)
    second = paper.fork(first)
    assert len(paper.write(second, 1)) == 1
    assert paper.write(first, 1) == []
    paper.check()


@pytest.mark.parametrize("count", [5, 30])
def test_all_or_nothing(answer: ModuleType, count: int) -> None:
    """Three blocks, two in use: five more tokens would need a copy and a block, thirty far more.
    Nothing may have changed.
    """
    paper = Paper(answer, blocks=3)
    first = paper.open()
    paper.write(first, 6)
    table, _ = paper.branches[paper.fork(first)]
    with pytest.raises(OutOfBlocks):
        answer.append(paper.pool, table, count)
    assert (table.blocks, table.length, paper.pool.num_free) == ([0, 1], 6, 1)
    paper.check()


@pytest.mark.parametrize("seed", range(10))
def test_a_long_random_life(answer: ModuleType, seed: int) -> None:
    """Forks, releases and appends in any order; as many copies and blocks as the package's own
    cache needs.
    """
    chance, paper = random.Random(seed), Paper(answer, blocks=40)
    cache = PagedKVCache(
        num_layers=1,
        num_kv_heads=1,
        head_dim=1,
        num_blocks=40,
        block_size=SIZE,
        dtype=torch.float32,
        device="cpu",
    )
    paper.open()
    twins = [cache.new()]
    for _ in range(60):
        at, what = chance.randrange(len(twins)), chance.random()
        if what < 0.25 and len(twins) < 6:
            paper.fork(at)
            twins.append(cache.fork(twins[at]))
        elif (what < 0.4 and len(twins) > 1) or twins[at].length > 20:
            paper.release(at)
            cache.release(twins.pop(at))
            if not twins:
                paper.open()
                twins.append(cache.new())
        else:
            count = chance.randrange(6)
            paper.write(at, count)
            with cache.append([twins[at]], [count]):
                pass
        paper.check()
        assert (paper.copied, paper.pool.num_free) == (cache.copied_blocks, cache.pool.num_free)
