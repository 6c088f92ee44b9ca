"""The names that another package brings, and code in a file.

The core knows no tiny language. `lr/tiny/__init__.py` enters its checkpoints and its
verifier here when `lr` is imported; the core looks them up by name.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lr.model.codec import Codec
    from lr.spec.verifiers.base import Verifier

checkpoints: dict[str, Path] = {}
"""Short names of checkpoints, and their directories."""
verifiers: dict[str, Callable[[Codec], Verifier]] = {}
"""Makers of verifiers that know a language, from the target's tokenizer."""

DUMMY = "dummy:"
"""How the name of a checkpoint with random weights begins (`lr/model/dummy.py`)."""
WEIGHTS = ("int8", "int4")
"""Kinds of quantised weights (`model/quantize.py`). "int4:NAME" is the checkpoint NAME
with such weights."""


def is_dummy(name: str | Path) -> bool:
    """Whether a checkpoint's name asks for random weights."""
    return str(split_weights(name)[1]).startswith(DUMMY)


def split_weights(name: str | Path) -> tuple[str | None, str | Path]:
    """The kind of weights and the checkpoint: "int4:NAME" is ("int4", "NAME"), another
    name is (None, name)."""
    kind, colon, checkpoint = str(name).partition(":")
    return (kind, checkpoint) if colon and kind in WEIGHTS else (None, name)


def with_weights(weights: str | None, name: str) -> str:
    """The name of a checkpoint with this kind of weights; None: as it is."""
    return name if weights is None else f"{weights}:{split_weights(name)[1]}"


def load_file(path: str | Path, *, anew: bool = False) -> ModuleType:
    """The module in a file, run once per process, or `anew`. Its name is a function of
    its path, so objects that it defines can be pickled and sent to another process that
    has loaded the same file.
    """
    full_path = str(Path(path).resolve())
    digest = hashlib.blake2b(full_path.encode(), digest_size=6).hexdigest()
    name = f"lr_plugin_{digest}"
    if name in sys.modules and not anew:
        return sys.modules[name]
    spec = spec_from_file_location(name, full_path)
    assert spec is not None and spec.loader is not None, "a file that ends in .py"
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
