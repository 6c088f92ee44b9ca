"""Models without a checkpoint: shapes by name, seeded weights, a tokenizer that fills
the vocabulary.
"""

import json
import math
from dataclasses import replace

import pytest
import torch
from tiny_training.checkpoint import config_json, tiny_config

from lr.errors import CheckpointError, SettingError
from lr.measure.dummy import SHAPES, random_model, shape
from lr.model.codec import Codec
from lr.model.config import read_config
from lr.model.weights import load_model, pieces

CPU = torch.device("cpu")
PARAMETERS = {
    "Qwen3-32B": 32_762_123_264,  # the model cards say 32.8 B, 1.7 B, 0.6 B, 7.61 B
    "Qwen3-1.7B": 1_720_574_976,
    "Qwen3-0.6B": 596_049_920,
    "Qwen2.5-7B": 7_615_616_512,
}


@pytest.mark.parametrize("name, parameters", PARAMETERS.items())
def test_shapes_have_the_published_number_of_parameters(name, parameters):
    assert sum(math.prod(piece.shape) for piece in pieces(SHAPES[name])) == parameters
    assert read_config(config_json(SHAPES[name])) == SHAPES[name]


def test_a_shape_is_found_by_name_or_in_a_folder(tmp_path):
    assert shape("dummy:Qwen/Qwen2.5-7B-Instruct") is SHAPES["Qwen2.5-7B"]
    assert shape("tiny-draft").num_layers < shape("tiny-target").num_layers
    config = tiny_config(3, 300)
    (tmp_path / "config.json").write_text(json.dumps(config_json(config)))
    assert shape(f"dummy:{tmp_path}") == config
    with pytest.raises(CheckpointError, match="Qwen3-5B"):
        load_model("dummy:Qwen3-5B")


@pytest.mark.parametrize("name", ["tiny-target", "Qwen2.5-7B"])
def test_weights_are_seeded_and_norms_are_one(name):
    config = replace(shape(name), num_layers=2, hidden_size=64, vocab_size=100)
    model, twin = (random_model(config, torch.bfloat16, CPU) for _ in range(2))
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, twin.get_parameter(name))
        size = parameter.float().square().mean().sqrt()
        expected = 1 if "norm" in name else parameter.shape[-1] ** -0.5
        assert size == pytest.approx(expected, rel=0.2)


def test_the_tokenizer_has_all_bytes_and_fills_the_vocabulary(tmp_path):
    codec = Codec.load("dummy:tiny-target")
    assert codec.vocab_size == shape("tiny-target").vocab_size
    text = "An é,\n\nand \x00."
    assert codec.chat(text) == codec.encode(text) == list(text.encode())
    assert codec.eos_ids == {256}
    assert [codec.token_bytes(token) for token in (65, 256, 257)] == [
        b"A",
        b"",
        b" w257",
    ]
    (tmp_path / "config.json").write_text(json.dumps(config_json(tiny_config(1, 100))))
    with pytest.raises(SettingError, match="vocab_size"):
        Codec.load(f"dummy:{tmp_path}")
