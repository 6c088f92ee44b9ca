"""From the name of an acceptance rule to the rule."""

from __future__ import annotations

from collections.abc import Callable

from lr.errors import SettingError
from lr.spec.acceptance import AcceptanceRule
from lr.spec.rules.block import BlockRule
from lr.spec.rules.match import MatchRule
from lr.spec.rules.reject import RejectRule

RULES: dict[str, Callable[[], AcceptanceRule]] = {
    "match": MatchRule,
    "reject": RejectRule,
    "block": BlockRule,
}
"""The rules by name. A new one is a line here; `tests/spec/test_acceptance_contract.py` then asks
of it what it asks of all.
"""


def choose_rule(name: str) -> AcceptanceRule:
    """The rule called `name`. Raises `SettingError`, with the choices, if there is none."""
    if name not in RULES:
        raise SettingError(
            f"there is no acceptance rule {name!r}; choose one of: {', '.join(RULES)}."
        )
    return RULES[name]()
