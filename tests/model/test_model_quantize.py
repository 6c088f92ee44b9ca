"""Quantised weights: how far each matrix is from full precision, and that a model of
them answers."""

import pytest
import torch
from model_kit import KINDS, hf_model, our_logits, random_tokens

import lr.model.quantize
from lr import Reasoner
from lr.errors import SettingError
from lr.model.layers import Linear
from lr.model.quantize import FEW_ROWS, GROUP, Int4Linear, Int8Linear, quantize
from lr.model.weights import load_model

LARGER = {
    "vocab_size": 80,
    "hidden_size": 64,
    "intermediate_size": 96,
    "tie_word_embeddings": True,
}


def few_bits(kind, weight):
    """A quantised matrix."""
    matrix = kind(*weight.shape, None)
    matrix.quantise_rows(0, weight)
    return matrix


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("rows, columns", [(16, 32), (1040, 64)])
def test_each_weight_is_within_half_a_step(rows, columns, by_columns):
    """The bound is exact: half a step of the grid, and the roundings of bfloat16. W e_i
    is column i."""
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows))
    units = torch.eye(columns, dtype=torch.bfloat16)
    stored = weight.t().contiguous().t() if by_columns else weight
    rounding = torch.finfo(torch.bfloat16).eps * weight.abs().amax() * 2
    groups = weight.unflatten(1, (-1, GROUP))
    step4 = ((groups.amax(2) - groups.amin(2)) / 15).repeat_interleave(GROUP, 1)
    step8 = weight.abs().amax(1, keepdim=True) / 127
    for kind, step in ((Int8Linear, step8), (Int4Linear, step4)):
        product = few_bits(kind, stored)(units)
        assert ((product.t().float() - weight).abs() <= step / 2 + rounding).all()


def test_many_rows_and_few_have_nearly_the_same_product(monkeypatch):
    """A prompt is multiplied in bfloat16, where the processor does that."""
    numbers = torch.Generator().manual_seed(7)
    weight = torch.randn(64, 128, generator=numbers)
    x = torch.randn(FEW_ROWS + 1, 128, generator=numbers).bfloat16()
    matrix = few_bits(Int8Linear, weight)
    by_kernel = torch.cat([matrix.product(row[None]) for row in x])
    for unit in ("", "avx512_bf16"):
        monkeypatch.setattr(lr.model.quantize, "bfloat16_unit", lambda unit=unit: unit)
        product = matrix.product(x)
        assert torch.allclose(product, by_kernel, rtol=0.02, atol=0.05)
        assert torch.equal(product, by_kernel) == (unit == "")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_quantised_model_computes_nearly_the_same(tmp_path, kind, weights, dtype):
    hf_model(kind, **LARGER).save_pretrained(tmp_path)
    tokens = random_tokens(20)
    exact = our_logits(load_model(tmp_path, dtype=torch.float64), tokens)
    model = load_model(f"{weights}:{tmp_path}", dtype=dtype)
    assert not [part for part in model.modules() if type(part) is Linear]
    logits = our_logits(model, tokens)
    assert logits.dtype is dtype
    error = (logits.double() - exact).norm() / exact.norm()
    assert error < {"int8": 0.1, "int4": 0.6}[weights]


def test_matrices_that_no_kernel_reads_stay(tmp_path):
    hf_model("qwen3").save_pretrained(tmp_path)  # a head of 61 rows, an MLP of 40
    model = load_model(f"int4:{tmp_path}", dtype=torch.float32)
    parts = dict(model.named_modules())
    assert type(parts["head"]) is type(parts["layers.0.mlp.down"]) is Linear
    assert type(parts["layers.0.attention.qkv"]) is Int4Linear
    assert our_logits(model, random_tokens(5)).isfinite().all()


@pytest.mark.usefixtures("whole_targets")
def test_a_judge_shares_the_weights_of_the_same_checkpoint():
    named = {"tiny-target": "target", "int4:tiny-target": "draft", "tiny-judge": None}
    for judge, owner in named.items():
        models = ("tiny-target", "int4:tiny-target", "judge")
        with Reasoner(*models, judge=judge) as reasoner:
            engine = reasoner.engine
            verifier = reasoner.verifier
            asked = verifier.prefixes.runner.model
            for role, model in (
                ("target", engine.target_model),
                ("draft", engine.draft_model),
            ):
                assert (asked is model) == (role == owner)


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_rows_are_quantised_as_they_are_read(monkeypatch, weights):
    """A few at a time: no matrix is ever in memory as it is stored."""
    monkeypatch.setattr("lr.model.weights.ROWS", 256)
    model = load_model(f"{weights}:tiny-target", dtype=torch.bfloat16)
    whole = load_model("tiny-target", dtype=torch.bfloat16)
    assert max(len(matrix) for matrix in whole.parameters()) > 256
    quantize(whole, weights)
    expected = whole.state_dict()
    assert model.state_dict().keys() == expected.keys()
    for name, numbers in model.state_dict().items():
        assert torch.equal(numbers, expected[name]), name


def test_other_devices_are_refused():
    with pytest.raises(SettingError, match="weights"):
        quantize(load_model("tiny-draft").to("meta"), "int4")
