"""The keys and values of all branches of one model, in one pool of blocks.

A branch is a `BlockTable`. The cache tracks its live tables, and only the cache changes
them.

**What a block contains.** Every block is zeroed, or filled by a copy, when it is allocated. So data
after a live table's length is stale but finite, and an attention that gathers whole blocks and
masks the tail never multiplies zero by NaN. With `poison_freed=True` free blocks are filled with
NaN, so that tests detect reads of freed blocks.

**Copy on write.** New tokens go after the last valid one, so only a partly filled last block can
be both shared and written; it is copied first. If all owners of a block write into it in the same
batch, one of them need not copy, because the others leave. It must be the *longest*: a shorter one
would overwrite tokens that longer ones need again if the batch is undone. Worked example with
`block_size` 4, block 5 held by A and B, one token appended to each::

    A blocks [5] length 3        A is longer and stays in block 5    slot 5*4 + 3 = 23
    B blocks [5] length 1        B gets a copy, block 6              slot 6*4 + 1 = 25
    slots = [23, 25], copies = [(5, 6)]

A cache belongs to one thread at a time. Tensor-parallel followers own a cache for their
slice of the heads and repeat the leader's `prepare` and `write`. Read next:
`spec/protocol.py`.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from math import prod
from typing import Any

import torch
from torch import Tensor

from lr.errors import SettingError
from lr.kvcache.branch import BlockTable, CacheObserver, Tables, blocks_for
from lr.kvcache.pool import BlockPool
from lr.types import require


def integers(
    values: Sequence[Any], device: torch.device, dtype: torch.dtype = torch.int64
) -> Tensor:
    """A tensor of the (nested) whole numbers `values` on `device`. A plain
    `.to("cuda")` would wait for all queued work; from pinned memory, which PyTorch
    keeps until then, the copy is queued too.
    """
    on_cuda = device.type == "cuda"
    numbers = torch.tensor(values, dtype=dtype, pin_memory=on_cuda)
    return numbers.to(device, non_blocking=on_cuda)


class PagedKVCache:
    """All K/V memory of one model: `keys` and `values` [l, nb, block_size, k, d].
    `pages[i]`: those of layer i, two views [nb, block_size, k, d]. Free blocks may hold
    NaN. `live_tables` came from `new` or `fork` and are not released. `copied_blocks`:
    how many blocks `prepare` has copied, also for undone appends. `observer` is told of
    every change of a table. Raises `SettingError` for a size below 1 or a dtype that is
    not a float.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device | str,
        poison_freed: bool = False,
    ) -> None:
        shape = (num_layers, num_kv_heads, num_blocks, block_size, head_dim)
        require(min(shape) >= 1, "the shape of a cache", shape, "sizes of at least 1")
        require(dtype.is_floating_point, "dtype", dtype, "the model's, a float type")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.poison_freed = poison_freed
        self.pool = BlockPool(num_blocks)
        self.open_append: list[tuple[int, int]] | None = None  # its copies
        self.observer = CacheObserver()
        self.copied_blocks = 0
        self._clean: set[int] = set()
        self.live_tables: set[BlockTable] = set()
        # In memory, heads come before blocks. Neighbouring blocks of one head are
        # contiguous, so the attention of a single row reads its keys in one piece. Code
        # that selects blocks works on `_memory` itself: index_select of a permuted
        # tensor would first copy all of it. Tensors made outside inference mode may be
        # written inside and outside of it.
        with torch.inference_mode(False):
            try:
                self._memory = [
                    torch.empty(shape, dtype=dtype, device=device) for _ in range(2)
                ]
            except RuntimeError as error:  # out of memory
                gib = 2 * prod(shape) * dtype.itemsize / 2**30
                raise SettingError(
                    f"num_blocks is {num_blocks}, expected fewer: they take {gib:.1f} GiB, "
                    f"which {device} does not have free."
                ) from error
            self._make_views()
            if poison_freed:
                self._fill(range(num_blocks), torch.nan)

    def _make_views(self) -> None:
        """The views of the memory that others read and write, made once."""
        self.keys, self.values = (m.permute(0, 2, 3, 1, 4) for m in self._memory)
        # Per layer: [nb, block_size, k, d], and [nb * block_size, k, d].
        self.pages = list(zip(self.keys, self.values, strict=True))
        self._slots = [(k.flatten(0, 1), v.flatten(0, 1)) for k, v in self.pages]
        # [l, 1, k, nb * block_size, d]: neighbouring blocks in one piece.
        self._heads = [m.flatten(2, 3)[:, None] for m in self._memory]

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a pickle holds. NOTE: plain pickle gives every view a memory
        of its own, so that what is written through one would not be read through
        another."""
        views = "keys values pages _slots _heads".split()
        return {k: value for k, value in vars(self).items() if k not in views}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_views()

    # Branches

    def new(self) -> BlockTable:
        """An empty branch, which holds no block yet."""
        table = BlockTable(self.block_size)
        self.live_tables.add(table)
        self.observer.opened(table)
        return table

    def fork(self, table: BlockTable) -> BlockTable:
        """A branch with the same tokens that shares every block of `table`; nothing is
        copied."""
        self._require_changeable(table)
        for block in table.blocks:
            self.pool.share(block)
        copy = BlockTable(self.block_size, list(table.blocks), table.length)
        self.live_tables.add(copy)
        self.observer.forked(copy, table)
        return copy

    def truncate(self, table: BlockTable, length: int) -> None:
        """Keep the first `length` tokens of `table`."""
        self._require_changeable(table)
        assert 0 <= length <= table.length
        self._shorten(table, length)
        self.observer.cut(table)

    def release(self, table: BlockTable) -> None:
        """Close `table` for good; blocks that no other branch holds become free."""
        self._require_changeable(table)
        self._shorten(table, 0)
        self.live_tables.remove(table)
        self.observer.closed(table)

    @contextmanager
    def append(self, tables: Tables, counts: Sequence[int]) -> Iterator[list[int]]:
        """Make room for `counts[i]` more tokens in `tables[i]`. `with
        cache.append(tables, counts) as slots:` yields the slots of the new tokens, in
        batch order, for the body to `write`; the tables have their new lengths there.
        If the body raises, everything is restored, even the order of future block ids.
        Entering raises `OutOfBlocks`, and then changes nothing.
        """
        self._require_changeable(*tables)
        assert len(set(tables)) == len(tables) == len(counts), (
            "one count for each table"
        )
        assert min(counts, default=0) >= 0, "truncate shortens"
        # 1. Allocate the new blocks of every table, and the copies of shared blocks into
        # which tables write.
        num_new: list[int] = []
        shared: list[BlockTable] = []
        for table, count in zip(tables, counts, strict=True):
            num_blocks = blocks_for(table.length + count, self.block_size)
            num_new.append(num_blocks - len(table.blocks))  # beyond those it has
            if count and table.room and self.pool.refcount(table.blocks[-1]) > 1:
                shared.append(table)
        moved = self._leaving(shared) if shared else []  # who copies
        allocated = self.pool.allocate(len(moved) + sum(num_new))  # or it raises
        copies = [(t.blocks[-1], b) for t, b in zip(moved, allocated, strict=False)]
        fresh = allocated[len(moved) :]  # after the copies
        # 2. The tables change first, then the tensors. Any later error is undone below.
        for table, (_, block) in zip(moved, copies, strict=True):
            table.blocks[-1] = block
        self._drop([source for source, _ in copies])  # one owner fewer
        slots: list[int] = []
        free = iter(fresh)
        for table, count, n in zip(tables, counts, num_new, strict=True):
            table.blocks += islice(free, n)
            table.length += count
            # where the body writes
            slots += table.slots(table.length - count, table.length)
        self.open_append = copies
        try:
            self.prepare(fresh, copies)
            yield slots
            self.observer.grew(tables, moved, copies, num_new)
        except BaseException:
            # 3. Shorten the tables, return shared blocks to the tables that left, free
            # new blocks.
            for table, count in zip(tables, counts, strict=True):
                table.length -= count
                del table.blocks[blocks_for(table.length, self.block_size) :]
            for table, (source, _) in zip(moved, copies, strict=True):
                table.blocks[-1] = source
                self.pool.share(source)
            self._drop(allocated[::-1])
            raise
        finally:
            self.open_append = None

    # Tensors

    def prepare(self, fresh: Sequence[int], copies: Sequence[tuple[int, int]]) -> None:
        """In all layers: zero the blocks `fresh`; copy block a to b for each (a, b) in
        `copies`."""
        if fresh:
            self._fill(fresh, 0)
        if copies:
            sources, targets = integers([*zip(*copies, strict=True)], self.keys.device)
            for memory in self._memory:
                memory.index_copy_(2, targets, memory.index_select(2, sources))
        self.copied_blocks += len(copies)

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store `k` and `v` [n, k, d] of one layer at `slots` [n] (int64), without
        gradients."""
        keys, values = self._slots[layer]
        keys.index_copy_(0, slots, k)
        values.index_copy_(0, slots, v)

    def stretch(self, first: int, slots: int) -> list[tuple[Tensor, ...]]:
        """Keys and values of `slots` slots from `first` on: a view [1, k, slots, d] per
        layer."""
        return [memory.narrow(3, first, slots).unbind() for memory in self._heads]

    def gather(self, layer: int, block_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer in the blocks `block_ids` [b, nb] (from
        `block_rows`), as two new tensors [b, nb * block_size, k, d]. Column t of row i
        is position t of branch i; mask the columns after the branch's length.
        """
        _, _, num_kv_heads, head_dim = self.keys.shape[1:]
        shape = (num_kv_heads, len(block_ids), -1, head_dim)
        # [k, b, nb * block_size, d] to [b, nb * block_size, k, d]
        keys, values = (
            memory[layer]
            .index_select(1, block_ids.flatten())
            .view(shape)
            .permute(1, 2, 0, 3)
            for memory in self._memory
        )
        return keys, values

    def clear_free(self, blocks: Collection[int]) -> None:
        """Zero the free ones among `blocks`, so that an attention may read and mask
        them."""
        free = [b for b in blocks if not self.pool.refcount(b) and b not in self._clean]
        if free:
            self._fill(free, 0)
            self._clean.update(free)

    # Inside

    def _require_changeable(self, *tables: BlockTable) -> None:
        """These are live tables of this cache, and no append is open."""
        assert self.open_append is None, "an append is open: leave its `with` first"
        assert self.live_tables.issuperset(tables), (
            "released, or not live in this cache"
        )

    def _leaving(self, shared: Tables) -> Tables:
        """The tables that must copy their shared last block: all of `shared` but, where
        all owners of a block write into it, the longest.
        """
        moved: list[BlockTable] = []
        leaving: Counter[int] = Counter()
        for table in sorted(shared, key=lambda table: table.length):
            leaving[table.blocks[-1]] += 1  # writers of this block so far
            if leaving[table.blocks[-1]] < self.pool.refcount(table.blocks[-1]):
                moved.append(table)
        return moved

    def _shorten(self, table: BlockTable, length: int) -> None:
        """Keep `length` tokens; give up the last block first."""
        keep = blocks_for(length, self.block_size)
        dropped = table.blocks[keep:][::-1]
        del table.blocks[keep:]
        table.length = length
        self._drop(dropped)

    def _drop(self, blocks: Sequence[int]) -> None:
        """Remove one owner of each block, in this order."""
        freed = [block for block in blocks if self.pool.drop(block)]
        self._clean.difference_update(freed)
        if self.poison_freed and freed:
            self._fill(freed, torch.nan)

    def _fill(self, blocks: Sequence[int], number: float) -> None:
        ids = integers(blocks, self.keys.device)
        for memory in self._memory:  # [l, k, nb, block_size, d]
            memory.index_fill_(2, ids, number)
