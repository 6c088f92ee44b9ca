"""What is known before anybody judges saves passes and changes no token: the reading of
a rejected draft step begins the correction, and an unsure draft gives a step up."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from toy_kit import (
    PROMPT,
    QUESTIONS,
    ByContent,
    ToyDraft,
    ask,
    emitted,
    require_clean,
    tokens_of,
    toy_engine,
)

from lr.engine.runner import ModelRunner
from lr.engine.worker import DraftWorker
from lr.errors import SettingError
from lr.spec.acceptance import MatchRule
from lr.spec.drafters import LookupDrafter
from lr.spec.protocol import Drafted
from lr.spec.sampling import root_scaled, step_logprobs
from lr.spec.variant import StepSource, Variant
from lr.spec.verifiers.base import NEEDS_READING, Requires
from lr.trace import ForwardPass, SourceCall, StepWritten
from lr.types import Origin, Role, Verdict


class Reader(ByContent):
    """Accepts by content, after the target has read the draft step, and keeps up to two
    tokens of some that it rejects."""

    requires = Requires.TARGET_LOGPROBS

    def verdict(self, pair):
        verdict, tokens = super().verdict(pair), pair.draft_step.tokens
        keep = 0 if verdict.aligned else sum(tokens) // 3 % min(3, len(tokens))
        return replace(verdict, keep=keep)


class Witness(ByContent):
    """Keeps the pairs, with what it requires of them."""

    def __init__(self, requires, layer="norm"):
        self.requires = requires
        self.layer = layer
        self.pairs = []

    def judge(self, pairs):
        self.pairs += pairs
        return super().judge(pairs)


SCHEDULES = ("sync", "paper", "depth")
GRID = [
    {"schedule": schedule, "depth": 3, "width": width}
    for schedule, width in product(SCHEDULES, (1, 2))
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
    for seed, question in enumerate(QUESTIONS):
        answer = ask(engine, question, Reader(), seed=seed, **options)
        steps.append(emitted(answer))
        passes += len(events_of(answer, ForwardPass))
    return steps, passes


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(way.values()))
def test_a_correction_begun_by_a_reading_has_the_same_tokens(way, monkeypatch):
    grid = GRID if way["mode"] == "lr" else [GRID[0], GRID[3], GRID[4]]
    begun = [answers(**setting, **way) for setting in grid]
    monkeypatch.setattr("lr.engine.side.TargetSide.begin_correction", lambda *_: None)
    afresh = [answers(**setting, **way) for setting in grid]
    for setting, (steps, passes), (expected, most) in zip(
        grid, begun, afresh, strict=True
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
    engine.draft_model = engine.target_model
    engine.runners[Role.DRAFT].model = engine.target_model

    class Never(Reader):
        def verdict(self, pair):
            return Verdict(False, "never")

    options = {"coupling": "shared", "depth": 1, "max_step_tokens": 30}
    answer = ask(engine, verifier=Never(), **options)
    steps = emitted(answer)
    plain = emitted(ask(engine, mode="ar", max_step_tokens=30))
    assert tokens_of(steps) == tokens_of(plain)
    corrections = [e for e in steps if e.origin is Origin.CORRECTION]
    assert corrections and all(e.rejected == e.step for e in corrections)


EVIDENCE = [
    Requires.TARGET_LOGPROBS,
    Requires.DRAFT_LOGPROBS,
    Requires.TARGET_STEP | Requires.OWN_LOGPROBS,
    Requires.LOGITS | Requires.HIDDEN,
    ~Requires.NOTHING,
]


@pytest.mark.parametrize("requires", EVIDENCE)
@pytest.mark.parametrize(
    "mode, schedule, driver",
    [
        ("lr", "sync", "overlapped"),
        ("lr", "depth", "lockstep"),
        ("lr+sd", "sync", "lockstep"),
        ("lr+sd", "depth", "overlapped"),
    ],
)
def test_pairs_hold_what_the_verifier_requires(requires, mode, schedule, driver):
    """What a reading by the same model says, also of a step that was written in
    rounds. It changes no token, and no hook is left."""
    engine = toy_engine(worker=DraftWorker(ToyDraft(), as_thread=True))
    witness = Witness(requires)
    options = {"mode": mode, "schedule": schedule, "driver": driver, "drafter": "ngram"}
    options["acceptance"] = "match"
    steps = emitted(ask(engine, "bacdbb", witness, **options))
    assert witness.pairs
    bare = Witness(requires & Requires.TARGET_STEP)
    assert steps == emitted(ask(engine, "bacdbb", bare, **options))
    engine.close()
    assert not any(module._forward_hooks for module in engine.target_model.modules())
    for pair in witness.pairs:
        assert (pair.own_step is not None) == (Requires.TARGET_STEP in requires)
        draft, own = (
            pair.draft_step.tokens,
            pair.own_step.tokens if pair.own_step else (),
        )
        logits, hidden, logs = read(engine, Role.TARGET, pair.prefix, draft)
        own_logs = read(engine, Role.TARGET, pair.prefix, own)[2]
        draft_logs = read(engine, Role.DRAFT, pair.prefix, draft)[2]
        for flag, held, expected in (
            (Requires.OWN_LOGPROBS, pair.own_logprobs, own_logs),
            (Requires.TARGET_LOGPROBS, pair.logprobs, logs),
            (Requires.DRAFT_LOGPROBS, pair.draft_logprobs, draft_logs),
            (Requires.LOGITS, pair.logits, logits),
            (Requires.HIDDEN, pair.hidden, hidden),
        ):
            if flag in requires:
                torch.testing.assert_close(held, expected)
            elif flag in Requires.LOGITS | Requires.HIDDEN:
                assert held is None
            elif not requires & NEEDS_READING:
                assert not held


def read(engine, role, prefix, step, layer="norm"):
    """Logits and states before each token of a step and after it, by a hook of our
    own; log-probabilities of its tokens."""
    runner = engine.runners[role].lend(64)
    branch = runner.open([*prefix, *step])
    states = []
    module = runner.model.get_submodule(layer)
    with module.register_forward_hook(lambda *call: states.append(call[-1])):
        [logits] = runner.forward([branch], [len(step) + 1])
    runner.close(branch)
    return logits, states[0][-len(step) - 1 :], step_logprobs(logits[:-1], step)


def test_states_after_another_layer_and_of_a_text_in_pieces():
    engine = toy_engine()
    _, expected, _ = read(engine, Role.TARGET, PROMPT, PROMPT * 5, "layers.0")
    runner = ModelRunner(engine.target_model, num_blocks=50, max_batch_tokens=7)
    runner.watch("layers.0")
    runner.forward([runner.open(PROMPT * 6)], [16])
    torch.testing.assert_close(torch.cat(runner.hidden), expected)


class LooksRule(MatchRule):
    """Needs no evidence; keeps the proposals."""

    requires = Requires.LOGITS | Requires.HIDDEN

    def __init__(self):
        self.proposals = []

    def verify(self, probs, proposals, draws):
        self.proposals += proposals
        return super().verify(probs, proposals, draws)


class LooksDrafter(LookupDrafter):
    """Compares what it learns from with what the rule saw. One is made for each
    answer."""

    reads = ("prompt_lookup_max",)
    count = 0

    def __init__(self, setup):
        type(self).count += 1
        super().__init__(setup.options.prompt_lookup_max)

    def learn(self, context, proposal, logits):
        assert torch.equal(proposal.logits, logits)
        assert len(proposal.hidden) == len(logits) == len(proposal) + 1
        new = context.tokens[context.length :]
        assert 1 <= len(new) <= len(proposal) + 1


@pytest.mark.parametrize("drafter", ["ngram", "tree", "draft"])
@pytest.mark.parametrize("mode", ["sd", "lr+sd"])
def test_rules_and_drafters_see_the_rows_of_their_proposals(drafter, mode):
    engine = toy_engine()
    rule = LooksRule()
    learns = LooksDrafter if drafter == "ngram" else None
    variant = Variant(rule=lambda: rule, drafter=learns, settings={"drafter": drafter})
    plain = emitted(ask(engine, "bacdbb", ByContent(), mode="ar"))
    steps = emitted(ask(engine, "bacdbb", variant=variant, mode=mode))
    assert mode == "lr+sd" or steps == plain
    assert any(len(proposal) for proposal in rule.proposals)
    for proposal in rule.proposals:
        assert len(proposal.hidden) == len(proposal) + 1
        normed = engine.target_model.logits(proposal.hidden)
        torch.testing.assert_close(normed, proposal.logits)


class Short(StepSource):
    """Gives up every draft step at the sixth token."""

    def goes_on(self, tokens, logprobs):
        assert len(tokens) == len(logprobs)
        return len(tokens) < 6


LEARNS = Variant(drafter=LooksDrafter, rule=LooksRule)
SHORT = Variant(step_source=Short())


@pytest.mark.parametrize(
    "noun, variant, options",
    [
        ("layers.0", Variant(Witness(NEEDS_READING, layer="layers.7")), {}),
        (
            "layer",
            replace(LEARNS, verifier=Witness(NEEDS_READING, layer="layers.0")),
            {},
        ),
        ("ignores", LEARNS, {"coupling": "shared", "mode": "sd"}),
        ("ignores", LEARNS, {"drafter": "tree"}),
        ("ignores", LEARNS, {"prompt_lookup_min": 2}),
        ("draft_floor", SHORT, {"draft_floor": -2.0}),
        ("goes_on", SHORT, {"driver": "overlapped"}),
    ],
)
def test_what_cannot_be_given_or_followed_is_refused(noun, variant, options):
    tokens = {"mode": "lr+sd"} if variant.drafter else {}
    with pytest.raises(SettingError, match=noun):
        emitted(ask(toy_engine(), variant=variant, **(tokens | options)))


def test_a_drafter_may_follow_an_option():
    before = LooksDrafter.count
    for longest in (3, 5):
        options = {"mode": "lr+sd", "prompt_lookup_max": longest}
        emitted(ask(toy_engine(), variant=LEARNS, **options))
    assert LooksDrafter.count == before + 2


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_step_that_does_not_go_on_reaches_no_verifier(schedule):
    witness = Witness(Requires.TARGET_STEP)
    longest = []
    for question, seed in product(QUESTIONS, range(3)):
        options = {"schedule": schedule, "seed": seed}
        answer = ask(toy_engine(), question, witness, SHORT, **options)
        emitted(answer)
        drafts = events_of(answer, StepWritten, Role.DRAFT)
        longest += [len(event.step.tokens) for event in drafts]
    assert max(longest) == 6
    assert witness.pairs
    assert all(len(pair.draft_step.tokens) < 6 for pair in witness.pairs)


class Letters(StepSource):
    """Writes a random letter and a blank line for each alternative."""

    def __init__(self):
        self.batches = []

    def write(self, places):
        self.batches.append(places)
        return [[5 + place.stream.key(0) % 6, 0] for place in places]


def test_a_step_source_writes_all_that_is_due_in_one_call():
    source = Letters()
    engine = toy_engine()
    ways = {"variant": Variant(step_source=source), "width": 2}
    alone = [emitted(ask(engine, question, **ways)) for question in QUESTIONS[:2]]
    source.batches.clear()
    together = [ask(engine, question, **ways) for question in QUESTIONS[:2]]
    for _ in engine.serve(together, concurrency=2):
        pass
    assert [answer.emitted for answer in together] == alone
    # Two alternatives after the prompts, then after all nodes of a level.
    levels = [4, 8, 16, 32]
    assert [len(batch) for batch in source.batches[:4]] == levels
    first, second, *_ = source.batches[0]
    assert (first.sibling, second.sibling, first.prompt) == (0, 1, 3)
    assert first.stream != second.stream
    calls = [e for _, e in together[0].trace.events if isinstance(e, SourceCall)]
    due = [place for batch in source.batches for place in batch]
    assert len(calls) == sum(place.tokens[:3] == first.tokens for place in due)
    stats = together[0].result.stats
    assert stats.source_seconds == sum(call.seconds for call in calls) > 0
    assert stats.draft_passes == len(events_of(together[0], ForwardPass, Role.DRAFT))


def events_of(answer, kind, role=Role.TARGET):
    """A role's events of a kind."""
    events = [event for _, event in answer.trace.events if isinstance(event, kind)]
    return [event for event in events if event.role is role]


