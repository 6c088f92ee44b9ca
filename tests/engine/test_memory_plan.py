"""Memory is planned: the prompt is computed once per model, and what was admitted never
runs out of cache blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from reasoner_kit import write_checkpoint

from lr.engine.answer import Answer
from lr.engine.engine import Loop
from lr.engine.worker import DraftWorker, News
from lr.options import make_options
from lr.reasoner import Reasoner
from lr.trace import ForwardPass
from lr.types import Role

WORDS = "Ann Ben has 3 more coins than 47 . , half as".split()
LONG = " ".join(WORDS * 18)
STEPS = {"segmenter": "fixed", "segment_tokens": 4, "temperature": 1.0}
SHORT = STEPS | {"max_tokens": 12}
WAYS = [
    {"mode": "ar"},
    {"mode": "lr", "width": 2, "depth": 1},
    {"mode": "lr", "width": 3, "depth": 2, "schedule": "sync"},
    {"mode": "lr", "width": 2, "depth": 2, "driver": "overlapped"},
    {"mode": "lr+sd", "drafter": "draft", "depth": 4, "schedule": "sync"},
    {"mode": "lr+sd", "drafter": "tree", "depth": 2, "width": 2},
    {"mode": "sd", "drafter": "tree"},
    {"mode": "sd", "drafter": "draft"},
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    return [
        write_checkpoint(folder / str(seed), seed=seed, context=300) for seed in (1, 2)
    ]


@pytest.fixture(scope="module")
def reasoner(folders: list[Path]) -> Iterator[Reasoner]:
    with Reasoner(*folders, "random:0.5", dtype=torch.float64) as reasoner:
        yield reasoner


def test_reading_draft_steps_takes_no_pass_of_its_own(folders: list[Path]) -> None:
    """Four rows of a synchronous cycle, each of 4 tokens. The first pass reads the
    prompt; then every pass serves all rows."""
    options = SHORT | {"max_tokens": 16, "mode": "lr", "depth": 3, "schedule": "sync"}
    with Reasoner(*folders, "always", dtype=torch.float64) as reasoner:
        result = reasoner.generate(LONG, **options)
    passes = [e for _, e in result.trace.events if isinstance(e, ForwardPass)]
    rows = [e.branches for e in passes if e.role is Role.TARGET]
    assert rows == [1, 4, 4, 4, 3]


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> dict[Role, list[tuple[int, int]]]:
    """Branches and tokens of every forward from here on, by role, the worker's
    included."""
    counts: dict[Role, list[tuple[int, int]]] = {role: [] for role in Role}
    passed = Loop.passed
    receive = DraftWorker._receive

    def ours(
        loop: Loop, role: Role, branches: int, tokens: int, seconds: float
    ) -> None:
        counts[role].append((branches, tokens))
        passed(loop, role, branches, tokens, seconds)

    def theirs(worker: DraftWorker, wait: float | None) -> News | None:
        news = receive(worker, wait)
        if news is not None:
            passes = {
                (event.branches, event.tokens, event.seconds)
                for *_, event in news.events
                if isinstance(event, ForwardPass)  # one for each answer
            }
            counts[Role.DRAFT] += [(branches, tokens) for branches, tokens, _ in passes]
        return news

    monkeypatch.setattr(Loop, "passed", ours)
    monkeypatch.setattr(DraftWorker, "_receive", theirs)
    return counts


def samples(reasoner: Reasoner, count: int, **options: Any) -> list[Answer]:
    """So many samples of one question, each longer than the one before, not begun."""
    lengths = [(number, 9 + number) for number in range(count)]
    options = [
        make_options(**options, sample=n, max_tokens=length) for n, length in lengths
    ]
    return [reasoner.run(LONG, each) for each in options]


def together(runs: list[Answer]) -> list[tuple[int, ...]]:
    """The answers, four at a time."""
    for _ in runs[0].engine.serve(runs, 4):
        pass
    return [run.result.tokens for run in runs]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_prompts_are_computed_once_and_answers_fit_in_their_blocks(
    folders: list[Path],
    reasoner: Reasoner,
    way: dict,
    forwards: dict[Role, list[tuple[int, int]]],
) -> None:
    """Samples share their prompt, in every cache (the draft has two where it writes
    steps and proposes tokens), and have room in the blocks reserved for each."""
    runs = samples(reasoner, 4, **STEPS, **way)
    alone = [run.finish().tokens for run in runs]
    for passes in forwards.values():
        passes.clear()
    blocks = sum(run.blocks for run in runs)
    with Reasoner(
        *folders, "random:0.5", dtype=torch.float64, num_blocks=blocks
    ) as tight:
        assert together(samples(tight, 4, **STEPS, **way)) == alone
    prompt, options = len(runs[0].prompt), runs[0].options
    for role in Role:
        large = [
            tokens for rows, tokens in forwards[role] if tokens >= rows * prompt // 2
        ]
        caches = (
            1 if role is Role.TARGET else options.looks_ahead + options.drafts_tokens
        )
        assert len(large) == caches and max(large, default=0) < prompt + 60, (
            role,
            large,
        )
