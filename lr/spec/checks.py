"""What the parts of a variant hand over, checked at the call: type, length, range, sum.

A check names the part, the value and what was expected. It costs nothing beside a
forward. Whether a part is pure, keeps to its own branch and draws from the `q` that it
states cannot be seen at one call: `lr check` asks that (`lr/variants/kit`). An
exception that a part raises is not touched and keeps its traceback.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn

from lr.errors import LRError, SettingError
from lr.spec.protocol import WAIT, Place
from lr.types import Verdict

if TYPE_CHECKING:
    from lr.spec.acceptance import Outcome
    from lr.spec.proposal import Proposal

LONGEST_VALUE = 300  # characters of a wrong value that a message shows
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


def check_verdicts(
    method: object, verdicts: Any, count: int, *, early: bool = False
) -> None:
    """One `Verdict` of plain Python values per pair; None only for an early one."""
    expected = (
        f"a list of {count} lr.types.Verdict, one per pair, in order: aligned is True or "
        "False, why a text, score a number or None (of a tensor: .item())"
    )
    if not isinstance(verdicts, list) or len(verdicts) != count:
        refuse("verifier", method, verdicts, expected)
    for verdict in verdicts:
        if verdict is None and early:
            continue
        if not isinstance(verdict, Verdict):
            refuse("verifier", method, verdict, expected)
        score = verdict.score
        number = score is None or (isinstance(score, (int, float)) and score == score)
        plain = isinstance(verdict.aligned, bool) and isinstance(verdict.why, str)
        if not (number and plain):
            refuse("verifier", method, verdict, expected)


def check_choice(choice: Any, place: Place) -> None:
    """An aligned alternative, the target's step, or `WAIT` while more are to come."""
    count = len(place.verdicts)
    if choice is None or (choice is WAIT and place.more > 0):
        return
    if not (is_int(choice) and 0 <= choice < count and place.verdicts[choice].aligned):
        aligned = [verdict.aligned for verdict in place.verdicts]
        raise VariantError(
            f"the verifier is wrong: choose gave {choice!r}; expected the number of an "
            f"aligned alternative ({aligned}), None for the target's step, or WAIT while "
            f"more are to come (now {place.more})."
        )


def check_number(part: str, method: object, value: object, minimum: int) -> None:
    """A whole number, such as a controller's depth."""
    if not (is_int(value) and value >= minimum):  # type: ignore[operator]
        refuse(part, method, value, f"a whole number (an int) >= {minimum}")


def check_bool(part: str, method: object, value: object) -> None:
    """True or False, not 0, 1 or a tensor."""
    if value is not True and value is not False:
        refuse(part, method, value, "True or False")


def check_list(
    part: str, method: object, values: Any, kind: type, count: int | None = None
) -> None:
    """A list of `count` objects of a class (None: of at least one)."""
    listed = isinstance(values, list) and all(isinstance(v, kind) for v in values)
    if not listed or len(values) != (max(1, len(values)) if count is None else count):
        many = "at least one" if count is None else count
        refuse(part, method, values, f"a list of {many} {kind.__name__}")


def check_step(source: Any, step: Any, vocab_size: int) -> None:
    """The token ids of a step, not its text; or None."""
    listed = isinstance(step, (list, tuple))
    if step is not None and not (
        listed and all(is_int(token) and 0 <= token < vocab_size for token in step)
    ):
        expected = f"None or a list of token ids from 0 to {vocab_size - 1}"
        refuse("step source", source.step_after, step, expected)


def check_proposal(drafter: Any, proposal: Proposal, max_depth: int) -> None:
    """No deeper than `max_depth`; a chain unless `trees`; rows of q are distributions."""
    method = drafter.propose
    depth = max(proposal.depths())
    if depth > max_depth:
        expected = f"at most min(k, limit) = {max_depth} deep; this one is {depth} deep"
        refuse("drafter", method, proposal.tokens, expected)
    if not drafter.trees and not proposal.is_chain:
        refuse("drafter", method, proposal.parents, "a chain, since `trees` is False")
    if proposal.q is not None:
        sums = proposal.q.double().sum(-1)
        # False for NaN, too
        if not bool((proposal.q >= 0).all() & ((sums - 1).abs() < TOLERANCE).all()):
            expected = "a q whose rows are distributions: not negative, each with sum 1"
            refuse("drafter", method, sums, expected)


def check_outcomes(rule: Any, outcomes: Sequence[Outcome]) -> None:
    """Probabilities that sum to one."""
    chances = [outcome.probability for outcome in outcomes]
    if abs(sum(chances) - 1) > TOLERANCE or min(chances) < -1e-9:
        refuse("rule", rule.outcomes, chances, "probabilities >= 0 that sum to 1")