def test_the_target_reads_no_token_twice():
    """But for the last token of a prefix or of a step."""
    witness = Witness(Requires.TARGET_LOGPROBS)
    answer = ask(toy_engine(), "bacdbb", witness, depth=1, schedule="sync")
    steps = emitted(answer)
    drafted = sum(len(pair.draft_step.tokens) for pair in witness.pairs)
    written = sum(len(e.step.tokens) for e in events_of(answer, StepWritten))
    computed = sum(event.tokens for event in events_of(answer, ForwardPass))
    twice = len(witness.pairs) + len(steps)
    assert computed <= len(answer.question.prompt) + drafted + written + twice


@pytest.mark.parametrize("drafter", ["draft", "tree"])
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("driver", ["lockstep", "overlapped"])
def test_the_draft_reads_the_prompt_once_in_each_cache(drafter, depth, driver):
    """It writes steps and proposes tokens for corrections. In one process both are on
    one cache; in two, what it has read to propose tokens stays there."""
    engine = toy_engine(worker=DraftWorker(ToyDraft(), as_thread=True))
    options = {"mode": "lr+sd", "drafter": drafter, "depth": depth, "driver": driver}
    answer = ask(engine, 8 * "bacdbb", Reader(), **options)
    origins = {e.origin for e in emitted(answer)}
    engine.close()
    assert origins >= {Origin.ACCEPTED, Origin.CORRECTION}
    passes = events_of(answer, ForwardPass, Role.DRAFT)
    long = [event.tokens for event in passes if event.tokens > 40]
    assert len(long) == (1 if driver == "lockstep" else 2)


