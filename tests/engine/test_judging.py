"""Verifiers get the log-probabilities that they require from the prefill that is due
anyway.
"""

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
from lr.spec.verifiers.named import RandomVerifier
from lr.trace import ForwardPass, StepWritten
from lr.types import Role, Verdict

QUESTION = "How many coins does Ann have?"
OPTIONS: dict[str, Any] = {
    "mode": "lr",
    "segmenter": "fixed",
    "segment_tokens": 6,
    "max_tokens": 72,
    "temperature": 1.0,
}


@pytest.fixture(scope="module")
def reasoner(tmp_path_factory: pytest.TempPathFactory) -> Reasoner:
    folder = tmp_path_factory.mktemp("checkpoints")
    target = write_checkpoint(folder / "target", seed=1, layers=2)
    draft = write_checkpoint(folder / "draft", seed=2)
    return Reasoner(target, draft, "exact", dtype=torch.float64)


class Witness(Verifier):
    """Keeps the pairs and accepts two of three by the draft step's ids alone."""

    name = "witness"

    def __init__(self, requires: Requires) -> None:
        self.requires = requires
        self.pairs: list[Pair] = []

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        self.pairs += pairs
        return [Verdict(sum(pair.draft.tokens) % 3 > 0, "by ids") for pair in pairs]


@pytest.mark.parametrize(
    "requires",
    [Requires.TARGET_LOGPROBS, Requires.TARGET_LOGPROBS | Requires.TARGET_STEP],
)
@pytest.mark.parametrize("schedule", ["sync", "depth"])
@pytest.mark.parametrize("driver", ["lockstep", "overlapped"])
def test_pairs_hold_what_the_verifier_requires(
    reasoner: Reasoner, requires: Requires, schedule: str, driver: str
) -> None:
    witness = Witness(requires)
    tree = {"depth": 3, "schedule": schedule, "driver": driver}
    reasoner.generate(QUESTION, variant=Variant(witness), **tree, **OPTIONS)
    assert len(witness.pairs) > 4
    for pair in witness.pairs:
        assert (pair.target is not None) == bool(requires & Requires.TARGET_STEP)
        runner = ModelRunner(reasoner.engine.target, num_blocks=40)
        branch = runner.open([*pair.prefix, *pair.draft.tokens])
        logits = runner.forward([branch], "all")[0][:, : reasoner.codec.vocab_size]
        logprobs = logits.log_softmax(-1)[len(pair.prefix) - 1 : -1]
        tokens = torch.tensor(pair.draft.tokens)[:, None]
        expected = logprobs.gather(1, tokens)[:, 0].tolist()
        assert pair.logprobs == pytest.approx(expected, abs=1e-9)


def test_the_prefill_costs_no_token_twice(reasoner: Reasoner) -> None:
    """With a verifier that needs no target step, the target reads every token of the
    chain and of the rejected drafts at most once, but for the last token of a prefix or
    of a step."""
    witness = Witness(Requires.TARGET_LOGPROBS)
    options = OPTIONS | {"depth": 1, "schedule": "sync"}
    result = reasoner.generate(QUESTION, variant=Variant(witness), **options)
    drafted = sum(len(pair.draft.tokens) for pair in witness.pairs)
    written = 0
    computed = 0
    for _, event in result.trace.events:
        if isinstance(event, StepWritten) and event.role is Role.TARGET:
            written += len(event.step.tokens)
        if isinstance(event, ForwardPass) and event.role is Role.TARGET:
            computed += event.tokens
    twice = len(witness.pairs) + len(result.steps)
    assert computed <= len(result.prompt) + drafted + written + twice


def test_reading_draft_steps_takes_no_pass_of_its_own(reasoner: Reasoner) -> None:
    """Four rows of a synchronous cycle, each of 4 tokens. The first pass reads the
    prompt; then every pass serves all rows."""
    tree = {"depth": 3, "schedule": "sync", "segment_tokens": 4, "max_tokens": 16}
    variant = Variant(RandomVerifier(1.0))
    result = reasoner.generate(QUESTION * 9, variant=variant, **(OPTIONS | tree))
    passes = [e for _, e in result.trace.events if isinstance(e, ForwardPass)]
    rows = [e.branches for e in passes if e.role is Role.TARGET]
    assert rows == [1, 4, 4, 4, 3]


def test_a_failing_prefill_leaves_nothing_behind(
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
        reasoner.generate(QUESTION, variant=variant, depth=2, **OPTIONS)
