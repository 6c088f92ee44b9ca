"""A checkpoint of real shape and layout, written, loaded and run: how much memory does
loading take, and do all four modes run?

    python scripts/real_layout.py FOLDER [--shape Qwen3-0.6B] [--shards 3] [--modes]

Writes FOLDER as a published checkpoint lies on disk: config.json,
generation_config.json, tokenizer, and bf16 weights (random) in several files named by
model.safetensors.index.json. Then a process of its own loads it and reports by how much
its memory grew, beside the size of the weights. Pages of the files that the loader has
mapped are not counted: the system can drop them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from lr.measure.memory import weight_bytes
from lr.model.dummy import END_ID, dummy_name, dummy_tokenizer, shape
from lr.model.weights import load_model, pieces
from lr.tiny.saving import config_json

MEASURE = """
import re, sys, threading, time
from pathlib import Path
import torch
from lr.model.weights import load_model

def memory():
    return int(re.search(r"RssAnon:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])

def watch():
    while not done:
        seen.append(memory())
        time.sleep(0.001)

torch.set_num_threads(1)
load_model("tiny-draft")  # whatever is imported at the first load is there now
seen, done = [memory()], []
threading.Thread(target=watch, daemon=True).start()
started = time.perf_counter()
model = load_model(sys.argv[1])
seconds = time.perf_counter() - started
done.append(seen.append(memory()))
weights = sum(p.nbytes for p in model.parameters())
print((max(seen) - seen[0]) * 1024, seconds, weights, flush=True)
"""
MODES = """
import sys
import torch
from lr.reasoner import Reasoner
with Reasoner(sys.argv[1], sys.argv[1], "exact", dtype=torch.bfloat16) as reasoner:
    for mode in ("ar", "sd", "lr", "lr+sd"):
        settings = {"drafter": "ngram", "depth": 2, "max_step_tokens": 4, "max_tokens": 10}
        print(mode, len(reasoner.generate("Why?", mode=mode, **settings).tokens), flush=True)
"""


def write_checkpoint(folder: Path, name: str, shards: int) -> None:
    """A checkpoint of the shape `name` with random bf16 weights in `shards` files of
    about equal size.
    """
    config = shape(name)
    folder.mkdir(parents=True, exist_ok=True)
    stated = config_json(config) | {"dtype": "bfloat16", "eos_token_id": END_ID}
    (folder / "config.json").write_text(
        json.dumps(stated, indent=2) + "\n", encoding="utf-8"
    )
    sampling = {
        "do_sample": True,
        "temperature": 0.6,
        "top_p": 0.95,
        "top_k": 20,
        "eos_token_id": [END_ID],
    }
    (folder / "generation_config.json").write_text(
        json.dumps(sampling, indent=2) + "\n", encoding="utf-8"
    )
    dummy_tokenizer(name).save_pretrained(folder)
    parameters = dict(
        load_model(dummy_name(name), dtype=torch.bfloat16).named_parameters()
    )
    listed, limit = pieces(config), weight_bytes(config, torch.bfloat16) / shards
    weight_map: dict[str, str] = {}
    tensors: dict[str, torch.Tensor] = {}
    number, total, written = 1, 0, 0
    for i, piece in enumerate(listed):
        tensor = parameters[piece.parameter][
            piece.first : piece.first + piece.shape[0]
        ].contiguous()
        tensors[piece.key] = tensor
        total += tensor.nbytes
        if total - written >= limit or i == len(listed) - 1:
            file = f"model-{number:05}-of-{shards:05}.safetensors"
            save_file(tensors, folder / file, metadata={"format": "pt"})
            weight_map |= dict.fromkeys(tensors, file)
            tensors, written, number = {}, total, number + 1
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps(index, indent=2) + "\n", encoding="utf-8"
    )


def measure_load(folder: Path) -> tuple[int, float, int]:
    """Load in a process of its own: the most by which its memory grew in bytes (read
    from /proc: on Linux), seconds, bytes of the weights.
    """
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(folder)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    grown, seconds, weights = done.stdout.split()
    return int(grown), float(seconds), int(weights)


def run_modes(folder: Path) -> dict[str, int]:
    """All four modes with the checkpoint as target and draft, in a process of its own:
    tokens by mode.
    """
    done = subprocess.run(
        [sys.executable, "-c", MODES, str(folder)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    return {
        mode: int(tokens) for mode, tokens in map(str.split, done.stdout.splitlines())
    }


def main() -> int:
    """Write, load, run, and say what it took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", default="Qwen3-0.6B")
    parser.add_argument("--shards", type=int, default=3)
    parser.add_argument("--modes", action="store_true", help="also run all four modes")
    asked = parser.parse_args()
    write_checkpoint(asked.folder, asked.shape, asked.shards)
    print(
        f"{asked.shape}: {', '.join(sorted(path.name for path in asked.folder.iterdir()))}"
    )
    grown, seconds, weights = measure_load(asked.folder)
    print(
        f"weights {weights / 2**20:.0f} MiB; loading took {grown / 2**20:.0f} MiB "
        f"({grown / weights:.2f} times), {seconds:.1f} s"
    )
    if asked.modes:
        print(f"tokens by mode: {run_modes(asked.folder)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