def test_reading_draft_steps_takes_no_pass_of_its_own():
    """Four rows of a synchronous cycle, each of 4 tokens. The first pass reads the
    prompt; then every pass serves all rows."""

    class Always(ByContent):
        def verdict(self, pair):
            return Verdict(True, "always")

    cycle = {"depth": 3, "schedule": "sync", "max_tokens": 16}
    steps = {"segmenter": "fixed", "segment_tokens": 4}
    engine = toy_engine(endless=True)
    answer = ask(engine, "abcdef" * 20, Always(), **cycle, **steps)
    emitted(answer)
    rows = [event.branches for event in events_of(answer, ForwardPass)]
    assert rows[0] == 1 and set(rows[1:4]) == {4}


def test_a_failing_reading_leaves_nothing_behind(monkeypatch):
    forward = ModelRunner.forward

    def failing(runner, branches, logits="last"):
        if isinstance(logits, list):
            raise RuntimeError("out of luck")
        return forward(runner, branches, logits)

    monkeypatch.setattr(ModelRunner, "forward", failing)
    engine = toy_engine()
    with pytest.raises(RuntimeError, match="out of luck"):
        ask(engine, verifier=Reader(), depth=2).finish()
    require_clean(engine)


@pytest.mark.parametrize("schedule", SCHEDULES)
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
