"""The guides in docs/ hold: their examples run and pass the contracts they name, and
their tables are what the code says.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import drafter_kit
import pytest
import test_acceptance_contract as rule_contract
import test_drafters as drafter_contract
import test_verifier_contract as verifier_contract
from tests_root import ROOT
from verifier_kit import codec

from lr.spec.acceptance import RULES
from lr.theory.counterexamples import bias, counterexamples

VARIANTS = (ROOT / "docs" / "variants.md").read_text(encoding="utf-8")
TOKEN_LEVEL = (ROOT / "docs" / "token_level.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", VARIANTS, re.DOTALL)


@pytest.fixture(scope="module")
def guide() -> dict[str, Any]:
    """Everything that the examples define; running them runs their assertions."""
    names: dict[str, Any] = {"__name__": "guide"}
    for number, block in enumerate(BLOCKS):
        exec(compile(block, f"docs/variants.md, example {number}", "exec"), names)
    return names


def test_the_examples_run(guide: dict[str, Any]) -> None:
    assert {"RepeatDrafter", "SureRule", "SameNumbers"} <= set(guide)


def test_the_drafter_passes_its_contract(
    guide: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        drafter_kit.DRAFTERS, "repeat", lambda sampling: guide["RepeatDrafter"]()
    )
    drafter_contract.test_contract("repeat")


def test_the_rule_passes_its_contract(
    guide: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RULES, "sure", guide["SureRule"])
    asked = [
        test
        for name, test in vars(rule_contract).items()
        if name.startswith("test_")
        and list(inspect.signature(test).parameters) == ["rule"]
    ]
    assert len(asked) >= 8
    for test in asked:
        test(guide["SureRule"]())


def test_the_rule_cannot_claim_to_be_lossless(guide: dict[str, Any]) -> None:
    rule = guide["SureRule"]()
    rule.lossless = True
    with pytest.raises(AssertionError):
        rule_contract.test_lossless_means_exactly_the_law_of_the_target(rule, "random")


def test_the_verifier_passes_its_contract(guide: dict[str, Any]) -> None:
    def make() -> Any:
        return guide["SameNumbers"](codec().decode)

    verifier_contract.test_one_verdict_per_pair_each_with_a_reason(make)
    verifier_contract.test_a_verdict_depends_on_its_own_pair_alone(make)
    verifier_contract.test_what_it_needs_is_enough(make)


def test_the_example_of_the_guide_to_steps_runs() -> None:
    text = (ROOT / "docs" / "variants_steps.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(
        compile(block, "docs/variants_steps.md, example", "exec"), {"__name__": "guide"}
    )


def test_the_table_of_rules_is_the_code() -> None:
    for name, make in RULES.items():
        rule = make()
        says = ["yes" if flag else "no" for flag in (rule.lossless, rule.trees)]
        assert re.search(
            rf"^\| `{name}` \| {says[0]} \| {says[1]} \|", TOKEN_LEVEL, re.MULTILINE
        ), name


def test_the_table_of_counterexamples_is_the_code() -> None:
    for one in counterexamples():
        assert f"| {one.name} | {bias(one):.3f} | {one.why} |" in TOKEN_LEVEL
