"""Calling a part of a variant: results are checked, exceptions name the extension
point.

`guard.py` covers the extension points on steps, `guard_tokens.py` those on tokens."""

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
"""Makes the function by which a part adds notes on a node (or on none) to the trace:
`Trace.at`."""
LONGEST = 300  # characters of a wrong value that a message shows


class VariantError(LRError, TypeError):
    """A part of a variant, or its result, is not what the extension point expects."""


def no_notes(node: NodeId | None) -> Note:
    """The `Notes` that record nothing."""
    return silent


@contextmanager
def within(point: str, part: object) -> Iterator[None]:
    """Add a note that names the extension point to exceptions that the part raises."""
    try:
        yield
    except Exception as error:
        note = f"This was raised in the variant's {point}, {called(part)}."
        with suppress(Exception):  # some exceptions take no notes
            if not isinstance(error, VariantError) and note not in getattr(
                error, "__notes__", ()
            ):
                error.add_note(note)
        raise


def called(part: object) -> str:
    """The name of a part in messages."""
    kind = part if inspect.isclass(part) or inspect.isroutine(part) else type(part)
    return str(getattr(kind, "__qualname__", kind))


def refuse(
    point: str, part: object, method: str, got: object, expected: str
) -> NoReturn:
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
    """Return `part.method(*given)` if it fits, else raise `VariantError`."""
    call = part if method == "__call__" else getattr(part, method)
    with within(point, part):
        got = call(*given, **more)
    if not fits(got):
        refuse(point, part, method, got, expected)
    return got


@dataclass(eq=False)
class Guarded:
    """A part of a variant in use. Those of its `methods` that have a parameter `note`
    get one."""

    point: ClassVar[str]
    methods: ClassVar[tuple[str, ...]] = ()
    inner: Any
    notes: Notes = no_notes

    def __post_init__(self) -> None:
        """A hook for subclasses."""

    def ask(
        self,
        method: str,
        *given: object,
        fits: Callable[[Any], bool],
        expected: str,
        note: Note = silent,
    ) -> Any:
        """Return the part's result if it fits, else raise `VariantError`."""
        more = {"note": note} if method in self._takes_note else {}
        return ask(
            self.point, self.inner, method, *given, fits=fits, expected=expected, **more
        )

    def refuse(self, method: str, got: object, expected: str) -> NoReturn:
        refuse(self.point, self.inner, method, got, expected)

    @cached_property
    def _takes_note(self) -> list[str]:
        return [name for name in self.methods if has_note(self.inner, name)]


def has_note(part: Any, method: str) -> bool:
    """Whether a part has this method, with a parameter `note`."""
    call = part if method == "__call__" else getattr(part, method, None)
    try:
        return callable(call) and "note" in inspect.signature(call).parameters
    except ValueError:  # written in C, without a signature
        return False


def has(part: object, *methods: str) -> bool:
    """Whether an object has all of these methods."""
    return all(callable(getattr(part, method, None)) for method in methods)


def is_bool(found: object) -> bool:
    """Whether this is True or False, not 0, 1 or a tensor."""
    return isinstance(found, bool)


def is_whole(found: object) -> bool:
    """Whether this is a Python int, not a bool or a NumPy number."""
    return isinstance(found, int) and not isinstance(found, bool)


def list_of(kind: type, count: int | None = None) -> Callable[[Any], bool]:
    """A check for a list of `count` objects of a class (None: of at least one)."""

    def fits(made: Any) -> bool:
        listed = isinstance(made, list) and all(isinstance(one, kind) for one in made)
        return listed and (len(made) == count if count is not None else len(made) > 0)

    return fits
