"""Where checkpoints come from, and what is said when files are missing, broken or not
what they claim.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from model_kit import hf_model
from safetensors.torch import load_file, save_file

from lr import registry
from lr.errors import CheckpointError
from lr.model.codec import Codec
from lr.model.files import open_tensors, resolve
from lr.model.weights import load_model

INDEX = "model.safetensors.index.json"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    hf_model("qwen3").save_pretrained(tmp_path / "single")
    return tmp_path / "single"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    hf_model("qwen3").save_pretrained(tmp_path / "many", max_shard_size="20KB")
    return tmp_path / "many"


# Names


@pytest.mark.parametrize(
    "name", ["nonesuch", "./no/such/place", Path("a/b"), "a/b/c", "x" * 5000, "\0"]
)
def test_no_such_checkpoint(name: str | Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint"):
        resolve(name)


def test_tiny_names(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.checkpoints, "tiny-draft", checkpoint)
    assert resolve("tiny-draft") == checkpoint


def test_a_name_on_the_hub(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model downloads weights, configuration and tokenizer; the codec alone no
    weights."""
    downloads: list[list[str]] = []

    def download(name: str, *, allow_patterns: list[str]) -> str:
        assert name == "Qwen/Qwen3-0.6B"
        downloads.append(allow_patterns)
        return str(checkpoint)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    load_model("Qwen/Qwen3-0.6B")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        Codec.load("Qwen/Qwen3-0.6B")
    with_weights, without = downloads
    assert "model*.safetensors" in with_weights
    assert not any("safetensors" in pattern for pattern in without)
    assert "config.json" in without


def test_a_directory_goes_before_the_hub(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkpoint.parent.parent)
    name = f"{checkpoint.parent.name}/{checkpoint.name}"
    assert resolve(name).samefile(checkpoint)


def test_a_failed_download_ends_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: Any, **__: Any) -> str:
        raise ConnectionError("offline\nsecond line")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(CheckpointError, match="ConnectionError: offline") as refusal:
        resolve("Qwen/Nonesuch")
    assert "\n" not in str(refusal.value)


# Files


def change_index(directory: Path, **changes: Any) -> None:
    index = json.loads((directory / INDEX).read_text())
    (directory / INDEX).write_text(json.dumps(index | changes))


def remove_a_shard(directory: Path) -> None:
    sorted(directory.glob("*.safetensors"))[1].unlink()


def add_a_tensor(directory: Path) -> None:
    shard = sorted(directory.glob("*.safetensors"))[0]
    save_file(load_file(shard) | {"surplus": torch.zeros(1)}, shard)


def truncate(size: int) -> Callable[[Path], None]:
    def cut(directory: Path) -> None:
        content = (directory / "model.safetensors").read_bytes()
        (directory / "model.safetensors").write_bytes(content[:size])

    return cut


def write(file: str, content: str) -> Callable[[Path], None]:
    def replace(directory: Path) -> None:
        (directory / file).write_text(content)

    return replace


BROKEN: list[tuple[str, Callable[[Path], object], str]] = [
    ("single", lambda d: (d / "config.json").unlink(), "config.json does not exist"),
    ("single", write("config.json", "{"), "config.json cannot be read"),
    ("single", write("config.json", "[1, 2]"), "config.json cannot be read"),
    ("single", write("config.json", "[" * 100_000), "config.json cannot be read"),
    (
        "single",
        lambda d: (d / "model.safetensors").rename(d / "pytorch_model.bin"),
        "pytorch_model.bin",
    ),
    ("single", truncate(0), "model.safetensors is not a complete"),
    ("single", truncate(100), "model.safetensors is not a complete"),
    ("single", truncate(-1), "model.safetensors is not a complete"),
    ("single", write("model.safetensors", "version https://git-lfs"), "Git LFS"),
    ("many", remove_a_shard, "1 of them missing: model-00002"),
    ("many", lambda d: change_index(d, weight_map=[]), "weight_map"),
    ("many", lambda d: change_index(d, weight_map={"a": "../b"}), "missing: b"),
    ("many", add_a_tensor, "1 unexpected: surplus"),
]


@pytest.mark.parametrize(("kind", "damage", "named"), BROKEN)
def test_damage_is_named(
    checkpoint: Path,
    sharded: Path,
    kind: str,
    damage: Callable[[Path], object],
    named: str,
) -> None:
    directory = {"single": checkpoint, "many": sharded}[kind]
    damage(directory)
    with pytest.raises(CheckpointError) as refusal:
        load_model(directory)
    assert named in str(refusal.value)


def test_a_file_is_no_directory(checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match="is a file"):
        load_model(checkpoint / "model.safetensors")


def test_shards_without_an_index_are_read(sharded: Path) -> None:
    expected = load_model(sharded).state_dict()
    (sharded / INDEX).unlink()
    loaded = load_model(sharded).state_dict()
    assert all(torch.equal(loaded[key], expected[key]) for key in expected)
    remove_a_shard(sharded)
    with pytest.raises(CheckpointError, match="missing: model"):
        load_model(sharded)


def test_parts_of_tensors(sharded: Path) -> None:
    """What tensor parallelism reads: rows or columns of a tensor, without the rest."""
    shards = [load_file(file) for file in sharded.glob("*.safetensors")]
    stored = {key: tensor for shard in shards for key, tensor in shard.items()}
    views = open_tensors(sharded)
    assert set(views) == set(stored)
    key = "model.layers.0.mlp.down_proj.weight"
    assert (views[key].get_shape(), views[key].get_dtype()) == ([32, 40], "F64")
    assert torch.equal(views[key][8:16], stored[key][8:16])
    assert torch.equal(views[key][:, 10:20], stored[key][:, 10:20])
