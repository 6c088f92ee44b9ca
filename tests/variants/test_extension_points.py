"""The extension points in a run: choosers, proposers, correctors, widths by level,
may_follow, controllers, log-probabilities, and that forwards of verifiers are counted.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from reasoner_kit import write_checkpoint

from lr.errors import LRError, ProtocolError, SettingError
from lr.reasoner import Reasoner
from lr.spec.acceptance import MatchRule
from lr.spec.drafters import LookupDrafter
from lr.spec.protocol import Draft, Emit, Limits, NodeId, Schedule, SchedulerConfig
from lr.spec.sampling import distribution
from lr.spec.variant import (
    Controller,
    Correction,
    Corrector,
    StepProposer,
    StepStats,
    Variant,
)
from lr.spec.verifiers.base import ExactVerifier, Pair, Requires, Verifier
from lr.spec.verifiers.judge import asked_model
from lr.spec.verifiers.named import RandomVerifier, ScoreVerifier
from lr.trace import ForwardPass, Noted, Stats, StepWritten
from lr.types import Origin, Role, SamplingParams, Step, Verdict
from lr.variants.choosers import BestScore, Majority
from lr.variants.narrowing import narrowing
from lr.watch.scripted import ScriptedRun, TextScript, newest, oldest

QUESTION = "How many coins does Ann have?"
HOW: dict[str, Any] = {
    "segmenter": "fixed", "segment_tokens": 6, "max_tokens": 42, "temperature": 1.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def reasoner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reasoner]:
    folder = tmp_path_factory.mktemp("checkpoints")
    target = write_checkpoint(folder / "target", seed=1, layers=2)
    draft = write_checkpoint(folder / "draft", seed=2)
    with Reasoner(target, draft, "exact", dtype=torch.float64) as made:
        yield made


class Length(Verifier):
    """Aligned from a sum of token ids on that most steps reach; the score is that
    sum."""

    name = "length"

    def __init__(self, requires: Requires = Requires.NOTHING) -> None:
        self.requires = requires
        self.seen: list[Pair] = []

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        self.seen += pairs
        sums = [sum(pair.draft.tokens) for pair in pairs]
        return [Verdict(one % 4 != 0, "summed", float(one % 101)) for one in sums]


def emits(result: Any) -> list[Emit]:
    return [event for _, event in result.trace.events if isinstance(event, Emit)]


# Choosers


@pytest.mark.parametrize("requires", [Requires.NOTHING, Requires.TARGET_STEP])
@pytest.mark.parametrize("schedule", ["sync", "paper", "depth"])
def test_the_best_of_all_alternatives_is_taken(
    reasoner: Reasoner, schedule: str, requires: Requires
) -> None:
    variant = Variant(Length(requires), chooser=BestScore())
    how = {**HOW, "width": 3, "depth": 2, "schedule": schedule}
    result = reasoner.generate(QUESTION, variant=variant, **how)
    kept = [emit for emit in emits(result) if emit.emitted.origin is Origin.ACCEPTED]
    assert len(kept) > 1
    for emit in kept:
        scores = [verdict.score for verdict in emit.verdicts if verdict.aligned]
        assert emit.emitted.verdict is emit.verdicts[-1]
        assert len(emit.verdicts) == 3 and emit.verdicts[-1].score == max(scores)
    again = reasoner.generate(QUESTION, variant=variant, driver="overlapped", **how)
    assert again.tokens == result.tokens


def test_a_chooser_that_wants_none_leaves_plain_decoding(reasoner: Reasoner) -> None:
    class Nothing:
        def choose(self, place: Any) -> None:
            return None

    plain = reasoner.generate(QUESTION, mode="ar", **HOW)
    for requires in (Requires.NOTHING, Requires.TARGET_STEP):
        variant = Variant(RandomVerifier(1.0, requires=requires), chooser=Nothing())
        result = reasoner.generate(QUESTION, variant=variant, width=2, depth=2, **HOW)
        assert result.tokens == plain.tokens
        corrected = [
            emit for emit in emits(result) if emit.emitted.origin is Origin.CORRECTION
        ]
        assert corrected and not any(
            v.aligned for emit in corrected for v in emit.verdicts
        )


def test_a_majority_of_the_drafts() -> None:
    """Two of three drafts of step 0 say "b"; the three of step 1 differ."""
    script = TextScript(["a.", "d.", "e$"], ["a.|B.|B.", "c.|d.|f."])
    config = SchedulerConfig(
        Limits(50), Schedule.SYNC, 1, 3, needs_target_step=False, chooser=Majority(2)
    )
    for order in (oldest, newest):

        class Yes(TextScript):
            def judge(self, prefix: Any, draft: Step, target: Step | None) -> Verdict:
                return Verdict(True, "always")

        run = ScriptedRun(config, Yes(script.targets, script.drafts), order)
        texts = ["".join(map(chr, one.step.tokens)) for one in run.run()]
        assert texts[:2] == ["B.", "d."]
        assert [one.origin for one in run.emitted[:2]] == [
            Origin.ACCEPTED,
            Origin.CORRECTION,
        ]


def test_a_choice_that_cannot_be_is_refused_by_the_scheduler() -> None:
    class Wrong:
        def choose(self, place: Any) -> int:
            return 5

    config = SchedulerConfig(Limits(50), chooser=Wrong())
    with pytest.raises(ProtocolError, match="chooser returned 5 for 1 alternatives"):
        ScriptedRun(config, TextScript(["a.", "b$"], ["a."])).run()


# Widths by level


def test_widths_by_level_are_the_trees(reasoner: Reasoner) -> None:
    variant = narrowing((3, 2, 1))
    result = reasoner.generate(QUESTION, variant=variant, detailed=True, depth=3, **HOW)
    drafts = [event for _, event in result.trace.events if isinstance(event, Draft)]
    for draft in drafts:
        level = draft.node.index - draft.node.stem
        assert len(draft.children) == (3, 2, 1)[min(level, 2)]
    assert {len(draft.children) for draft in drafts} == {1, 2, 3}
    plain = reasoner.generate(QUESTION, mode="ar", **HOW)
    assert result.tokens == plain.tokens
    same = reasoner.generate(QUESTION, variant=narrowing((2, 2)), depth=2, **HOW)
    built_in = reasoner.generate(QUESTION, width=2, depth=2, **HOW)
    assert [s.origin for s in same.steps] == [s.origin for s in built_in.steps]


def test_a_width_beyond_the_runs_is_refused(reasoner: Reasoner) -> None:
    class Wide(SchedulerConfig):
        def width_at(self, level: int) -> int:
            return 9

    with pytest.raises(
        SettingError, match=r"schedule Wide: width_at\(0\) is 9.*1 to 2"
    ):
        reasoner.generate(QUESTION, variant=Variant(schedule=Wide), width=2, **HOW)


# Proposers


class Replayed(StepProposer):
    """Proposes the steps of a recorded answer wherever the text agrees with it."""

    def __init__(self, prompt: Sequence[int], steps: Sequence[Sequence[int]]) -> None:
        self.after = {}
        tokens = tuple(prompt)
        for step in steps:
            self.after[tokens] = step
            tokens += tuple(step)

    def propose(self, tokens: Sequence[int], width: int) -> list[Sequence[int] | None]:
        return [self.after.get(tuple(tokens))]


@pytest.mark.parametrize("driver", ["lockstep", "overlapped"])
@pytest.mark.parametrize("schedule", ["sync", "paper", "depth"])
def test_steps_that_are_ready_at_once_do_not_hang(
    reasoner: Reasoner, schedule: str, driver: str
) -> None:
    """The answer of plain decoding, proposed: every step but the last is kept, and the
    draft model writes nothing.
    """
    plain = reasoner.generate(QUESTION, mode="ar", **HOW)
    proposer = Replayed(plain.prompt, [step.tokens for step in plain.steps])
    how = {**HOW, "schedule": schedule, "driver": driver}
    result = reasoner.generate(
        QUESTION, variant=Variant(proposer=proposer), depth=3, **how
    )
    assert result.tokens == plain.tokens
    accepted = [step for step in result.steps if step.origin is Origin.ACCEPTED]
    assert len(accepted) >= len(result.steps) // 2
    assert result.stats.target_passes < plain.stats.target_passes


def test_what_is_not_proposed_the_draft_writes(reasoner: Reasoner) -> None:
    class Second(StepProposer):
        """Proposes the second alternative only: a step of sixes."""

        def propose(
            self, tokens: Sequence[int], width: int
        ) -> list[Sequence[int] | None]:
            return [None, [6] * 20]

    result = reasoner.generate(
        QUESTION,
        variant=Variant(proposer=Second()),
        width=2,
        depth=2,
        detailed=True,
        **HOW,
    )
    plain = reasoner.generate(QUESTION, mode="ar", **HOW)
    assert result.tokens == plain.tokens
    written = [e for _, e in result.trace.events if isinstance(e, StepWritten)]
    drafts = [e for e in written if e.role is Role.DRAFT and e.node]
    seconds = [e for e in drafts if e.node and e.node.number % 2]
    assert seconds and all(set(e.step.tokens) == {6} for e in seconds)
    assert any(set(e.step.tokens) != {6} for e in drafts)


# Correctors


class KeepsTwo(Corrector):
    """The target goes on after the first two tokens of the rejected draft."""

    def begin(self, correction: Correction) -> Sequence[int]:
        return correction.rejected[0].draft.tokens[:2] if correction.rejected else ()


class ThirdTime(Corrector):
    """The target's third attempt stays."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, float, Step]] = []

    def keep(self, correction: Correction, step: Step, number: float) -> bool:
        assert len(correction.logprobs) == len(step.tokens)
        assert all(math.isfinite(one) and one <= 0 for one in correction.logprobs)
        self.seen.append((correction.attempt, number, step))
        return correction.attempt == 2


