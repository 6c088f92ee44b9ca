"""What is known before anybody judges saves passes and changes no token: the reading of
a rejected draft step begins the correction, and an unsure draft gives a step up."""

from dataclasses import replace
from itertools import product

import pytest
from toy_kit import (
    QUESTIONS,
    ByContent,
    ToyDraft,
    ask,
    emitted,
    require_clean,
    toy_engine,
)

from lr.engine.runner import ModelRunner
from lr.engine.worker import DraftWorker
from lr.spec.protocol import Drafted
from lr.spec.sampling import root_scaled, step_logprobs
from lr.spec.verifiers.base import Requires
from lr.trace import ForwardPass, StepWritten
from lr.types import Origin, Role, Verdict


class Reader(ByContent):
    """Accepts by content, after the target has read the draft step, and keeps up to two
    tokens of some that it rejects."""

    requires = Requires.TARGET_LOGPROBS

    def judge(self, pairs):
        verdicts = []
        for pair, verdict in zip(pairs, super().judge(pairs), strict=True):
            tokens = pair.draft.tokens
            keep = 0 if verdict.aligned else sum(tokens) // 3 % min(3, len(tokens))
            verdicts.append(replace(verdict, keep=keep))
        return verdicts


class Witness(ByContent):
    """Keeps the pairs, with what it requires of them."""

    def __init__(self, requires):
        self.requires = requires
        self.pairs = []

    def judge(self, pairs):
        self.pairs += pairs
        return super().judge(pairs)


GRID = [
    {"schedule": schedule, "depth": depth, "width": width, "temperature": temperature}
    for schedule, depth, width, temperature in product(
        ("sync", "paper", "depth"), (1, 3), (1, 2), (1.1,)
    )
]
GRID[0]["temperature"] = GRID[-1]["temperature"] = 0.0
WAYS = [
    {"mode": "lr"},
    {"mode": "lr", "coupling": "shared"},
    {"mode": "lr+sd", "drafter": "ngram", "acceptance": "match"},
    {"mode": "lr+sd", "drafter": "draft", "acceptance": "match"},
]


def answers(**options):
    """The steps of some answers, and the passes of the target."""
    engine = toy_engine()
    steps = []
    passes = 0
    for question, seed in product(QUESTIONS, range(2)):
        answer = ask(engine, question, Reader(), seed=seed, **options)
        steps.append(emitted(answer))
        passes += len(of_target(answer, ForwardPass))
    return steps, passes


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(way.values()))
def test_a_correction_begun_by_a_reading_has_the_same_tokens(way, monkeypatch):
    begun = [answers(**setting, **way) for setting in GRID]
    monkeypatch.setattr("lr.engine.loop.begin_correction", lambda *_: None)
    afresh = [answers(**setting, **way) for setting in GRID]
    for setting, (steps, passes), (expected, most) in zip(
        GRID, begun, afresh, strict=True
    ):
        assert steps == expected, setting
        assert passes <= most, setting
    assert sum(passes for _, passes in begun) < sum(most for _, most in afresh)
    emitted_steps = [e for steps, _ in begun for answer in steps for e in answer]
    kept = [e for e in emitted_steps if e.verdict and e.verdict.keep]
    assert kept
    for e in kept:
        keep = e.verdict.keep
        assert e.step.tokens[:keep] == e.rejected.tokens[:keep]
    origins = {e.origin for e in emitted_steps}
    assert origins >= {Origin.ACCEPTED, Origin.CORRECTION}


def test_a_beginning_that_is_the_whole_step_needs_no_pass():
    """The draft is the target with its noise, so every draft step is the target's own;
    the verifier rejects them all the same."""
    engine = toy_engine()
    engine.draft = engine.target
    engine.runners[Role.DRAFT].model = engine.target

    class Never(Reader):
        def judge(self, pairs):
            return [Verdict(False, "never") for _ in pairs]

    options = {"coupling": "shared", "depth": 1, "max_step_tokens": 30}
    answer = ask(engine, verifier=Never(), **options)
    steps = emitted(answer)
    plain = emitted(ask(engine, mode="ar", max_step_tokens=30))
    tokens = [token for e in steps for token in e.step.tokens]
    assert tokens == [token for e in plain for token in e.step.tokens]
    corrections = [e for e in steps if e.origin is Origin.CORRECTION]
    assert corrections and all(e.rejected == e.step for e in corrections)


