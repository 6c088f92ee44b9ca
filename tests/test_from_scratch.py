"""The checks of notebook 00: right answers pass, usual mistakes are told what is wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
from tests_root import ROOT


@pytest.fixture(scope="module")
def scratch() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "notebooks"))
    import from_scratch

    yield from_scratch
    sys.path.remove(str(ROOT / "notebooks"))


@pytest.fixture(scope="module")
def plain_answer(scratch: ModuleType) -> tuple[list[int], int]:
    """The answer of plain decoding, and its passes."""
    return scratch.plain(scratch.prompt)


def keeps_all_that_agree(drafts, steps, same):
    agreeing = [
        ours for ours, theirs in zip(drafts, steps, strict=False) if same(ours, theirs)
    ]
    return agreeing + steps[len(drafts) :]


def drops_the_window(nodes, same):
    root = nodes[0]
    if root.draft.done and root.target.done:
        return [nodes[1]] if same(root.draft.step, root.target.step) else []
    return nodes


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("joins", keeps_all_that_agree),
        ("decide", drops_the_window),
    ],
)
def test_a_wrong_answer_is_told_and_replaced(
    name: str,
    wrong: Callable,
    scratch: ModuleType,
    capsys: pytest.CaptureFixture[str],
) -> None:
    check = getattr(scratch, f"check_{name}")
    assert check(wrong) is getattr(scratch, name)
    assert capsys.readouterr().out.startswith(f"✗ {name}: ")


@pytest.mark.parametrize("name", ["plain", "joins", "decide"])
def test_the_answer_passes(
    name: str,
    scratch: ModuleType,
    plain_answer: tuple[list[int], int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scratch, "plain", lambda prompt: plain_answer)
    answer = getattr(scratch, name)
    assert getattr(scratch, f"check_{name}")(answer) is answer
    assert capsys.readouterr().out == f"✓ {name} is right.\n"


def test_the_draft_is_wrong_once_and_being_wrong_costs_no_pass(
    scratch: ModuleType, plain_answer: tuple[list[int], int]
) -> None:
    end = scratch.lookahead(scratch.prompt, 2)[0][len(scratch.prompt) :]
    text = scratch.codec.decode(end)
    assert "17 fewer" in text and "17 more" not in text
    never = scratch.rolling(scratch.prompt, 2, same=lambda ours, theirs: False)
    assert never == plain_answer
