"""What the name of a checkpoint says, and what other rooms bring: tiny checkpoints, their
oracle, dummies, code in a file.

NOTE: this is the only file of the core that imports other rooms, when a name asks for
what is there.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from lr.errors import SettingError

WEIGHTS = ("int8", "int4")
"""Kinds of quantised weights (`model/quantize.py`)."""
DUMMY = "dummy:"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's name, taken apart. Example: "int4:dummy:Qwen3-8B" has the `weights`
    "int4", is a `dummy` (random weights) and has the `place` "Qwen3-8B", a shape's name.

    `weights` None: as they are. Without `dummy`, the place is a directory, a hub id or
    the name of a tiny model.
    """

    weights: str | None
    dummy: bool
    place: str

    @classmethod
    def parse(cls, name: str | Path, weights: str | None = None) -> Checkpoint:
        """What a name says; with other `weights`, if they are given."""
        kind, colon, place = str(name).partition(":")
        if not colon or kind not in WEIGHTS:  # no kind of weights, such as "dummy"
            kind, place = "", str(name)
        shape = place.removeprefix(DUMMY)
        return cls(weights or kind or None, shape != place, shape)

    def __str__(self) -> str:
        weights = "" if self.weights is None else f"{self.weights}:"
        return f"{weights}{DUMMY * self.dummy}{self.place}"


def tiny_checkpoints() -> Mapping[str, Path]:
    """The checkpoints of the tiny language by name, and their directories."""
    from lr.tiny import CHECKPOINTS

    return CHECKPOINTS


SAMPLE_QUESTION = (  # at every seed we tried, the draft errs once: 17 more, not 17 fewer
    "At first Finn has 5 pears. Then Jo gets 19 more pears than Finn. "
    "Then Hana gets 17 fewer pears than Jo. How many pears does Hana have?"
)


def require_readable(checkpoint: str | Path | None, question: str) -> None:
    """Raise `SettingError` if the checkpoint cannot read the question: its answer would be
    noise."""
    from lr.tiny.stories import unreadable

    named = Checkpoint.parse(str(checkpoint))
    is_tiny = named.place in tiny_checkpoints() and not named.dummy
    reason = unreadable(question) if is_tiny else ""
    if reason:
        raise SettingError(f"{checkpoint} cannot read {question!r}: {reason}")


def load_oracle(codec: Any) -> Any:
    """The verifier that knows the tiny language, for a target with this `Codec`."""
    from lr.tiny.names import oracle_for

    return oracle_for(codec)


def dummies() -> ModuleType:
    """Shapes, tokenizers and random weights of dummies."""
    from lr.measure import dummy

    return dummy


def load_file(path: str | Path, *, anew: bool = False) -> ModuleType:
    """The module in a file, run once per process, or `anew`. Its name is a function of
    its path, so objects that it defines can be pickled and sent to another process that
    has loaded the same file.
    """
    full_path = str(Path(path).resolve())  # one name per file
    digest = hashlib.blake2b(full_path.encode(), digest_size=6).hexdigest()
    name = f"lr_plugin_{digest}"
    if name in sys.modules and not anew:
        return sys.modules[name]
    spec = spec_from_file_location(name, full_path)
    assert spec is not None and spec.loader is not None, "a file that ends in .py"
    module = module_from_spec(spec)
    sys.modules[name] = module  # before it runs, so that its classes find it
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