@pytest.mark.parametrize(
    "requires",
    [
        Requires.TARGET_LOGPROBS,
        Requires.TARGET_LOGPROBS | Requires.TARGET_STEP,
        Requires.DRAFT_LOGPROBS,
    ],
)
@pytest.mark.parametrize("mode", ["lr", "lr+sd"])
@pytest.mark.parametrize("schedule", ["sync", "depth"])
@pytest.mark.parametrize("driver", ["lockstep", "overlapped"])
def test_pairs_hold_what_the_verifier_requires(requires, mode, schedule, driver):
    """Log-probabilities are those of a reading by the same model, also of a step that
    was written in rounds."""
    engine = toy_engine(worker=DraftWorker(ToyDraft(), as_thread=True))
    witness = Witness(requires)
    options = {"mode": mode, "schedule": schedule, "driver": driver, "drafter": "ngram"}
    ask(engine, "bacdbb", witness, **options).finish()
    engine.close()
    assert witness.pairs
    by_draft = requires is Requires.DRAFT_LOGPROBS
    runner = engine.runners[Role.DRAFT if by_draft else Role.TARGET].lend(64)
    for pair in witness.pairs:
        assert (pair.target is not None) == bool(requires & Requires.TARGET_STEP)
        branch = runner.open([*pair.prefix, *pair.draft.tokens])
        rows = runner.forward([branch], "all")[0][len(pair.prefix) - 1 : -1]
        expected = step_logprobs(rows, pair.draft.tokens)
        logs = pair.draft_logprobs if by_draft else pair.logprobs
        assert logs == pytest.approx(expected, abs=1e-9)
        runner.close(branch)


def of_target(answer, kind):
    """The target's events of a kind."""
    events = [event for _, event in answer.trace.events if isinstance(event, kind)]
    return [event for event in events if event.role is Role.TARGET]


def test_the_target_reads_no_token_twice():
    """But for the last token of a prefix or of a step."""
    witness = Witness(Requires.TARGET_LOGPROBS)
    answer = ask(toy_engine(), "bacdbb", witness, depth=1, schedule="sync")
    steps = emitted(answer)
    drafted = sum(len(pair.draft.tokens) for pair in witness.pairs)
    written = sum(len(e.step.tokens) for e in of_target(answer, StepWritten))
    computed = sum(event.tokens for event in of_target(answer, ForwardPass))
    twice = len(witness.pairs) + len(steps)
    assert computed <= len(answer.question.prompt) + drafted + written + twice


def test_reading_draft_steps_takes_no_pass_of_its_own():
    """Four rows of a synchronous cycle, each of 4 tokens. The first pass reads the
    prompt; then every pass serves all rows."""

    class Always(ByContent):
        def judge(self, pairs):
            return [Verdict(True, "always") for _ in pairs]

    cycle = {"depth": 3, "schedule": "sync", "max_tokens": 16}
    steps = {"segmenter": "fixed", "segment_tokens": 4}
    engine = toy_engine(endless=True)
    answer = ask(engine, "abcdef" * 20, Always(), **cycle, **steps)
    emitted(answer)
    rows = [event.branches for event in of_target(answer, ForwardPass)]
    assert rows[0] == 1 and set(rows[1:4]) == {4}


def test_a_failing_reading_leaves_nothing_behind(monkeypatch):
    forward = ModelRunner.forward

    def failing(runner, branches, logits="last"):
        if logits == "all":
            raise RuntimeError("out of luck")
        return forward(runner, branches, logits)

    monkeypatch.setattr(ModelRunner, "forward", failing)
    engine = toy_engine()
    with pytest.raises(RuntimeError, match="out of luck"):
        ask(engine, verifier=Reader(), depth=2).finish()
    require_clean(engine)


@pytest.mark.parametrize("schedule", ["sync", "paper", "depth"])
@pytest.mark.parametrize("mode", ["lr", "lr+sd"])
def test_a_draft_below_its_floor_gives_the_step_up(schedule, mode):
    """Whatever the driver."""
    engine = toy_engine(worker=DraftWorker(ToyDraft()))
    options = {"schedule": schedule, "mode": mode, "drafter": "ngram"}
    steps = []
    for driver in ("lockstep", "overlapped"):
        verifier = Witness(Requires.DRAFT_LOGPROBS)
        answer = ask(
            engine, "bacdbb", verifier, draft_floor=-4.0, driver=driver, **options
        )
        answer.trace.detailed = True
        steps.append(emitted(answer))
        events = [event for _, event in answer.trace.events]
        drafted = [event for event in events if isinstance(event, Drafted)]
        given_up = {event.step is None for event in drafted}
        assert given_up == {True, False}
        for pair in verifier.pairs:  # none that reached the verifier was ever below
            logs = pair.draft_logprobs or ()
            first = 1 if mode == "lr" else len(logs)
            lengths = range(first, len(logs) + 1)
            assert all(root_scaled(logs[:length]) >= -4.0 for length in lengths)
    engine.close()
    assert steps[0] == steps[1]


def test_a_hopeless_floor_is_plain_decoding():
    engine = toy_engine()
    answer = ask(engine, draft_floor=-1e-9)
    steps = emitted(answer)
    plain = emitted(ask(engine, mode="ar"))
    assert [e.step for e in steps] == [e.step for e in plain]
    assert {e.origin for e in steps} == {Origin.TARGET}
    written = [e for _, e in answer.trace.events if isinstance(e, StepWritten)]
    drafts = [e.step.tokens for e in written if e.role is Role.DRAFT]
    assert drafts and all(len(tokens) == 1 for tokens in drafts)