@pytest.mark.parametrize("schedule", ["sync", "depth"])
def test_the_target_goes_on_from_a_rejected_draft(
    reasoner: Reasoner, schedule: str
) -> None:
    variant = Variant(Length(), corrector=KeepsTwo())
    result = reasoner.generate(
        QUESTION, variant=variant, schedule=schedule, depth=2, **HOW
    )
    fixed = [step for step in result.steps if step.origin is Origin.CORRECTION]
    replaced = [
        emit.emitted for emit in emits(result) if emit.emitted.rejected is not None
    ]
    assert fixed
    for emitted in replaced:
        assert emitted.rejected is not None
        assert emitted.step.tokens[:2] == emitted.rejected.tokens[:2]
        assert emitted.step.tokens != emitted.rejected.tokens


def test_the_target_draws_again_until_the_corrector_keeps_a_step(
    reasoner: Reasoner,
) -> None:
    corrector = ThirdTime()
    variant = Variant(Length(), corrector=corrector)
    result = reasoner.generate(QUESTION, variant=variant, depth=2, **HOW)
    fixed = [step for step in result.steps if step.origin is Origin.CORRECTION]
    assert fixed and len(corrector.seen) == 3 * len(fixed)
    numbers = [number for _, number, _ in corrector.seen]
    assert len(set(numbers)) == len(numbers) and all(
        0 <= number < 1 for number in numbers
    )
    assert [attempt for attempt, *_ in corrector.seen[:3]] == [0, 1, 2]
    steps = [step.tokens for *_, step in corrector.seen[:3]]
    assert len(set(steps)) == 3 and fixed[0].tokens == steps[2]


