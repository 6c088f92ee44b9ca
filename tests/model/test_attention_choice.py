"""Which attention is chosen, why the others are not, and what happens when one is asked for that
cannot run.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kernel_kit import Emulated
from torch import Tensor

from lr.engine.runner import ModelRunner
from lr.errors import SettingError
from lr.model.attention import REFERENCE, SDPA, AttentionKind
from lr.model.attention_choice import (
    AttentionNeeds,
    candidates,
    choose_attention,
    equip,
    find_flash,
    find_triton,
    probe,
)
from lr.model.attention_flash import flash_attention
from lr.model.config import ModelConfig
from lr.model.qwen import CausalLM

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
BF16 = AttentionNeeds(CPU, torch.bfloat16, 4, 2, 16)
HALF = Emulated(half_only=True, page_multiple=256)
CONFIG = ModelConfig(23, 16, 24, 2, 4, 2, 8, 128, 1e-6, 1e4, False, True, True)
Found = str | AttentionKind


def install(
    monkeypatch: pytest.MonkeyPatch, flash: Found = "no flash", triton: Found = "no triton"
) -> None:
    """As if this were what the machine has."""
    monkeypatch.setattr("lr.model.attention_choice.find_flash", lambda needs: flash)
    monkeypatch.setattr("lr.model.attention_choice.find_triton", lambda needs: triton)


def kernels(
    varlen: Callable[..., Tensor] = HALF.flash_attn_varlen_func, block_size: int = 256
) -> AttentionKind:
    return flash_attention(varlen, HALF.flash_attn_with_kvcache, block_size)


TRITON = AttentionKind("triton", 16, SDPA.ragged)


@pytest.mark.parametrize(
    ("flash", "triton", "taken", "block_size"),
    [
        (kernels(), TRITON, "flash", 256),
        ("it is not there", TRITON, "triton", 16),
        ("it is not there", "nor is it", "sdpa", 16),
    ],
)
def test_the_first_that_works_is_taken(
    flash: Found, triton: Found, taken: str, block_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, flash, triton)
    kind = choose_attention("auto", BF16)
    assert (kind.name, kind.block_size) == (taken, block_size)


def refuses_pages(*args: object, **named: object) -> Tensor:
    raise RuntimeError("block_table is not supported by this backend\n and more lines")


def forgets_causality(*args: Any, **named: Any) -> Tensor:
    return HALF.flash_attn_varlen_func(*args, **{**named, "causal": False})


def reads_a_neighbour(*args: Any, **named: Any) -> Tensor:
    table = named["block_table"].roll(1, 0)
    return HALF.flash_attn_varlen_func(*args, **{**named, "block_table": table})


def not_a_number(*args: Any, **named: Any) -> Tensor:
    return HALF.flash_attn_varlen_func(*args, **named) * torch.nan


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (refuses_pages, "RuntimeError: block_table is not supported by this backend"),
        (forgets_causality, "wrong result"),
        (reads_a_neighbour, "wrong result"),
        (not_a_number, "off by nan"),
    ],
)
def test_a_kernel_that_does_not_work_is_found_out(
    kernel: Callable[..., Tensor], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, kernels(kernel))
    found = dict(candidates(BF16))
    assert why in str(found["flash"])
    assert isinstance(found["flash"], str)
    assert found["sdpa"] is SDPA


def test_the_probe_is_content_with_what_is_right() -> None:
    for kind in (SDPA, REFERENCE, kernels()):
        assert not probe(kind, BF16)
    assert not probe(SDPA, AttentionNeeds(CPU, torch.float64, 6, 3, 8))


@pytest.mark.parametrize(
    ("needs", "why"),
    [
        (AttentionNeeds(CPU, torch.bfloat16, 4, 2, 16), "needs a device of type cuda"),
        (AttentionNeeds(CUDA, torch.float32, 4, 2, 16), "float16 or bfloat16, not in float32"),
        (AttentionNeeds(CUDA, torch.bfloat16, 4, 2, 12), "at most 256 dimensions, not 12"),
        (AttentionNeeds(CUDA, torch.bfloat16, 4, 2, 512), "not 512"),
    ],
)
def test_what_flash_attention_cannot_do_is_said_without_trying(
    needs: AttentionNeeds, why: str
) -> None:
    assert why in str(find_flash(needs))


def test_what_is_installed_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = AttentionNeeds(CUDA, torch.bfloat16, 4, 2, 16)
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    assert "is not installed" in str(find_flash(needs))
    old = SimpleNamespace(flash_attn_varlen_func=lambda q: q, flash_attn_with_kvcache=lambda q: q)
    monkeypatch.setitem(sys.modules, "flash_attn", old)
    assert "takes no block_table" in str(find_flash(needs))
    monkeypatch.setitem(sys.modules, "flash_attn", HALF)
    assert isinstance(find_flash(needs), AttentionKind)
    assert "16 or 32 bits, not in float64" in str(
        find_triton(AttentionNeeds(CUDA, torch.float64, 4, 2, 16))
    )
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "lr.model.attention_triton", raising=False)
    assert "triton cannot be imported" in str(find_triton(needs))


def test_what_is_asked_for_is_taken_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "it is not there", TRITON)
    for name in ("triton", "sdpa", "reference"):
        assert choose_attention(name, BF16).name == name
    refused = r"'flash' cannot be used on cpu with bfloat16: it is not there\. Leave"
    with pytest.raises(SettingError, match=refused):
        choose_attention("flash", BF16)
    names = "expected auto, flash, triton, sdpa or reference"
    with pytest.raises(SettingError, match=f"attention is 'fast', {names}"):
        choose_attention("fast", BF16)


def test_a_model_is_equipped() -> None:
    """On the CPU: SDPA, and nothing is replayed."""
    model = CausalLM(CONFIG)
    assert AttentionNeeds.of(model) == AttentionNeeds(CPU, torch.float32, 4, 2, 8)
    for name in ("auto", "reference", "sdpa"):
        equip(model, name)
        assert model.attention is (REFERENCE if name == "reference" else SDPA)
        assert not model.replayable
    with pytest.raises(SettingError, match=re.escape("needs a device of type cuda")):
        equip(model, "triton")


def test_pages_that_a_kernel_cannot_read_are_refused() -> None:
    model = CausalLM(CONFIG)
    model.attention = kernels(block_size=64)
    assert ModelRunner(model, num_blocks=4).cache.block_size == 64
    assert ModelRunner(model, num_blocks=4, block_size=128).cache.block_size == 128
    refused = "block_size is 16, but attention 'flash' reads blocks of a multiple of 64"
    with pytest.raises(SettingError, match=refused):
        ModelRunner(model, num_blocks=4, block_size=16)
