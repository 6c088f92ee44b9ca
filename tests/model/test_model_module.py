"""The network is made of ordinary modules: hooks fire and see the hidden states."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lr.engine.runner import ModelRunner
from lr.model.layers import DecoderLayer, Linear, RMSNorm
from lr.model.weights import load_model


def test_forward_hooks_see_the_hidden_states() -> None:
    model = load_model("tiny-draft", dtype=torch.float64)
    runner = ModelRunner(model, num_blocks=8)
    seen: dict[str, list[Tensor]] = {"norm": [], "layer": [], "projection": []}
    first = model.layers[0]
    assert isinstance(first, DecoderLayer)
    hooks = [
        module.register_forward_hook(
            lambda _, given, made, name=name: seen[name].append(made)
        )
        for name, module in (
            ("norm", model.norm),
            ("layer", first),
            ("projection", first.attention.qkv),
        )
    ]
    branch = runner.open([1, 2, 3])
    [logits] = runner.forward([branch], logits="all")
    for hook in hooks:
        hook.remove()
    e = model.config.hidden_size
    assert {
        name: [tuple(x.shape[:1]) for x in found] for name, found in seen.items()
    } == {name: [(3,)] for name in seen}
    assert seen["norm"][0].shape == seen["layer"][0].shape == (3, e)
    torch.testing.assert_close(
        model.logits(seen["norm"][0]), logits, rtol=0, atol=1e-12
    )
    runner.forward([_with(branch, 4)])
    assert len(seen["norm"]) == 1
    runner.close(branch)


def test_a_hook_can_change_what_the_model_says() -> None:
    model = load_model("tiny-draft", dtype=torch.float64)
    runner = ModelRunner(model, num_blocks=8)
    plain, changed = runner.open([1, 2]), runner.open([1, 2])
    [before] = runner.forward([plain])
    with model.layers[-1].register_forward_hook(lambda _, given, made: made * 0):
        [after] = runner.forward([changed])
    assert not torch.allclose(before, after)
    for branch in (plain, changed):
        runner.close(branch)


def test_gradients_can_be_watched_and_weights_computed() -> None:
    """Hooks on gradients, and a weight that is a function of others (`parametrize`)."""
    norm, seen = RMSNorm(8, 1e-6), []
    norm.register_full_backward_pre_hook(lambda _, gradients: seen.append(gradients))
    norm(torch.ones(2, 8, requires_grad=True)).sum().backward()
    assert len(seen) == 1

    linear = Linear(4, 3, bias=False)
    plain = linear.weight.detach().clone()
    parametrize.register_parametrization(linear, "weight", Doubled())
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(linear(x), x @ (2 * plain).t())
    parametrize.remove_parametrizations(linear, "weight")
    torch.testing.assert_close(linear(x), x @ (2 * plain).t())
    del linear.weight
    assert not hasattr(linear, "weight")


class Doubled(nn.Module):
    """Twice the parameter."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


def _with(branch, token):  # type: ignore[no-untyped-def]
    branch.append(token)
    return branch


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_norm_in_half_precision_is_rounded_once(dtype: torch.dtype) -> None:
    norm = RMSNorm(64, 1e-6).to(dtype)
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(64, generator=noise))
        x = torch.randn(50, 64, generator=noise).to(dtype)
        x64 = x.double()
        exact = norm.weight * x64 * (x64.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        torch.testing.assert_close(
            norm(x).double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-6
        )
