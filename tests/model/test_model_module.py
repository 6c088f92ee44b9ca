"""`Direct` modules are modules: what `forward` sees is always what `parameters` lists."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from lr.model.config import ModelConfig
from lr.model.layers import DecoderLayer
from lr.model.module import Direct, Linear

CONFIG = ModelConfig(
    vocab_size=10,
    hidden_size=8,
    intermediate_size=12,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    max_position_embeddings=16,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    qkv_bias=True,
    qk_norm=True,
    tie_word_embeddings=True,
)


def replaced_weight(layer: DecoderLayer) -> DecoderLayer:
    layer.mlp.down.weight = nn.Parameter(torch.ones(8, 12))
    return layer


def replaced_module(layer: DecoderLayer) -> DecoderLayer:
    layer.attention.out = Linear(8, 8, bias=True)
    return layer


def assigned(layer: DecoderLayer) -> DecoderLayer:
    layer.load_state_dict(
        {name: value.clone() for name, value in layer.state_dict().items()}, assign=True
    )
    return layer


def made_on_meta(_: DecoderLayer) -> DecoderLayer:
    with torch.device("meta"):
        layer = DecoderLayer(CONFIG, 0)
    return layer.to_empty(device="cpu")


CHANGES: list[Callable[[DecoderLayer], DecoderLayer]] = [
    lambda layer: layer,
    lambda layer: layer.double(),
    lambda layer: layer.to(torch.bfloat16),
    copy.deepcopy,
    lambda layer: copy.deepcopy(layer.double()).float(),
    assigned,
    made_on_meta,
    replaced_weight,
    replaced_module,
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_forward_sees_is_what_parameters_lists(
    change: Callable[[DecoderLayer], DecoderLayer],
) -> None:
    original = DecoderLayer(CONFIG, 0)
    layer = change(original)
    assert list(layer.parameters())
    for module in layer.modules():
        assert isinstance(module, Direct)
        for name, value in [*module._parameters.items(), *module._modules.items()]:
            assert getattr(module, name) is value, name
    if layer is not original:
        assert not {id(p) for p in layer.parameters()} & {id(p) for p in original.parameters()}


def test_linear_is_linear() -> None:
    ours, theirs = Linear(5, 3), nn.Linear(5, 3)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(4, 5)
    assert torch.equal(ours(x), theirs(x))


def test_kept_head_weights_follow_every_change_of_the_norms() -> None:
    """Attention keeps the stacked weights of its norms; a change in place, a replaced tensor and
    `to` must all be seen.
    """
    layer = DecoderLayer(CONFIG, 0).requires_grad_(False)
    attention = layer.attention
    assert attention.q_norm is not None
    assert attention.k_norm is not None

    def stacked() -> torch.Tensor:
        with torch.no_grad():
            return attention._head_weights(attention.q_norm.weight, attention.k_norm.weight)

    def expected() -> torch.Tensor:
        return torch.stack(
            [attention.q_norm.weight] * attention.num_heads
            + [attention.k_norm.weight] * attention.num_kv_heads
        )

    first = stacked()
    assert stacked() is first
    attention.q_norm.weight.mul_(3.0)
    assert torch.equal(stacked(), expected())
    attention.k_norm.load_state_dict({"weight": torch.full_like(attention.k_norm.weight, 0.5)})
    assert torch.equal(stacked(), expected())
    layer.double()
    assert stacked().dtype is torch.float64
    assert torch.equal(stacked(), expected())
    layer.requires_grad_(True)
    attention._head_weights(attention.q_norm.weight, attention.k_norm.weight).sum().backward()
    assert (
        attention.q_norm.weight.grad is not None
    )  # what is kept without gradients is no use for training
    layer.requires_grad_(False)
    with torch.inference_mode():
        attention.q_norm.weight = torch.nn.Parameter(
            torch.ones(attention.head_dim), requires_grad=False
        )
        assert torch.equal(
            attention._head_weights(attention.q_norm.weight, attention.k_norm.weight)[0],
            torch.ones(attention.head_dim),
        )
