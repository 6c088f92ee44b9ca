"""Where the trained tiny checkpoints lie. They come with the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from lr.errors import CheckpointError
from lr.registry import CHECKPOINTS


def checkpoint_path(name: str) -> Path:
    """The directory (Hugging Face layout) of a tiny model by name. Raises CheckpointError for a
    name that is not one of `CHECKPOINTS`."""
    if name not in CHECKPOINTS:
        raise CheckpointError(
            f"there is no tiny model {name!r}. The tiny models are {', '.join(CHECKPOINTS)}."
        )
    path = Path(str(files("lr.tiny"))) / "checkpoints" / name
    if not (path / "config.json").is_file():
        raise CheckpointError(
            f"the files of {name} are missing from this installation ({path}). Install the package "
            "from its wheel, or train the model with scripts/train_tiny.py, or the judge with "
            "scripts/train_judge.py."
        )
    return path


def companion(target: str, role: str) -> str | None:
    """The "draft" or "judge" that belongs to a target by name: "tiny-draft" to "tiny-target"; None
    where none comes with the package."""
    family, dash, what = target.partition("-")
    name = f"{family}-{role}"
    return name if dash and what == "target" and name in CHECKPOINTS else None
