"""Fifteen recorded answers: every later version gives the same tokens and origins.

`recorded_answers.json` lists them: what was asked, and what was answered in fp64, with
a tiny target of two layers or with random models. Every mode, schedule, token drafter,
acceptance rule, coupling, driver and kind of verifier occurs. `python
tests/test_recorded_answers.py` records them anew. Do that only where a change of the
answers is intended, and say in the commit which and why.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from reasoner_kit import load_small, with_loader
from safetensors.torch import load_file, save_file

from lr.model.files import resolve
from lr.reasoner import Reasoner

RECORD = Path(__file__).with_name("recorded_answers.json")
CASES: list[dict[str, Any]] = json.loads(RECORD.read_text())
ON_PAGE = [
    case
    for case in CASES
    if case["options"]["mode"] in ("lr", "lr+sd")
    and case["options"].get("driver") != "overlapped"
    and case["verifier"].startswith(("oracle", "exact", "random"))
]
QUESTIONS = (
    "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many coins does Ben have?",
    "At first Cleo has 4 apples. Then Dan gets twice as many apples as Cleo. Then "
    "Cleo gives 2 apples to Dan. How many apples does Dan have?",
)


def make_random_pair(folder: Path) -> list[Path]:
    """A target and a draft with the shapes and the tokenizer of the tiny family, and
    random weights."""
    pair = []
    for seed, name in enumerate(("tiny-target", "tiny-draft")):
        checkpoint = folder / name
        shutil.copytree(resolve(name), checkpoint)
        weights = load_file(checkpoint / "model.safetensors")
        generator = torch.Generator().manual_seed(seed)
        for key in sorted(weights):
            drawn = torch.randn(weights[key].shape, generator=generator)
            weights[key] = 0.5 * drawn
        save_file(weights, checkpoint / "model.safetensors")
        pair.append(checkpoint)
    return pair


def answer(case: dict[str, Any], folder: Path, **changes: Any) -> dict[str, str]:
    """An answer, short enough to be kept: a hash of its tokens, where its steps come
    from, and how it begins."""
    pair: list[Any] = ["tiny-target", "tiny-draft"]
    if case["pair"] == "random":
        pair = make_random_pair(folder)
    verifier = case["verifier"]
    judge = "tiny-judge" if verifier == "judge" else None
    with Reasoner(*pair, verifier, judge=judge, dtype=torch.float64) as reasoner:
        question = QUESTIONS[case["question"]]
        result = reasoner.generate(question, **case["options"], **changes)
    tokens = json.dumps(result.tokens).encode()
    return {
        "tokens": hashlib.blake2b(tokens, digest_size=8).hexdigest(),
        "steps": " ".join(step.origin.value for step in result.steps),
        "text": result.text[:60],
    }


def name(case: dict[str, Any]) -> str:
    options = "-".join(f"{name}={value}" for name, value in case["options"].items())
    return f"{case['pair']}-{case['verifier']}-{options}"


@pytest.fixture(autouse=True, scope="module")
def loaded_once() -> Any:
    with with_loader(cache(load_small)):
        yield


@pytest.mark.parametrize("case", CASES, ids=name)
def test_answers_are_those_recorded(case: dict[str, Any], tmp_path: Path) -> None:
    assert answer(case, tmp_path) == case["answer"]


@pytest.mark.parametrize("case", ON_PAGE, ids=name)
def test_the_page_gives_the_recorded_answers(
    case: dict[str, Any], tmp_path: Path
) -> None:
    assert answer(case, tmp_path, engine="page") == case["answer"]


if __name__ == "__main__":
    import tempfile

    torch.set_num_threads(1)
    with with_loader(load_small):
        for case in CASES:
            with tempfile.TemporaryDirectory() as folder:
                case["answer"] = answer(case, Path(folder))
    lines = [json.dumps(case) for case in CASES]
    RECORD.write_text("[\n" + ",\n".join(lines) + "\n]\n")
