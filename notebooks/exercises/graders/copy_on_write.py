"""The grader of copy_on_write.py: a cache of paper whose tokens can be read back,
beside the package's own.
"""

from __future__ import annotations

import random
from types import ModuleType

import torch
from exercise_kit import Check, Examples, Wrong, outcome_of

from lr.errors import OutOfBlocks
from lr.kvcache.branch import BlockTable, blocks_for
from lr.kvcache.cache import PagedKVCache
from lr.kvcache.pool import BlockPool

PRAISE = "No branch can tell that others share its blocks, and nothing is copied without need."
NEXT = "accept_rule"
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
        self.branches.append(
            (BlockTable(SIZE, list(table.blocks), table.length), list(tokens))
        )
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
        if len(slots) != count:
            raise Wrong(
                f"{count} new tokens need {count} slots; append returned {len(slots)}."
            )
        for slot in slots:
            self.written += 1
            self.memory[slot] = self.written
            tokens.append(self.written)
        self.copied += len(copies)
        return copies

    def check(self) -> None:
        """Every branch reads what it wrote, and every block has as many owners as the
        pool says.
        """
        for table, tokens in self.branches:
            if table.length != len(tokens):
                raise Wrong(
                    f"A branch of {len(tokens)} tokens has the length {table.length}."
                )
            if len(table.blocks) != blocks_for(table.length, SIZE):
                raise Wrong(
                    f"A branch of {len(tokens)} tokens has {len(table.blocks)} blocks of {SIZE}; "
                    f"it needs {blocks_for(table.length, SIZE)}."
                )
            read = [self.memory[slot] for slot in table.slots(0, table.length)]
            if read != tokens:
                raise Wrong(
                    f"A branch wrote {tokens} and reads {read}: another branch wrote into its "
                    "block."
                )
        for block in range(self.pool.num_blocks):
            owners = sum(block in table.blocks for table, _ in self.branches)
            if self.pool.refcount(block) != owners:
                raise Wrong(
                    f"Block {block} is in the tables of {owners} branches, and the pool counts "
                    f"{self.pool.refcount(block)}."
                )


def no_copy(copies: list[tuple[int, int]], why: str) -> None:
    """`Wrong` if something was copied."""
    if copies:
        raise Wrong(f"Block {copies[0][0]} was copied without need: {why}.")


def the_example(answer: ModuleType) -> None:
    pool = BlockPool(6)
    table = BlockTable(SIZE, pool.allocate(2), 6)
    pool.share(0)
    pool.share(1)
    said = answer.append(pool, table, 3)
    if tuple(map(list, said)) != ([10, 11, 12], [(1, 2)]):
        raise Wrong(
            "Six tokens in blocks of 4, the second block shared, three more tokens: slots "
            f"[10, 11, 12] and copies [(1, 2)] are right; append returned {said[0]} and {said[1]}."
        )
    if (table.blocks, table.length) != ([0, 2, 3], 9):
        raise Wrong(
            f"The table should have blocks [0, 2, 3] and length 9 now; it has {table.blocks} and "
            f"{table.length}."
        )
    if pool.refcount(1) != 1:
        raise Wrong(
            f"The copied block 1 has lost an owner, so the pool should count 1; it counts "
            f"{pool.refcount(1)}: the block will never be free again."
        )


def alone(answer: ModuleType) -> None:
    paper = Paper(answer)
    branch = paper.open()
    for count in (1, 2, 3, 0, 5, 1):
        no_copy(paper.write(branch, count), "no other branch holds it")
        paper.check()


def forks(answer: ModuleType) -> None:
    paper = Paper(answer)
    first = paper.open()
    paper.write(first, 6)
    second = paper.fork(first)
    paper.write(second, 1)
    paper.write(first, 1)
    paper.check()


def full_blocks(answer: ModuleType) -> None:
    paper = Paper(answer)
    first = paper.open()
    paper.write(first, 8)
    no_copy(
        paper.write(paper.fork(first), 3),
        "it is full, so nobody writes into it any more",
    )
    paper.check()


