"""Loading and saving: every key is accounted for, whatever is wrong is said, nothing is
left half done.
"""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from model_kit import (
    KINDS,
    edit_json,
    hf_model,
    our_logits,
    random_tokens,
    watch_tensors,
)
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

import lr.model.weights
import lr.tiny.saving
from lr.errors import CheckpointError, SettingError
from lr.model.config import read_config
from lr.model.qwen import CausalLM
from lr.model.weights import load_model, pieces
from lr.tiny.saving import save_model

DOWN, NORM = "model.layers.1.mlp.down_proj.weight", "model.norm.weight"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A Qwen3 checkpoint in fp32, one shard, head and embedding untied."""
    hf_model("qwen3").float().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def edit_tensors(
    directory: Path, *, drop: tuple[str, ...] = (), **tensors: Tensor
) -> None:
    """Write the weights anew without some tensors and with others (`__` in a name
    stands for a dot).
    """
    content = load_file(directory / "model.safetensors")
    kept = {key: tensor for key, tensor in content.items() if key not in drop}
    save_file(
        kept | {key.replace("__", "."): tensor for key, tensor in tensors.items()},
        directory / "model.safetensors",
    )


def refusal(directory: Any, **settings: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_model(directory, **settings)
    return str(caught.value)


# What a loaded model is


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16]
)
def test_a_loaded_model(checkpoint: Path, dtype: torch.dtype) -> None:
    before = torch.random.get_rng_state()
    model = load_model(checkpoint, dtype=dtype, device="cpu")
    assert torch.equal(torch.random.get_rng_state(), before), (
        "loading draws no random numbers"
    )
    assert not model.training
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    assert not any(p.requires_grad for p in model.parameters())
    assert model.rotary.frequencies.device.type == "cpu"
    assert torch.equal(
        model.rotary.frequencies, CausalLM(model.config).rotary.frequencies
    )
    stored = load_file(checkpoint / "model.safetensors")[NORM]
    assert torch.equal(model.norm.weight, stored.to(dtype))


@pytest.mark.parametrize("spelling", ["dtype", "torch_dtype"])
def test_dtype_of_the_checkpoint(checkpoint: Path, spelling: str) -> None:
    """None is what config.json says, in either spelling; where it says nothing, what
    the embedding has.
    """
    assert load_model(checkpoint).dtype is torch.float32
    edit_json(checkpoint / "config.json", dtype=None)
    assert load_model(checkpoint).dtype is torch.float32
    edit_json(checkpoint / "config.json", **{spelling: "bfloat16"})
    assert load_model(checkpoint).dtype is torch.bfloat16
    edit_json(checkpoint / "config.json", **{spelling: "int8"})
    assert "'int8'" in refusal(checkpoint)


def test_impossible_settings(checkpoint: Path) -> None:
    with pytest.raises(SettingError, match=r"torch\.int8"):
        load_model(checkpoint, dtype=torch.int8)
    with pytest.raises(SettingError, match="'bfloat16'"):
        load_model(checkpoint, dtype="bfloat16")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="'gpu'"):
        load_model(checkpoint, device="gpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_no_cuda_here(checkpoint: Path) -> None:
    with pytest.raises(SettingError, match=r"device 'cuda:0' cannot be used here"):
        load_model(checkpoint, device="cuda:0")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_on_a_cuda_device(checkpoint: Path) -> None:
    model = load_model(checkpoint, device="cuda", dtype=torch.float64)
    assert model.device.type == "cuda"
    expected = our_logits(load_model(checkpoint, dtype=torch.float64), random_tokens(9))
    tokens = random_tokens(9).cuda()
    with torch.device("cuda"):
        made = our_logits(model, tokens).cpu()  # norms and angles are computed in fp32
        torch.testing.assert_close(made, expected, rtol=0, atol=1e-4)


def test_one_tensor_at_a_time(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tensor that is read is let go before the next one: besides the model,
    loading holds one tensor.
    """
    read: list[weakref.ref[Tensor]] = []

    class Watched:
        def __init__(self, view: Any) -> None:
            self.view = view
            self.get_shape, self.get_dtype = view.get_shape, view.get_dtype

        def __getitem__(self, index: Any) -> Tensor:
            assert all(earlier() is None for earlier in read), (
                "an earlier tensor is still held"
            )
            tensor = self.view[index]
            read.append(weakref.ref(tensor))
            return tensor

    watch_tensors(monkeypatch, lambda key, view: Watched(view))
    model = load_model(checkpoint)
    assert len(read) == len(pieces(model.config))


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_cover_every_parameter_once(kind: str) -> None:
    """Rows of every parameter, in order and without gap or overlap: what tensor
    parallelism slices along.
    """
    model = CausalLM(
        read_config({**hf_model(kind).config.to_dict(), "architectures": None})
    )
    rows: dict[str, int] = {}
    for piece in pieces(model.config):
        assert piece.first == rows.get(piece.parameter, 0)
        rows[piece.parameter] = piece.first + piece.shape[0]
        assert model.get_parameter(piece.parameter).shape[1:] == piece.shape[1:]
    assert rows == {
        name: len(parameter) for name, parameter in model.named_parameters()
    }


# Keys


def test_missing_unexpected_and_misshapen_are_listed_together(checkpoint: Path) -> None:
    wrong = torch.zeros(3, 4)
    edit_tensors(
        checkpoint,
        drop=(NORM,),
        lora_A=wrong,
        **{DOWN.replace(".", "__"): wrong.clone()},
    )
    message = refusal(checkpoint)
    assert f"1 missing: {NORM}." in message
    assert "1 unexpected: lora_A." in message
    assert f"1 of another shape: {DOWN} is [3, 4], expected [32, 40]." in message


