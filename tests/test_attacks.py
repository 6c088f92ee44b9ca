"""A short run of every attack; how to run them for longer: `docs/trust.md`."""

from __future__ import annotations

import importlib.util
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
CASES = {
    "exact": 4,
    "distribution": 2,
    "orders": 10,
    "cache": 3,
    "parity": 2,
    "files": 12,
    "faults": 2,
    "sandbox": 2,
    "soak": 6,
}


@pytest.fixture(scope="module")
def attack() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "attack", ROOT / "scripts" / "attack.py"
    )
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@pytest.fixture(scope="module")
def exact(
    attack: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            sys, "path", [*(str(ROOT / kit) for kit in attack.KITS), *sys.path]
        )
        made = importlib.import_module("attacks.models").exact(
            tmp_path_factory.mktemp("exact")
        )
        yield made
        made.close()


def test_every_attack_has_a_short_run(attack: ModuleType) -> None:
    assert CASES.keys() == attack.ATTACKS.keys()


@pytest.mark.parametrize("name", CASES)
def test_short_run(
    attack: ModuleType,
    name: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    code = attack.main([name, "--count", str(CASES[name]), "--seed", "11"])
    assert code == 0, capsys.readouterr().out


def test_none_of_a_thousand_requests_that_were_admitted_runs_out_of_blocks(
    attack: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Random models, modes, drafters, schedules, widths and numbers of blocks; prompts
    up to the context, and short answers, so that a thousand take seconds.
    """
    monkeypatch.setattr(
        sys, "path", [*(str(ROOT / kit) for kit in attack.KITS), *sys.path]
    )
    soak = importlib.import_module("attacks.models").soak
    for name, value in {"context": 1024, "company": 16, "longest": 4}.items():
        monkeypatch.setattr(soak, name, value)
    many, number = soak(tmp_path), 0
    while many.requests < 1000:
        many(Random(f"many {number}"))
        number += 1
    many.close()


def test_a_finding_is_reported_and_can_be_had_again(
    attack: ModuleType,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a scheduler's oracle that is wrong."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    attack.main(["orders", "--count", "1"])
    monkeypatch.setattr(sys.modules["attacks.parts"].oracle, "__code__", wrong.__code__)
    assert attack.main(["orders", "--only", "5", "--seed", "3"]) == 1
    said = capsys.readouterr().out
    assert "FINDING in case 5 of seed 3" in said and "1 findings" in said


@pytest.mark.parametrize("swallowed", [False, True])
def test_ctrl_c_ends_an_attack_with_what_was_tried_and_found_so_far(
    attack: ModuleType,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    swallowed: bool,
) -> None:
    """The signal comes in case 3, whose code may take the interrupt for its own
    failure. Two cases were fine and one was a finding; progress is told after each of
    them."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    attack.main(["orders", "--count", "1"])
    numbers = iter(range(10))

    def case(self: object, rng: Random) -> str:
        number = next(numbers)
        if number == 3:
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                assert not swallowed, "an interrupt is no success"
                raise
        assert number != 1, "found"
        return "fine"

    monkeypatch.setattr(sys.modules["attacks.parts"].orders, "__call__", case)
    monkeypatch.setattr(attack, "EVERY", 0.0)
    before = signal.getsignal(signal.SIGINT)
    assert attack.main(["orders", "--count", "10"]) == 130
    assert signal.getsignal(signal.SIGINT) is before and next(numbers) == 4
    said = capsys.readouterr()
    assert (
        "FINDING in case 1 of seed 0" in said.out
        and "FINDING in case 3" not in said.out
    )
    assert said.out.splitlines()[-1].endswith("(2 fine, 1 finding); 1 findings")
    assert [line[:15] for line in said.err.splitlines()[1:]] == [
        "orders: 1 cases", "orders: 2 cases", "orders: 3 cases"
    ]  # fmt: skip


def wrong(script: object, config: object) -> object:
    raise AssertionError("the oracle knows better")


@pytest.mark.parametrize(
    "verifier",
    ["exact", "always", "never", "random:0.5", "likelihood:-3", "score:4", "judge", "embedding",
     "oracle"],
)  # fmt: skip
def test_no_question_changes_the_answer_of_another(exact: Any, verifier: str) -> None:
    """Short questions beside one that fills the context, in fp64, with every
    verifier."""
    assert verifier in sys.modules["attacks.models"].VERIFIERS
    for number in range(3):
        assert exact.company(Random(f"{verifier} {number}"), verifier) == "in company"