def test_a_corrector_needs_steps_that_are_written_after_the_rejection(
    reasoner: Reasoner,
) -> None:
    with pytest.raises(SettingError, match="needs no target step"):
        reasoner.generate(QUESTION, variant=Variant(corrector=KeepsTwo()), **HOW)
    wrong = Variant(Length(), corrector=KeepsTwo())
    with pytest.raises(SettingError, match="log-probabilities, which are not kept"):
        reasoner.generate(QUESTION, variant=wrong, mode="lr+sd", drafter="ngram", **HOW)


# Log-probabilities


def test_both_log_probabilities_are_those_of_the_sampling_distributions(
    reasoner: Reasoner,
) -> None:
    verifier = Length(Requires.SAMPLING_LOGPROBS)
    how = {**HOW, "temperature": 0.7, "top_k": 5}
    reasoner.generate(
        QUESTION, variant=Variant(verifier), depth=1, schedule="sync", **how
    )
    assert len(verifier.seen) > 4
    for pair in verifier.seen:
        p, q = pair.target_sampling, pair.draft_sampling
        assert p is not None and q is not None
        assert len(p or ()) == len(q or ()) == len(pair.draft.tokens)
        assert all(one > -math.inf for one in q or ())  # it was drawn from there
    impossible = [one for pair in verifier.seen for one in pair.target_sampling or ()]
    assert -math.inf in impossible  # outside the target's top 5
    pair = verifier.seen[0]
    draft = asked_model(reasoner.models.draft, reasoner.codec).runner  # type: ignore[arg-type]
    [logits] = draft.forward([draft.open([*pair.prefix])])
    top = logits.topk(5)
    law = (top.values / 0.7).log_softmax(-1)
    place = top.indices.tolist().index(pair.draft.tokens[0])
    assert (pair.draft_sampling or ())[0] == pytest.approx(float(law[place]), abs=1e-9)


