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


def is_dummy(name: str | Path) -> bool:
    """Whether a checkpoint's name asks for random weights."""
    return str(name).startswith(DUMMY)


def load_file(path: str | Path, *, anew: bool = False) -> ModuleType:
    """The module in a file, run once per process, or `anew`. Its name is a function of
    its path, so objects that it defines can be pickled and sent to another process that
    has loaded the same file.
    """
    place = str(Path(path).resolve())
    digest = hashlib.blake2b(place.encode(), digest_size=6).hexdigest()
    name = f"lr_plugin_{digest}"
    if name in sys.modules and not anew:
        return sys.modules[name]
    spec = spec_from_file_location(name, place)
    assert spec is not None and spec.loader is not None, "a file that ends in .py"
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