def nothing_new(answer: ModuleType) -> None:
    paper = Paper(answer)
    first = paper.open()
    paper.write(first, 6)
    no_copy(paper.write(paper.fork(first), 0), "there was no new token")
    paper.check()


def last_owner(answer: ModuleType) -> None:
    paper = Paper(answer)
    first = paper.open()
    paper.write(first, 6)
    second = paper.fork(first)
    if len(paper.write(second, 1)) != 1:
        raise Wrong(
            "A half-filled block that two branches hold was written without a copy."
        )
    no_copy(paper.write(first, 1), "the other owner has left it")
    paper.check()


def all_or_nothing(answer: ModuleType) -> None:
    for count in (5, 30):
        paper = Paper(answer, blocks=3)
        first = paper.open()
        paper.write(first, 6)
        table, _ = paper.branches[paper.fork(first)]
        try:
            answer.append(paper.pool, table, count)
        except OutOfBlocks:
            pass
        else:
            raise Wrong(f"{count} more tokens do not fit a pool with one free block, and append "
                        "did not raise OutOfBlocks.")  # fmt: skip
        if (table.blocks, table.length, paper.pool.num_free) != ([0, 1], 6, 1):
            raise Wrong(
                "OutOfBlocks was raised and something had changed already: blocks "
                f"{table.blocks} (were [0, 1]), length {table.length} (was 6), "
                f"{paper.pool.num_free} free blocks (was 1)."
            )
        paper.check()


def random_life(answer: ModuleType) -> None:
    for seed in range(10):
        chance, paper = random.Random(seed), Paper(answer, blocks=40)
        cache = PagedKVCache(
            num_layers=1, num_kv_heads=1, head_dim=1, num_blocks=40, block_size=SIZE,
            dtype=torch.float32, device="cpu",
        )  # fmt: skip
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
            if (paper.copied, paper.pool.num_free) != (
                cache.copied_blocks,
                cache.pool.num_free,
            ):
                raise Wrong(
                    f"After a random life {paper.copied} blocks were copied and "
                    f"{paper.pool.num_free} are free; {cache.copied_blocks} copies were needed, "
                    f"which leaves {cache.pool.num_free}."
                )


CHECKS = (
    Check("the example of the exercise",
          "Four things change: the table's blocks, its length, the pool's counts (`drop` the block "
          "that was copied), and what is returned.", the_example),
    Check("a branch that shares nothing",
          "Ask `pool.refcount` before you copy.", alone),
    Check("two branches that go on from one half-filled block",
          "Only the last block can be both shared and written, and only if `table.room` is not 0.",
          forks),
    Check("a full block that is shared", "A full block is never written, so never copied.",
          full_blocks),
    Check("no new token", "count = 0 writes nothing.", nothing_new),
    Check("the last owner of a block", "The count tells: 1 means it is yours alone.", last_owner),
    Check("a pool that runs dry",
          "Count all blocks that are needed, the copy's too, and take them in one `allocate` "
          "before anything changes.", all_or_nothing),
    Check("a long random life beside the package's cache",
          "Compare the blocks that you take with blocks_for(length + count).", random_life),
)  # fmt: skip


def examples(answer: ModuleType) -> Examples:
    """What it returns and leaves behind, over lengths, counts and owners."""

    def left(length: int, count: int, shared: bool, blocks: int) -> object:
        pool = BlockPool(blocks)
        table = BlockTable(SIZE, pool.allocate(blocks_for(length, SIZE)), length)
        for block in table.blocks if shared else ():
            pool.share(block)
        said = outcome_of(lambda: tuple(map(list, answer.append(pool, table, count))))
        counts = [pool.refcount(block) for block in range(blocks)]
        return said, table.blocks, table.length, counts

    for length in range(9):
        for count in (0, 1, 3, 6):
            for shared in (False, True):
                for blocks in (blocks_for(length, SIZE) + 1, 8):
                    yield (
                        f"{length} {count} {shared} {blocks}",
                        left(length, count, shared, blocks),
                    )
