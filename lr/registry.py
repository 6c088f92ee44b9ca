"""Loading code from outside the core by its name, "module:function", on first use."""

from __future__ import annotations

import hashlib
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

CHECKPOINTS = ("tiny-target", "tiny-draft", "tiny-judge")
"""The checkpoints that come with the package, in `lr/tiny/checkpoints`."""
DUMMY = "dummy:"
"""The prefix of a checkpoint's name that asks for random weights (`lab/dummy.py`)."""


def find(where: str) -> Any:
    """The object that "module:name" names."""
    module, _, name = where.partition(":")
    return getattr(import_module(module), name)


def load_file(path: str | Path, *, anew: bool = False) -> ModuleType:
    """The module in a file, run once per process, or `anew`. Its name is a function of
    its path, so objects that it defines can be pickled and sent to another process that
    has loaded the same file.
    """
    place = str(Path(path).resolve())
    name = f"lr_plugin_{hashlib.blake2b(place.encode(), digest_size=6).hexdigest()}"
    if name not in sys.modules or anew:
        spec = spec_from_file_location(name, place)
        assert spec is not None and spec.loader is not None, "a file that ends in .py"
        sys.modules[name] = module = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def is_dummy(name: str | Path) -> bool:
    """Whether a checkpoint's name asks for random weights."""
    return str(name).startswith(DUMMY)
