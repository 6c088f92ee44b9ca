"""What drivers give to verifiers: log-probabilities by the prefill that is due anyway."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from reasoner_kit import write_checkpoint

from lr.engine.runner import ModelRunner
from lr.reasoner import Reasoner
from lr.spec.variant import Variant
from lr.spec.verifiers.base import Pair, Requires, Verifier
from lr.trace import StepWritten
from lr.types import Role, Verdict

PROBLEM = (
    "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many has Ben?"
)
QUESTION = "How many coins does Ann have?"
HOW = {
    "mode": "lr",
    "segmenter": "fixed",
    "segment_tokens": 6,
    "max_tokens": 72,
    "temperature": 1.0,
}
BOTH = Requires.TARGET_STEP | Requires.TARGET_LOGPROBS


@pytest.fixture(scope="module")
def reasoner(tmp_path_factory: pytest.TempPathFactory) -> Reasoner:
    folder = tmp_path_factory.mktemp("checkpoints")
    target, draft = (
        write_checkpoint(folder / "target", seed=1, layers=2),
        write_checkpoint(folder / "draft", seed=2),
    )
    return Reasoner(target, draft, "exact", dtype=torch.float64)


class Witness(Verifier):
    """Notes the pairs it is asked about and accepts by the draft step's ids alone, two
    of three."""

    name = "witness"

    def __init__(self, need: Requires) -> None:
        self.requires, self.pairs = need, list[Pair]()

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        self.pairs += pairs
        return [
            Verdict(sum(pair.draft.tokens) % 3 > 0, why="by the sum of the ids")
            for pair in pairs
        ]


def reread(reasoner: Reasoner, tokens: Sequence[int]) -> torch.Tensor:
    """Log-probabilities [n, v] after each token, by one forward from scratch."""
    runner = ModelRunner(
        reasoner.engine.target, num_blocks=40, vocab_size=reasoner.codec.vocab_size
    )
    [logits] = runner.forward([runner.open(tokens)], "all")
    return logits.log_softmax(-1)


@pytest.mark.parametrize("need", [Requires.TARGET_LOGPROBS, BOTH])
@pytest.mark.parametrize("schedule", ["sync", "depth"])
@pytest.mark.parametrize("driver", ["lockstep", "overlapped"])
def test_pairs_hold_what_the_verifier_needs(
    reasoner: Reasoner, need: Requires, schedule: str, driver: str
) -> None:
    witness = Witness(need)
    reasoner.generate(
        QUESTION,
        variant=Variant(witness),
        depth=3,
        schedule=schedule,
        driver=driver,
        **HOW,
    )
    assert len(witness.pairs) > 4
    for pair in witness.pairs:
        assert (pair.target is not None) == bool(need & Requires.TARGET_STEP)
        logprobs = reread(reasoner, (*pair.prefix, *pair.draft.tokens))
        start, tokens = len(pair.prefix), pair.draft.tokens
        expected = [
            float(logprobs[start + i - 1, token]) for i, token in enumerate(tokens)
        ]
        assert pair.logprobs == pytest.approx(expected, abs=1e-9)


def test_the_reading_is_the_prefill_and_costs_no_token_twice(
    reasoner: Reasoner,
) -> None:
    """With a verifier that needs no target step, the target reads every token of the
    chain at most once, and the drafts that fell.
    """
    witness = Witness(Requires.TARGET_LOGPROBS)
    result = reasoner.generate(
        QUESTION, variant=Variant(witness), depth=1, schedule="sync", **HOW
    )
    drafted = sum(len(pair.draft.tokens) for pair in witness.pairs)
    by_target = sum(
        len(e.step.tokens)
        for _, e in result.trace.events
        if isinstance(e, StepWritten) and e.role is Role.TARGET
    )
    fed = sum(
        e.tokens
        for _, e in result.trace.events
        if getattr(e, "role", None) is Role.TARGET and hasattr(e, "branches")
    )
    twice = len(witness.pairs) + len(
        result.steps
    )  # the last token of a prefix or of a step may be read again
    assert fed <= len(result.prompt) + drafted + by_target + twice


def test_a_failing_read_leaves_nothing_behind(
    reasoner: Reasoner, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = ModelRunner.forward

    def failing(runner: ModelRunner, branches: Any, logits: Any = "last") -> Any:
        if logits == "all":
            raise RuntimeError("out of luck")
        return forward(runner, branches, logits)

    monkeypatch.setattr(ModelRunner, "forward", failing)
    variant = Variant(Witness(Requires.TARGET_LOGPROBS))
    with pytest.raises(RuntimeError, match="out of luck"):
        reasoner.generate(QUESTION, variant=variant, depth=2, **HOW)