def test_long_lists_are_cut(checkpoint: Path) -> None:
    edit_tensors(checkpoint, **{f"extra__{i:02}": torch.zeros(1) for i in range(25)})
    message = refusal(checkpoint)
    assert "25 unexpected: extra.00, " in message
    assert "extra.09, and 15 more" in message
    assert "extra.10" not in message


def test_biases_that_the_architecture_does_not_have(checkpoint: Path) -> None:
    """A Qwen2 checkpoint that calls itself Qwen3 and the other way round: neither is
    computed with something left out.
    """
    edit_json(
        checkpoint / "config.json",
        architectures=["Qwen2ForCausalLM"],
        model_type="qwen2",
    )
    message = refusal(checkpoint)
    assert "6 missing: model.layers.0.self_attn.q_proj.bias" in message
    assert "4 unexpected: model.layers.0.self_attn.k_norm.weight" in message


def test_old_rotary_buffers_are_harmless(checkpoint: Path) -> None:
    edit_tensors(
        checkpoint, model__layers__0__self_attn__rotary_emb__inv_freq=torch.zeros(8)
    )
    load_model(checkpoint)


def test_quantised_tensors_are_refused(checkpoint: Path) -> None:
    edit_tensors(
        checkpoint, **{NORM.replace(".", "__"): torch.ones(32).to(torch.float8_e4m3fn)}
    )
    assert f"{NORM} is F8_E4M3" in refusal(checkpoint)


def test_head_of_tied_models(tmp_path: Path) -> None:
    """lm_head.weight may be there if it is the embedding; nothing else may."""
    hf_model("qwen3", tie_word_embeddings=True).save_pretrained(tmp_path)
    embedding = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    assert load_model(tmp_path).head is None
    edit_tensors(tmp_path, lm_head__weight=embedding.clone())
    assert load_model(tmp_path).head is None
    edit_tensors(tmp_path, lm_head__weight=embedding + 1e-9)
    assert "lm_head.weight differs" in refusal(tmp_path)
    edit_tensors(tmp_path, drop=("model.embed_tokens.weight",))
    assert "1 missing: model.embed_tokens.weight." in refusal(tmp_path)


def test_untied_model_without_a_head(checkpoint: Path) -> None:
    edit_tensors(checkpoint, drop=("lm_head.weight",))
    message = refusal(checkpoint)
    assert "1 missing: lm_head.weight." in message
    assert "tie_word_embeddings" in message


# Saving


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tied", [False, True])
def test_saved_for_transformers_and_for_us(
    tmp_path: Path, kind: str, tied: bool
) -> None:
    original = hf_model(kind, head_dim=16, tie_word_embeddings=tied)
    original.save_pretrained(tmp_path / "theirs")
    model = load_model(tmp_path / "theirs")
    save_model(model, tmp_path / "new" / "ours", extra={"eos_token_id": 3})
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["ours"], (
        "nothing temporary is left"
    )
    assert (
        json.loads((tmp_path / "new" / "ours" / "config.json").read_text())[
            "eos_token_id"
        ]
        == 3
    )
    again = AutoModelForCausalLM.from_pretrained(
        tmp_path / "new" / "ours", dtype=torch.float64
    )
    assert type(again) is type(original)
    assert again.config.head_dim == 16
    written, expected = again.state_dict(), original.state_dict()
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[key], expected[key]) for key in expected)
    ours = load_model(tmp_path / "new" / "ours")
    assert ours.config == model.config
    assert ours.dtype is torch.float64
    for name, parameter in model.named_parameters():
        assert torch.equal(ours.get_parameter(name), parameter)


def test_saving_over_a_checkpoint(checkpoint: Path) -> None:
    """Weights, index and configuration are replaced; the tokenizer and the notes
    stay."""
    bf16 = load_model(checkpoint, dtype=torch.bfloat16)
    for name in (
        "tokenizer.json",
        "model_card.md",
        "model.safetensors.index.json",
        "model-00001-of-00002.safetensors",
    ):
        (checkpoint / name).write_text("{}")
    (checkpoint / "notes").mkdir()
    save_model(bf16, checkpoint)
    left = {p.name for p in checkpoint.iterdir()}
    assert {
        "tokenizer.json",
        "model_card.md",
        "notes",
        "model.safetensors",
        "config.json",
    } <= left
    assert not left & {
        "model.safetensors.index.json",
        "model-00001-of-00002.safetensors",
    }
    assert load_model(checkpoint).dtype is torch.bfloat16
    assert [p.name for p in checkpoint.parent.iterdir()] == ["model"]


def test_a_failed_save_changes_nothing(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(checkpoint)
    before = {p.name: p.read_bytes() for p in checkpoint.iterdir()}

    def full_disk(*_: Any, **__: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(lr.tiny.saving.json, "dumps", full_disk)
    with pytest.raises(OSError, match="No space"):
        save_model(model, checkpoint)
    assert {p.name: p.read_bytes() for p in checkpoint.iterdir()} == before
    assert [p.name for p in checkpoint.parent.iterdir()] == ["model"]


def test_saving_onto_a_file(tmp_path: Path, checkpoint: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="is a file"):
        save_model(load_model(checkpoint), tmp_path / "file")
