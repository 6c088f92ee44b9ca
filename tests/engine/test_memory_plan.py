"""A prompt is computed once for all samples, and draft steps are read in passes that
are due anyway.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from reasoner_kit import write_checkpoint

from lr.engine.answer import Answer
from lr.engine.engine import Loop
from lr.reasoner import Reasoner
from lr.trace import ForwardPass
from lr.types import Role

WORDS = "Ann Ben has 3 more coins than 47 . , half as".split()
LONG = " ".join(WORDS * 18)
STEPS: dict[str, Any] = {
    "segmenter": "fixed",
    "segment_tokens": 4,
    "temperature": 1.0,
}


@pytest.fixture(scope="module")
def reasoner(tmp_path_factory: pytest.TempPathFactory) -> Reasoner:
    folder = tmp_path_factory.mktemp("checkpoints")
    target, draft = (
        write_checkpoint(folder / str(seed), seed=seed, context=300) for seed in (1, 2)
    )
    return Reasoner(Path(target), Path(draft), "always", dtype=torch.float64)


def test_reading_draft_steps_takes_no_pass_of_its_own(reasoner: Reasoner) -> None:
    """Four rows of a synchronous cycle, each of 4 tokens. The first pass reads the
    prompt; then every pass serves all rows."""
    tree = {"mode": "lr", "depth": 3, "schedule": "sync"}
    result = reasoner.generate(LONG, max_tokens=16, **tree, **STEPS)
    passes = [e for _, e in result.trace.events if isinstance(e, ForwardPass)]
    rows = [e.branches for e in passes if e.role is Role.TARGET]
    assert rows == [1, 4, 4, 4, 3]


@pytest.mark.parametrize("count", [4, 9])
def test_samples_of_one_question_compute_its_prompt_once(
    reasoner: Reasoner, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but its last token, which each sample computes to draw its first one. Later
    samples begin when earlier ones end, and take the prompt from those that are still
    written.
    """
    computed: list[int] = []
    passed = Loop.passed

    def counted(loop: Loop, role: Role, branches: int, tokens: int, s: float) -> None:
        computed.append(tokens)
        passed(loop, role, branches, tokens, s)

    def sample(number: int) -> Answer:
        return reasoner.run(
            LONG, mode="ar", sample=number, max_tokens=9 + number, **STEPS
        )

    alone = [sample(number).finish().tokens for number in range(count)]
    monkeypatch.setattr(Loop, "passed", counted)
    answers = [sample(number) for number in range(count)]
    for _ in reasoner.engine.serve(answers, 4):
        pass
    assert [answer.result.tokens for answer in answers] == alone
    assert len(set(alone)) > 1
    assert sum(computed) == len(answers[0].prompt) - 1 + sum(map(len, alone))
