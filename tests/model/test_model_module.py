"""The network is made of ordinary modules: hooks fire and see the hidden states."""

import pytest
import torch
from model_kit import our_logits, random_model, random_tokens
from torch import nn

from lr.model.layers import RMSNorm


@pytest.mark.parametrize("qk_norm", [True, False])
def test_a_hook_on_any_module_fires_once_in_a_forward(qk_norm):
    model = random_model(0, num_layers=2, qk_norm=qk_norm, qkv_bias=not qk_norm)
    fired = []
    expected = []
    for name, module in model.named_modules():
        if name and not isinstance(module, nn.ModuleList):
            expected.append(name)
            module.register_forward_hook(lambda *_, name=name: fired.append(name))
    our_logits(model, torch.tensor([5, 6, 7]))
    assert sorted(fired) == sorted(expected)


def test_hooks_see_and_change_hidden_states():
    model, tokens = random_model(0, vocab_size=61), random_tokens(3)
    before = our_logits(model, tokens)
    states = []
    with model.norm.register_forward_hook(lambda _, x, y: states.append(y)):
        assert torch.equal(our_logits(model, tokens), before)
    assert torch.equal(model.logits(states[0]), before)
    with model.layers[-1].register_forward_hook(lambda _, x, y: y * 0):
        assert not torch.allclose(our_logits(model, tokens), before)
    assert torch.equal(our_logits(model, tokens), before)


def test_gradients_can_be_watched():
    norm, gradients = RMSNorm(8, 1e-6), []
    norm.register_full_backward_pre_hook(lambda _, new: gradients.append(new))
    norm(torch.ones(2, 8, requires_grad=True)).sum().backward()
    assert len(gradients) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_norm_in_half_precision_is_rounded_once(dtype):
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
