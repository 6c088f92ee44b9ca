"""Every kind of attention against the reference in fp64, over ragged batches, forks and reused
blocks, for kernels that are not here.

The kernels are emulated strictly after their documentation (`kernel_kit.py`), so what is tested is
what the adapters pass to them. Freed blocks are full of NaN, and the kit refuses pages that are not
finite.
"""

from __future__ import annotations

import pickle
import random
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_kit import Emulated
from torch import Tensor

from lr.kvcache.cache import PagedKVCache
from lr.kvcache.table import BlockTable, block_rows
from lr.model.attention import SDPA, AttentionKind, reference_attention
from lr.model.attention_flash import FlashKernels, flash_attention
from lr.model.attention_grouped import LONG, grouped_attention
from lr.model.attention_rows import RowPages
from lr.model.attention_varlen import varlen_attention
from lr.model.batch import RaggedBatch

CPU = torch.device("cpu")
LAYERS, HEADS, KV_HEADS, DIM = 2, 6, 2, 8


def kinds(block_size: int, emulated: Emulated | None = None) -> list[AttentionKind]:
    kernels = emulated or Emulated()
    flash = FlashKernels(kernels.flash_attn_varlen_func, kernels.flash_attn_with_kvcache)
    return [
        SDPA,
        varlen_attention(kernels.varlen_attn, block_size),
        flash_attention(flash, block_size),
    ]


def new_cache(block_size: int) -> PagedKVCache:
    return PagedKVCache(
        num_layers=LAYERS,
        num_kv_heads=KV_HEADS,
        head_dim=DIM,
        num_blocks=120,
        block_size=block_size,
        dtype=torch.float64,
        device=CPU,
        poison_freed=True,
    )


class Scene:
    """A cache whose branches grow, fork, shrink and end; every forward is computed by the reference
    and by each kind.
    """

    def __init__(self, block_size: int, seed: int) -> None:
        self.cache, self.block_size = new_cache(block_size), block_size
        self.chance, self.noise = random.Random(seed), torch.Generator().manual_seed(seed)
        self.tables: list[BlockTable] = []
        self.sizes = [1, 1, 2, 5, 9]

    def heads(self, n: int) -> list[Tensor]:
        """q, k and v as a layer makes them: views of one tensor, whose rows are not contiguous."""
        made = torch.randn(n, HEADS + 2 * KV_HEADS, DIM, dtype=torch.float64, generator=self.noise)
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

    def forward(self, kinds: list[AttentionKind]) -> None:
        """A few new tokens for some branches: prompts, single tokens and runs between, all in one
        batch.
        """
        chosen = self.chance.sample(self.tables, self.chance.randint(1, len(self.tables)))
        counts = [self.chance.choice(self.sizes) for _ in chosen]
        with self.cache.append(chosen, counts) as slots:
            tokens = [[0] * count for count in counts]
            batch = RaggedBatch.build(chosen, tokens, slots, wanted=counts, device=CPU)
            pages = rows_of(batch)
            for layer in range(LAYERS):
                q, k, v = self.heads(len(slots))
                expected = reference_attention(batch, self.cache)(layer, q, k, v)
                for kind in kinds:
                    assert kind.rows is not None
                    for attend in (kind.ragged(batch, self.cache), kind.rows(pages, self.cache)):
                        torch.testing.assert_close(
                            attend(layer, q, k, v), expected, rtol=0, atol=1e-12
                        )


def rows_of(batch: RaggedBatch) -> RowPages:
    """The rows of a batch with the pages of their branches, one page more than they need."""
    tables = [
        row
        for row, count in zip(block_rows(batch.tables), batch.counts, strict=True)
        for _ in range(count)
    ]
    blocks = torch.tensor([row + row[-1:] for row in tables], dtype=torch.int32)
    return RowPages(batch.positions, batch.slots, blocks)


@given(seed=st.integers(0, 10**6), block_size=st.sampled_from([1, 3, 4, 16]))
@settings(max_examples=25, deadline=None)
def test_every_kind_agrees_with_the_reference(seed: int, block_size: int) -> None:
    scene, made = Scene(block_size, seed), kinds(block_size)
    for _ in range(6):
        scene.change()
        if scene.tables:
            scene.forward(made)
    for table in scene.tables:
        scene.cache.release(table)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [((1, 1, 1), "flash_attn_with_kvcache"), ((1, 4), "flash_attn_varlen_func")],
)
def test_decoding_takes_the_kernel_that_divides_long_contexts(
    counts: tuple[int, ...], expected: str
) -> None:
    emulated, cache = Emulated(), new_cache(4)
    [_, _, flash] = kinds(4, emulated)
    tables = [cache.new() for _ in counts]
    with cache.append(tables, counts) as slots:
        batch = RaggedBatch.build(
            tables, [[0] * count for count in counts], slots, wanted=counts, device=CPU
        )
        flash.ragged(batch, cache)(
            0,
            *(
                torch.randn(sum(counts), heads, DIM).double()
                for heads in (HEADS, KV_HEADS, KV_HEADS)
            ),
        )
    assert emulated.calls == {expected: 1}


