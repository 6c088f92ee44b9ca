"""What the parts of a variant hand over, checked at the call: type, length, range, sum.

A check names the part, the value and what was expected. It costs nothing beside a
forward. Whether a part is pure, keeps to its own branch and draws from the `q` that it
states cannot be seen at one call: `lr check` asks that (`lr/variants/kit`). An
exception that a part raises is not touched and keeps its traceback.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from lr.errors import LRError, SettingError
from lr.types import Verdict

LONGEST_VALUE = 300  # characters of a wrong value that a message shows
SURROGATE = re.compile("[\ud800-\udfff]")  # half a character, which no file can hold
TOLERANCE = 1e-4  # of a sum of probabilities in fp32


class VariantError(LRError, TypeError):
    """A part of a variant, or what it returned, is not what the method expects."""


def refuse(part: str, maker: object, value: object, expected: str) -> NoReturn:
    """Raise `VariantError` for a value of the part that `maker` (an object, its class
    or its method) is."""
    named = maker if inspect.isroutine(maker) or inspect.isclass(maker) else type(maker)
    text = " ".join(repr(value).split())  # a tensor has many lines
    if len(text) > LONGEST_VALUE:
        text = f"{text[:LONGEST_VALUE]} ..."
    raise VariantError(
        f"the {part} is wrong: {named.__qualname__} gave {text}; expected {expected}. "
        "What each part may do: docs/variants.md."
    )


def is_int(value: object) -> bool:
    """Whether this is a Python int, not a bool, a NumPy number or a tensor."""
    return isinstance(value, int) and not isinstance(value, bool)


def make_part(
    named: str, make: Callable[..., Any], *arguments: Any, **more: Any
) -> Any:
    """What a class or a function of the user makes. Raises `SettingError` if it cannot
    be called so; an error from inside keeps its traceback."""
    try:
        return make(*arguments, **more)
    except TypeError as error:
        if error.__traceback__ and error.__traceback__.tb_next:
            raise
        raise SettingError(
            f"{named}: {error}. A class is called without arguments, a function with "
            "one (docs/variants.md); parameters follow in parentheses."
        ) from error


def check_names(part: str, value: object, base: type) -> None:
    """Raise `VariantError` if the part lacks an attribute that `base` asks for, or has a
    public name that is nearly one of `base`, which nothing would ever call."""
    for name in getattr(base, "__annotations__", ()):
        if not (hasattr(base, name) or hasattr(value, name)):
            refuse(part, value, f"no {name!r}", f"a class that sets {name} = ...")
    defined = {name for name in dir(base) if not name.startswith("_")}
    defined |= set(getattr(base, "__annotations__", ()))
    written: set[str] = set()
    for kind in type(value).__mro__:
        if not issubclass(base, kind):
            written |= {name for name in vars(kind) if not name.startswith("_")}
    for name in sorted(written - defined):
        for meant in get_close_matches(name, defined - written, 1, cutoff=0.8):
            refuse(part, value, f"the name {name!r}", f"{meant!r}, or a name with _")


def check_verdicts(method: object, verdicts: Any, lengths: Sequence[int]) -> None:
    """One `Verdict` of plain Python values per draft step of these lengths."""
    count = len(lengths)

    def fits(verdict: Any, length: int) -> bool:
        if not isinstance(verdict, Verdict):
            return False
        score = verdict.score
        # No subclasses: a trace file cannot hold a numpy.float64, which is a float.
        is_number = type(score) in (int, float) and score == score
        return (
            type(verdict.aligned) is type(verdict.failed) is bool
            and (score is None or is_number)
            and is_int(verdict.keep)
            and 0 <= verdict.keep < (1 if verdict.aligned else length)
            and type(verdict.why) is str
            and not SURROGATE.search(verdict.why)
        )

    listed = isinstance(verdicts, list) and len(verdicts) == count
    if not (listed and all(map(fits, verdicts, lengths))):
        expected = (
            f"a list of {count} lr.types.Verdict, one per pair, in order: aligned is True "
            "or False, why a text, score a Python number or None (of a tensor: .item()), "
            "keep a number of tokens, 0 unless it is rejected, less than the step has"
        )
        refuse("verifier", method, verdicts, expected)


def check_choice(method: object, choice: Any, verdicts: Sequence[Verdict]) -> None:
    """An aligned alternative, or None for the target's step."""
    aligned = [verdict.aligned for verdict in verdicts]
    if choice is None:
        return
    if not (is_int(choice) and 0 <= choice < len(aligned) and aligned[choice]):
        expected = f"the number of an aligned alternative ({aligned}), or None"
        refuse("verifier", method, choice, expected)


def check_number(part: str, method: object, value: object, minimum: int) -> None:
    """A whole number, such as a controller's depth."""
    if not (is_int(value) and value >= minimum):  # type: ignore[operator]
        refuse(part, method, value, f"a whole number (an int) >= {minimum}")


def check_bool(part: str, method: object, value: object) -> bool:
    """The value: True or False, not 0, 1 or a tensor."""
    if value is not True and value is not False:
        refuse(part, method, value, "True or False")
    return value


def check_list(part: str, method: object, values: Any, kind: type, count: int) -> None:
    """A list of `count` objects of a class."""
    listed = isinstance(values, list) and len(values) == count
    if not (listed and all(isinstance(value, kind) for value in values)):
        refuse(part, method, values, f"a list of {count} {kind.__name__}")


def check_steps(source: Any, steps: Any, count: int, vocab_size: int) -> None:
    """For each of `count` places the token ids of a step, not its text; or None."""

    def fits(step: Any) -> bool:
        return step is None or (
            isinstance(step, (list, tuple))
            and all(is_int(token) and 0 <= token < vocab_size for token in step)
        )

    if not (isinstance(steps, list) and len(steps) == count and all(map(fits, steps))):
        expected = (
            f"a list of {count}, one per place: None, or a list of token ids from 0 to "
            f"{vocab_size - 1}"
        )
        refuse("step source", source.write, steps, expected)
