"""Asking a part of a variant: what it returns must be what its extension point expects, and an
exception in it says in which extension point it was raised. `guard.py` has the extension points on
steps, `guard_tokens.py` the others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NoReturn

from lr.errors import LRError
from lr.spec.protocol import NodeId, Note, silent

Notes = Callable[[NodeId | None], Note]
"""What a part may tell the trace about a node (None: about none); `Trace.at`."""
LONGEST = 300
"""Letters of a wrong value that a message shows."""


class VariantError(LRError, TypeError):
    """A part of a variant is not what its extension point expects, or returned something else."""


def no_notes(node: NodeId | None) -> Note:
    """Where nothing is recorded."""
    return silent


@contextmanager
def within(point: str, part: object) -> Iterator[None]:
    """What the part raises inside gets a note that names the extension point."""
    try:
        yield
    except Exception as error:
        note = f"This was raised in the variant's {point}, {called(part)}."
        with suppress(Exception):  # there are exceptions that take no notes
            if not isinstance(error, VariantError) and note not in getattr(error, "__notes__", ()):
                error.add_note(note)
        raise


def called(part: object) -> str:
    """What to call a part in a message."""
    kind = part if inspect.isclass(part) or inspect.isroutine(part) else type(part)
    return str(getattr(kind, "__qualname__", kind))


def refuse(point: str, part: object, method: str, got: object, expected: str) -> NoReturn:
    """Raise `VariantError`: a part returned something wrong."""
    said = " ".join(repr(got).split())  # a tensor has many lines
    said = said if len(said) <= LONGEST else f"{said[:LONGEST]} ..."
    raise VariantError(
        f"the variant's {point} is wrong: {called(part)}.{method} returned {said}; expected "
        f"{expected}. What the extension point asks for: docs/variants.md."
    )


def ask(
    point: str,
    part: Any,
    method: str,
    *given: object,
    fits: Callable[[Any], bool],
    expected: str,
    **more: object,
) -> Any:
    """What `part.method(*given)` returns, if it fits; `__call__` is the part itself."""
    call = part if method == "__call__" else getattr(part, method)
    with within(point, part):
        got = call(*given, **more)
    if not fits(got):
        refuse(point, part, method, got, expected)
    return got


@dataclass(eq=False)
class Guarded:
    """A part of a variant, `inner`, in use. Those of its `methods` that have a parameter `note` are
    given one.
    """

    point: ClassVar[str]
    methods: ClassVar[tuple[str, ...]] = ()
    inner: Any
    notes: Notes = no_notes

    def __post_init__(self) -> None:
        """For what a kind of part adds."""

    def ask(
        self,
        method: str,
        *given: object,
        fits: Callable[[Any], bool],
        expected: str,
        note: Note = silent,
    ) -> Any:
        """What the part returns, if it fits."""
        more = {"note": note} if method in self._takes_note else {}
        return ask(self.point, self.inner, method, *given, fits=fits, expected=expected, **more)

    @cached_property
    def _takes_note(self) -> list[str]:
        """The methods that have a parameter `note`."""
        return [name for name in self.methods if has_note(self.inner, name)]


def has_note(part: Any, method: str) -> bool:
    """Whether a method that may be missing has a parameter `note`."""
    call = part if method == "__call__" else getattr(part, method, None)
    try:
        return callable(call) and "note" in inspect.signature(call).parameters
    except ValueError:  # written in C, and it does not say
        return False


def has(part: object, *methods: str) -> bool:
    """Whether an object has all of these methods."""
    return all(callable(getattr(part, method, None)) for method in methods)


def is_bool(found: object) -> bool:
    """True and False, not 1 and 0, nor a tensor."""
    return isinstance(found, bool)


def is_whole(found: object) -> bool:
    """An int that is neither True nor False, nor of NumPy."""
    return isinstance(found, int) and not isinstance(found, bool)
