"""Loading a variant by name: the values of `--variant`.

    --variant best_of                          a module here, or an entry point of lr.variants
    --variant "best_of(width=3)"               with parameters in Python syntax
    --variant path/to/file.py:mine             `mine` in that file
    --variant "package.module:mine(low=0.2)"   `mine` in a module that can be imported

The name refers to a `Variant`, a function that returns one, or a part of one: a
verifier, a chooser, a router, ... as an object or a class. A function or class with a
parameter `reasoner` gets the reasoner."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from lr.errors import LRError, SettingError
from lr.reasoner import Reasoner
from lr.registry import find, load_file
from lr.spec.protocol import SchedulerConfig
from lr.spec.variant import Variant

SHIPPED = (
    "specreason", "best_of", "confidence_cascade", "speculative_thinking", "rsd", "gsi",
    "lossless", "three_levels", "narrowing", "adaptive",
    "traversal",
)  # fmt: skip
"""Each is a function in the module of the same name in this folder."""
GROUP = "lr.variants"
NAMED = re.compile(
    r"(?:(?P<where>.*):)?(?P<name>[A-Za-z_]\w*)(?P<given>\(.*\))?", re.DOTALL
)
PARTS = {
    "outcomes": "rule", "propose": "proposer", "judge": "verifier", "choose": "chooser",
    "who_writes": "router", "depth": "controller", "keep": "corrector",
}  # fmt: skip
"""The extension point of an object, by a method that it must have. The first match
counts."""


def load_variant(text: str, reasoner: Reasoner) -> Variant:
    """The variant that `text` names.

    Raises `SettingError` if it does not exist, or, with the traceback, if loading it
    fails."""
    named = NAMED.fullmatch(text.strip())
    if named is None:
        raise SettingError(
            f"variant is {text!r}, expected a name, file.py:name or package.module:name, with or "
            'without parameters in parentheses, such as "best_of(width=3)".'
        )
    where, name = named["where"], named["name"]
    parameters = _parameters(text, named["given"] or "()")
    try:
        found = _found(text, where, name)
        variant = _made(text, found, parameters, reasoner)
    except LRError:
        raise
    except Exception as error:
        trace = "".join(traceback.format_exception(error))
        raise SettingError(f"variant {text!r} cannot be created:\n{trace}") from error
    file = (
        str(Path(where).resolve()) if where and where.endswith(".py") else variant.file
    )
    return replace(variant, name=text.strip(), file=file)


def is_named(text: str) -> bool:
    """Whether `load_variant` understands the name of a trace's variant."""
    return "=" not in text.partition("(")[0] and NAMED.fullmatch(text) is not None


def _parameters(text: str, given: str) -> dict[str, Any]:
    wrong = f'variant {text!r}: expected parameters such as "name(threshold=7, widths=(3, 1))"'
    try:
        call = ast.parse(f"f{given}", mode="eval").body
        assert isinstance(call, ast.Call)
        if call.args or any(one.arg is None for one in call.keywords):
            raise SettingError(f"{wrong}, each with its name.")
        return {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
    except (SyntaxError, ValueError, AssertionError) as error:
        raise SettingError(
            f"{wrong}; values are numbers, texts, tuples ({error})."
        ) from error


def _found(text: str, where: str | None, name: str) -> Any:
    if where is None:
        if name in SHIPPED:
            return find(f"lr.variants.{name}:{name}")
        points = {one.name: one for one in entry_points(group=GROUP)}
        if name in points:
            return points[name].load()
        raise SettingError(
            f"there is no variant {name!r}; there are {', '.join([*SHIPPED, *sorted(points)])}. "
            "For your own: file.py:name or package.module:name; lr new variant writes a file."
        )
    if where.endswith(".py"):
        if not Path(where).is_file():
            raise SettingError(f"variant {text!r}: there is no file {where}.")
        module: Any = load_file(where)
    else:
        here = str(Path.cwd())
        sys.path += [] if here in sys.path else [here]  # as `python -m` has it
        try:
            module = import_module(where)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{where}.".startswith(f"{error.name}."):
                raise  # the module exists, but something that it imports does not
            raise SettingError(
                f"variant {text!r}: there is no module {error.name!r}."
            ) from error
    if not hasattr(module, name):
        own = [
            n
            for n in vars(module)
            if not n.startswith("_") and callable(getattr(module, n))
        ]
        raise SettingError(
            f"variant {text!r}: {where} has no {name!r}; it has {', '.join(own)}."
        )
    return getattr(module, name)


def _made(
    text: str, found: Any, parameters: dict[str, Any], reasoner: Reasoner
) -> Variant:
    """The variant that a named object gives."""
    if inspect.isclass(found) and issubclass(found, SchedulerConfig):
        return Variant(schedule=found)
    if (
        inspect.isclass(found)
        and hasattr(found, "propose")
        and hasattr(found, "forget")
    ):
        return Variant(
            drafter=lambda runner, sampling: _called(text, found, parameters, reasoner)
        )
    made = found
    if inspect.isclass(found) or inspect.isroutine(found):
        made = _called(text, found, parameters, reasoner)
    elif parameters:
        raise SettingError(f"variant {text!r} is an object, which takes no parameters.")
    if isinstance(made, Variant):
        return made
    for method, part in PARTS.items():
        if callable(getattr(made, method, None)):
            return Variant(**{part: made})
    raise SettingError(
        f"variant {text!r} is {made!r}, expected a lr.spec.variant.Variant, a function that "
        f"returns one, or a part of one: an object with one of {', '.join(PARTS)}."
    )


def _called(
    text: str, make: Callable[..., Any], parameters: dict[str, Any], reasoner: Reasoner
) -> Any:
    """Call `make`. Unknown parameters are refused before it runs."""
    signature = inspect.signature(make)
    known = signature.parameters
    if "reasoner" in known:
        parameters = {"reasoner": reasoner, **parameters}
    try:
        signature.bind(**parameters)
    except TypeError as error:
        takes = ", ".join(str(one) for name, one in known.items() if name != "reasoner")
        raise SettingError(f"variant {text!r}: {error}. It takes ({takes}).") from error
    return make(**parameters)
