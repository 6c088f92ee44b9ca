"""What is read from a config.json, and what is refused by name."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tiny_training.checkpoint import config_json
from transformers import Qwen2Config, Qwen3Config

from lr.errors import CheckpointError
from lr.model.config import YarnScaling, read_config

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
ORIGINAL = "original_max_position_embeddings"


def test_null_is_as_if_absent() -> None:
    """`test_model_parity.py` compares the defaults with those of transformers."""
    null = dict.fromkeys(("num_key_value_heads", "head_dim", "layer_types"))
    config = read_config({**QWEN2, **null, "use_mrope": False})
    assert (config.num_kv_heads, config.head_dim) == (4, 16)
    scaling = {**YARN, ORIGINAL: None}
    yarn = read_config({**QWEN3, "rope_scaling": scaling}).yarn
    assert yarn == YarnScaling(4.0, SIZES["max_position_embeddings"])


OLDER = {**YARN, "rope_type": None, "type": "yarn"}


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ({"rope_theta": 5e5}, {"rope_theta": 5e5}),
        ({"rope_type": "default", "rope_theta": 5e5}, {"rope_theta": 5e5}),
        ({**YARN, "rope_theta": 5e5}, {"rope_theta": 5e5, "rope_scaling": YARN}),
        ({**YARN, "rope_theta": 5e5}, {"rope_theta": 5e5, "rope_scaling": OLDER}),
        (YARN, {"rope_scaling": {**YARN, "type": "yarn", "mscale": None}}),
        (YARN, {"rope_scaling": {**YARN, "attn_factor": 0.8782488562869419}}),
    ],
)
def test_spellings_of_rope(new: dict[str, Any], old: dict[str, Any]) -> None:
    config = read_config({**QWEN3, "rope_parameters": new})
    assert config == read_config({**QWEN3, **old})
    assert config == read_config({**QWEN3, "rope_parameters": new, **old})


def test_context_is_the_longer_of_the_stated_and_the_scaled_one() -> None:
    raw = {**QWEN3, "max_position_embeddings": 40960}
    for factor, expected in ((None, 40960), (1.0, 40960), (4.0, 131072)):
        scaling = {**YARN, "factor": factor, ORIGINAL: 32768} if factor else None
        config = read_config({**raw, "rope_scaling": scaling})
        assert config.max_position_embeddings == expected


@pytest.mark.parametrize("base", [QWEN2, QWEN3], ids=["qwen2", "qwen3"])
def test_only_a_window_that_some_layer_has_is_refused(base: dict[str, Any]) -> None:
    """transformers decides: our refusal is its list of layer types."""
    theirs = Qwen2Config if base is QWEN2 else Qwen3Config
    choices = product((False, True), (None, 64), (0, 2, 3, 28))
    for use, window, first in choices:
        keys = {
            "use_sliding_window": use,
            "sliding_window": window,
            "max_window_layers": first,
        }
        types = theirs(**SIZES, **keys).layer_types
        if "sliding_attention" in types:
            with pytest.raises(CheckpointError, match="sliding"):
                read_config({**base, **keys})
        else:
            read_config({**base, **keys})
            read_config({**base, **keys, "layer_types": types})


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM"),
    ({"architectures": ["Qwen3ForCausalLM", "Other"]}, "Other"),
    ({"model_type": "qwen2"}, "model_type = 'qwen2'"),
    ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
    ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
    ({"quantization_config": {"quant_method": "awq"}}, "awq"),
    ({"dual_chunk_attention_config": {"chunk_size": 262144}}, "dual chunk attention"),
    ({"num_experts": 8}, "num_experts = 8"),
    ({"attention_bias": True}, "attention_bias = True"),
    ({"use_mrope": True}, "use_mrope = True"),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type = 'linear'"),
    ({"rope_parameters": {"rope_type": "llama3"}}, "rope_type = 'llama3'"),
    ({"rope_scaling": {**YARN, "short_factor": [1.0]}}, "short_factor"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6}}, "rope_theta"),
    ({"rope_scaling": YARN, "rope_parameters": {**YARN, "factor": 2.0}}, "factor"),
    ({"rope_scaling": {**YARN, "factor": -1}}, "factor = -1"),
    ({"num_key_value_heads": 3}, "num_key_value_heads = 3"),
    ({"head_dim": 15}, "head_dim = 15"),
    ({"num_hidden_layers": 0}, "num_hidden_layers = 0"),
    ({"vocab_size": 1 << 40}, "vocab_size"),
    ({"rms_norm_eps": float("nan")}, "rms_norm_eps = nan"),
    ({"rms_norm_eps": float("inf")}, "rms_norm_eps = inf"),
    ({"rope_theta": float("inf")}, "rope_theta = inf"),
    ({"rope_scaling": {**YARN, "factor": float("inf")}}, "factor = inf"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings = 'yes'"),
]


@pytest.mark.parametrize(("changes", "named"), REFUSED, ids=str)
def test_refusals_name_the_entry(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        read_config({**QWEN3, **changes})


def test_missing_sizes_are_listed_together() -> None:
    raw = {"model_type": "qwen3", **SIZES}
    del raw["hidden_size"], raw["vocab_size"]
    with pytest.raises(CheckpointError, match="vocab_size, hidden_size"):
        read_config(raw)


@pytest.mark.parametrize(
    "raw", [QWEN3, QWEN2, {**QWEN3, "rope_scaling": {**YARN, "mscale": 0.5}}]
)
def test_written_and_read_again(tmp_path: Path, raw: dict[str, Any]) -> None:
    config = read_config(raw)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config_json(config)))
    for source in (config_json(config), tmp_path, file):
        assert read_config(source) == config


def test_refusals_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    for changes in ({"hidden_act": "gelu"}, {"rope_scaling": 7}, {"vocab_size": None}):
        file.write_text(json.dumps({**QWEN3, **changes}))
        with pytest.raises(CheckpointError, match=str(file)):
            read_config(tmp_path)


def test_a_byte_order_mark_is_no_part_of_the_json(tmp_path: Path) -> None:
    text = json.dumps(QWEN3)
    (tmp_path / "config.json").write_text(text, encoding="utf-8-sig")
    assert read_config(tmp_path) == read_config(QWEN3)
