"""Where checkpoints come from, and what is said when files are missing, broken or not
what they claim.
"""

from pathlib import Path

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
def checkpoint(tmp_path):
    hf_model("qwen3").save_pretrained(tmp_path / "single")
    return tmp_path / "single"


@pytest.fixture
def sharded(tmp_path):
    hf_model("qwen3").save_pretrained(tmp_path / "many", max_shard_size="20KB")
    return tmp_path / "many"


# Names


@pytest.mark.parametrize("name", ["nonesuch", Path("a/b"), "a/b/c", "x" * 5000, "\0"])
def test_no_such_checkpoint(name):
    with pytest.raises(CheckpointError, match="no checkpoint"):
        resolve(name)


def test_a_name_on_the_hub(checkpoint, monkeypatch):
    """The model downloads weights, configuration and tokenizer; the codec alone no
    weights."""
    downloads = []

    def download(name, *, allow_patterns):
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


def test_a_failed_download_ends_in_one_line(monkeypatch):
    def download(*_, **__):
        raise ConnectionError("offline\nsecond line")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(CheckpointError, match="ConnectionError: offline") as refusal:
        resolve("Qwen/Nonesuch")
    assert "\n" not in str(refusal.value)


def test_a_cache_with_the_configuration_alone(checkpoint, monkeypatch):
    """Offline the hub's library hands over what there is."""
    only("README.md")(checkpoint)
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda *_, **__: str(checkpoint)
    )
    with pytest.raises(CheckpointError, match="download") as refusal:
        load_model("Qwen/Qwen3-0.6B")
    assert "onvert" not in str(refusal.value)


def test_a_tensor_in_two_files_is_not_guessed(sharded):
    """Neither the first nor the last file wins."""
    first, second, *_ = sorted(sharded.glob("*.safetensors"))
    tensors = load_file(first)
    key = next(iter(tensors))
    save_file({**load_file(second), key: tensors[key] + 1}, second)
    with pytest.raises(CheckpointError, match=key):
        load_model(sharded)


# Files


def remove_a_shard(directory):
    sorted(directory.glob("*.safetensors"))[1].unlink()


def truncate(size):
    def cut(directory):
        content = (directory / "model.safetensors").read_bytes()
        (directory / "model.safetensors").write_bytes(content[:size])

    return cut


def write(file, content):
    def replace(directory):
        (directory / file).write_text(content)

    return replace


def only(file):
    def replace(directory):
        for weights in directory.glob("*.safetensors*"):
            weights.unlink()
        (directory / file).touch()

    return replace


BROKEN = [
    ("single", lambda d: (d / "config.json").unlink(), "config.json cannot be read"),
    ("single", write("config.json", "[1, 2]"), "config.json cannot be read"),
    ("single", lambda d: (d / "model.safetensors").unlink(), "download"),
    ("many", lambda d: (d / INDEX).unlink(), "download"),
    ("single", only("pytorch_model.bin"), r"Convert pytorch_model\.bin"),
    ("many", only("pytorch_model-00001-of-00002.bin"), "Convert"),
    ("single", write("adapter_config.json", "{}"), "[Mm]erge"),
    ("single", write("adapter_model.safetensors", ""), "[Mm]erge"),
    ("single", truncate(-1), "model.safetensors is not a complete"),
    ("many", remove_a_shard, "1 of them missing: model-00002"),
    ("many", write(INDEX, '{"weight_map": {"a": "../b"}}'), "missing: b"),
]


@pytest.mark.parametrize("kind, damage, named", BROKEN)
def test_damage_is_named(checkpoint, sharded, kind, damage, named):
    directory = {"single": checkpoint, "many": sharded}[kind]
    damage(directory)
    with pytest.raises(CheckpointError, match=named):
        load_model(directory)
