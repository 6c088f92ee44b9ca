"""docs/first_hour.md says what fits which card; here the planner says it again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from lr.engine import runner as runners
from lr.engine.runner import RESERVE, ModelRunner, Runners, room
from lr.errors import OutOfBlocks
from lr.kvcache.cache import bytes_per_block
from lr.measure.memory import GIB, Placed, PlacedModels, plan_run
from lr.model.dummy import shape
from lr.model.qwen import CausalLM
from lr.model.weights import load_model
from lr.options import GenerateOptions
from lr.reasoner import Reasoner

PAGE = Path(__file__).parents[1] / "docs" / "first_hour.md"
CARDS = {24: 23, 48: 47, 80: 79, 141: 139}
"""GiB that a card of so many GB has free before anything is loaded."""
BF16 = torch.bfloat16
OPTIONS = GenerateOptions(mode="lr+sd", drafter="ngram", depth=4, driver="overlapped")
QUESTION = (
    "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many has Ben?"
)
LAYOUTS: dict[str, tuple[tuple[str, ...], str | None, str | None]] = {
    "8B, 0.6B, one card": (("Qwen3-8B", "Qwen3-0.6B"), None, None),
    "8B, 1.7B, judge 7B, one card": (("Qwen3-8B", "Qwen3-1.7B", "Qwen2.5-7B"), None, None),
    "32B, 1.7B, judge 7B, one card": (("Qwen3-32B", "Qwen3-1.7B", "Qwen2.5-7B"), None, None),
    "32B alone; 1.7B, judge 7B on a second card": (
        ("Qwen3-32B", "Qwen3-1.7B", "Qwen2.5-7B"), "cuda:0", "cuda:1",
    ),
    "32B over two cards; 1.7B; judge 7B (four)": (
        ("Qwen3-32B", "Qwen3-1.7B", "Qwen2.5-7B"), "cuda:0,cuda:1", "cuda:2,cuda:3",
    ),
}  # fmt: skip
"""Models, devices of the target, devices of draft and judge (None: all on the
first)."""


def cell(layout: str, free: int) -> str:
    """The longest chain that fits cards with so many GiB, or that none does."""
    names, target, others = LAYOUTS[layout]
    target_devices = tuple((target or "cuda:0").split(","))
    places = (others or target_devices[0]).split(",")
    where = [target_devices, (places[0],), (places[-1],)]
    placed = [Placed(n, shape(n), BF16, d) for n, d in zip(names, where, strict=False)]
    judge = placed[2] if len(placed) > 2 else None
    roles = PlacedModels(
        placed[0],
        placed[1],
        judge,
        "judge" if judge else "exact",
        apart=others is not None,
    )
    plan = plan_run(roles, OPTIONS, 40960, free=lambda device: free * GIB)
    longest = [device.room() for device in plan.devices]
    most = min(
        40960, *(tokens for tokens in (one[1] for one in longest if one is not None))
    )
    fixed = all(d.fits for d in plan.devices if d.room() is None)
    return f"{most // 1000}k" if fixed and most >= 2000 else "no"


def expected_rows() -> list[str]:
    rows = [f"| layout | {' | '.join(f'{card} GB' for card in CARDS)} |"]
    for layout in LAYOUTS:
        rows.append(
            f"| {layout} | {' | '.join(cell(layout, free) for free in CARDS.values())} |"
        )
    return rows


def test_the_page_says_what_the_planner_says() -> None:
    lines = PAGE.read_text("utf-8").splitlines()
    for row in expected_rows():
        assert row in lines, "\n".join(expected_rows())


def test_every_command_of_the_page_is_one_of_ours() -> None:
    """`tests/test_documented_commands.py` parses their flags."""
    found = re.findall(
        r"^(lr [a-z0-9]+|python scripts/\w+\.py)", PAGE.read_text("utf-8"), re.M
    )
    assert {
        "lr info",
        "lr generate",
        "lr run",
        "lr reproduce",
        "python scripts/gpu_check.py",
    } <= set(found)


def cuda(
    monkeypatch: pytest.MonkeyPatch, free: int, reserved: int = 0, used: int = 0
) -> None:
    """As if models were on a GPU with so many bytes free."""
    monkeypatch.setattr(CausalLM, "device", torch.device("cuda:0"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: used)


def test_what_is_free_less_a_reserve_is_the_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, draft = (
        Runners(load_model(f"tiny-{role}")) for role in ("target", "draft")
    )
    assert room([target, draft]) is None  # on a CPU as much as is needed
    held = ModelRunner(draft.model, num_blocks=8)
    cuda(monkeypatch, 3 * GIB, reserved=5 << 20, used=1 << 20)
    free = 3 * GIB - RESERVE + (4 << 20)
    ours, theirs = (
        bytes_per_block(**one.model.cache_shape, block_size=16)
        for one in (target, draft)
    )
    block = ours + theirs
    assert room([target, draft]) == free // block
    assert room([target, draft, draft]) == free // (block + theirs)
    draft.idle.append(held)  # its memory comes back when a larger one is made
    bytes_held = held.cache.keys.nbytes + held.cache.values.nbytes
    assert bytes_held == 8 * theirs
    assert room([target, draft]) == (free + bytes_held) // block
    cuda(monkeypatch, GIB)
    assert room([target]) == 0


def test_answers_wait_for_the_room_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four at a time are asked for and two fit; one that never fits is refused with the
    numbers."""
    how = {"mode": "ar", "max_tokens": 24, "max_step_tokens": 16}
    with Reasoner(draft=None) as reasoner:
        runs = [reasoner.run(QUESTION, seed=seed, **how) for seed in range(4)]
        alone = [
            reasoner.generate(QUESTION, seed=seed, **how).tokens for seed in range(4)
        ]
        need, made = runs[0].blocks, []
        monkeypatch.setattr("lr.engine.engine.room", lambda caches: 2 * need + 1)
        reasoner.engine.forget_caches()
        lend = runners.Runners.lend
        monkeypatch.setattr(
            runners.Runners,
            "lend",
            lambda self, blocks: made.append(blocks) or lend(self, blocks),
        )
        for _ in reasoner.engine.serve(runs, concurrency=4):
            pass
        assert made == [2 * need + 1]
        assert [run.result.tokens for run in runs] == alone
        monkeypatch.setattr("lr.engine.engine.room", lambda caches: need - 1)
        with pytest.raises(OutOfBlocks, match=str(need)):
            reasoner.generate(QUESTION, **how)
