"""Where checkpoints come from, and what is said when files are missing, broken or not
what they claim.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from model_kit import hf_model
from safetensors.torch import load_file, save_file

from lr.errors import CheckpointError
from lr.model.codec import Codec
from lr.model.files import resolve
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


@pytest.mark.parametrize("name", ["nonesuch", Path("a/b"), "a/b/c", "x" * 5000, "\0"])
def test_no_such_checkpoint(name: str | Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint"):
        resolve(name)


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


def test_a_cache_with_the_configuration_alone(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline the hub's library hands over what there is."""
    only("README.md")(checkpoint)
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda *_, **__: str(checkpoint)
    )
    with pytest.raises(CheckpointError, match="download") as refusal:
        load_model("Qwen/Qwen3-0.6B")
    assert "onvert" not in str(refusal.value)


def test_a_tensor_in_two_files_is_not_guessed(sharded: Path) -> None:
    """Neither the first nor the last file wins."""
    first, second, *_ = sorted(sharded.glob("*.safetensors"))
    tensors = load_file(first)
    key = next(iter(tensors))
    save_file({**load_file(second), key: tensors[key] + 1}, second)
    with pytest.raises(CheckpointError, match=key):
        load_model(sharded)


def test_an_adapter_on_the_hub_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(name: str, *, allow_patterns: list[str]) -> str:
        assert "adapter_config.json" in allow_patterns
        (tmp_path / "adapter_config.json").write_text("{}")
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(CheckpointError, match="adapter"):
        Codec.load("owner/lora")


# Files


def remove_a_shard(directory: Path) -> None:
    sorted(directory.glob("*.safetensors"))[1].unlink()


def truncate(size: int) -> Callable[[Path], None]:
    def cut(directory: Path) -> None:
        content = (directory / "model.safetensors").read_bytes()
        (directory / "model.safetensors").write_bytes(content[:size])

    return cut


def write(file: str, content: str) -> Callable[[Path], None]:
    def replace(directory: Path) -> None:
        (directory / file).write_text(content)

    return replace


def only(file: str) -> Callable[[Path], None]:
    def replace(directory: Path) -> None:
        for weights in directory.glob("*.safetensors*"):
            weights.unlink()
        (directory / file).touch()

    return replace


BROKEN: list[tuple[str, Callable[[Path], object], str]] = [
    ("single", lambda d: (d / "config.json").unlink(), "config.json cannot be read"),
    ("single", write("config.json", "[1, 2]"), "config.json cannot be read"),
    ("single", lambda d: (d / "model.safetensors").unlink(), "download"),
    ("many", lambda d: (d / INDEX).unlink(), "download"),
    ("single", only("pytorch_model.bin"), r"Convert pytorch_model\.bin"),
    ("single", only("training_args.bin"), "download"),
    ("many", only("pytorch_model-00001-of-00002.bin"), "Convert"),
    ("single", write("adapter_config.json", "{}"), "[Mm]erge"),
    ("single", write("adapter_model.safetensors", ""), "[Mm]erge"),
    ("many", write("adapter_model.bin", ""), "[Mm]erge"),
    ("single", truncate(0), "model.safetensors is not a complete"),
    ("single", truncate(-1), "model.safetensors is not a complete"),
    ("many", remove_a_shard, "1 of them missing: model-00002"),
    ("many", write(INDEX, "{}"), "weight_map"),
    ("many", write(INDEX, '{"weight_map": {"a": "../b"}}'), "missing: b"),
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
    with pytest.raises(CheckpointError, match=named):
        load_model(directory)
