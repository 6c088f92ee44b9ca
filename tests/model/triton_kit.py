"""The Triton kernels in Triton's interpreter, on the CPU (TRITON_INTERPRET=1); run by
`test_attention_triton.py`. Not in bf16, whose products the interpreter computes
wrongly."""

from __future__ import annotations

from unittest.mock import patch

import torch
from attention_kit import LARGE, Scene, compare, random_scene
from model_kit import randomised

from lr.engine.runner import ModelRunner
from lr.kernels import attention, fused, install
from lr.kernels.attention import TRITON
from lr.model.attention_choice import AttentionNeeds, trial
from lr.model.config import ModelConfig
from lr.model.qwen import CausalLM

HEADS = ((4, 2, 16), (7, 1, 8), (6, 6, 24), (8, 2, 64))
CPU = torch.device("cpu")


def attention_is_right() -> None:
    for seed, heads in enumerate((*HEADS, *HEADS[:2], LARGE[1])):
        dtype = torch.float16 if seed % 3 == 2 else torch.float32
        compare(TRITON, random_scene(seed, heads, (4, 16)[seed // 4]), dtype)
    prompt = Scene(HEADS[1], 16, (5,), (67,))  # alone, after what is cached
    compare(TRITON, prompt, torch.float16)


def keys_may_be_divided() -> None:
    """Into many parts, most of them without a key for some rows; rows that are not
    numbers stay with themselves."""
    for parts in (1, 8, 64):
        # Of four tiles, a recording expects one.
        attention.PROGRAMS = parts
        dtype = torch.float16 if parts == 8 else torch.float32
        scene = Scene((4, 1, 16), 4, (20, 0), (2, 1, 1))
        assert parts in compare(TRITON, scene, dtype, spoiled=True)
    long = Scene(LARGE[3], 16, (800, 5), (1, 1, 1))
    assert 64 in compare(TRITON, long, torch.float32)
    attention.PROGRAMS = 16


@torch.inference_mode()
def layers_are_right(qk_norm: bool, dtype: torch.dtype) -> None:
    """A model on kernels computes what it computes without them; a layer whose norm has
    a hook computes without them, and the hook runs."""
    config = ModelConfig(
        31, 24, 40, 2, 2, 1, 16, 64, 1e-6, 1e4, not qk_norm, qk_norm, True
    )
    model = randomised(CausalLM(config).eval(), 1).to(dtype)

    def logits(*prompts: list[int]) -> torch.Tensor:
        """After the prompts, and after two more tokens of each, one by one."""
        runner = ModelRunner(model, num_blocks=32, block_size=4)
        branches = [runner.open(prompt) for prompt in prompts]
        rows = runner.forward(branches)
        for branch in branches:
            branch.append(7)
        rows += runner.forward(branches)
        return torch.stack(rows).float().softmax(-1)

    several, single = ([5, 9, 30], [1]), ([5, 9, 30],)
    plain = logits(*several), logits(*single)
    model.attention = TRITON
    install.install(model.layers, model.norm)
    bound = 1e-5 if dtype is torch.float32 else 0.02
    assert (logits(*several) - plain[0]).abs().max() <= bound
    with patch.object(fused, "linear", wraps=fused.linear) as linear:
        assert (logits(*single) - plain[1]).abs().max() <= bound
    assert linear.call_count == 4 * len(model.layers)  # in the second of two forwards

    calls: list[int] = []
    model.layers[0].mlp_norm.register_forward_hook(lambda *_: calls.append(1))
    assert (logits(*several) - plain[0]).abs().max() <= bound
    with patch.object(fused, "linear", wraps=fused.linear) as linear:
        assert (logits(*single) - plain[1]).abs().max() <= bound
    assert linear.call_count == 4
    assert len(calls) == 4


def a_trial_finds_wrong_kernels() -> None:
    needs = AttentionNeeds(CPU, torch.float32, 3, 1, 24)
    assert trial(TRITON, needs) == ""
    with patch.object(fused, "silu_mul", lambda x: x[:, : x.shape[1] // 2].relu()):
        assert "wrong result" in trial(TRITON, needs)


if __name__ == "__main__":
    attention.PROGRAMS = 16  # the interpreter runs them one by one
    attention.ALONE = 64
    attention_is_right()
    keys_may_be_divided()
    for block in (16, 1024):  # rows of 16 numbers and longer ones, no multiple of it
        fused.ROW["BLOCK"] = block
        layers_are_right(block == 16, torch.float32)
    layers_are_right(False, torch.float16)
    a_trial_finds_wrong_kernels()
