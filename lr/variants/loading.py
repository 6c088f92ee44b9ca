"""Loading a variant by name: the values of `--variant`.

    --variant best_of                       one of `VARIANTS`
    --variant "best_of(width=3)"            with parameters in Python syntax
    --variant path/to/file.py:mine          `mine` in that file

The name is that of a function, which gets the reasoner and the parameters and returns a
`Variant`; or of a class of one part, such as a verifier.
"""

import ast
import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lr.errors import SettingError
from lr.reasoner import Reasoner
from lr.registry import load_file
from lr.spec.checks import make_part
from lr.spec.variant import PARTS, Variant
from lr.types import require
from lr.variants.adaptive import adaptive
from lr.variants.best_of import best_of
from lr.variants.confidence_cascade import confidence_cascade
from lr.variants.fly import fly
from lr.variants.look_before import look_before
from lr.variants.specreason import specreason
from lr.variants.suffix_store import suffix_store
from lr.variants.token_recycling import token_recycling

VARIANTS: dict[str, Callable[..., Variant]] = {
    function.__name__: function
    for function in (
        specreason,
        best_of,
        confidence_cascade,
        look_before,
        fly,
        adaptive,
        token_recycling,
        suffix_store,
    )
}
"""The variants that come with the package."""


def load_variant(text: str, reasoner: Reasoner, *, anew: bool = False) -> Variant:
    """The variant that `text` names; `anew`: run its file again, so that it shares no
    state with an earlier one. Raises `SettingError` if it does not exist. An exception
    of the variant's own code is raised as it is."""
    head, parenthesis, arguments = text.strip().partition("(")
    file, _, name = head.rpartition(":")
    members: dict[str, Any] = VARIANTS
    expected = f"one of {', '.join(VARIANTS)}, or your own as FILE.py:NAME"
    if file:
        require(Path(file).is_file(), "variant", text, f"a file {file}")
        members = vars(load_file(file, anew=anew))
        expected = f"a name that {file} defines"
    require(name in members, "variant", text, expected)
    try:
        # best_of(width=3) is read, never run: values are literals
        call = ast.parse(f"name({arguments if parenthesis else ')'}", mode="eval").body
        assert isinstance(call, ast.Call) and not call.args
        parameters = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    except (AssertionError, SyntaxError, ValueError) as error:
        example = "parameters by name, such as best_of(width=3)"
        raise SettingError(f"variant is {text!r}, expected {example}.") from error
    variant = _make_variant(text, members[name], parameters, reasoner)
    path = str(Path(file).resolve()) if file else variant.file
    # run.json holds both, so that what was run is known
    return replace(variant, name=text.strip(), file=path)


def _make_variant(
    text: str, member: Any, parameters: dict[str, Any], reasoner: Reasoner
) -> Variant:
    """The variant of a function, or of a class of one part (or two, such as verifier and
    step source)."""
    named = f"variant {text!r}"
    if inspect.isfunction(member):
        member = make_part(named, member, reasoner, **parameters)
    if isinstance(member, Variant):
        return member
    bases = ", ".join(part.base.__name__ for part in PARTS)
    expected = f"a function that returns a Variant, or a class derived from {bases}"
    is_class = inspect.isclass(member)
    parts = [part for part in PARTS if is_class and issubclass(member, part.base)]
    require(parts != [], named, member, expected)
    make: Any = partial(member, **parameters) if parameters else member
    return Variant(
        # verifier and step source are objects, for all answers
        **{p.field: make if p.made else make_part(named, make) for p in parts}
    )
