"""Which attention is chosen, why the others are not, and what happens when one is asked
for that cannot run.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from attention_kit import ROWS, row_attention
from torch import Tensor

from lr.errors import SettingError
from lr.kvcache.cache import PagedKVCache
from lr.model.attention import REFERENCE, SDPA, AttentionKind, RowPages
from lr.model.attention_choice import (
    AttentionNeeds,
    candidates,
    choose_attention,
    equip,
    find_triton,
    probe,
)
from lr.model.config import ModelConfig
from lr.model.layers import Attend
from lr.model.qwen import CausalLM

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
BF16 = AttentionNeeds(CPU, torch.bfloat16, 4, 2, 16)
CONFIG = ModelConfig(23, 16, 24, 2, 4, 2, 8, 128, 1e-6, 1e4, False, True, True)
Found = str | AttentionKind


def install(monkeypatch: pytest.MonkeyPatch, triton: Found) -> None:
    """As if this were what the machine has."""
    monkeypatch.setattr("lr.model.attention_choice.find_triton", lambda needs: triton)


TRITON = replace(ROWS, name="triton")


@pytest.mark.parametrize(
    ("triton", "taken"), [(TRITON, "triton"), ("it is not there", "sdpa")]
)
def test_the_first_that_works_is_taken(
    triton: Found, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, triton)
    assert choose_attention("auto", BF16).name == taken


def refuses_pages(rows: RowPages, cache: PagedKVCache) -> Attend:
    raise RuntimeError("this backend takes no block table\n and more lines")


def sees_what_comes_later(rows: RowPages, cache: PagedKVCache) -> Attend:
    return row_attention(replace(rows, positions=rows.positions + 1), cache)


def reads_a_neighbour(rows: RowPages, cache: PagedKVCache) -> Attend:
    return row_attention(replace(rows, blocks=rows.blocks.roll(1, 0)), cache)


def not_a_number(rows: RowPages, cache: PagedKVCache) -> Attend:
    attend = row_attention(rows, cache)

    def spoilt(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(layer, q, k, v) * torch.nan

    return spoilt


@pytest.mark.parametrize("form", ["ragged", "rows"])
@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (refuses_pages, "RuntimeError: this backend takes no block table"),
        (sees_what_comes_later, "wrong result ({form})"),
        (reads_a_neighbour, "wrong result ({form})"),
        (not_a_number, "wrong result ({form}): off by nan"),
    ],
)
def test_a_kernel_that_does_not_work_is_found_out(
    kernel: Callable[[RowPages, PagedKVCache], Attend],
    why: str,
    form: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = {
        "ragged": replace(
            TRITON, ragged=lambda batch, cache: kernel(RowPages.of(batch), cache)
        ),
        "rows": replace(TRITON, rows=kernel),
    }
    install(monkeypatch, wrong[form])
    found = dict(candidates(BF16))
    assert isinstance(found["triton"], str)
    assert found["triton"].startswith(why.format(form=form))
    assert "more lines" not in found["triton"]
    assert choose_attention("auto", BF16) is found["sdpa"] is SDPA


def test_the_probe_is_content_with_what_is_right() -> None:
    for kind in (SDPA, REFERENCE, ROWS):
        assert not probe(kind, BF16)
    assert not probe(SDPA, AttentionNeeds(CPU, torch.float64, 6, 3, 8))


def test_what_triton_cannot_do_is_said_without_trying(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "needs a device of type cuda" in str(find_triton(BF16))
    exact = AttentionNeeds(CUDA, torch.float64, 4, 2, 16)
    assert "16 or 32 bits, not in float64" in str(find_triton(exact))
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "lr.kernels.attention", raising=False)
    needs = AttentionNeeds(CUDA, torch.bfloat16, 4, 2, 16)
    assert "triton cannot be imported" in str(find_triton(needs))


def test_what_is_asked_for_is_taken_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, TRITON)
    for name in ("triton", "sdpa", "reference"):
        assert choose_attention(name, BF16).name == name
    install(monkeypatch, "it is not there")
    refused = r"'triton' cannot be used on cpu with bfloat16: it is not there\. Leave"
    with pytest.raises(SettingError, match=refused):
        choose_attention("triton", BF16)
    for name in ("fast", "flash"):
        refused = f"attention is '{name}', expected auto, triton, sdpa or reference"
        with pytest.raises(SettingError, match=refused):
            choose_attention(name, BF16)


@pytest.mark.parametrize("name", ["triton", "sdpa", "reference"])
def test_a_model_on_cuda_runs_without_cudnn_attention(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the kind, since PyTorch is also asked for other models and for long
    prompts."""
    install(monkeypatch, TRITON)
    monkeypatch.setattr("lr.model.attention_choice.probe", lambda kind, needs: "")
    monkeypatch.setattr(
        "lr.model.attention_choice.find_kernels", lambda needs: "not here"
    )
    model, before = CausalLM(CONFIG), torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(True)
        equip(model, name)
        assert torch.backends.cuda.cudnn_sdp_enabled()
        monkeypatch.setattr(CausalLM, "device", CUDA)
        equip(model, name)
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def test_a_model_is_equipped() -> None:
    """On the CPU: SDPA, and nothing is replayed."""
    model = CausalLM(CONFIG)
    for name in ("auto", "reference", "sdpa"):
        equip(model, name)
        assert model.attention is (REFERENCE if name == "reference" else SDPA)
        assert not model.replayable
    with pytest.raises(SettingError, match=re.escape("needs a device of type cuda")):
        equip(model, "triton")
