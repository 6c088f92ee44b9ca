"""A checkpoint of real shape and layout: several shards, an index, real file names. It
loads in little more memory than it has.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

from lr.model.dummy import SHAPES
from lr.model.weights import load_model
from lr.tiny.saving import config_json

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


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="memory is read from /proc"
)
def test_a_sharded_checkpoint_loads_in_little_more_than_its_size_and_runs(
    script: ModuleType, tmp_path: Path
) -> None:
    """Qwen3-0.6B's config with two of its layers and a smaller vocabulary, 80 MiB;
    memory is measured in a process of its own. The whole runs in
    `scripts/real_layout.py --modes`.
    """
    shallow = config_json(SHAPES["Qwen3-0.6B"]) | {
        "num_hidden_layers": 2,
        "vocab_size": 10_000,
    }
    (tmp_path / "shape").mkdir()
    (tmp_path / "shape" / "config.json").write_text(json.dumps(shallow))
    folder = tmp_path / "checkpoint"
    script.write_checkpoint(folder, str(tmp_path / "shape"), 3)
    assert {path.name for path in folder.iterdir()} > {
        *(f"model-{n:05}-of-00003.safetensors" for n in (1, 2, 3)),
        *("config.json", "generation_config.json", "tokenizer.json"),
        "model.safetensors.index.json",
    }
    written = load_model(f"dummy:{tmp_path / 'shape'}", dtype=torch.bfloat16)
    loaded = load_model(folder)
    assert loaded.dtype is torch.bfloat16
    for (name, one), other in zip(
        written.named_parameters(), loaded.parameters(), strict=True
    ):
        assert torch.equal(one, other), name
    grown, _, weights = script.measure_load(folder)
    assert weights == sum(one.nbytes for one in loaded.parameters()) > 75 << 20
    assert 0.3 * weights < grown < 1.2 * weights, (
        f"{grown / weights:.2f} times the weights"
    )
    assert script.run_modes(folder) == {"ar": 10, "sd": 10, "lr": 10, "lr+sd": 10}
    for path in folder.glob("*.safetensors"):
        path.unlink()
