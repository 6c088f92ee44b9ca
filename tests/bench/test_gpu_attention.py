"""The checks that a GPU machine runs, on the CPU: small scenes, the twin of the graphs; and on CUDA
where there is one.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lr.lab.bench.gpu_attention import SCENES, AttentionRow, Scene, check_attention, check_graphs
from lr.model.attention import SDPA, reference_attention
from lr.model.attention_choice import equip
from lr.model.config import ModelConfig
from lr.model.graph_shapes import GraphShapes
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
            ("varlen", "", None),
            ("flash", "", None),
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
    shapes = GraphShapes(rows=(1, 4), spans=(32, 64), after=0)
    rows = check_graphs(model, rows=(1, 3), length=20, steps=2, shapes=shapes)
    assert [(row.rows, row.ok, row.attention) for row in rows] == [
        (1, True, "sdpa"),
        (3, True, "sdpa"),
    ]
    assert all(row.plain > 0 and row.replayed > 0 for row in rows)
    assert model.graphs is None
    [too_many] = check_graphs(model, rows=(5,), length=20, steps=2, shapes=shapes)
    assert (too_many.ok, too_many.failure) == (False, "no shape holds so many rows and tokens")


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
    assert model.graphs is not None
    for row in check_graphs(model, length=300, steps=5):
        assert row.ok, row
