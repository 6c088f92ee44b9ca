"""What drivers give to verifiers: log-probabilities and hidden states by the prefill
that is due anyway, a target step only in doubt.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import pytest
import torch
from reasoner_kit import write_checkpoint

from lr.engine.readings import read
from lr.engine.runner import ModelRunner
from lr.kvcache.branch import Branch
from lr.model.attention import RaggedBatch
from lr.reasoner import Reasoner
from lr.spec.variant import Variant
from lr.spec.verifiers.base import ExactVerifier, Pair, Requires, Verifier
from lr.spec.verifiers.named import LikelihoodVerifier
from lr.trace import StepWritten
from lr.types import Role, Verdict
from lr.variants.confidence_cascade import Cascade

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
EVERYTHING = Requires.TARGET_STEP | Requires.TARGET_LOGPROBS | Requires.HIDDEN


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


def reread(
    reasoner: Reasoner, tokens: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities [n, v] after each token and hidden states [n, e] of it, by one
    forward from scratch.
    """
    runner = ModelRunner(
        reasoner.engine.target, num_blocks=40, vocab_size=reasoner.codec.vocab_size
    )
    [(logits, hidden)] = read(runner, [runner.open(tokens)])
    return logits.log_softmax(-1), hidden


@pytest.mark.parametrize(
    "need", [Requires.TARGET_LOGPROBS, Requires.HIDDEN, EVERYTHING]
)
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
        logprobs, hidden = reread(reasoner, (*pair.prefix, *pair.draft.tokens))
        start, tokens = len(pair.prefix), pair.draft.tokens
        expected = [
            float(logprobs[start + i - 1, token]) for i, token in enumerate(tokens)
        ]
        assert pair.logprobs == pytest.approx(expected, abs=1e-9)
        assert pair.hidden is not None
        torch.testing.assert_close(pair.hidden, hidden[start:], rtol=0, atol=1e-9)


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


def cascade(high: float) -> Cascade:
    """Sure of what is likely enough, else exact comparison with the target's step."""
    return Cascade(LikelihoodVerifier(-1.0), ExactVerifier(), low=-1e9, high=high)


@pytest.fixture(scope="module")
def halfway(reasoner: Reasoner) -> float:
    """A score that about half of the draft steps reach."""
    witness = Witness(Requires.TARGET_LOGPROBS)
    reasoner.generate(
        QUESTION, variant=Variant(witness), depth=1, schedule="sync", **HOW
    )
    return median(
        verdict.score or 0.0 for verdict in LikelihoodVerifier().judge(witness.pairs)
    )


def target_steps(reasoner: Reasoner, verifier: Cascade) -> tuple[int, int, list[str]]:
    """Steps of the target that were written, steps of the answer, and the reasons for
    accepting."""
    result = reasoner.generate(
        QUESTION, variant=Variant(verifier), depth=1, schedule="sync", **HOW
    )
    written = sum(
        isinstance(e, StepWritten) and e.role is Role.TARGET
        for _, e in result.trace.events
    )
    return (
        written,
        len(result.steps),
        [s.verdict.why for s in result.steps if s.verdict is not None],
    )


def test_a_target_step_is_written_only_in_doubt(
    reasoner: Reasoner, halfway: float
) -> None:
    assert target_steps(reasoner, cascade(-1e9))[0] == 0  # always sure
    written, steps, reasons = target_steps(reasoner, cascade(halfway))
    assert 0 < written < steps
    assert any("nats" in why for why in reasons)
    never_sure, steps, reasons = target_steps(reasoner, cascade(0.0))
    assert never_sure == steps
    assert not any("nats" in why for why in reasons)


def test_early_verdicts_and_asking_everybody_give_the_same_answer(
    reasoner: Reasoner, halfway: float
) -> None:
    """The same cascade without its early verdicts has a target step written for every
    pair; the verdicts are the same.
    """
    asked_at_once = cascade(halfway)
    asked_at_once.early_requires = None
    results = [
        reasoner.generate(QUESTION, variant=Variant(verifier), depth=2, **HOW)
        for verifier in (cascade(halfway), asked_at_once)
    ]
    assert results[0].tokens == results[1].tokens
    assert [s.origin for s in results[0].steps] == [s.origin for s in results[1].steps]


def test_a_failing_read_leaves_nothing_behind(
    reasoner: Reasoner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(runner: ModelRunner, branches: Sequence[Branch]) -> list[RaggedBatch]:
        raise RuntimeError("out of luck")

    monkeypatch.setattr("lr.engine.readings.read", failing)
    with pytest.raises(RuntimeError, match="out of luck"):
        reasoner.generate(
            QUESTION, variant=Variant(Witness(Requires.HIDDEN)), depth=2, **HOW
        )
