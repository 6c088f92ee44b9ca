"""The Triton kernels in Triton's interpreter, on the CPU (TRITON_INTERPRET=1); run by
`test_attention.py`. Not in bf16, whose products the interpreter computes
wrongly."""

import functools
from unittest.mock import Mock, patch

import torch
from attention_kit import LARGE, Scene, compare
from model_kit import random_model, runner_on
from triton.runtime import interpreter

from lr.kernels import attention, fused, install
from lr.kernels.attention import TRITON
from lr.model.attention_choice import AttentionNeeds, trial

CPU = torch.device("cpu")


def prepare_once(function):
    """The interpreter prepares Triton's language before each call, also of a helper,
    and undoes it, which takes as long as the calls. In this process it may stay."""
    prepare(function)
    return Mock()


prepare = functools.cache(interpreter._patch_lang)


def attention_is_right():
    scenes = (
        (Scene((3, 1, 8), 4, (13, 6), (17, 1, 1)), torch.float32),
        (Scene((6, 6, 24), 16, (20, 3), (5, 1, 1)), torch.float16),
        (Scene((8, 2, 64), 16, (9, 1), (2, 1, 1)), torch.float32),
        # A prompt alone, after what is cached.
        (Scene((3, 1, 8), 16, (5,), (17,)), torch.float16),
    )
    for scene, dtype in scenes:
        compare(TRITON, scene, dtype)


def keys_may_be_divided():
    """Into many parts, most of them without a key for some rows; each part of 101 keys
    is read in several pieces or in one. Rows that are not numbers stay with themselves.
    """
    scene = Scene(LARGE[3], 4, (100, 0), (2, 1, 1))
    for parts in (8, 32):
        # Of four tiles, a recording expects one.
        attention.PROGRAMS = parts
        dtype = torch.float16 if parts == 8 else torch.float32
        assert parts in compare(TRITON, scene, dtype, spoiled=True)
    attention.PROGRAMS = 16


@torch.inference_mode()
def layers_are_right(qk_norm, dtype):
    """A model on kernels computes what it computes without them; a layer whose norm has
    a hook computes without them, and the hook runs."""
    model = random_model(
        1,
        torch.float32,
        vocab_size=31,
        hidden_size=20,
        intermediate_size=36,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        rms_norm_eps=0.1,
        qkv_bias=not qk_norm,
        qk_norm=qk_norm,
    ).to(dtype)

    def logits(*prompts):
        """After the prompts, and after two more tokens of each, one by one."""
        runner = runner_on(model, num_blocks=32)
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

    def compare_logits(layers_on_kernels):
        assert (logits(*several) - plain[0]).abs().max() <= bound
        with patch.object(fused, "linear", wraps=fused.linear) as linear:
            assert (logits(*single) - plain[1]).abs().max() <= bound
        # In the second of two forwards.
        assert linear.call_count == 4 * layers_on_kernels

    compare_logits(len(model.layers))
    calls = []
    model.layers[0].mlp_norm.register_forward_hook(lambda *_: calls.append(1))
    compare_logits(1)
    assert len(calls) == 4


if __name__ == "__main__":
    interpreter._patch_lang = prepare_once
    attention.PROGRAMS = 16  # the interpreter runs them one by one
    attention.ALONE = 16
    attention_is_right()
    keys_may_be_divided()
    attention.PROGRAMS = 1  # the parts were tried, and a row times a matrix is below
    with patch.object(install, "readable", return_value=False):
        assert trial(TRITON, AttentionNeeds(CPU, torch.float32, (3, 1, 24))) == ""
    layers_are_right(False, torch.float16)
    fused.ROW_LAUNCH["BLOCK"] = 16  # shorter than the rows, which are no multiple of it
    layers_are_right(True, torch.float32)
