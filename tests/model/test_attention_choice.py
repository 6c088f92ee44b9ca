"""Which kind of attention is chosen, why the others are not, and what happens when one is asked for
that cannot run.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from kernel_kit import Emulated
from torch import Tensor

from lr.engine.runner import ModelRunner
from lr.errors import SettingError
from lr.model.attention import REFERENCE, SDPA, reference_attention
from lr.model.attention_choice import Installed, candidates, choose_attention, equip, look_around
from lr.model.attention_flash import FlashKernels
from lr.model.attention_probe import AttentionNeeds, probe
from lr.model.attention_varlen import varlen_attention
from lr.model.config import ModelConfig
from lr.model.graph_shapes import GraphShapes
from lr.model.qwen import CausalLM

CPU = torch.device("cpu")
BF16 = AttentionNeeds(CPU, torch.bfloat16, 4, 2, 16)
MISSING = "it is not there"


def installed(varlen: Any = MISSING, flash: Emulated | None = None) -> Installed:
    kernels = (
        MISSING
        if flash is None
        else FlashKernels(flash.flash_attn_varlen_func, flash.flash_attn_with_kvcache)
    )
    return Installed(varlen, kernels, devices=("cpu",))


HALF = Emulated(half_only=True)


@pytest.mark.parametrize(
    ("there", "taken", "block_size"),
    [
        (installed(HALF.varlen_attn, HALF), "varlen", 16),
        (installed(flash=Emulated(half_only=True, page_multiple=256)), "flash", 256),
        (installed(Emulated(half_only=True, page_multiple=128).varlen_attn), "varlen", 128),
        (installed(), "sdpa", 16),
    ],
)
def test_the_first_that_works_is_taken_with_its_smallest_block(
    there: Installed, taken: str, block_size: int
) -> None:
    kind = choose_attention("auto", BF16, there)
    assert (kind.name, kind.block_size) == (taken, block_size)


def refuses_pages(*args: object, **named: object) -> Tensor:
    raise RuntimeError("block_table is not supported by this backend\n and more lines")


def forgets_causality(*args: Any, **named: Any) -> Tensor:
    return HALF.varlen_attn(*args, **{**named, "window_size": (-1, -1)})


def reads_a_neighbour(*args: Any, **named: Any) -> Tensor:
    return HALF.varlen_attn(*args, **{**named, "block_table": named["block_table"].roll(1, 0)})


def not_a_number(*args: Any, **named: Any) -> Tensor:
    return HALF.varlen_attn(*args, **named) * torch.nan


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (refuses_pages, "RuntimeError: block_table is not supported by this backend"),
        (forgets_causality, "wrong result"),
        (reads_a_neighbour, "wrong result"),
        (not_a_number, "off by nan"),
    ],
)
def test_a_kernel_that_does_not_work_is_found_out(kernel: Callable[..., Tensor], why: str) -> None:
    found = {candidate.name: candidate for candidate in candidates(BF16, installed(kernel))}
    assert found["varlen"].kind is None
    assert why in found["varlen"].why
    assert found["sdpa"].kind is SDPA


def test_the_probe_is_content_with_what_is_right() -> None:
    for kind in (SDPA, REFERENCE, varlen_attention(HALF.varlen_attn, 16)):
        assert probe(kind, BF16) is None
    assert probe(SDPA, AttentionNeeds(CPU, torch.float64, 6, 3, 8)) is None


@pytest.mark.parametrize(
    ("needs", "why"),
    [
        (AttentionNeeds(CPU, torch.float32, 4, 2, 16), "float16 or bfloat16, not in float32"),
        (
            AttentionNeeds(CPU, torch.bfloat16, 4, 2, 12),
            "multiple of 8 and at most 256 dimensions, not 12",
        ),
        (AttentionNeeds(CPU, torch.bfloat16, 4, 2, 512), "not 512"),
    ],
)
def test_what_flash_attention_cannot_do_is_said_without_trying(
    needs: AttentionNeeds, why: str
) -> None:
    for name in ("varlen", "flash"):
        with pytest.raises(SettingError, match=re.escape(why)):
            choose_attention(name, needs, installed(HALF.varlen_attn, HALF))
    assert choose_attention("auto", needs, installed(HALF.varlen_attn, HALF)) is SDPA


def test_what_is_asked_for_is_taken_or_refused() -> None:
    there = installed(HALF.varlen_attn, HALF)
    assert [
        choose_attention(name, BF16, there).name
        for name in ("flash", "varlen", "sdpa", "reference")
    ] == [*("flash", "varlen", "sdpa", "reference")]
    with pytest.raises(
        SettingError, match=r"'flash' cannot be used on cpu with bfloat16: it is not there\. Leave"
    ):
        choose_attention("flash", BF16, installed(HALF.varlen_attn))
    with pytest.raises(
        SettingError, match="attention is 'fast', expected auto, varlen, flash, sdpa or reference"
    ):
        choose_attention("fast", BF16)


def test_this_machine() -> None:
    """What is found here is either a function or a sentence; on the CPU it is SDPA, whatever is
    installed.
    """
    found = look_around()
    assert callable(found.varlen) or "torch" in found.varlen
    assert isinstance(found.flash, FlashKernels) or "flash-attn" in found.flash
    assert choose_attention("auto", BF16) is SDPA
    with pytest.raises(SettingError, match="needs a device of type cuda"):
        choose_attention("varlen", BF16)


def test_a_model_is_equipped() -> None:
    """On the CPU: SDPA, nothing replayed, whatever could be."""
    model = CausalLM(ModelConfig(23, 16, 24, 2, 4, 2, 8, 128, 1e-6, 1e4, False, True, True))
    assert AttentionNeeds.of(model) == AttentionNeeds(CPU, torch.float32, 4, 2, 8)
    for name in ("auto", "reference", "sdpa"):
        equip(model, name)
        assert (model.attention, model.graphs) == (REFERENCE if name == "reference" else SDPA, None)


def test_pages_that_a_kernel_cannot_read_are_refused() -> None:
    model = CausalLM(ModelConfig(23, 16, 24, 2, 4, 2, 8, 128, 1e-6, 1e4, False, True, True))
    model.attention = varlen_attention(HALF.varlen_attn, 64)
    assert ModelRunner(model, num_blocks=4).cache.block_size == 64
    assert ModelRunner(model, num_blocks=4, block_size=128).cache.block_size == 128
    with pytest.raises(
        SettingError,
        match=r"block_size is 16, but attention 'varlen' reads blocks of a multiple of 64",
    ):
        ModelRunner(model, num_blocks=4, block_size=16)


def test_a_model_with_graphs_gets_a_block_for_inert_rows() -> None:
    model = CausalLM(
        ModelConfig(23, 16, 24, 2, 4, 2, 8, 128, 1e-6, 1e4, False, True, True)
    ).double()
    model.graphs = GraphShapes(rows=(2,), spans=(16,), after=0)
    runner = ModelRunner(model, num_blocks=4)
    assert runner.graphs is not None
    assert (runner.cache.num_blocks, runner.cache.pool.num_free) == (5, 4)
    [replayed] = runner.feed([runner.open([1, 2])])
    assert runner.graphs.recorded == [(2, 16)]
    plain = ModelRunner(model, num_blocks=4, backend=reference_attention)
    assert plain.graphs is None
    torch.testing.assert_close(replayed, plain.feed([plain.open([1, 2])])[0], rtol=0, atol=1e-12)
