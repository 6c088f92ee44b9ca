"""Variants by name, for --variant."""

import pytest

from lr.errors import SettingError
from lr.reasoner import Reasoner
from lr.spec.checks import VariantError
from lr.variants.loading import load_variant

PLUGIN = """
from lr.spec.acceptance import AcceptanceRule, RejectRule
from lr.spec.drafters import LookupDrafter
from lr.spec.variant import Controller, StepSource, Variant
from lr.spec.verifiers.base import Verifier
from lr.types import Verdict


class Longer(Verifier, StepSource):
    name = "longer"

    def __init__(self, least=3):
        self.least = least

    def judge(self, pairs):
        return [Verdict(len(pair.draft_step.tokens) >= self.least, "x") for pair in pairs]

    def write(self, places):
        return [None for _ in places]


class Deep(Controller):
    def __init__(self, most=2):
        self.most = most

    def depth(self, progress):
        return self.most


class Fours:
    def __init__(self, token_bytes):
        self.left = 4

    def feed(self, token):
        self.left -= 1
        return self.left == 0


class Lookup(LookupDrafter):
    def __init__(self, setup):
        super().__init__(3, 1)


class Mine(RejectRule):
    name = "mine"


class Unnamed(AcceptanceRule):
    def outcomes(self, p_rows, proposal):
        return []


class Needs(Longer):
    def __init__(self, least):
        self.least = least


nothing = 7


def mine(reasoner, *, least=2):
    assert reasoner is not None
    return Variant(Longer(least))


def fails(reasoner):
    raise RuntimeError("no such luck")
"""


@pytest.fixture(scope="module")
def reasoner():
    return Reasoner()


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    path = tmp_path_factory.mktemp("plugins") / "plugin.py"
    path.write_text(PLUGIN, "utf-8")
    return path


@pytest.mark.parametrize(
    "name, fields",
    [
        ("mine", ["verifier"]),
        ("mine(least=9)", ["verifier"]),
        ("Longer(least=4)", ["verifier", "step_source"]),
        ("Deep", ["controller"]),
        ("Deep(most=3)", ["controller"]),
        ("Fours", ["segmenter"]),
        ("Lookup", ["drafter"]),
        ("Mine", ["rule"]),
    ],
)
def test_functions_and_classes_of_a_part_are_variants(reasoner, plugin, name, fields):
    variant = load_variant(f"{plugin}:{name}", reasoner)
    assert [part.field for part in variant.replaced] == fields
    assert variant.name == f"{plugin}:{name}" and variant.file == str(plugin)
    if "=9" in name:
        assert variant.verifier.least == 9


def test_a_controllers_class_gives_each_answer_its_own(reasoner, plugin):
    variant = load_variant(f"{plugin}:Deep(most=3)", reasoner)
    first, second = variant.make("controller"), variant.make("controller")
    assert first is not second and first.most == 3


@pytest.mark.parametrize(
    "name",
    [
        "nobody",
        "a b",
        "no_such_file.py:mine",
        "FILE:missing",
        "FILE:mine(most=3)",
        "FILE:mine(3)",
        "FILE:mine(least=)",
        "FILE:mine(least=open('x'))",
        "FILE:nothing",
        "FILE:Needs",
    ],
)
def test_what_cannot_be_loaded_is_refused(reasoner, plugin, name):
    with pytest.raises(SettingError, match="variant"):
        load_variant(name.replace("FILE", str(plugin)), reasoner)


def test_a_part_without_its_name_is_refused(reasoner, plugin):
    variant = load_variant(f"{plugin}:Unnamed", reasoner)
    with pytest.raises(VariantError, match="name"):
        variant.make("rule")


def test_a_plugins_own_exception_keeps_its_traceback(reasoner, plugin):
    with pytest.raises(RuntimeError, match="no such luck"):
        load_variant(f"{plugin}:fails", reasoner)
