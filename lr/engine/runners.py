"""The caches of a model: how large one has to be, which answer has one, and a recorder of what
happens to it.

A `ModelRunner` (cache and CUDA graphs) is made for the first answer and lent again to later ones;
a larger one takes its place where an answer needs more. Two answers in the making at the same time
have a runner each.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from lr.engine.runner import ModelRunner
from lr.kvcache.table import BlockTable
from lr.model.qwen import CausalLM
from lr.options import GenerateOptions
from lr.spec.protocol import NodeId
from lr.trace import (
    BranchClosed,
    BranchCut,
    BranchesGrew,
    BranchForked,
    BranchHolds,
    BranchOpened,
    BranchReplaced,
    BranchRestored,
    Trace,
)

BLOCK_SIZE = 16
"""Tokens of a cache block, where blocks are counted before the model's attention is known."""


def blocks_for(
    options: GenerateOptions, tokens: int, share: int = 1, block_size: int = BLOCK_SIZE
) -> int:
    """Cache blocks of one model that suffice for `share` answers at a time, prompt and answer
    together at most `tokens` long.

    That is one trunk for the longest answer, and for every row in flight its own step. A node has a
    row of the target and may have a draft step after it, so each counts twice. A token tree takes,
    for each further path, a copied and a new block.

    Example: plain decoding of 1000 tokens, steps of at most 100: 69 blocks of trunk (1100 / 16) and
    2 rows of 9.
    """
    nodes = options.nodes if options.looks_ahead else 1
    trees = options.speculates and options.drafter == "tree"
    leaves = prod(options.branching) if trees else 1
    trunk = -(-(tokens + options.max_step_tokens) // block_size)
    row = options.max_step_tokens // block_size + 3 + 4 * (leaves - 1)
    return share * (trunk + 2 * nodes * row)


class Runners:
    """The runners of one model. `vocab_size`, `known_tokens` and `block_size` as in `ModelRunner`;
    `num_blocks`: the size of every cache, in blocks of 16 tokens (None: as large as needed).
    """

    def __init__(
        self,
        model: CausalLM,
        *,
        vocab_size: int | None = None,
        known_tokens: int | None = None,
        num_blocks: int | None = None,
        block_size: int | None = None,
    ) -> None:
        self.model, self.num_blocks, self.block_size = model, num_blocks, block_size
        self.vocab_size, self.known_tokens = vocab_size, known_tokens
        self.idle: list[ModelRunner] = []

    def lend(self, blocks: int) -> ModelRunner:
        """A runner with an empty cache of at least so many blocks of 16 tokens."""
        size = self.block_size or self.model.attention.block_size
        wanted = -(-(self.num_blocks or blocks) * BLOCK_SIZE // size)
        for runner in self.idle:
            if runner.cache.pool.num_blocks >= wanted:
                self.idle.remove(runner)
                return runner
        self.end()  # their memory is free before more is taken
        return ModelRunner(
            self.model,
            num_blocks=wanted,
            block_size=size,
            vocab_size=self.vocab_size,
            known_tokens=self.known_tokens,
        )

    def end(self) -> None:
        """Give up the runners that are idle."""
        for runner in self.idle:
            runner.end()
        self.idle.clear()

    def take_back(self, runner: ModelRunner) -> None:
        """The answer is over. A cache in which something was left, after an error, is not used
        again.
        """
        runner.observer = runner.cache.observer = None
        padding = runner.graphs is not None  # holds a block
        if runner.cache.pool.num_used == padding and len(self.idle) < 2:  # two for a draft that
            runner.cache.pool.restart()  # writes steps and guesses tokens
            self.idle.append(runner)
        else:
            runner.end()


class CacheRecorder:
    """Writes what a cache tells its observer (`kvcache/append.py`) into `trace` under the name
    `cache`; every branch gets a number.

    Example with blocks of 4 tokens: branch 0 reads a prompt of 6 tokens, `BranchesGrew(rows=((0,
    6),), fresh=((0, 0), (0, 1)))`. Branch 1 is forked from it, and both write one token:
    `BranchesGrew(rows=((0, 7), (1, 7)), copies=((0, 1, 2),))`: branch 0 left block 1, which branch
    1 holds, for its copy, block 2.
    """

    def __init__(self, trace: Trace, cache: str) -> None:
        self.trace, self.cache = trace, cache
        self._numbers: dict[BlockTable, int] = {}
        self._sizes: dict[BlockTable, int] = {}  # how many blocks of it are told
        self._count = 0

    def opened(self, table: BlockTable) -> None:
        self.trace.record(BranchOpened(self.cache, self._new(table)))

    def forked(self, table: BlockTable, source: BlockTable) -> None:
        self.trace.record(BranchForked(self.cache, self._new(table), self._numbers[source]))

    def grew(
        self,
        tables: Sequence[BlockTable],
        moved: Sequence[BlockTable],
        copies: Sequence[tuple[int, int]],
    ) -> None:
        numbers, sizes = self._numbers, self._sizes
        fresh: list[tuple[int, int]] = []
        for table in tables:
            known = sizes[table]
            if len(table.blocks) > known:
                fresh += ((numbers[table], block) for block in table.blocks[known:])
                sizes[table] = len(table.blocks)
        rows = tuple((numbers[table], table.length) for table in tables)
        copied = tuple((numbers[t], *pair) for t, pair in zip(moved, copies, strict=True))
        self.trace.record(BranchesGrew(self.cache, rows, copied, tuple(fresh)))

    def restored(self, tables: Sequence[BlockTable]) -> None:
        for table in tables:
            self._sizes[table] = len(table.blocks)
            blocks = tuple(table.blocks)
            self.trace.record(
                BranchRestored(self.cache, self._numbers[table], table.length, blocks)
            )

    def cut(self, table: BlockTable, dropped: Sequence[int], freed: Sequence[int]) -> None:
        self._sizes[table] = len(table.blocks)
        number = self._numbers[table]
        self.trace.record(BranchCut(self.cache, number, table.length, tuple(dropped), tuple(freed)))

    def closed(self, table: BlockTable, dropped: Sequence[int], freed: Sequence[int]) -> None:
        del self._sizes[table]
        number = self._numbers.pop(table)
        self.trace.record(BranchClosed(self.cache, number, tuple(dropped), tuple(freed)))

    def replaced(self, table: BlockTable, heir: BlockTable) -> None:
        self.trace.record(BranchReplaced(self.cache, self._numbers[table], self._numbers[heir]))

    def tag(self, table: BlockTable, node: tuple[int, int, int]) -> None:
        self.trace.record(BranchHolds(self.cache, self._numbers[table], NodeId(*node)))

    def _new(self, table: BlockTable) -> int:
        number = self._numbers[table] = self._count
        self._sizes[table] = len(table.blocks)
        self._count += 1
        return number
