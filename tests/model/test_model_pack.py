"""Products of bfloat16 by few rows: the bits of `F.linear`, whichever way a processor
reads the weights quickest."""

import pytest
import torch
from torch.nn import functional as F

from lr import Reasoner
from lr.engine import loading
from lr.model import layers, pack
from lr.model.layers import Linear, product
from lr.model.pack import PackedLinear
from lr.model.weights import load_model
from lr.registry import SAMPLE_QUESTION


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("shape", [(64, 32), (1152, 896), (896, 4864)])
def test_products_have_the_bits_of_the_plain_one(monkeypatch, shape, has_bias):
    """Both ways are tried on every processor. At one row and beyond 16 oneDNN may add in
    another order, and a few numbers are rounded to their neighbour."""
    matrix = Linear(shape[1], shape[0], bias=has_bias).bfloat16().requires_grad_(False)
    packed = PackedLinear(matrix)
    monkeypatch.setattr(layers, "has_amx", lambda: True)
    for rows in (1, 2, 3, 4, 8, 16, 32, 64):
        x = torch.randn(rows, shape[1]).bfloat16()
        plain = F.linear(x, matrix.weight, matrix.bias)
        for y in (product(x, matrix.weight, matrix.bias), packed(x)):
            assert y.shape == plain.shape
            same = (y == plain).float().mean()
            assert same == 1 if 2 <= rows <= 16 else same > 0.995
            torch.testing.assert_close(y, plain, rtol=0.02, atol=0.02)


def test_a_model_with_packed_matrices_gives_the_same_answer(monkeypatch):
    """Also with the draft in a process of its own, which packs for itself."""
    monkeypatch.setattr(layers, "has_amx", lambda: False)
    tokens = []
    for packs in (False, True):
        monkeypatch.setattr(loading, "can_pack", lambda model, packs=packs: packs)
        models = ("tiny-target", "tiny-draft")
        with Reasoner(*models, dtype=torch.bfloat16, device="cpu") as reasoner:
            modules = reasoner.engine.target_model.modules()
            assert any(isinstance(module, PackedLinear) for module in modules) == packs
            for driver in ("lockstep", "overlapped"):
                options = {"driver": driver, "max_tokens": 40}
                result = reasoner.generate(SAMPLE_QUESTION, **options)
                tokens.append(result.tokens)
    assert all(answer == tokens[0] for answer in tokens)


def test_only_bfloat16_on_a_processor_without_amx_is_packed(monkeypatch):
    models = {
        t: load_model("tiny-target", dtype=t) for t in (torch.float32, torch.bfloat16)
    }
    for has_amx in (False, True):
        monkeypatch.setattr(pack, "has_amx", lambda has=has_amx: has)
        assert not pack.can_pack(models[torch.float32])
        assert pack.can_pack(models[torch.bfloat16]) == (not has_amx)
