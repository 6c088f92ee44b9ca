"""What is known before anybody judges saves passes and changes no token: the reading of
a rejected draft step begins the correction, and an unsure draft gives a step up."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from engine_kit import QUESTIONS, ByContent, ToyDraft, ask, emitted, toy_engine

from lr.engine.worker import DraftWorker
from lr.errors import SettingError
from lr.options import make_options
from lr.spec.protocol import Drafted
from lr.spec.sampling import root_scaled
from lr.spec.verifiers.base import Pair, Requires
from lr.trace import ForwardPass, StepWritten
from lr.types import EmittedStep, Origin, Role, Verdict


class Reader(ByContent):
    """Accepts by content, after the target has read the draft step."""

    requires = Requires.TARGET_LOGPROBS


class DraftReader(ByContent):
    """Keeps what the draft says about its own steps."""

    requires = Requires.DRAFT_LOGPROBS

    def __init__(self) -> None:
        self.pairs: list[Pair] = []

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        self.pairs += pairs
        return super().judge(pairs)


GRID = [
    {"schedule": schedule, "depth": depth, "width": width, "temperature": temperature}
    for schedule, depth, width, temperature in product(
        ("sync", "paper", "depth"), (1, 3), (1, 2), (0.0, 1.1)
    )
]
WAYS: list[dict[str, Any]] = [
    {"mode": "lr"},
    {"mode": "lr", "coupling": "shared"},
    {"mode": "lr+sd", "drafter": "ngram", "acceptance": "match"},
    {"mode": "lr+sd", "drafter": "draft", "acceptance": "match"},
]


def answers(**options: Any) -> tuple[list[list[EmittedStep]], int]:
    """The steps of some answers, and the passes of the target."""
    engine = toy_engine()
    steps = []
    passes = 0
    for question, seed in product(QUESTIONS, range(2)):
        answer = ask(engine, question, Reader(), seed=seed, **options)
        steps.append(emitted(answer))
        events = (event for _, event in answer.trace.events)
        passes += sum(
            isinstance(event, ForwardPass) and event.role is Role.TARGET
            for event in events
        )
    return steps, passes


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(way.values()))
def test_a_correction_begun_by_a_reading_has_the_same_tokens(
    way: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = [answers(**setting, **way) for setting in GRID]
    monkeypatch.setattr("lr.engine.loop.begin_correction", lambda *_: None)
    afresh = [answers(**setting, **way) for setting in GRID]
    for setting, (steps, passes), (expected, most) in zip(
        GRID, begun, afresh, strict=True
    ):
        assert steps == expected, setting
        assert passes <= most, setting
    assert sum(passes for _, passes in begun) < sum(most for _, most in afresh)
    origins = {e.origin for steps, _ in begun for answer in steps for e in answer}
    assert origins >= {Origin.ACCEPTED, Origin.CORRECTION}


def test_a_beginning_that_is_the_whole_step_needs_no_pass() -> None:
    """The draft is the target with its noise, so every draft step is the target's own;
    the verifier rejects them all the same."""
    engine = toy_engine()
    engine.draft = engine.target
    engine.runners[Role.DRAFT].model = engine.target

    class Never(Reader):
        def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
            return [Verdict(False, "never") for _ in pairs]

    options = {"coupling": "shared", "depth": 1, "max_step_tokens": 30}
    answer = ask(engine, verifier=Never(), **options)
    steps = emitted(answer)
    plain = emitted(ask(engine, mode="ar", max_step_tokens=30))
    tokens = [token for e in steps for token in e.step.tokens]
    assert tokens == [token for e in plain for token in e.step.tokens]
    corrections = [e for e in steps if e.origin is Origin.CORRECTION]
    assert corrections and all(e.rejected == e.step for e in corrections)


@pytest.mark.parametrize("mode", ["lr", "lr+sd"])
@pytest.mark.parametrize("driver", ["lockstep", "overlapped"])
def test_pairs_hold_what_the_draft_knows_of_its_step(mode: str, driver: str) -> None:
    """Whether the draft writes token by token or speculates by n-grams, its
    log-probabilities are those of a reading by the draft."""
    engine = toy_engine(worker=DraftWorker(ToyDraft()))
    verifier = DraftReader()
    ask(engine, "bacdbb", verifier, mode=mode, drafter="ngram", driver=driver).finish()
    engine.close()
    assert len(verifier.pairs) > 2
    runner = engine.runners[Role.DRAFT].lend(64)
    for pair in verifier.pairs:
        branch = runner.open([*pair.prefix, *pair.draft.tokens])
        rows = runner.forward([branch], "all")[0][len(pair.prefix) - 1 : -1]
        table = rows.log_softmax(-1)
        expected = [table[i, t].item() for i, t in enumerate(pair.draft.tokens)]
        assert pair.draft_logprobs == pytest.approx(expected, abs=1e-9)
        runner.close(branch)


@pytest.mark.parametrize("schedule", ["sync", "paper", "depth"])
@pytest.mark.parametrize("driver", ["lockstep", "overlapped"])
@pytest.mark.parametrize("mode", ["lr", "lr+sd"])
def test_a_draft_below_its_floor_gives_the_step_up(
    schedule: str, driver: str, mode: str
) -> None:
    engine = toy_engine(worker=DraftWorker(ToyDraft()))
    options = {"schedule": schedule, "driver": driver, "mode": mode, "drafter": "ngram"}
    verifier = DraftReader()
    answer = ask(engine, "bacdbb", verifier, draft_floor=-4.0, **options)
    answer.trace.detailed = True
    emitted(answer)
    engine.close()
    events = [event for _, event in answer.trace.events]
    drafted = [event for event in events if isinstance(event, Drafted)]
    assert any(event.step is None for event in drafted)
    assert any(event.step is not None for event in drafted)
    for pair in verifier.pairs:  # none that reached the verifier was ever below
        logs = pair.draft_logprobs or ()
        if mode == "lr":
            lengths = range(1, len(logs) + 1)
            assert all(root_scaled(logs[:length]) >= -4.0 for length in lengths)
        assert root_scaled(logs) >= -4.0


def test_the_floor_does_not_depend_on_the_driver() -> None:
    options = {"draft_floor": -4.0, "depth": 2, "mode": "lr"}
    engine = toy_engine(worker=DraftWorker(ToyDraft()))
    here, beside = (
        emitted(ask(engine, driver=driver, **options))
        for driver in ("lockstep", "overlapped")
    )
    engine.close()
    assert here == beside


def test_a_hopeless_floor_is_plain_decoding() -> None:
    engine = toy_engine()
    answer = ask(engine, draft_floor=-1e-9)
    steps = emitted(answer)
    plain = emitted(ask(engine, mode="ar"))
    assert [e.step for e in steps] == [e.step for e in plain]
    assert {e.origin for e in steps} == {Origin.TARGET}
    written = [e for _, e in answer.trace.events if isinstance(e, StepWritten)]
    drafts = [e.step.tokens for e in written if e.role is Role.DRAFT]
    assert drafts and all(len(tokens) == 1 for tokens in drafts)


@pytest.mark.parametrize("floor", [0.0, 1.0, True, "low", float("nan")])
def test_an_impossible_floor_is_refused(floor: Any) -> None:
    with pytest.raises(SettingError, match="draft_floor"):
        make_options(draft_floor=floor)
