"""Finding a checkpoint (a directory, the Hugging Face hub, a tiny model) and opening
its files.

All errors of files are reported here; the meaning of the tensors is not known here.
torch is not imported until a tensor is read. Read next: `weights.py`, which accounts
for every key; `codec.py`, which reads the tokenizer of the same directory.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from lr.errors import CheckpointError
from lr.registry import CHECKPOINTS, find

_TEXT_FILES = [
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "vocab.json",
    "merges.txt",
]
_TEXT_FILES += ["*tokens*.json", "chat_template*"]
_WEIGHT_FILES = ["model*.safetensors", "model.safetensors.index.json"]
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def resolve(name_or_path: str | Path, *, weights: bool = True) -> Path:
    """The directory of a checkpoint: an existing one, that of a tiny model, or a
    download from the Hugging Face hub (`weights=False`: configuration and tokenizer
    only). Raises CheckpointError.
    """
    ours = ", ".join(CHECKPOINTS)
    expected = (
        f"Give a directory, a hub name such as Qwen/Qwen3-0.6B, or one of {ours}."
    )
    if not isinstance(name_or_path, (str, Path)):
        raise CheckpointError(f"{name_or_path!r} names no checkpoint. {expected}")
    name, path = str(name_or_path), Path(name_or_path)
    if max(map(len, path.parts), default=0) > 255:  # no file system has such names
        raise CheckpointError(
            f"no checkpoint has such a long name: {name[:60]}... {expected}"
        )
    path = path.expanduser()
    if name in CHECKPOINTS:
        return find("lr.tiny.names:checkpoint_path")(name)
    if path.is_dir():
        return path
    if path.exists():
        raise CheckpointError(
            f"{name} is a file; give the directory that has config.json."
        )
    if not isinstance(name_or_path, str) or not _HUB_NAME.fullmatch(name):
        raise CheckpointError(
            f"there is no checkpoint {name!r}: no such directory, and not a name on the Hugging "
            f"Face hub (owner/model). {expected}"
        )
    from huggingface_hub import snapshot_download

    patterns = _TEXT_FILES + _WEIGHT_FILES if weights else _TEXT_FILES
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except (
        Exception
    ) as error:  # what it raises differs between versions and HTTP libraries
        why = (str(error) or "no message").splitlines()[0]
        raise CheckpointError(
            f"there is no directory {name}, and downloading {name} from the Hugging Face hub "
            f"failed ({type(error).__name__}: {why}). Check the name and the connection, or "
            "download the checkpoint elsewhere and give its directory."
        ) from error


def inside(directory: Path) -> str:
    """The first file names in a directory, for messages."""
    found = (
        sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    )
    return ", ".join(found[:10]) or "nothing in it"


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises CheckpointError."""
    if not path.is_file():
        raise CheckpointError(
            f"{path} does not exist. The directory has {inside(path.parent)}; a checkpoint in "
            "Hugging Face layout is expected."
        )
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise ValueError(f"it holds {type(value).__name__}")
    except (OSError, ValueError, RecursionError) as error:
        message = (
            f"{path} cannot be read as a JSON object ({error}). Fetch the file again."
        )
        raise CheckpointError(message) from error
    return value


def shard_files(directory: Path) -> dict[str, set[str]]:
    """The safetensors files of a checkpoint, each with the keys that the index
    promises. If `model.safetensors` exists, the index is not read, as in Hugging Face.
    """
    if (directory / "model.safetensors").is_file():
        return {"model.safetensors": set()}
    index = directory / "model.safetensors.index.json"
    if not index.is_file():
        raise CheckpointError(
            f"{directory} has no model.safetensors and no model.safetensors.index.json (it has "
            f"{inside(directory)}). Only safetensors weights are read; convert others with "
            "transformers' save_pretrained."
        )
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"{index} has no weight_map (key -> file). Fetch the file again."
        )
    promised: dict[str, set[str]] = {}
    for key, file in weight_map.items():
        plain = isinstance(file, str) and Path(file).name == file
        if not plain or len(file.encode("utf-8", "replace")) > 255:
            raise CheckpointError(
                f"{index} puts {key} into {file!r}; expected the plain name of a file next to it."
            )
        promised.setdefault(file, set()).add(key)
    absent = sorted(file for file in promised if not (directory / file).is_file())
    if absent:
        raise CheckpointError(
            f"{index} names {len(promised)} files, {len(absent)} of them missing: "
            f"{', '.join(absent[:10])}. Finish the download."
        )
    return promised


def open_tensors(directory: Path) -> dict[str, Any]:
    """The tensors of a checkpoint by key, as lazy views that keep their files mapped.
    Index a view (`[:]`, `[a:b]`, `[:, a:b]`) to read only that part; get_shape and
    get_dtype ("BF16") read nothing. Raises CheckpointError.
    """
    from safetensors import SafetensorError, safe_open

    views: dict[str, Any] = {}
    for file, promised in shard_files(directory).items():
        try:
            handle = safe_open(str(directory / file), framework="pt")
            keys = set(handle.keys())
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{directory / file} is not a complete safetensors file ({error}). It may be "
                "truncated, or a Git LFS pointer instead of the data: fetch it again."
            ) from error
        lost, twice = sorted(promised - keys), sorted(keys & views.keys())
        if lost or twice:
            raise CheckpointError(
                f"{directory / file} does not agree with the index: {len(lost)} promised tensors "
                f"are missing ({', '.join(lost[:10]) or 'none'}), {len(twice)} are also in another "
                f"file ({', '.join(twice[:10]) or 'none'}). Fetch the checkpoint again."
            )
        views |= {key: handle.get_slice(key) for key in keys}
    return views
