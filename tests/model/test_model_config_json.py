"""What is read from a config.json, and what is refused by name."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from lr.errors import CheckpointError
from lr.model.config import ModelConfig, YarnScaling, read_config
from lr.tiny.saving import config_json

SIZES: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **SIZES}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", **SIZES}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}


def test_qwen3() -> None:
    """Shaped like the config.json of Qwen3-0.6B."""
    raw = {
        **QWEN3,
        "head_dim": 128,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "initializer_range": 0.02,
        "max_window_layers": 28,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
    }
    assert read_config(raw) == ModelConfig(
        vocab_size=100,
        hidden_size=64,
        intermediate_size=96,
        num_layers=3,
        num_heads=4,
        num_kv_heads=2,
        head_dim=128,
        max_position_embeddings=512,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        qkv_bias=False,
        qk_norm=True,
        tie_word_embeddings=True,
    )


def test_qwen2() -> None:
    """Shaped like DeepSeek-R1-Distill-Qwen: sliding window named but not used, no
    head_dim, own epsilon.
    """
    raw = {
        **QWEN2,
        "sliding_window": 4096,
        "use_sliding_window": False,
        "use_mrope": False,
        "rope_theta": 10000,
        "rms_norm_eps": 1e-5,
    }
    config = read_config(raw)
    assert (config.head_dim, config.qkv_bias, config.qk_norm) == (16, True, False)
    assert (config.rms_norm_eps, config.rope_theta, config.tie_word_embeddings) == (
        1e-5,
        1e4,
        False,
    )


def test_defaults_of_absent_keys() -> None:
    """transformers' own: 128 for Qwen3, hidden / heads for Qwen2. (That they are,
    `test_model_parity.py` shows.)
    """
    three, two = read_config(QWEN3), read_config(QWEN2)
    assert (three.head_dim, two.head_dim) == (128, 16)
    for config in (three, two):
        assert (config.rope_theta, config.rms_norm_eps, config.yarn) == (
            1e4,
            1e-6,
            None,
        )
        assert not config.tie_word_embeddings
    assert read_config({**QWEN2, "num_key_value_heads": None}).num_kv_heads == 4
    assert read_config({**QWEN2, "head_dim": None}).head_dim == 16


def test_model_type_alone_is_enough() -> None:
    assert read_config({**SIZES, "model_type": "qwen3"}).qk_norm


@pytest.mark.parametrize(
    "new_and_old",
    [
        ({"rope_theta": 5e5}, {"rope_theta": 5e5}),
        (
            {"rope_type": "default", "rope_theta": 5e5},
            {"rope_theta": 5e5, "rope_scaling": None},
        ),
        ({**YARN, "rope_theta": 5e5}, {"rope_theta": 5e5, "rope_scaling": YARN}),
        (
            {**YARN, "rope_theta": 5e5},
            {
                "rope_theta": 5e5,
                "rope_scaling": {**YARN, "rope_type": None, "type": "yarn"},
            },
        ),
        (
            {**YARN, "rope_theta": 5e5},
            {
                "rope_theta": 5e5,
                "rope_scaling": {**YARN, "type": "yarn", "mscale": None},
            },
        ),
        ({**YARN}, {"rope_theta": 1e4, "rope_scaling": YARN}),
    ],
)
def test_spellings_of_rope(new_and_old: tuple[dict[str, Any], dict[str, Any]]) -> None:
    new, old = new_and_old
    assert read_config({**QWEN3, "rope_parameters": new}) == read_config(
        {**QWEN3, **old}
    )
    assert read_config({**QWEN3, "rope_parameters": new, **old}) == read_config(
        {**QWEN3, **old}
    )


def test_yarn() -> None:
    stated = {
        "beta_fast": 16,
        "beta_slow": 2,
        "attention_factor": 1.5,
        "mscale": 0.7,
        "mscale_all_dim": 0.8,
        "truncate": False,
    }
    assert read_config({**QWEN3, "rope_scaling": YARN}).yarn == YarnScaling(4.0, 128)
    assert read_config(
        {**QWEN3, "rope_scaling": {**YARN, **stated}}
    ).yarn == YarnScaling(4.0, 128, 16.0, 2.0, 1.5, 0.7, 0.8, False)
    ratio = {"rope_type": "yarn", "original_max_position_embeddings": 128}
    assert read_config({**QWEN3, "rope_scaling": ratio}).yarn == YarnScaling(
        512 / 128, 128
    )
    assert read_config(
        {**QWEN3, "rope_scaling": {"rope_type": "yarn", "factor": 2.0}}
    ).yarn == YarnScaling(2.0, 512)
    outside = {
        **QWEN3,
        "original_max_position_embeddings": 64,
        "rope_scaling": {"rope_type": "yarn", "factor": 2.0},
    }
    assert read_config(outside).yarn == YarnScaling(2.0, 64)


def test_context_with_yarn() -> None:
    """Whichever is longer: what is stated, or what the scaling makes of the original
    context."""
    stretched = {**QWEN3, "max_position_embeddings": 40960}
    scaling = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
    }
    assert read_config(stretched).max_position_embeddings == 40960
    assert (
        read_config({**stretched, "rope_scaling": scaling}).max_position_embeddings
        == 131072
    )
    assert (
        read_config(
            {**stretched, "rope_scaling": {**scaling, "factor": 1.0}}
        ).max_position_embeddings
        == 40960
    )


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "llama",
        {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
        "LlamaForCausalLM",
    ),
    (
        "moe",
        {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"},
        "Qwen3MoeForCausalLM",
    ),
    (
        "nothing named",
        {"architectures": None, "model_type": None},
        "architectures = None",
    ),
    ("unknown type only", {"architectures": None, "model_type": "gpt2"}, "'gpt2'"),
    ("two architectures", {"architectures": ["Qwen3ForCausalLM", "Other"]}, "Other"),
    (
        "a text for a list",
        {"architectures": "Qwen3ForCausalLM"},
        "architectures = 'Qwen3ForCausalLM'",
    ),
    ("type against architecture", {"model_type": "qwen2"}, "model_type = 'qwen2'"),
    ("activation", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
    (
        "sliding window",
        {"use_sliding_window": True, "sliding_window": 128},
        "use_sliding_window = True",
    ),
    (
        "sliding layers",
        {"layer_types": ["full_attention", "sliding_attention"]},
        "sliding_attention",
    ),
    ("linear layers", {"layer_types": ["linear_attention"]}, "linear_attention"),
    ("quantised", {"quantization_config": {"quant_method": "awq"}}, "awq"),
    ("experts", {"num_experts": 8}, "num_experts = 8"),
    ("local experts", {"num_local_experts": 8}, "num_local_experts = 8"),
    ("expert size", {"moe_intermediate_size": 64}, "moe_intermediate_size = 64"),
    ("bias everywhere", {"attention_bias": True}, "attention_bias = True"),
    ("3d positions", {"use_mrope": True}, "use_mrope = True"),
    (
        "rope linear",
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        "rope_type = 'linear'",
    ),
    (
        "rope dynamic",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
        "rope_type = 'dynamic'",
    ),
    (
        "rope llama3",
        {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}},
        "rope_type = 'llama3'",
    ),
    (
        "rope longrope",
        {"rope_scaling": {"rope_type": "longrope"}},
        "rope_type = 'longrope'",
    ),
    (
        "unused scaling",
        {"rope_scaling": {"rope_type": "default", "factor": 2.0}},
        "factor",
    ),
    (
        "unknown in yarn",
        {"rope_scaling": {**YARN, "short_factor": [1.0]}},
        "short_factor",
    ),
    (
        "rope per layer type",
        {"rope_parameters": {"full_attention": YARN}},
        "full_attention",
    ),
    ("rope a text", {"rope_scaling": "yarn"}, "rope_scaling = 'yarn'"),
    ("partial rotation", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    (
        "partial rotation inside",
        {"rope_parameters": {"partial_rotary_factor": 0.5}},
        "partial_rotary_factor",
    ),
    (
        "two thetas",
        {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6}},
        "contradict",
    ),
    (
        "two scalings",
        {"rope_scaling": YARN, "rope_parameters": {**YARN, "factor": 2.0}},
        "rope_scaling",
    ),
    (
        "default and yarn",
        {"rope_scaling": YARN, "rope_parameters": {"rope_type": "default"}},
        "rope_scaling",
    ),
    (
        "two types",
        {"rope_scaling": {**YARN, "type": "linear"}},
        "rope_scaling.type = 'linear'",
    ),
    (
        "two contexts",
        {"original_max_position_embeddings": 64, "rope_scaling": YARN},
        "original_max_position_embeddings",
    ),
    ("no factor", {"rope_scaling": {**YARN, "factor": -1}}, "factor = -1"),
    ("factor a text", {"rope_scaling": {**YARN, "factor": "4"}}, "factor = '4'"),
    ("truncate a number", {"rope_scaling": {**YARN, "truncate": 3}}, "truncate = 3"),
    (
        "heads do not divide",
        {"num_attention_heads": 4, "num_key_value_heads": 3},
        "num_key_value_heads = 3",
    ),
    ("odd head", {"head_dim": 15}, "head_dim = 15"),
    ("head of null", {"head_dim": None}, "head_dim = None"),
    ("no layers", {"num_hidden_layers": 0}, "num_hidden_layers = 0"),
    ("size a fraction", {"hidden_size": 64.5}, "hidden_size = 64.5"),
    ("size a truth", {"vocab_size": True}, "vocab_size = True"),
    ("epsilon a text", {"rms_norm_eps": "1e-6"}, "rms_norm_eps = '1e-6'"),
    ("epsilon not a number", {"rms_norm_eps": float("nan")}, "rms_norm_eps = nan"),
    ("theta zero", {"rope_theta": 0}, "rope_theta = 0"),
    ("tied a text", {"tie_word_embeddings": "yes"}, "tie_word_embeddings = 'yes'"),
]


@pytest.mark.parametrize(
    ("changes", "named"), [c[1:] for c in REFUSED], ids=[c[0] for c in REFUSED]
)
def test_refusals(changes: dict[str, Any], named: str) -> None:
    """Each says the offending value, what was expected, and what to do."""
    with pytest.raises(CheckpointError) as refusal:
        read_config({**QWEN3, **changes})
    message = str(refusal.value)
    assert named in message
    assert "expected" in message
    assert "config.json" in message


def test_qwen2_heads_must_divide_the_hidden_size() -> None:
    with pytest.raises(
        CheckpointError, match=r"num_attention_heads = 6.*hidden_size \(64\)"
    ):
        read_config({**QWEN2, "num_attention_heads": 6})


def test_missing_keys_are_listed_together() -> None:
    raw = {
        key: value
        for key, value in QWEN3.items()
        if key not in ("hidden_size", "vocab_size", "num_key_value_heads")
    }
    with pytest.raises(
        CheckpointError, match="lacks vocab_size, hidden_size, num_key_value_heads"
    ):
        read_config(raw)


@pytest.mark.parametrize(
    "raw",
    [
        QWEN3,
        QWEN2,
        {**QWEN3, "rope_scaling": {**YARN, "mscale": 0.5, "truncate": False}},
    ],
)
def test_written_and_read_again(tmp_path: Path, raw: dict[str, Any]) -> None:
    """As a mapping, as a file, and as the directory it lies in."""
    config = read_config(raw)
    (tmp_path / "config.json").write_text(json.dumps(config_json(config)))
    assert (
        read_config(config_json(config))
        == read_config(tmp_path)
        == read_config(tmp_path / "config.json")
        == config
    )


@pytest.mark.parametrize("both", [False, True])
def test_no_architecture_to_write(both: bool) -> None:
    config = dataclasses.replace(read_config(QWEN3), qkv_bias=both, qk_norm=both)
    with pytest.raises(CheckpointError, match=f"qkv_bias={both} with qk_norm={both}"):
        config_json(config)


@pytest.mark.parametrize(
    "change",
    [
        {"architectures": 7},
        {"layer_types": 7},
        {"num_hidden_layers": 1 << 31},
        {"vocab_size": 1 << 40},
        {"rms_norm_eps": 10**400},
        {"rope_parameters": {**YARN, "factor": 1e299}},
        {"rope_theta": 10**400},
    ],
    ids=str,
)
def test_what_no_model_has_is_refused_before_anything_counts_up_to_it(
    change: dict[str, Any],
) -> None:
    with pytest.raises(
        CheckpointError, match=f"config.json has .*{next(iter(change))[:4]}|factor"
    ):
        read_config({**QWEN3, **change})


def test_a_file_that_is_nested_too_deeply_is_no_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(
        CheckpointError, match=r"config\.json cannot be read as a JSON object"
    ):
        read_config(tmp_path)
