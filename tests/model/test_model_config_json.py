"""What is read from a config.json, and what is refused by name."""

import json
from itertools import product

import pytest
from model_kit import SIZES
from transformers import Qwen2Config, Qwen3Config

from lr.errors import CheckpointError
from lr.model.config import YarnScaling, read_config

QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **SIZES}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", **SIZES}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
ORIGINAL = "original_max_position_embeddings"


def test_null_is_as_if_absent():
    """`test_model_parity.py` compares the defaults with those of transformers."""
    null = dict.fromkeys(("num_key_value_heads", "head_dim", "layer_types"))
    config = read_config({**QWEN2, **null, "use_mrope": False})
    assert (config.num_kv_heads, config.head_dim) == (4, 8)
    scaling = {**YARN, ORIGINAL: None}
    yarn = read_config({**QWEN3, "rope_scaling": scaling}).yarn
    assert yarn == YarnScaling(4.0, SIZES["max_position_embeddings"])


OLDER = {**YARN, "rope_type": None, "type": "yarn"}


@pytest.mark.parametrize(
    "new, old",
    [
        ({"rope_theta": 5e5}, {"rope_theta": 5e5}),
        ({"rope_type": "default", "rope_theta": 5e5}, {"rope_theta": 5e5}),
        ({**YARN, "rope_theta": 5e5}, {"rope_theta": 5e5, "rope_scaling": YARN}),
        ({**YARN, "rope_theta": 5e5}, {"rope_theta": 5e5, "rope_scaling": OLDER}),
        (YARN, {"rope_scaling": {**YARN, "type": "yarn", "mscale": None}}),
        (YARN, {"rope_scaling": {**YARN, "attn_factor": 0.8782488562869419}}),
    ],
)
def test_spellings_of_rope(new, old):
    config = read_config({**QWEN3, "rope_parameters": new})
    assert config == read_config({**QWEN3, **old})
    assert config == read_config({**QWEN3, "rope_parameters": new, **old})


def test_context_is_the_longer_of_the_stated_and_the_scaled_one():
    raw = {**QWEN3, "max_position_embeddings": 40960}
    for factor, expected in ((None, 40960), (1.0, 40960), (4.0, 131072)):
        scaling = {**YARN, "factor": factor, ORIGINAL: 32768} if factor else None
        config = read_config({**raw, "rope_scaling": scaling})
        assert config.max_position_embeddings == expected


@pytest.mark.parametrize("base", [QWEN2, QWEN3], ids=["qwen2", "qwen3"])
def test_only_a_window_that_some_layer_has_is_refused(base):
    """transformers decides: our refusal is its list of layer types."""
    theirs = Qwen2Config if base is QWEN2 else Qwen3Config
    choices = product((False, True), (None, 64), (0, 1, 2, 28))
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


REFUSED = [
    ({"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM"),
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
    ({"vocab_size": 1 << 40}, "vocab_size"),
    ({"rms_norm_eps": float("inf")}, "rms_norm_eps = inf"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings = 'yes'"),
]


@pytest.mark.parametrize("changes, named", REFUSED, ids=str)
def test_refusals_name_the_entry(changes, named):
    with pytest.raises(CheckpointError, match=named):
        read_config({**QWEN3, **changes})


def test_missing_sizes_are_listed_together():
    raw = {"model_type": "qwen3", **SIZES}
    del raw["hidden_size"], raw["vocab_size"]
    with pytest.raises(CheckpointError, match="vocab_size, hidden_size"):
        read_config(raw)


def test_a_byte_order_mark_is_no_part_of_the_json(tmp_path):
    text = json.dumps(QWEN3)
    (tmp_path / "config.json").write_text(text, "utf-8-sig")
    assert read_config(tmp_path) == read_config(QWEN3)
