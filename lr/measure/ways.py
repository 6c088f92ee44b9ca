"""Ways to answer, side by side, as `lr experiment` times them."""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from lr.options import MODES, make_options
from lr.types import require

WAY_MODES = (*MODES, "draft")
T = TypeVar("T")


@dataclass(frozen=True)
class Way:
    """A way to answer. Mode `draft` is the draft alone; None: the variant's mode, or
    that of the experiment. `options` win over a variant's settings, and these over what
    the ways have in common. `verifier` None: the common one. `warm`: the variant keeps
    its memory from answer to answer, while all else begins anew. `cells` identify the
    way in a table."""

    cells: Mapping[str, Any]
    mode: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    verifier: str | None = None
    variant: str | None = None
    warm: bool = False

    @classmethod
    def of(cls, words: str) -> Way:
        """A way in words: a mode, then options, also a verifier or a variant, as in
        "sd drafter=draft num_speculative_tokens=8" or "lr verifier=likelihood:-1"."""
        mode, *changes = words.split() or [""]
        require(mode in WAY_MODES, "mode", mode, f"one of {', '.join(WAY_MODES)}")
        options: dict[str, Any] = {}
        for change in changes:
            name, _, value = change.partition("=")
            try:
                options[name] = literal_eval(value)  # a number, a tuple, True, None
            except (ValueError, SyntaxError):
                options[name] = value
        verifier = options.pop("verifier", None)
        variant = options.pop("variant", None)
        make_options(**options)  # refuses names and values that no option has
        return cls({"way": words}, mode, options, verifier, variant)

    @property
    def name(self) -> str:
        """The name of its folder."""
        words = " ".join(map(str, self.cells.values()))
        return re.sub(r"[^\w.=+,-]+", "_", words).strip("_")


def in_turn(items: Sequence[T], number: int) -> list[T]:
    """Rotated left by `number`, so that each begins once. Example: a, b, c by 1 is b,
    c, a."""
    first = number % len(items)
    return [*items[first:], *items[:first]]