def test_may_follow_stops_drafts_and_changes_no_step(reasoner: Reasoner) -> None:
    asked: list[tuple[NodeId, int]] = []

    def never(node: NodeId, step: Step, logprobs: Sequence[float]) -> bool:
        assert len(logprobs) == len(step.tokens)
        asked.append((node, len(step.tokens)))
        return False

    plain = reasoner.generate(QUESTION, mode="ar", **HOW)
    for schedule in ("sync", "paper", "depth"):
        asked.clear()
        how = {**HOW, "schedule": schedule, "depth": 3}
        free = reasoner.generate(
            QUESTION, variant=Variant(may_follow=lambda *_: True), **how
        )
        bound = reasoner.generate(QUESTION, variant=Variant(may_follow=never), **how)
        assert plain.tokens == free.tokens == bound.tokens
        assert bound.stats.drafted < free.stats.drafted
        assert asked and len(set(asked)) == len(asked)  # once for each step


# Controllers


def test_a_controller_is_made_anew_and_told_of_each_step_once(
    reasoner: Reasoner,
) -> None:
    made: list[Any] = []

    class Notes:
        def __init__(self, question: str) -> None:
            self.question, self.told = question, list[Stats]()
            made.append(self)

        def depth(self, stats: Stats) -> int:
            self.told.append(stats)
            return 2

    for question in (QUESTION, "How many coins has Ben?"):
        result = reasoner.generate(
            question, variant=Variant(controller=Notes), depth=3, **HOW
        )
        notes = made[-1]
        assert notes.question == question
        assert [stats.steps for stats in notes.told] == list(
            range(1, len(result.steps) + 1)
        )
        last = notes.told[-1]
        whole = result.stats
        for name in (
            "tokens",
            "accepted",
            "judged",
            "drafted",
            "target_passes",
            "draft_passes",
        ):
            assert getattr(last, name) <= getattr(whole, name)
        assert last.accepted == whole.accepted and last.tokens == whole.tokens
        assert last.seconds <= whole.seconds
    assert len(made) == 2


def test_an_overlapped_run_tells_its_controller_of_the_worker(
    reasoner: Reasoner,
) -> None:
    seen: list[Stats] = []

    class Notes:
        def depth(self, stats: Stats) -> int:
            seen.append(stats)
            return 3

    how = {**HOW, "driver": "overlapped"}
    result = reasoner.generate(
        QUESTION, variant=Variant(controller=Notes()), depth=3, **how
    )
    assert seen[-1].draft_passes > 0 and seen[-1].steps == len(result.steps)


class Restless(Controller):
    """Another shape after every step, by chance."""

    entropies = True

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def depth(self, stats: StepStats) -> int:
        return self.chance.randint(-1, 5)

    def tokens(self, stats: StepStats) -> int | None:
        return self.chance.choice((None, 0, 1, 3))

    def width(self, stats: StepStats) -> int | None:
        return self.chance.choice((None, 1, 2, 5))


@pytest.mark.parametrize("schedule", ["sync", "paper", "depth"])
@pytest.mark.parametrize("mode", ["lr", "lr+sd"])
def test_with_exact_verification_any_controller_leaves_plain_decoding(
    reasoner: Reasoner, schedule: str, mode: str
) -> None:
    how = {**HOW, "coupling": "shared", "acceptance": "match", "drafter": "ngram"}
    plain = reasoner.generate(QUESTION, mode="ar", **how)
    how |= {"mode": mode, "schedule": schedule, "width": 3, "depth": 3}
    for seed in range(2):
        shapes = Variant(controller=lambda seed=seed: Restless(seed))
        result = reasoner.generate(QUESTION, variant=shapes, detailed=True, **how)
        assert result.tokens == plain.tokens
        widths = {note.fields["width"] for note in notes_of(result)}
        assert len(widths) > 2