class Wrong(Emulated):
    """Kernels that are handed one argument changed: the strictness of the kit itself."""

    def __init__(self, **changes: object) -> None:
        super().__init__()
        self.changes = changes

    def varlen_attn(self, *args: object, **named: object) -> Tensor:
        positional = list(args)
        for name, change in self.changes.items():
            if name in named:
                named[name] = change(named[name])  # type: ignore[operator]
            else:
                place = ["query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k"].index(
                    name
                )
                positional[place] = change(positional[place])  # type: ignore[operator]
        return super().varlen_attn(*positional, **named)  # type: ignore[arg-type]


WRONG = {
    "int64 lengths": {"seqused_k": lambda used: used.long()},
    "int64 pages": {"block_table": lambda table: table.long()},
    "a page that is free": {"block_table": lambda table: torch.full_like(table, 119)},
    "a page that does not exist": {"block_table": lambda table: table + 120},
    "pages of the neighbour": {"block_table": lambda table: table.flip(0).contiguous()},
    "lengths without the new tokens": {"seqused_k": lambda used: used - 1},
    "lengths beyond the pages": {"seqused_k": lambda used: used + 40},
    "not causal": {"window_size": lambda window: (-1, -1)},
    "borders one too few": {"cu_seq_q": lambda borders: borders[:-1]},
    "borders that are counts": {
        "cu_seq_q": lambda borders: torch.cat((borders[:1], borders.diff()))
    },
    "too few queries announced": {"max_q": lambda most: most - 1},
    "too few keys announced": {"max_k": lambda most: most - 1},
    "heads not shared": {"enable_gqa": lambda gqa: False},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_noticed(name: str) -> None:
    """Whatever the adapter could pass wrongly either stops the kit or changes the result: the test
    above can fail.
    """
    scene = Scene(4, seed=3)
    scene.tables = [scene.cache.new(), scene.cache.new()]
    with scene.cache.append(scene.tables, [7, 3]):
        scene.cache.keys[:, :4] = torch.randn(
            scene.cache.keys[:, :4].shape, generator=scene.noise
        ).double()
        scene.cache.values[:, :4] = torch.randn(
            scene.cache.keys[:, :4].shape, generator=scene.noise
        ).double()
    wrong = varlen_attention(Wrong(**WRONG[name]).varlen_attn, 4)
    with scene.cache.append(scene.tables, [3, 2]) as slots:
        batch = RaggedBatch.build(
            scene.tables, [[0] * 3, [0] * 2], slots, wanted=[1, 1], device=CPU
        )
        q, k, v = scene.heads(5)
        expected = reference_attention(batch, scene.cache)(0, q, k, v)
        try:
            mixed = wrong.ragged(batch, scene.cache)(0, q, k, v)
        except (AssertionError, RuntimeError):
            return
        assert not torch.allclose(mixed, expected, rtol=0, atol=1e-9)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_long_runs_by_themselves_agree_with_the_reference(seed: int) -> None:
    """What SDPA does on CUDA, on the CPU: prompts, long chunks after a cache, and single tokens in
    one batch.
    """
    apart = replace(SDPA, ragged=partial(grouped_attention, long_apart=True))
    scene = Scene(4, seed)
    scene.sizes = [1, 2, LONG, LONG + 3]
    for _ in range(3):
        scene.tables.append(scene.cache.new())
        scene.forward([apart])
        scene.tables.append(scene.cache.fork(scene.tables[0]))
        scene.forward([apart])
    for table in scene.tables:
        scene.cache.release(table)


def test_a_kind_can_be_sent_to_another_process() -> None:
    cache = new_cache(4)
    tables = [cache.new()]
    with cache.append(tables, [3]) as slots:
        batch = RaggedBatch.build(tables, [[0] * 3], slots, wanted=[1], device=CPU)
        heads = [torch.randn(3, count, DIM).double() for count in (HEADS, KV_HEADS, KV_HEADS)]
        expected = reference_attention(batch, cache)(0, *heads)
        for kind in kinds(4):
            sent = pickle.loads(pickle.dumps(kind))
            assert (sent.name, sent.block_size) == (kind.name, kind.block_size)
            torch.testing.assert_close(
                sent.ragged(batch, cache)(0, *heads), expected, rtol=0, atol=1e-12
            )
