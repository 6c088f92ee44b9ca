"""Where checkpoints come from, and what is said when files are missing, broken or not
what they claim.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from model_kit import hf_model
from safetensors.torch import load_file, save_file

from lr.errors import CheckpointError
from lr.model.codec import Codec
from lr.model.files import open_tensors, resolve
from lr.model.weights import load_model

INDEX = "model.safetensors.index.json"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    hf_model("qwen3").save_pretrained(tmp_path / "one")
    return tmp_path / "one"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    hf_model("qwen3").save_pretrained(tmp_path / "many", max_shard_size="20KB")
    return tmp_path / "many"


def refusal(directory: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_model(directory)
    return str(caught.value)


def edit_index(directory: Path, **entries: str | None) -> None:
    """Put keys into the weight map, or take them out (None); `__` in a name stands for
    a dot."""
    index = json.loads((directory / INDEX).read_text())
    for name, file in entries.items():
        index["weight_map"].pop(name.replace("__", "."), None)
        if file is not None:
            index["weight_map"][name.replace("__", ".")] = file
    (directory / INDEX).write_text(json.dumps(index))


# Names


def test_no_such_thing(tmp_path: Path) -> None:
    for name in (
        "nonesuch",
        "./no/such/place",
        str(tmp_path / "absent"),
        tmp_path / "absent",
        "a/b/c",
    ):
        message = refusal(name)
        assert repr(str(name)) in message
        assert "tiny-target" in message
        assert "Give a directory" in message


def test_a_file_instead_of_a_directory(checkpoint: Path) -> None:
    assert "is a file" in refusal(checkpoint / "model.safetensors")


def test_an_empty_directory(tmp_path: Path) -> None:
    message = refusal(tmp_path)
    assert "config.json does not exist" in message
    assert "nothing in it" in message


def test_tiny_names(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "lr.tiny.names.checkpoint_path", lambda name: checkpoint / name / ".."
    )
    (checkpoint / "tiny-draft").mkdir()
    assert resolve("tiny-draft").samefile(checkpoint)


def test_a_name_on_the_hub(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model downloads weights, configuration and tokenizer; the codec alone no
    weights."""
    asked: list[tuple[str, list[str]]] = []

    def download(name: str, *, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return str(checkpoint)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    load_model("Qwen/Qwen3-0.6B")
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        Codec.load("Qwen/Qwen3-0.6B")
    (model_name, with_weights), (codec_name, without) = asked
    assert model_name == codec_name == "Qwen/Qwen3-0.6B"
    assert "model*.safetensors" in with_weights
    assert not any("safetensors" in pattern for pattern in without)
    assert "config.json" in without


def test_a_directory_goes_before_the_hub(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkpoint.parent.parent)
    name = f"{checkpoint.parent.name}/{checkpoint.name}"
    assert resolve(name).samefile(checkpoint)


@pytest.mark.parametrize(
    "error",
    [ConnectionError("offline\nsecond line"), ValueError(), FileNotFoundError("404")],
)
def test_a_failed_download(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def download(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    message = refusal("Qwen/Nonesuch")
    assert "no directory Qwen/Nonesuch" in message
    assert "downloading" in message
    assert type(error).__name__ in message
    assert "\n" not in message


# Configuration


def test_no_config(checkpoint: Path) -> None:
    (checkpoint / "config.json").unlink()
    message = refusal(checkpoint)
    assert "config.json does not exist" in message
    assert "model.safetensors" in message


@pytest.mark.parametrize("content", ["{", "[1, 2]", "\x00\xff"])
def test_a_broken_config(checkpoint: Path, content: str) -> None:
    (checkpoint / "config.json").write_bytes(content.encode("latin-1"))
    assert "config.json" in refusal(checkpoint)


# Weights


def test_no_weights(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").rename(checkpoint / "pytorch_model.bin")
    message = refusal(checkpoint)
    assert "no model.safetensors" in message
    assert "pytorch_model.bin" in message


@pytest.mark.parametrize("size", [0, 5, 100, -1])
def test_a_truncated_file(checkpoint: Path, size: int) -> None:
    content = (checkpoint / "model.safetensors").read_bytes()
    (checkpoint / "model.safetensors").write_bytes(content[:size])
    message = refusal(checkpoint)
    assert "model.safetensors is not a complete safetensors file" in message
    assert "truncated" in message


def test_a_git_lfs_pointer(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    )
    assert "Git LFS pointer" in refusal(checkpoint)


def test_a_missing_shard(sharded: Path) -> None:
    shards = sorted(sharded.glob("*.safetensors"))
    shards[1].unlink()
    message = refusal(sharded)
    assert f"names {len(shards)} files, 1 of them missing: {shards[1].name}" in message


def test_an_index_that_promises_too_much(sharded: Path) -> None:
    shard = sorted(sharded.glob("*.safetensors"))[0].name
    edit_index(sharded, model__ghost=shard)
    message = refusal(sharded)
    assert shard in message
    assert "1 promised tensors are missing (model.ghost)" in message


def test_a_tensor_in_two_shards(sharded: Path) -> None:
    first, second = sorted(sharded.glob("*.safetensors"))[:2]
    doubled = load_file(first)
    save_file(load_file(second) | doubled, second)
    assert f"{len(doubled)} are also in another file" in refusal(sharded)


def test_tensors_that_the_index_does_not_know(sharded: Path) -> None:
    """They are read all the same: what counts is what the files hold."""
    edit_index(sharded, model__norm__weight=None)
    load_model(sharded)
    shard = sorted(sharded.glob("*.safetensors"))[0]
    save_file(load_file(shard) | {"surplus": torch.zeros(1)}, shard)
    assert "1 unexpected: surplus" in refusal(sharded)


@pytest.mark.parametrize(
    "file", ["../one/model.safetensors", "/etc/model.safetensors", 3]
)
def test_an_index_that_leads_elsewhere(sharded: Path, file: Any) -> None:
    edit_index(sharded, model__norm__weight=file)
    assert f"puts model.norm.weight into {file!r}" in refusal(sharded)


@pytest.mark.parametrize("content", ["{}", '{"weight_map": {}}', '{"weight_map": []}'])
def test_an_index_without_a_map(sharded: Path, content: str) -> None:
    (sharded / INDEX).write_text(content)
    assert "has no weight_map" in refusal(sharded)


def test_parts_of_tensors(sharded: Path) -> None:
    """What tensor parallelism reads: rows or columns of a tensor, without the rest."""
    whole = {
        key: value
        for file in sharded.glob("*.safetensors")
        for key, value in load_file(file).items()
    }
    tensors = open_tensors(sharded)
    assert set(tensors) == set(whole)
    key = "model.layers.0.mlp.down_proj.weight"
    assert tensors[key].get_shape() == [32, 40]
    assert tensors[key].get_dtype() == "F64"
    assert torch.equal(tensors[key][8:16], whole[key][8:16])
    assert torch.equal(tensors[key][:, 10:20], whole[key][:, 10:20])