def notes_of(result: Any) -> list[Noted]:
    found = [event for _, event in result.trace.events if isinstance(event, Noted)]
    return [note for note in found if note.name == "controller"]


class Unsure(Controller):
    """Another width after every step, by its entropy and by what was accepted."""

    entropies = True

    def __init__(self) -> None:
        self.told = list[StepStats]()

    def depth(self, stats: StepStats) -> int:
        return 1 + stats.steps % 3

    def width(self, stats: StepStats) -> int | None:
        self.told.append(stats)
        return 1 + (stats.accepted + int(1000 * (stats.draft_entropy or 0.0))) % 3


@pytest.mark.parametrize("schedule", ["sync", "paper", "depth"])
def test_the_tree_is_as_wide_as_the_controller_says(
    reasoner: Reasoner, schedule: str
) -> None:
    """What holds for a node is the answer after the step before its tree, or before the
    window of 3 in which it can begin at the earliest.
    """
    how = {**HOW, "schedule": schedule, "width": 3, "depth": 3}
    variant, seen, full = Variant(Length(), controller=Unsure), set[int](), 0
    for seed in range(6):
        result = reasoner.generate(
            QUESTION, variant=variant, detailed=True, seed=seed, **how
        )
        answers = [3, *(note.fields["width"] for note in notes_of(result))]
        written = [e for _, e in result.trace.events if isinstance(e, StepWritten)]
        drafts = {event.node for event in written if event.role is Role.DRAFT}
        for draft in [
            event for _, event in result.trace.events if isinstance(event, Draft)
        ]:
            width = answers[max(draft.node.stem, draft.node.index - 2)]
            siblings = {child.number % 3 for child in draft.children if child in drafts}
            assert siblings <= set(range(width))
            full += siblings == set(range(width))  # none was cancelled meanwhile
            seen.add(width)
    assert seen == {1, 2, 3} and full > 6


@pytest.mark.parametrize("schedule", ["sync", "paper", "depth"])
def test_who_is_faster_changes_neither_the_tree_nor_the_answer(
    reasoner: Reasoner, schedule: str
) -> None:
    """With a verifier that is not exact more alternatives are more chances: the answers
    are the same only if the same nodes have the same alternatives, and the entropies
    are the same.
    """
    how = {**HOW, "schedule": schedule, "width": 3, "depth": 3}
    ways: list[dict[str, Any]] = [{"draft_forwards": n} for n in (1, 3, 40)]
    ways += [{"driver": "overlapped"}]
    narrower = 0
    for seed in range(4):
        seen = []
        for way in ways if seed < 1 else ways[:3]:
            control = Unsure()
            variant = Variant(Length(Requires.TARGET_STEP), controller=control)
            result = reasoner.generate(
                QUESTION, variant=variant, seed=seed, **how, **way
            )
            nats = [
                one for s in control.told for one in (s.draft_entropy, s.target_entropy)
            ]
            rounded = [None if one is None else round(one, 6) for one in nats]
            seen.append(
                (result.tokens, [step.origin for step in result.steps], rounded)
            )
        assert all(one == seen[0] for one in seen)
        one = Variant(Length(Requires.TARGET_STEP))
        narrow = reasoner.generate(
            QUESTION, variant=one, seed=seed, **{**how, "width": 1}
        )
        narrower += narrow.tokens != seen[0][0]
    assert narrower > 1  # so the width does matter


