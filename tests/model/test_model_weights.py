"""Loading and saving: every key is accounted for, whatever is wrong is named, nothing is
left half done.
"""

import json

import pytest
import torch
from model_kit import KINDS, edit_json, hf_model, random_model
from safetensors.torch import load_file, save_file
from tiny_training.checkpoint import save_model
from transformers import AutoModelForCausalLM

import lr.model.weights
from lr.engine.loading import Loader
from lr.errors import CheckpointError, SettingError
from lr.measure.dummy import SHAPES
from lr.model.weights import cpu_dtype, load_model, pieces, stored_dtype

DOWN, NORM = "model.layers.1.mlp.down_proj.weight", "model.norm.weight"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture
def checkpoint(tmp_path):
    """A Qwen3 checkpoint in fp32, one shard, head and embedding untied."""
    hf_model("qwen3").float().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def edit_tensors(directory, changes):
    """Write the weights anew with these tensors; None removes one."""
    tensors = load_file(directory / "model.safetensors") | changes
    left = {key: tensor for key, tensor in tensors.items() if tensor is not None}
    save_file(left, directory / "model.safetensors")


# What a loaded model is


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16]
)
def test_a_loaded_model(checkpoint, dtype):
    random_state = torch.random.get_rng_state()
    model = load_model(checkpoint, dtype=dtype)
    assert torch.equal(torch.random.get_rng_state(), random_state)
    assert not model.training
    for parameter in model.parameters():
        assert parameter.dtype is dtype and not parameter.requires_grad
    stored = load_file(checkpoint / "model.safetensors")
    down = model.get_parameter("layers.1.mlp.down.weight")
    assert torch.equal(down, stored[DOWN].to(dtype))
    by_columns = dtype in (torch.float64, torch.float32)
    assert down.t().is_contiguous() == by_columns == (not down.is_contiguous())


def test_dtype_of_the_checkpoint(checkpoint):
    file = checkpoint / "config.json"
    edit_json(file, dtype=None)
    assert load_model(checkpoint).dtype is torch.float32
    edit_json(file, torch_dtype="bfloat16")
    assert load_model(checkpoint).dtype is torch.bfloat16
    edit_json(file, dtype="int8")
    with pytest.raises(CheckpointError, match="int8"):
        load_model(checkpoint)


@pytest.mark.parametrize("unit", ["", "amx_bf16"])
def test_the_usual_dtype_on_a_cpu(unit, monkeypatch):
    """bfloat16 for what is large and stored in 16 bits, if the processor multiplies
    it."""
    monkeypatch.setattr(lr.model.weights, "bfloat16_unit", lambda: unit)
    small = lr.measure.dummy.shape("tiny-target")
    large = SHAPES["Qwen3-0.6B"]
    half = torch.bfloat16 if unit else torch.float32
    assert cpu_dtype(large, torch.bfloat16) is cpu_dtype(large, torch.float16) is half
    assert cpu_dtype(large, torch.float32) is torch.float32
    assert cpu_dtype(small, torch.bfloat16) is torch.float32


def test_a_loader_without_a_dtype_takes_the_usual_one():
    """In the stored bfloat16 every processor would round the judge differently."""
    assert stored_dtype("tiny-judge") is torch.bfloat16
    assert Loader().load("tiny-judge", "cpu").dtype is torch.float32


@pytest.mark.parametrize(
    "setting",
    [{"dtype": torch.int8}, {"dtype": "bfloat16"}, {"device": "gpu"}],
    ids=str,
)
def test_impossible_settings(setting):
    [name] = setting
    with pytest.raises(SettingError, match=name):
        load_model("tiny-draft", **setting)


def test_loading_reports_its_progress_in_weights(checkpoint):
    progress = []
    model = load_model(checkpoint, progress=lambda *news: progress.append(news))
    sizes = [parameter.numel() for parameter in model.parameters()]
    assert progress[-1] == (str(checkpoint), sum(sizes), sum(sizes))
    assert progress == sorted(progress) and len(progress) == len(sizes)


@pytest.mark.parametrize("qk_norm", [True, False])
def test_pieces_cover_every_parameter_once(qk_norm):
    """Rows of every parameter, in order and without gap or overlap: what tensor
    parallelism slices along.
    """
    model = random_model(
        0, qk_norm=qk_norm, qkv_bias=not qk_norm, tie_word_embeddings=not qk_norm
    )
    rows = {}
    for piece in pieces(model.config):
        assert piece.first == rows.get(piece.parameter, 0)
        rows[piece.parameter] = piece.first + piece.shape[0]
        assert model.get_parameter(piece.parameter).shape[1:] == piece.shape[1:]
    assert rows == {name: len(weight) for name, weight in model.named_parameters()}


# Keys

FP8 = torch.ones(32).to(torch.float8_e4m3fn)
FAULTS = [
    (
        {NORM: None, "lora_A": torch.zeros(3), DOWN: torch.zeros(3, 4)},
        [f"1 missing: {NORM}", "1 unexpected: lora_A", f"{DOWN} is F32 [3, 4]"],
    ),
    ({NORM: FP8}, [f"{NORM} is F8_E4M3"]),
    ({HEAD: None}, [f"1 missing: {HEAD}"]),
]


@pytest.mark.parametrize("changes, named", FAULTS)
def test_faults_are_listed_together(checkpoint, changes, named):
    edit_tensors(checkpoint, changes)
    with pytest.raises(CheckpointError) as refusal:
        load_model(checkpoint)
    for part in named:
        assert part in str(refusal.value)


@pytest.mark.parametrize("buffer", ["inv_freq", "cos_cached", "sin_cached"])
def test_stored_buffers_that_carry_nothing_are_skipped(checkpoint, buffer):
    before = load_model(checkpoint).state_dict()
    keys = (
        f"model.layers.0.self_attn.rotary_emb.{buffer}",
        f"model.rotary_emb.{buffer}",
    )
    edit_tensors(checkpoint, {key: torch.ones(4) for key in keys})
    after = load_model(checkpoint).state_dict()
    assert all(after[name].equal(weight) for name, weight in before.items())
    edit_tensors(checkpoint, {f"model.{buffer}.weight": torch.ones(4)})
    with pytest.raises(CheckpointError, match="unexpected"):
        load_model(checkpoint)


def test_head_of_tied_models(tmp_path):
    """lm_head.weight may be there if it is the embedding; nothing else may."""
    hf_model("qwen3", tie_word_embeddings=True).save_pretrained(tmp_path)
    embedding = load_file(tmp_path / "model.safetensors")[EMBEDDING]
    edit_tensors(tmp_path, {HEAD: embedding.clone()})
    assert load_model(tmp_path).head is None
    edit_tensors(tmp_path, {HEAD: embedding + 1e-9})
    with pytest.raises(CheckpointError, match="differs"):
        load_model(tmp_path)


# Saving


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tied", [False, True])
def test_saved_for_transformers_and_for_us(tmp_path, kind, tied):
    original = hf_model(kind, head_dim=16, tie_word_embeddings=tied)
    original.save_pretrained(tmp_path / "theirs")
    model = load_model(tmp_path / "theirs")
    ours = tmp_path / "new" / "ours"
    save_model(model, ours, extra={"eos_token_id": 3})
    assert json.loads((ours / "config.json").read_text())["eos_token_id"] == 3
    again = AutoModelForCausalLM.from_pretrained(ours, dtype=torch.float64)
    assert type(again) is type(original)
    expected, reread = original.state_dict(), again.state_dict()
    assert expected.keys() == reread.keys()
    assert all(torch.equal(reread[key], expected[key]) for key in expected)
    assert load_model(ours).config == model.config
