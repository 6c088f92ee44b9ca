"""Loading a checkpoint into `CausalLM`, and writing one. Every key is accounted for; nothing is
left at its random initial value.

The network is built without storage, materialised once in its final dtype on its final device, and
filled tensor by tensor from memory-mapped files, so that loading needs little more than the size of
the model. Which key goes where stands in `keys.py`; files and downloads in `files.py`; the refusal
of foreign configurations in `config_json.py`.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lr.errors import CheckpointError, SettingError
from lr.model.config import ModelConfig
from lr.model.config_json import config_json, read_config
from lr.model.device import find_device
from lr.model.dummy import dummy_model
from lr.model.empty import empty_model
from lr.model.files import TensorFiles, open_tensors, read_json, resolve
from lr.model.keys import EMBEDDING_KEY, HARMLESS_SUFFIX, HEAD_KEY, Piece, pieces
from lr.model.qwen import CausalLM
from lr.model.shapes import is_dummy

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_DTYPE_NAMES = {"float64": "F64", "float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_REPLACED = ("config.json", "model*.safetensors", "model.safetensors.index.json")
_LISTED = 10


def load_model(
    name_or_path: str | Path,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
) -> CausalLM:
    """The model of a checkpoint, frozen and in eval mode.

    `name_or_path`: a directory in Hugging Face layout, a name on the hub (downloaded), or
    "tiny-target", "tiny-draft", "tiny-judge"; "dummy:" before a shape's name or a directory with a
    config.json: random weights (`dummy.py`). `dtype` is float64, float32, bfloat16 or float16; None
    keeps the checkpoint's. Raises CheckpointError if the checkpoint is not one that this project
    computes exactly or if its keys do not account; SettingError for an impossible device or dtype.
    """
    place = find_device(device)
    if dtype is not None and dtype not in _DTYPES.values():
        raise SettingError(
            f"dtype is {dtype!r}; expected one of {', '.join(map(str, _DTYPES.values()))}, or None."
        )
    if is_dummy(name_or_path):
        return dummy_model(name_or_path, place, dtype)
    directory = resolve(name_or_path)
    config = read_config(directory)
    with open_tensors(directory) as tensors:
        account(config, tensors, directory)
        model = empty_model(config, dtype or checkpoint_dtype(directory, tensors), place)
        _fill(model, pieces(config), tensors)
    return model


def account(
    config: ModelConfig, tensors: TensorFiles, directory: Path, rows: slice = slice(None)
) -> None:
    """Check that a checkpoint holds exactly the tensors that `config` needs, in the right shapes.
    Raises CheckpointError.

    A stored head that should be the embedding is compared with it: the `rows` of both that the
    caller is going to read.
    """
    needed = {piece.key: piece.shape for piece in pieces(config)}
    tied_head = config.tie_word_embeddings and HEAD_KEY in tensors and EMBEDDING_KEY in tensors
    missing = [key for key in needed if key not in tensors]
    unexpected = [
        key
        for key in tensors
        if key not in needed
        and not key.endswith(HARMLESS_SUFFIX)
        and not (tied_head and key == HEAD_KEY)
    ]
    misshapen = [
        f"{key} is {list(tensors.shape(key))}, expected {list(shape)}"
        for key, shape in needed.items()
        if key in tensors and tensors.shape(key) != shape
    ]
    foreign = [
        f"{key} is {tensors.dtype_name(key)}"
        for key in needed
        if key in tensors and tensors.dtype_name(key) not in _DTYPES
    ]
    found = (
        ("missing", missing),
        ("unexpected", sorted(unexpected)),
        ("of another shape", misshapen),
        (f"of a dtype other than {', '.join(_DTYPES)}", foreign),
    )
    if any(keys for _, keys in found):
        lists = " ".join(f"{len(keys)} {what}: {_some(keys)}." for what, keys in found if keys)
        raise CheckpointError(
            f"the tensors of {directory} are not those its config.json describes. {lists} Check that config.json belongs to "
            "these weights (tie_word_embeddings, attention_bias, sizes) and that the weights are not adapters or quantised."
        )
    if tied_head and not torch.equal(
        tensors.slice(HEAD_KEY)[rows], tensors.slice(EMBEDDING_KEY)[rows]
    ):
        raise CheckpointError(
            f"{directory} says tie_word_embeddings, but its {HEAD_KEY} differs from {EMBEDDING_KEY}. "
            "Set tie_word_embeddings to false in config.json if the head is its own."
        )


def _fill(model: CausalLM, listed: list[Piece], tensors: TensorFiles) -> None:
    parameters = dict(model.named_parameters())
    unfilled = {name: parameter.shape[0] for name, parameter in parameters.items()}
    with torch.no_grad():
        for piece in listed:
            rows = parameters[piece.parameter][piece.first : piece.first + piece.shape[0]]
            rows.copy_(tensors.slice(piece.key)[:])
            unfilled[piece.parameter] -= piece.shape[0]
    assert not any(unfilled.values()), f"rows without a source: {unfilled}"


def checkpoint_dtype(directory: Path, tensors: TensorFiles) -> torch.dtype:
    """What config.json says (`dtype`, formerly `torch_dtype`), else the dtype of the embedding."""
    raw = read_json(directory / "config.json")
    name = raw.get("dtype") or raw.get("torch_dtype")
    if name is None:
        return _DTYPES[tensors.dtype_name(EMBEDDING_KEY)]
    spelled = str(name).removeprefix("torch.")
    if spelled not in _DTYPE_NAMES:
        raise CheckpointError(
            f"config.json of {directory} says dtype {name!r}; expected one of {', '.join(_DTYPE_NAMES)}. "
            "Give a dtype to load_model, or mend config.json."
        )
    return _DTYPES[_DTYPE_NAMES[spelled]]


def _some(items: list[str]) -> str:
    more = f", and {len(items) - _LISTED} more" if len(items) > _LISTED else ""
    return ", ".join(items[:_LISTED]) + more


def save_model(
    model: CausalLM, directory: str | Path, *, extra: Mapping[str, Any] | None = None
) -> None:
    """Write a checkpoint in Hugging Face layout: config.json and one model.safetensors, in the
    dtype of the model.

    `extra` is put into config.json (eos_token_id and the like). What else `directory` already holds
    (a tokenizer) is kept, its old weights are not. Everything is written beside it first and put in
    place by renaming, so that no half-written checkpoint ever lies there. Raises CheckpointError if
    no config.json can describe the model or `directory` is a file.
    """
    from safetensors.torch import save_file

    directory = Path(directory).resolve()
    if directory.exists() and not directory.is_dir():
        raise CheckpointError(
            f"{directory} is a file; a checkpoint is written into a directory. Give another name."
        )
    described = {
        **config_json(model.config),
        "dtype": str(model.dtype).removeprefix("torch."),
        **(extra or {}),
    }
    parameters = dict(model.named_parameters())
    tensors = {
        piece.key: parameters[piece.parameter]
        .detach()[piece.first : piece.first + piece.shape[0]]
        .cpu()
        .contiguous()
        for piece in pieces(model.config)
    }
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{directory.name}.", dir=directory.parent) as beside:
        fresh, retired = Path(beside, "fresh"), Path(beside, "retired")
        if directory.exists():
            shutil.copytree(directory, fresh, ignore=shutil.ignore_patterns(*_REPLACED))
        fresh.mkdir(exist_ok=True)
        save_file(tensors, fresh / "model.safetensors", metadata={"format": "pt"})
        (fresh / "config.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
        if directory.exists():
            directory.replace(retired)
        fresh.replace(directory)
