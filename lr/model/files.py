"""Finding a checkpoint (a directory, the Hugging Face hub, a tiny model) and opening
its files.

All errors of files are reported here; the meaning of the tensors is not known here.
torch is not imported until a tensor is read. Read next: `weights.py`, which accounts
for every key; `codec.py`, which reads the tokenizer of the same directory.
"""

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lr.errors import CheckpointError
from lr.registry import Checkpoint, tiny_checkpoints

_TEXT_FILES = [
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "adapter_config.json",
    "*tokens*.json",
    "chat_template*",
]
_WEIGHT_FILES = ["model*.safetensors", "model.safetensors.index.json"]
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def resolve(name_or_path: str | Path, *, weights: bool = True) -> Path:
    """The directory of a checkpoint: an existing one, that of a tiny model, or a
    download from the Hugging Face hub (`weights=False`: configuration and tokenizer
    only). Raises CheckpointError.
    """
    name = Checkpoint.parse(name_or_path).place
    tiny = tiny_checkpoints()
    if name in tiny:
        return tiny[name]
    with suppress(OSError, ValueError):  # longer than any name, or with a null byte
        if (path := Path(name).expanduser()).is_dir():
            return without_adapter(path)
    if isinstance(name_or_path, Path) or not _HUB_NAME.fullmatch(name):
        raise CheckpointError(
            f"there is no checkpoint {name!r:.100}: no such directory, and not a name on "
            "the Hugging Face hub (owner/model). Give a directory, a hub name such as "
            f"Qwen/Qwen3-0.6B, or one of {', '.join(tiny)}."
        )
    from huggingface_hub import snapshot_download

    patterns = _TEXT_FILES + _WEIGHT_FILES if weights else _TEXT_FILES
    try:
        # from its cache, if all is there
        path = Path(snapshot_download(name, allow_patterns=patterns))
    except Exception as error:  # which kind differs between versions of the library
        reason = (str(error) or "no message").splitlines()[0]
        raise CheckpointError(
            f"there is no directory {name}, and downloading {name} from the Hugging "
            f"Face hub failed ({type(error).__name__}: {reason}). Check the name and "
            "the connection, or give the directory of a checkpoint."
        ) from error
    return without_adapter(path)


def without_adapter(directory: Path) -> Path:
    """The directory. Raises CheckpointError if an adapter (LoRA) lies in it: its model
    would be computed without what it was trained to be."""
    for file in sorted(directory.glob("adapter_[cm]o*")):  # config, model
        raise CheckpointError(
            f"{file} belongs to an adapter, and adapters are not computed here. Merge it "
            "into its base model (peft's merge_and_unload, then save_pretrained) and give "
            "that directory; if that is done, remove the file."
        )
    return directory


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises CheckpointError."""
    try:
        # "-sig": editors on Windows begin a file with a mark.
        value = json.loads(path.read_text(encoding="utf-8-sig"))
        if not isinstance(value, dict):
            raise ValueError(f"it holds {type(value).__name__}")
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} cannot be read as a JSON object ({error}). A checkpoint in Hugging "
            "Face layout is expected."
        ) from error
    return value


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a checkpoint: model.safetensors, else those that the
    index names. Raises CheckpointError."""
    if (directory / "model.safetensors").is_file():
        return [directory / "model.safetensors"]
    index = directory / "model.safetensors.index.json"
    if not index.is_file():
        advice = "Finish the download, online, or choose a checkpoint that has them."
        for file in directory.glob("*_model*"):  # pytorch_model.bin, tf_model.h5
            advice = f"Convert {file.name} with transformers' save_pretrained."
        raise CheckpointError(
            f"{directory} has no safetensors weights: no model.safetensors, no "
            f"{index.name}. {advice}"
        )
    weight_map = read_json(index).get("weight_map")
    names = weight_map.values() if isinstance(weight_map, dict) else ()  # key to file
    # never outside the directory
    files = [directory / Path(str(name)).name for name in sorted(set(names))]
    absent = [file.name for file in files if not file.is_file()]
    if absent or not files:
        raise CheckpointError(
            f"{index} names {len(files)} files in its weight_map, {len(absent)} of them "
            f"missing: {', '.join(absent[:10])}. Finish the download."
        )
    return files


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file. Index it (`[:]`, `[a:b]`, `[:, a:b]`) to read only that part.
    The file is opened for each reading: pages that stay mapped count as memory of the
    process, twice the weights at the end of loading."""

    file: Path
    key: str
    shape: list[int]
    dtype: str  # "BF16"

    def __getitem__(self, part: Any) -> Any:
        from safetensors import safe_open

        with safe_open(str(self.file), framework="pt") as handle:
            return handle.get_slice(self.key)[part]


def open_tensors(directory: Path) -> dict[str, StoredTensor]:
    """The tensors of a checkpoint by key; only the headers are read. Raises
    CheckpointError."""
    from safetensors import SafetensorError, safe_open

    tensors: dict[str, StoredTensor] = {}
    for file in weight_files(directory):
        try:
            with safe_open(str(file), framework="pt") as handle:
                stored = {}
                for key in handle.offset_keys():
                    view = handle.get_slice(key)
                    stored[key] = StoredTensor(
                        file, key, view.get_shape(), view.get_dtype()
                    )
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{file} is not a complete safetensors file ({error}). It may be "
                "truncated, or a Git LFS pointer instead of the data: fetch it again."
            ) from error
        if twice := sorted(tensors.keys() & stored.keys()):
            raise CheckpointError(
                f"{file} holds {', '.join(twice[:3])}, and so does another file that "
                "the index names. Remove what is left of older weights."
            )
        tensors |= stored
    return tensors
