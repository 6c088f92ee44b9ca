"""Our network computes what transformers computes, from the same checkpoint, to 1e-10
in fp64, with a cache and without."""

import pytest
import torch
from model_kit import (
    KINDS,
    YARN,
    edit_json,
    hf_model,
    our_logits,
    poisoned,
    random_tokens,
    runner_on,
)
from transformers import AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from lr.kvcache.invariant import check_cache
from lr.model.attention import REFERENCE, SDPA
from lr.model.config import read_config
from lr.model.layers import inverse_frequencies
from lr.model.weights import load_model


def hf_logits(model, tokens):
    """Logits [t, v] of tokens [t], by transformers."""
    with torch.no_grad():
        return model(tokens[None], use_cache=False).logits[0]


def assert_parity(model, directory, tolerance=1e-10):
    """Logits of 80 random tokens agree; they are spread widely enough for that to mean
    something.
    """
    tokens = random_tokens(80)
    expected = hf_logits(model, tokens)
    assert expected.std() > 0.5
    torch.testing.assert_close(
        our_logits(load_model(directory, dtype=torch.float64), tokens),
        expected,
        rtol=0,
        atol=tolerance,
    )


@pytest.mark.parametrize("rope", [None, YARN], ids=["plain", "yarn"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_transformers(tmp_path, kind, kv_heads, tied, rope):
    model = hf_model(
        kind,
        num_key_value_heads=kv_heads,
        tie_word_embeddings=tied,
        rope_parameters=rope,
    )
    model.save_pretrained(tmp_path)
    assert_parity(model, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head_dim", [6, 8, 16])
def test_head_dim_is_a_setting_of_its_own(tmp_path, kind, head_dim):
    """hidden / heads is 8 here. Qwen2 checkpoints may state a head_dim too, and
    transformers follows it.
    """
    model = hf_model(kind, head_dim=head_dim)
    model.save_pretrained(tmp_path)
    assert load_model(tmp_path).config.head_dim == head_dim
    assert_parity(model, tmp_path)


def test_theta_and_epsilon(tmp_path):
    rope = {"rope_type": "default", "rope_theta": 100.0}
    model = hf_model("qwen3", rms_norm_eps=1e-2, rope_parameters=rope)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 3
    assert_parity(model, tmp_path)


YARN_VARIANTS = [
    {},
    {"attention_factor": 1.3},
    {"mscale": 0.7, "mscale_all_dim": 1.1},
    {"mscale": 0.7},
    {"truncate": False},
    {"beta_fast": 8.0, "beta_slow": 2.0},
    {"factor": 1.0},
    {"factor": None, "original_max_position_embeddings": 128},
    {"factor": 40.0, "original_max_position_embeddings": 4096, "rope_theta": 1_000_000},
    {"factor": 2.0, "original_max_position_embeddings": 4, "rope_theta": 17.0},
]


@pytest.mark.parametrize("head_dim", [8, 64, 128])
@pytest.mark.parametrize("variant", YARN_VARIANTS, ids=str)
def test_yarn_frequencies(variant, head_dim):
    """The frequencies, twice, and the factor, bit for bit, for every setting that YaRN
    has."""
    hf = hf_model(
        "qwen3",
        num_hidden_layers=1,
        head_dim=head_dim,
        rope_parameters={**YARN, **variant},
    ).config
    expected, expected_factor = ROPE_INIT_FUNCTIONS["yarn"](hf, device="cpu")
    frequencies, factor = inverse_frequencies(
        read_config({**hf.to_dict(), "architectures": ["Qwen3ForCausalLM"]})
    )
    assert frequencies.dtype is torch.float32
    assert torch.equal(frequencies, expected.repeat(2))
    assert factor == expected_factor


@pytest.mark.parametrize("kind", KINDS)
def test_absent_keys_mean_what_they_mean_to_transformers(tmp_path, kind):
    """A config.json with sizes alone: head_dim, theta, epsilon, tying and activation
    are transformers' defaults.
    """
    model = hf_model(kind, **({"head_dim": 128} if kind == "qwen3" else {}))
    model.save_pretrained(tmp_path)
    absent = "head_dim rope_parameters rms_norm_eps tie_word_embeddings".split()
    absent += "hidden_act attention_bias layer_types".split()
    edit_json(tmp_path / "config.json", **dict.fromkeys(absent))
    reread = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert_parity(reread, tmp_path)


@pytest.mark.parametrize(
    "dtype, tolerance",
    [(torch.float32, 1e-4), (torch.bfloat16, 0.1), (torch.float16, 0.01)],
)
@pytest.mark.parametrize("kind", KINDS)
def test_lower_precision(tmp_path, kind, dtype, tolerance):
    """The whole computation in `dtype`, against transformers in fp64: only rounding is
    between them.
    """
    model = hf_model(kind)
    model.save_pretrained(tmp_path)
    tokens = random_tokens(40)
    expected = hf_logits(model, tokens)
    ours = our_logits(load_model(tmp_path, dtype=dtype), tokens)
    assert ours.dtype is dtype
    error = float((ours.double() - expected).abs().mean() / expected.std())
    assert error < tolerance


CACHED = (0, 1, 15, 16, 17, 40)
CHUNKS = (1, 2, 5, 16, 33)
TOKENS = random_tokens(max(CACHED) + max(CHUNKS))


@pytest.mark.parametrize("attention", [REFERENCE, SDPA])
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_after_a_cache_in_one_ragged_batch(tmp_path, kind, attention):
    """m tokens fed earlier, then c more: all branches of the grid in one forward, in a
    scrambled order; those with nothing cached are prompts. Blocks hold 16 tokens; m
    stands before, at and after their edges. Heads are in groups of two, positions go
    beyond YaRN's 32. Whoever reads what is not the branch's own finds NaN."""
    theirs = hf_model(kind, rope_parameters=YARN)
    theirs.save_pretrained(tmp_path)
    expected = hf_logits(theirs, TOKENS)
    model = load_model(tmp_path, dtype=torch.float64)
    model.attention = attention
    runner = poisoned(runner_on(model, num_blocks=200, block_size=16))
    grid = [(m, c) for c in CHUNKS for m in CACHED]
    grid = [grid[7 * i % len(grid)] for i in range(len(grid))]
    branches = [runner.open(TOKENS[: m or c].tolist()) for m, c in grid]
    cached = [branch for branch, (m, _) in zip(branches, grid, strict=True) if m]
    for branch, logits in zip(cached, runner.forward(cached), strict=True):
        m = len(branch)
        torch.testing.assert_close(logits, expected[m - 1], rtol=0, atol=1e-10)
    for branch, (m, c) in zip(branches, grid, strict=True):
        branch.extend(TOKENS[m : m + c].tolist() if m else [])
    for (m, c), logits in zip(
        grid, runner.forward(branches, logits="all"), strict=True
    ):
        torch.testing.assert_close(logits, expected[m : m + c], rtol=0, atol=1e-10)
    check_cache(runner.cache, [branch.table for branch in branches])
