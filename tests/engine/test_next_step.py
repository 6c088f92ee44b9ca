"""With rule "match" a step begins with what the round before decided after the end of
the last one. The page of the method drops that and writes it again: the same tokens.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from reasoner_kit import write_checkpoint

from lr.reasoner import Reasoner
from lr.trace import StepWritten, TokenRound
from lr.types import Role

QUESTION = "How many coins does Ann have?"
SAME = {
    "acceptance": "match",
    "coupling": "shared",
    "temperature": 1.0,
    "max_tokens": 36,
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    target = write_checkpoint(folder / "target", seed=1, layers=2)
    return target, write_checkpoint(folder / "draft", seed=2)


@pytest.mark.parametrize(("length", "k"), [(7, 4), (5, 4), (3, 8), (4, 30)])
def test_no_round_is_lost_where_every_draft_token_is_right(
    pair: tuple[Path, Path], length: int, k: int
) -> None:
    """The draft is the target. Example: steps of 7 tokens, rounds of 5. Dropping what
    follows a step, each took two rounds; now 35 tokens take seven.
    """
    target, _ = pair
    with Reasoner(target, target, "exact", dtype=torch.float64) as reasoner:
        steps = {"segmenter": "fixed", "segment_tokens": length}
        run = reasoner.run(
            QUESTION, mode="sd", num_speculative_tokens=k, **SAME, **steps
        )
        result = run.finish()
        plain = reasoner.generate(QUESTION, mode="ar", **SAME, **steps)
    assert result.tokens == plain.tokens
    assert [step.text for step in result.steps] == [step.text for step in plain.steps]
    rounds = [event for _, event in run.trace.events if isinstance(event, TokenRound)]
    assert all(r.accepted == r.proposed for r in rounds), (
        "the draft has the keys of the next step"
    )
    if length > k:  # else what follows may have a step's end of its own, which ends it
        assert all(r.emitted == r.accepted + 1 for r in rounds)
        assert all(a.index <= b.index <= a.index + 1 for a, b in pairwise(rounds))
    written = [e for _, e in run.trace.events if isinstance(e, StepWritten)]
    assert [e.index for e in written] == [step.index for step in result.steps]


@pytest.mark.parametrize("drafter", ["draft", "ngram", "tree", "step"])
@pytest.mark.parametrize("schedule", ["sync", "paper", "depth"])
def test_the_page_writes_the_same_without_it(
    pair: tuple[Path, Path], drafter: str, schedule: str
) -> None:
    """Corrections, bonus steps and steps without a draft; only chains go on into the
    next step."""
    went_on = 0
    with Reasoner(pair[0], pair[0], "random:0.5", dtype=torch.float64) as reasoner:
        for seed, length in enumerate((2, 3, 6)):
            how = {
                "mode": "lr+sd",
                "drafter": drafter,
                "schedule": schedule,
                "width": 1 + seed % 2,
            }
            how |= {
                "segmenter": "fixed",
                "segment_tokens": length,
                "seed": seed,
                "depth": 2,
            }
            run = reasoner.run(QUESTION, **SAME, **how)
            found = run.finish()
            page = reasoner.generate(QUESTION, engine="page", **SAME, **how)
            assert [(s.tokens, s.origin) for s in found.steps] == [
                (s.tokens, s.origin) for s in page.steps
            ]
            decided, written = Counter(), {}
            for _, event in run.trace.events:
                if isinstance(event, TokenRound) and event.role is Role.TARGET:
                    decided[event.node] += event.emitted
                elif isinstance(event, StepWritten) and event.role is Role.TARGET:
                    written[event.node] = len(event.step.tokens)
            went_on += sum(decided[node] > length for node, length in written.items())
    assert went_on if drafter == "draft" else (drafter != "tree" or not went_on)
