"""The grader of copy_on_write.py: a cache of paper whose tokens can be read back,
beside the package's own.
"""

from __future__ import annotations

import random
from functools import partial
from itertools import product
from types import ModuleType

import torch
from exercise_kit import Examples, check, expect, outcome_of

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
        self.answer = answer
        self.pool = BlockPool(blocks)
        self.memory: list[int | None] = [None] * (blocks * SIZE)
        self.branches: list[tuple[BlockTable, list[int]]] = []
        self.copied = self.written = 0

    def open(self, length: int = 0) -> int:
        """A new branch of some tokens; returns its number."""
        self.branches.append((BlockTable(SIZE), []))
        number = len(self.branches) - 1
        if length:
            self.write(number, length)
        return number

    def fork(self, number: int) -> int:
        """A branch that shares every block."""
        table, tokens = self.branches[number]
        for block in table.blocks:
            self.pool.share(block)
        shared = BlockTable(SIZE, list(table.blocks), table.length)
        self.branches.append((shared, list(tokens)))
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
        for old, new in copies:
            block = self.memory[old * SIZE : (old + 1) * SIZE]
            self.memory[new * SIZE : (new + 1) * SIZE] = block
        says = f"{count} new tokens need {count} slots; append returned {len(slots)}."
        expect(len(slots) == count, says)
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
            start = f"A branch of {len(tokens)} tokens has"
            says = f"{start} the length {table.length}."
            expect(table.length == len(tokens), says)
            needed, held = blocks_for(table.length, SIZE), len(table.blocks)
            says = f"{start} {held} blocks of {SIZE}; it needs {needed}."
            expect(held == needed, says)
            read = [self.memory[slot] for slot in table.slots(0, table.length)]
            says = (
                f"A branch wrote {tokens} and reads {read}: another branch wrote into "
                "its block."
            )
            expect(read == tokens, says)
        for block in range(self.pool.num_blocks):
            owners = sum(block in table.blocks for table, _ in self.branches)
            count = self.pool.refcount(block)
            says = (
                f"Block {block} is in the tables of {owners} branches, and the pool "
                f"counts {count}."
            )
            expect(count == owners, says)

    def writes_alone(self, number: int, count: int, why: str) -> None:
        """`Wrong` if this copies something."""
        for old, _ in self.write(number, count):
            expect(False, f"Block {old} was copied without need: {why}.")
        self.check()


@check(
    "the example of the exercise",
    "Four things change: the table's blocks, its length, the pool's counts (`drop` the "
    "block that was copied), and what is returned.",
)
def the_example(answer: ModuleType) -> None:
    pool = BlockPool(6)
    table = BlockTable(SIZE, pool.allocate(2), 6)
    pool.share(0)
    pool.share(1)
    slots, copies = map(list, answer.append(pool, table, 3))
    says = (
        "Six tokens in blocks of 4, the second block shared, three more tokens: slots "
        "[10, 11, 12] and copies [(1, 2)] are right; append returned "
        f"{slots} and {copies}."
    )
    expect((slots, copies) == ([10, 11, 12], [(1, 2)]), says)
    says = (
        "The table should have blocks [0, 2, 3] and length 9 now; it has "
        f"{table.blocks} and {table.length}."
    )
    expect((table.blocks, table.length) == ([0, 2, 3], 9), says)
    says = (
        "The copied block 1 has lost an owner, so the pool should count 1; it counts "
        f"{pool.refcount(1)}: the block will never be free again."
    )
    expect(pool.refcount(1) == 1, says)


@check("a branch that shares nothing", "Ask `pool.refcount` before you copy.")
def alone(answer: ModuleType) -> None:
    paper = Paper(answer)
    first = paper.open()
    for count in (3, 1, 5, 0, 4):
        paper.writes_alone(first, count, "nobody shares it")


@check(
    "two branches that go on from one half-filled block",
    "Only the last block can be both shared and written, and only if `table.room` is not "
    "0.",
)
def forks(answer: ModuleType) -> None:
    paper = Paper(answer)
    first = paper.open(6)
    second = paper.fork(first)
    for number in (second, first, second):
        paper.write(number, 3)
        paper.check()


