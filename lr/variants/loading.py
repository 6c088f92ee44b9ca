"""Loading a variant by name: the values of `--variant`.

    --variant best_of                       one of `VARIANTS`
    --variant "best_of(width=3)"            with parameters in Python syntax
    --variant path/to/file.py:mine          `mine` in that file

The name is that of a function, which gets the reasoner and the parameters and returns a
`Variant`; or of a class of one part, such as a verifier, or an object of it.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lr.errors import SettingError
from lr.reasoner import Reasoner
from lr.registry import load_file
from lr.spec.variant import PARTS, Given, Variant
from lr.variants.adaptive import adaptive
from lr.variants.best_of import best_of
from lr.variants.confidence_cascade import confidence_cascade
from lr.variants.lossless import lossless
from lr.variants.rsd import rsd
from lr.variants.self_draft import quantised_draft, self_draft
from lr.variants.specguard import specguard
from lr.variants.specreason import specreason
from lr.variants.token_recycling import token_recycling

VARIANTS: dict[str, Callable[..., Variant]] = {
    "specreason": specreason,
    "best_of": best_of,
    "confidence_cascade": confidence_cascade,
    "rsd": rsd,
    "specguard": specguard,
    "lossless": lossless,
    "adaptive": adaptive,
    "token_recycling": token_recycling,
    "self_draft": self_draft,
    "quantised_draft": quantised_draft,
}
"""The variants that come with the package."""
NAMED = re.compile(r"(?:(?P<file>.+\.py):)?(?P<name>[A-Za-z_]\w*)(?P<call>\(.*\))?", re.DOTALL)  # fmt: skip


def load_variant(text: str, reasoner: Reasoner, *, anew: bool = False) -> Variant:
    """The variant that `text` names; `anew`: run its file again, so that it shares no
    state with an earlier one. Raises `SettingError` if it does not exist. An exception
    of the variant's own code is raised as it is."""
    named = NAMED.fullmatch(text.strip())
    if named is None:
        raise SettingError(
            f"variant is {text!r}, expected a name or FILE.py:NAME, with or without "
            'parameters, such as "best_of(width=3)".'
        )
    file, name = named["file"], named["name"]
    if file is None and name not in VARIANTS:
        raise SettingError(
            f"there is no variant {name!r}; there are {', '.join(VARIANTS)}. For your own "
            "write FILE.py:NAME."
        )
    if file is not None and not Path(file).is_file():
        raise SettingError(f"variant {text!r}: there is no file {file}.")
    members: dict[str, Any] = vars(load_file(file, anew=anew)) if file else VARIANTS
    if name not in members:
        raise SettingError(f"variant {text!r}: {file} has no {name!r}.")
    variant = _variant_of(
        text, members[name], _parameters(text, named["call"]), reasoner
    )
    path = str(Path(file).resolve()) if file else variant.file
    return replace(variant, name=text.strip(), file=path)


def is_named(text: str) -> bool:
    """Whether `load_variant` understands the name of a trace's variant."""
    return "=" not in text.partition("(")[0] and NAMED.fullmatch(text) is not None


def _parameters(text: str, call: str | None) -> dict[str, Any]:
    expected = 'expected parameters such as "name(threshold=7, widths=(3, 1))"'
    try:
        tree = ast.parse(f"name{call or '()'}", mode="eval").body
        keywords = tree.keywords if isinstance(tree, ast.Call) else []
        if not isinstance(tree, ast.Call) or tree.args:
            raise SettingError(f"variant {text!r}: {expected}, each with its name.")
        return {str(one.arg): ast.literal_eval(one.value) for one in keywords}
    except (SyntaxError, ValueError) as error:
        raise SettingError(f"variant {text!r}: {expected} ({error}).") from error


def _variant_of(
    text: str, member: Any, parameters: dict[str, Any], reasoner: Reasoner
) -> Variant:
    """The variant of a function, or of a class or an object of a part."""
    if inspect.isfunction(member):
        try:
            call = inspect.signature(member).bind(reasoner, **parameters)
        except TypeError as error:
            takes = inspect.signature(member)
            raise SettingError(
                f"variant {text!r}: {error}. It takes {takes}."
            ) from error
        member = member(*call.args, **call.kwargs)
        parameters = {}
    if isinstance(member, Variant):
        return member
    kind = member if inspect.isclass(member) else type(member)
    parts: dict[str, Any] = {}
    for part in PARTS:
        if issubclass(kind, part.base) and part.given in (
            Given.PER_ANSWER,
            Given.PER_STEP,
        ):
            parts[part.field] = partial(member, **parameters) if parameters else member
        elif issubclass(kind, part.base):
            parts[part.field] = None
    if None in parts.values():  # of several parts in one class there is one object
        made = member(**parameters) if inspect.isclass(member) else member
        parts = {field: value or made for field, value in parts.items()}
    if not parts:
        bases = ", ".join(part.base.__name__ for part in PARTS)
        raise SettingError(
            f"variant {text!r} is {member!r}, expected a function that returns a "
            f"lr.spec.variant.Variant, or a class derived from one of {bases}."
        )
    return Variant(**parts)
