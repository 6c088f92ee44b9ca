"""Models without a checkpoint: shapes by name, weights that are seeded and do not
overflow, a tokenizer that fills the vocabulary.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from lr import Reasoner
from lr.errors import CheckpointError
from lr.model.codec import Codec
from lr.model.config import read_config
from lr.model.dummy import SHAPES, shape
from lr.model.weights import load_model, pieces
from lr.tiny.names import tiny_config
from lr.tiny.saving import config_json

PARAMETERS = {
    "Qwen3-32B": 32_762_123_264,  # the model cards say 32.8 B, 1.7 B, 0.6 B, 7.61 B
    "Qwen3-1.7B": 1_720_574_976,
    "Qwen3-0.6B": 596_049_920,
    "Qwen2.5-7B": 7_615_616_512,
}


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS.items())
def test_shapes_have_the_published_number_of_parameters(
    name: str, parameters: int
) -> None:
    assert sum(math.prod(piece.shape) for piece in pieces(SHAPES[name])) == parameters
    assert read_config(config_json(SHAPES[name])) == SHAPES[name]


def test_a_shape_is_found_by_name_or_in_a_folder(tmp_path: Path) -> None:
    assert shape("dummy:Qwen/Qwen2.5-7B-Instruct") is SHAPES["Qwen2.5-7B"]
    assert shape("tiny-draft").num_layers < shape("tiny-target").num_layers
    config = tiny_config(3, 300)
    (tmp_path / "config.json").write_text(json.dumps(config_json(config)))
    assert shape(f"dummy:{tmp_path}") == shape(tmp_path / "config.json") == config
    with pytest.raises(CheckpointError, match="Qwen3-5B"):
        load_model("dummy:Qwen3-5B")


@pytest.mark.parametrize("kind", ["qwen3", "qwen2"])
def test_deep_dummy_models_stay_finite_in_bf16_and_are_seeded(
    kind: str, tmp_path: Path
) -> None:
    described = config_json(tiny_config(48, 300))
    if kind == "qwen2":
        described |= {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
        del described["attention_bias"]
    (tmp_path / "config.json").write_text(json.dumps(described))
    model, twin = (load_model(f"dummy:{tmp_path}") for _ in range(2))
    assert model.dtype is torch.bfloat16
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, twin.get_parameter(name))

    def attend(
        layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        return v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)

    with torch.inference_mode():
        hidden = model.trunk(torch.arange(40), torch.arange(40), attend)
        logits = model.logits(hidden).float()
    assert (
        0.5 < hidden.float().pow(2).mean().sqrt() < 2
    )  # the residual stream neither dies nor grows
    assert logits.isfinite().all() and 0.3 < logits.std() < 3


def test_the_tokenizer_has_all_bytes_and_fills_the_vocabulary(tmp_path: Path) -> None:
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
    with pytest.raises(CheckpointError, match="vocabulary of 100"):
        Codec.load(f"dummy:{tmp_path}")


@pytest.mark.parametrize("driver", ["lockstep", "overlapped"])
def test_dummy_models_answer_in_all_modes(driver: str) -> None:
    with Reasoner("dummy:tiny-target", "dummy:tiny-draft", "exact") as reasoner:
        answers = [
            reasoner.generate(
                "hello",
                mode=mode,
                max_tokens=24,
                max_step_tokens=6,
                driver=driver,
                acceptance="match",
            )
            for mode in ("ar", "sd", "lr", "lr+sd")
        ]
    assert len(answers[0].tokens) == 24
    assert all(answer.tokens == answers[0].tokens for answer in answers)