def test_entropies_are_those_of_the_sampling_distributions(reasoner: Reasoner) -> None:
    control = Unsure()
    how = {**HOW, "temperature": 0.7, "top_k": 5, "depth": 1, "schedule": "sync"}
    result = reasoner.generate(QUESTION, variant=Variant(controller=control), **how)
    steps = [
        e for _, e in result.trace.events if isinstance(e, StepWritten) and e.index == 0
    ]
    told, params = control.told[0], SamplingParams(0.7, top_k=5)
    models = {Role.DRAFT: reasoner.models.draft, Role.TARGET: reasoner.models.target}
    for role, mean in (
        (Role.DRAFT, told.draft_entropy),
        (Role.TARGET, told.target_entropy),
    ):
        runner = asked_model(models[role], reasoner.codec).runner  # type: ignore[arg-type]
        [step] = [event.step for event in steps if event.role is role]
        nats = []
        for offset in range(len(step.tokens)):
            branch = runner.open([*result.prompt, *step.tokens[:offset]])
            [logits] = runner.forward([branch])
            p = distribution(logits[None], params)[0]
            nats.append(-sum(x * math.log(x) for x in p.tolist() if x > 0))
            runner.close(branch)
        assert mean == pytest.approx(sum(nats) / len(nats), abs=1e-9) and mean > 0


def test_entropies_that_nobody_asks_for_or_that_are_not_there_are_none(
    reasoner: Reasoner,
) -> None:
    class Quiet(Unsure):
        entropies = False

    class Always(StepProposer):
        def propose(
            self, tokens: Sequence[int], width: int
        ) -> list[Sequence[int] | None]:
            return [[6] * 20]

    def told(
        mode: str = "lr", control: type[Unsure] = Unsure, **parts: Any
    ) -> set[Any]:
        made = control()
        how = {**HOW, "mode": mode, "drafter": "ngram", "depth": 1, "schedule": "sync"}
        reasoner.generate(QUESTION, variant=Variant(controller=made, **parts), **how)
        return {
            (s.draft_entropy is None, s.target_entropy is None) for s in made.told[:-1]
        }

    assert told(control=Quiet) == {(True, True)}
    assert told("lr+sd") == {(True, True)}  # tokens are proposed
    assert (False, False) in told()
    assert told(proposer=Always()) == {(True, False)}


# Forwards of verifiers


@pytest.mark.parametrize("role", [Role.TARGET, Role.DRAFT])
def test_forwards_that_a_verifier_causes_are_counted(
    reasoner: Reasoner, role: Role
) -> None:
    model = reasoner.models.target if role is Role.TARGET else reasoner.models.draft
    asked = asked_model(model, reasoner.codec)  # type: ignore[arg-type]
    verifier = ScoreVerifier(asked, threshold=4.5, least_mass=0.0)
    calls: list[int] = []
    inner = asked.runner._forward

    def counted(*arguments: Any) -> Any:
        calls.append(1)
        return inner(*arguments)

    asked.runner._forward = counted  # type: ignore[method-assign]
    how = {**HOW, "depth": 1, "schedule": "sync"}
    result = reasoner.generate(QUESTION, variant=Variant(verifier), **how)
    quiet = [
        e
        for _, e in result.trace.events
        if isinstance(e, ForwardPass) and e.role is role
    ]
    never = RandomVerifier(0.0, requires=Requires.NOTHING)
    others = reasoner.generate(QUESTION, variant=Variant(never), **how).stats
    assert len(calls) > 5 and len(quiet) > len(calls)
    assert others.verifier_seconds >= 0 and asked.runner.observer is None
    stats = result.stats
    assert (
        stats.target_seconds + stats.draft_seconds + stats.verifier_seconds
        <= stats.seconds
    )


# Token level


def test_a_drafter_and_a_rule_of_ones_own(reasoner: Reasoner) -> None:
    variant = Variant(
        drafter=lambda runner, sampling: LookupDrafter(3, 1), rule=MatchRule()
    )
    plain = reasoner.generate(QUESTION, mode="ar", **HOW)
    for mode in ("sd", "lr+sd"):
        result = reasoner.generate(QUESTION, variant=variant, mode=mode, **HOW)
        assert result.tokens == plain.tokens and result.stats.rounds.drafted > 0


def test_the_page_says_what_it_leaves_to_the_scheduler(reasoner: Reasoner) -> None:
    for variant in (Variant(chooser=BestScore()), Variant(may_follow=lambda *_: True)):
        with pytest.raises(LRError, match="use engine"):
            reasoner.generate(QUESTION, variant=variant, engine="page", **HOW)
    exact = Variant(ExactVerifier())
    page = reasoner.generate(QUESTION, variant=exact, engine="page", **HOW)
    assert page.tokens == reasoner.generate(QUESTION, variant=exact, **HOW).tokens
