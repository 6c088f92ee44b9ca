"""Fused attention, and rows that know their own pages, against the reference in fp64,
over ragged batches, forks and reused blocks. Freed blocks are full of NaN.
"""

from __future__ import annotations

import pickle
import random

import torch
from attention_kit import ROWS, row_attention
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lr.kvcache.branch import BlockTable, block_rows
from lr.kvcache.cache import PagedKVCache
from lr.model.attention import (
    LONG,
    REFERENCE,
    SDPA,
    RaggedBatch,
    RowPages,
    reference_attention,
)

CPU = torch.device("cpu")
LAYERS, HEADS, KV_HEADS, DIM = 2, 6, 2, 8


def new_cache(block_size: int) -> PagedKVCache:
    return PagedKVCache(
        num_layers=LAYERS,
        num_kv_heads=KV_HEADS,
        head_dim=DIM,
        num_blocks=240,
        block_size=block_size,
        dtype=torch.float64,
        device=CPU,
        poison_freed=True,
    )


class Scene:
    """A cache whose branches grow, fork, shrink and end; every forward is computed by
    the reference and by fused attention, and row by row.
    """

    def __init__(self, block_size: int, seed: int) -> None:
        self.cache = new_cache(block_size)
        self.chance, self.noise = (
            random.Random(seed),
            torch.Generator().manual_seed(seed),
        )
        self.tables: list[BlockTable] = []
        self.sizes = [1, 1, 2, 5, 9]

    def heads(self, n: int) -> list[Tensor]:
        """q, k and v as a layer makes them: views of one tensor, whose rows are not
        contiguous."""
        made = torch.randn(
            n, HEADS + 2 * KV_HEADS, DIM, dtype=torch.float64, generator=self.noise
        )
        return list(made.split((HEADS, KV_HEADS, KV_HEADS), 1))

    def change(self) -> None:
        """Something that happens to branches between two forwards."""
        act = self.chance.choice(["open", "fork", "truncate", "release"])
        if act == "open" or not self.tables:
            self.tables.append(self.cache.new())
            return
        table = self.chance.choice(self.tables)
        if act == "fork" and table.length:
            self.tables.append(self.cache.fork(table))
        elif act == "truncate":
            self.cache.truncate(table, self.chance.randint(0, table.length))
        elif act == "release":
            self.cache.release(table)
            self.tables.remove(table)

    def forward(self) -> None:
        """A few new tokens for some branches: prompts, single tokens and runs between,
        all in one batch.
        """
        chosen = self.chance.sample(
            self.tables, self.chance.randint(1, len(self.tables))
        )
        counts = [self.chance.choice(self.sizes) for _ in chosen]
        with self.cache.append(chosen, counts) as slots:
            tokens = [[0] * count for count in counts]
            batch = RaggedBatch.build(chosen, tokens, slots, wanted=counts, device=CPU)
            ways = [SDPA.ragged(batch, self.cache)]
            for pages in (RowPages.of(batch), rows_of(batch)):
                ways.append(row_attention(pages, self.cache))
            for layer in range(LAYERS):
                q, k, v = self.heads(len(slots))
                expected = reference_attention(batch, self.cache)(layer, q, k, v)
                for attend in ways:
                    torch.testing.assert_close(
                        attend(layer, q, k, v), expected, rtol=0, atol=1e-12
                    )


def rows_of(batch: RaggedBatch) -> RowPages:
    """The rows of a batch with the pages of their branches, one page more than they
    need."""
    tables = [
        row
        for row, count in zip(block_rows(batch.tables), batch.counts, strict=True)
        for _ in range(count)
    ]
    blocks = torch.tensor([row + row[-1:] for row in tables], dtype=torch.int32)
    return RowPages(batch.positions, batch.slots, blocks)


@given(seed=st.integers(0, 10**6), block_size=st.sampled_from([1, 3, 4, 16]))
@settings(max_examples=25, deadline=None)
def test_every_way_agrees_with_the_reference(seed: int, block_size: int) -> None:
    scene = Scene(block_size, seed)
    for _ in range(6):
        scene.change()
        if scene.tables:
            scene.forward()
    for table in scene.tables:
        scene.cache.release(table)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_long_chunks_agree_with_the_reference(seed: int) -> None:
    """Prompts, long chunks after a cache, and single tokens in one batch."""
    scene = Scene(4, seed)
    scene.sizes = [1, 2, LONG, 40]
    for _ in range(3):
        scene.tables.append(scene.cache.new())
        scene.forward()
        scene.tables.append(scene.cache.fork(scene.tables[0]))
        scene.forward()
    for table in scene.tables:
        scene.cache.release(table)


def test_in_place_or_gathered() -> None:
    """Blocks that lie in a row are read in place, others gathered: nobody can see the
    difference.
    """
    results = []
    for between in (0, 1):
        cache = new_cache(4)
        table, other = cache.new(), cache.new()
        for _ in range(3):
            with cache.append([table, other], [4, 4 * between]):
                pass
        assert table.blocks == [[0, 1, 2], [0, 2, 4]][between]
        noise = torch.Generator().manual_seed(0)
        for layer in range(LAYERS):
            k, v = torch.randn(
                2, 12, KV_HEADS, DIM, dtype=torch.float64, generator=noise
            )
            cache.write(layer, torch.tensor(table.slots(0, 12)), k, v)
        cache.truncate(table, 9)
        with cache.append([table], [3]) as slots:
            batch = RaggedBatch.build([table], [[0] * 3], slots, wanted=[3], device=CPU)
            heads = [
                torch.ones(3, count, DIM).double()
                for count in (HEADS, KV_HEADS, KV_HEADS)
            ]
            results.append(SDPA.ragged(batch, cache)(1, *heads))
    torch.testing.assert_close(*results, rtol=0, atol=1e-12)


def test_a_kind_can_be_sent_to_another_process() -> None:
    cache = new_cache(4)
    tables = [cache.new()]
    with cache.append(tables, [3]) as slots:
        batch = RaggedBatch.build(tables, [[0] * 3], slots, wanted=[1], device=CPU)
        heads = [
            torch.randn(3, count, DIM).double() for count in (HEADS, KV_HEADS, KV_HEADS)
        ]
        expected = reference_attention(batch, cache)(0, *heads)
        for kind in (SDPA, REFERENCE, ROWS):
            sent = pickle.loads(pickle.dumps(kind))
            assert sent == kind
            torch.testing.assert_close(
                sent.ragged(batch, cache)(0, *heads), expected, rtol=0, atol=1e-12
            )
