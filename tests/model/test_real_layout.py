"""A checkpoint of real shape and layout: several shards, an index, real file names. It loads in
little more memory than it has.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

from lr.model.config import config_json
from lr.model.dummy import SHAPES
from lr.model.weights import load_model

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "real_layout", ROOT / "scripts" / "real_layout.py"
    )
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_qwen3_06b_loads_within_a_fifth_more_than_its_size(
    script: ModuleType, tmp_path: Path
) -> None:
    """1.1 GiB on disk and in memory, measured in a process of its own; removed afterwards."""
    folder = tmp_path / "Qwen3-0.6B"
    try:
        script.write_checkpoint(folder, "Qwen3-0.6B", 3)
        names = {path.name for path in folder.iterdir()}
        assert {f"model-{n:05}-of-00003.safetensors" for n in (1, 2, 3)} < names
        assert {
            "config.json",
            "generation_config.json",
            "tokenizer.json",
            "model.safetensors.index.json",
        } < names
        grown, _, weights = script.measure_load(folder)
        assert weights == 2 * 596_049_920
        assert 0.3 * weights < grown < 1.2 * weights, (
            f"loading took {grown / weights:.2f} times the weights"
        )
    finally:
        for path in folder.glob("*.safetensors"):
            path.unlink()


def test_the_same_layout_runs_all_four_modes(script: ModuleType, tmp_path: Path) -> None:
    """Qwen3-0.6B's config with two of its layers, and a small vocabulary: the whole runs in
    `scripts/real_layout.py --modes`.
    """
    shallow = config_json(SHAPES["Qwen3-0.6B"]) | {"num_hidden_layers": 2, "vocab_size": 2000}
    (tmp_path / "shape").mkdir()
    (tmp_path / "shape" / "config.json").write_text(json.dumps(shallow))
    folder = tmp_path / "checkpoint"
    script.write_checkpoint(folder, str(tmp_path / "shape"), 3)
    assert len(list(folder.glob("model-*-of-00003.safetensors"))) == 3
    written = load_model(f"dummy:{tmp_path / 'shape'}", dtype=torch.bfloat16)
    loaded = load_model(folder)
    assert loaded.dtype is torch.bfloat16
    for (name, one), other in zip(written.named_parameters(), loaded.parameters(), strict=True):
        assert torch.equal(one, other), name
    assert script.run_modes(folder) == {"ar": 10, "sd": 10, "lr": 10, "lr+sd": 10}
