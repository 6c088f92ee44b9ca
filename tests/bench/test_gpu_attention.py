"""The checks that a GPU machine runs, on the CPU: small scenes, the twin of the graphs; and on CUDA
where there is one.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lr.kvcache.cache import PagedKVCache
from lr.kvcache.table import BlockTable
from lr.lab.bench.gpu_attention import SCENES, AttentionRow, Scene, check_attention, check_graphs
from lr.model.attention import SDPA, RowPages, reference_attention
from lr.model.attention_choice import equip
from lr.model.batch import RaggedBatch
from lr.model.config import ModelConfig
from lr.model.graphs import record_eager
from lr.model.layers import Attend
from lr.model.qwen import CausalLM
from lr.model.weights import fill_dummy

CPU = torch.device("cpu")
SMALL = (Scene("decode", (40, 3), (1, 1)), Scene("mixed", (0, 33, 9), (20, 1, 7), forks=2))
NO_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def small_model(device: torch.device, dtype: torch.dtype) -> CausalLM:
    model = CausalLM(ModelConfig(101, 64, 96, 2, 4, 2, 32, 4096, 1e-6, 1e4, False, True, True)).to(
        device, dtype
    )
    model.requires_grad_(False).eval()
    fill_dummy(model)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_on_the_cpu(dtype: torch.dtype) -> None:
    rows = check_attention(CPU, dtype, (4, 2, 16), SMALL, repeats=1)
    assert [(row.kind, row.scene, row.ok) for row in rows] == [
        *(
            ("flash", "", None),
            ("triton", "", None),
            ("sdpa", "decode", True),
            ("sdpa", "mixed", True),
        )
    ]
    assert all(row.seconds > 0 and row.off < row.bound for row in rows if not row.why)


def test_wrong_attention_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same scenes with a kind that looks at one place too few."""

    def short(batch, cache):  # type: ignore[no-untyped-def]
        attend = reference_attention(replace(batch, positions=batch.positions - 1), cache)
        return lambda layer, q, k, v: attend(layer, q, k, v).nan_to_num()

    monkeypatch.setattr("lr.model.attention_choice.SDPA", replace(SDPA, ragged=short))
    rows = [
        row
        for row in check_attention(CPU, torch.float32, (4, 2, 16), SMALL, repeats=1)
        if not row.why
    ]
    assert [row.ok for row in rows] == [False, False]


def test_a_row_without_figures_is_neither_right_nor_wrong() -> None:
    assert AttentionRow("flash", "", "not installed").ok is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_graphs_on_the_cpu(dtype: torch.dtype) -> None:
    model = small_model(CPU, dtype)
    model.attention = replace(SDPA, name="emulated", rows=one_by_one)
    rows = check_graphs(model, rows=(1, 3), length=40, steps=2, recorder=record_eager)
    assert [(row.rows, row.ok, row.attention) for row in rows] == [
        (1, True, "emulated"),
        (3, True, "emulated"),
    ]
    assert all(row.plain > 0 and row.replayed > 0 for row in rows)
    [too_many] = check_graphs(model, rows=(33,), length=4, steps=2, recorder=record_eager)
    assert (too_many.ok, too_many.failure) == (False, "no recording holds so many rows")


def one_by_one(rows: RowPages, cache: PagedKVCache) -> Attend:
    """Attention of rows that know their own pages, as the reference computes it."""
    tables = [
        BlockTable(cache.block_size, blocks, position + 1)
        for blocks, position in zip(rows.blocks.tolist(), rows.positions.tolist(), strict=True)
    ]
    ones = (1,) * len(tables)
    lengths = tuple(table.length for table in tables)
    batch = RaggedBatch(
        rows.positions, rows.positions, rows.slots, ones, lengths, tuple(tables), None, ([], [], [])
    )
    return reference_attention(batch, cache)


@pytest.mark.gpu
@NO_CUDA
@pytest.mark.parametrize("heads", [(32, 8, 128), (16, 8, 128), (28, 4, 128), (14, 2, 64)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_attention_on_cuda(heads: tuple[int, int, int], dtype: torch.dtype) -> None:
    for row in check_attention(torch.device("cuda"), dtype, heads, SCENES, repeats=1):
        assert row.ok in (None, True), row


@pytest.mark.gpu
@NO_CUDA
def test_graphs_on_cuda() -> None:
    model = small_model(torch.device("cuda"), torch.bfloat16)
    equip(model)
    assert model.replayable
    for row in check_graphs(model, length=300, steps=5):
        assert row.ok, row