@check("a full block that is shared", "A full block is never written, so never copied.")
def full_blocks(answer: ModuleType) -> None:
    paper = Paper(answer)
    second = paper.fork(paper.open(8))
    paper.writes_alone(second, 3, "it is full, so nobody writes into it any more")


@check("no new token", "count = 0 writes nothing.")
def nothing_new(answer: ModuleType) -> None:
    paper = Paper(answer)
    paper.writes_alone(paper.fork(paper.open(6)), 0, "there was no new token")


@check("the last owner of a block", "The count tells: 1 means it is yours alone.")
def last_owner(answer: ModuleType) -> None:
    paper = Paper(answer)
    first = paper.open(6)
    copies = paper.write(paper.fork(first), 1)
    says = "A half-filled block that two branches hold was written without a copy."
    expect(len(copies) == 1, says)
    paper.writes_alone(first, 1, "the other owner has left it")


@check(
    "a pool that runs dry",
    "Count all blocks that are needed, the copy's too, and take them in one `allocate` "
    "before anything changes.",
)
def all_or_nothing(answer: ModuleType) -> None:
    for count in (5, 30):
        paper = Paper(answer, blocks=3)
        table, _ = paper.branches[paper.fork(paper.open(6))]
        refused = outcome_of(partial(answer.append, paper.pool, table, count))
        says = (
            f"{count} more tokens do not fit a pool with one free block, and append did "
            "not raise OutOfBlocks."
        )
        expect(refused == OutOfBlocks.__name__, says)
        free = paper.pool.num_free
        says = (
            "OutOfBlocks was raised and something had changed already: blocks "
            f"{table.blocks} (were [0, 1]), length {table.length} (was 6), {free} free "
            "blocks (was 1)."
        )
        expect((table.blocks, table.length, free) == ([0, 1], 6, 1), says)
        paper.check()


@check(
    "a long random life beside the package's cache",
    "Compare the blocks that you take with blocks_for(length + count).",
)
def random_life(answer: ModuleType) -> None:
    for seed in range(10):
        chance = random.Random(seed)
        paper = Paper(answer, blocks=40)
        cache = PagedKVCache(
            num_layers=1, num_kv_heads=1, head_dim=1, num_blocks=40, block_size=SIZE,
            dtype=torch.float32, device="cpu",
        )  # fmt: skip
        paper.open()
        twins = [cache.new()]
        for _ in range(60):
            at = chance.randrange(len(twins))
            action = chance.random()
            if action < 0.25 and len(twins) < 6:
                paper.fork(at)
                twins.append(cache.fork(twins[at]))
            elif (action < 0.4 and len(twins) > 1) or twins[at].length > 20:
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
            says = (
                f"After a random life {paper.copied} blocks were copied and "
                f"{paper.pool.num_free} are free; {cache.copied_blocks} copies were "
                f"needed, which leaves {cache.pool.num_free}."
            )
            copies = paper.copied == cache.copied_blocks
            expect(copies and paper.pool.num_free == cache.pool.num_free, says)


def examples(answer: ModuleType) -> Examples:
    """What it returns and leaves behind, over lengths, counts and owners."""
    cases = product(range(9), (0, 1, 3, 6), (False, True), (1, 6))
    for length, count, shared, free in cases:
        pool = BlockPool(blocks_for(length, SIZE) + free)
        blocks = pool.allocate(blocks_for(length, SIZE))
        table = BlockTable(SIZE, blocks, length)
        for block in list(blocks) if shared else ():
            pool.share(block)
        returned = outcome_of(partial(answer.append, pool, table, count))
        if isinstance(returned, tuple):
            returned = [list(part) for part in returned]
        owners = [pool.refcount(block) for block in range(pool.num_blocks)]
        state = (returned, table.blocks, table.length, owners)
        yield f"{length} {count} {shared} {free}", state
