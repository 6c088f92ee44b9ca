"""Every deliberate mistake in `mistakes_kit.py` is noticed by whom it says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from mistakes_kit import MISTAKES

from lr.errors import LRError
from lr.reasoner import Reasoner
from lr.spec.variant import Variant
from lr.variants.kit.check import QUESTIONS, check_answers, check_parts, idle_parts
from lr.variants.kit.findings import Material
from lr.variants.loading import load_variant

FILE = Path(__file__).with_name("mistakes_kit.py")
KIND = "every value is of the kind that is expected"


@pytest.fixture(scope="module")
def reasoner() -> Iterator[Reasoner]:
    with Reasoner(dtype=torch.float64) as reasoner:
        yield reasoner


def who_notices(name: str, reasoner: Reasoner) -> str:
    """As `lr check` does it."""

    def make() -> Variant:
        return load_variant(f"{FILE}:{name}", reasoner, anew=True)

    try:
        parts = list(check_parts(make, Material.of(reasoner)))
        faults = [fault for findings in parts for fault in findings.broken]
        if faults:
            return "refused" if faults[0].startswith(KIND) else "broken"
        answers, results = check_answers(make, reasoner, QUESTIONS[:2], max_tokens=40)
    except LRError:
        return "refused"
    except Exception:
        return "raised"
    if answers.broken:
        return "broken"
    remarks = [remark for findings in parts for remark in findings.remarks]
    return "shown" if remarks or idle_parts(make(), results) else "harmless"


@pytest.mark.parametrize("name", [n for n, who in MISTAKES.items() if who != "fine"])
def test_a_mistake_is_noticed(reasoner: Reasoner, name: str) -> None:
    assert who_notices(name, reasoner) == MISTAKES[name]


@pytest.mark.parametrize("name", [n for n, who in MISTAKES.items() if who == "fine"])
def test_what_is_correct_passes(reasoner: Reasoner, name: str) -> None:
    assert who_notices(name, reasoner) in ("harmless", "shown")


def test_hardly_a_mistake_is_silent() -> None:
    counts = Counter(MISTAKES.values())
    assert counts.total() >= 74 and counts["harmless"] <= 4


@pytest.mark.parametrize("name", [n for n, who in MISTAKES.items() if who == "refused"])
def test_a_wrong_value_is_refused_in_an_answer_too(
    reasoner: Reasoner, name: str
) -> None:
    def answer() -> None:
        variant = load_variant(f"{FILE}:{name}", reasoner)
        reasoner.generate(QUESTIONS[0], variant=variant, max_tokens=30)

    with pytest.raises(LRError):
        answer()
