"""`lr.variants.kit.check` passes every part that is in the package, and catches planted
mistakes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from lr.engine.runner import ModelRunner
from lr.errors import SettingError
from lr.reasoner import Reasoner
from lr.rng import Stream
from lr.spec.acceptance import (
    EMPTY,
    AcceptanceRule,
    MatchRule,
    Outcome,
    Proposal,
    RejectRule,
)
from lr.spec.ask import VariantError
from lr.spec.block_rule import BlockRule
from lr.spec.drafters import LookupDrafter, ModelDrafter, SuffixDrafter, TreeDrafter
from lr.spec.protocol import WAIT, FirstAligned, Place, SchedulerConfig
from lr.spec.sampling import distribution, sample
from lr.spec.segmenters import FixedSegmenter
from lr.spec.token_sd import Drafter
from lr.spec.variant import StepProposer, Variant
from lr.spec.verifiers.base import ExactVerifier, Pair, Requires, Verifier
from lr.spec.verifiers.judge import PrefixCache
from lr.spec.verifiers.named import LikelihoodVerifier, RandomVerifier
from lr.spec.write import BlankLineSegmenter
from lr.theory.counterexamples import counterexamples
from lr.trace import Stats
from lr.types import Coupling, Finish, Role, SamplingParams, Step, Verdict
from lr.variants.adaptive import Halving, adaptive
from lr.variants.choosers import Majority
from lr.variants.confidence_cascade import Cascade, Confidence
from lr.variants.gsi import RewardedVerifier
from lr.variants.kit import ContractError, check, check_answers, check_variant
from lr.variants.kit.tokens import small_model
from lr.variants.lossless import StepRejection
from lr.variants.narrowing import narrowing
from lr.variants.rsd import Clipped
from lr.variants.specreason import TargetFirst
from lr.variants.speculative_thinking import Reflection
from lr.variants.three_levels import RepeatedSteps

LIKELY = partial(LikelihoodVerifier, -2.0)


def letters(tokens: Sequence[int]) -> str:
    return "".join(chr(97 + token % 26) for token in tokens)


def asked() -> PrefixCache:
    return PrefixCache(ModelRunner(small_model(64), num_blocks=200, block_size=4))


class Likely(LikelihoodVerifier):
    """A score for every pair, from what the pair holds."""

    def __init__(self) -> None:
        super().__init__(-2.0)


GOOD: dict[str, Callable[..., Any]] = {
    "exact": ExactVerifier,
    "random": lambda: RandomVerifier(0.5),
    "likelihood": LIKELY,
    "cascade": lambda: Cascade(
        Confidence(-3.0, asked().runner), ExactVerifier(), low=-4.0, high=-3.0
    ),
    "rsd, clip": lambda: Clipped(Likely()),
    "gsi, verifier": lambda: RewardedVerifier(Likely()),
    "speculative thinking": lambda: Reflection(letters, ("a", "bc")),
    "lossless": lambda: StepRejection(asked()),
    "first aligned": FirstAligned,
    "majority": Majority,
    "target first": lambda: TargetFirst(2),
    "repeated steps": lambda: RepeatedSteps(
        lambda token: b"x" if token % 4 else b"\n\n", None, 2
    ),
    "reject": RejectRule,
    "block": BlockRule,
    "match": MatchRule,
    "ngram": LookupDrafter,
    "suffix": SuffixDrafter,
    "draft": lambda runner, sampling: ModelDrafter(runner, sampling),
    "draft, shared": lambda runner, sampling: ModelDrafter(
        runner, sampling, coupling=Coupling.SHARED
    ),
    "tree": lambda runner, sampling: TreeDrafter(runner, sampling, branching=(2, 2)),
    "halving, wide": lambda: Halving(wide=True),
    "blank line": BlankLineSegmenter,
    "fixed": lambda token_bytes: FixedSegmenter(token_bytes, 4),
}
"""What ships, as far as it needs no trained model and is no part of a variant as it is
there (`test_shipped.py`)."""


@pytest.mark.parametrize("name", GOOD)
def test_what_ships_keeps_its_contract(name: str) -> None:
    found = check(GOOD[name])
    assert len(found.passed) >= 2 and found.point in str(found)


def test_an_object_for_two_seams_is_checked_for_both() -> None:
    found = check(lambda: Reflection(letters, ("a", "bc")), point="corrector")
    assert found.point == "corrector"
    assert check(lambda: StepRejection(asked()), point="corrector").seconds > 0


def test_steps_and_their_log_probabilities() -> None:
    def sure(node: Any, step: Step, logprobs: Sequence[float]) -> bool:
        return sum(logprobs, 0.0) >= -2.0 * len(step.tokens)

    assert (
        check(lambda node, step, logprobs: sure(node, step, logprobs)).point
        == "may_follow"
    )


class Careful:
    """One step ahead after a rejection."""

    def __init__(self, question: str = "") -> None:
        self.accepted = 0

    def depth(self, stats: Stats) -> int:
        grew, self.accepted = stats.accepted > self.accepted, stats.accepted
        return 4 if grew else 1


def test_a_controller_with_a_memory_of_its_own() -> None:
    assert check(Careful).point == "controller"


# Planted mistakes


class BestOfBatch(Verifier):
    """Accepts only the likeliest pair of its batch."""

    name, requires = "best of batch", Requires.TARGET_LOGPROBS

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        means = [sum(pair.logprobs or ()) / len(pair.draft.tokens) for pair in pairs]
        return [Verdict(mean == max(means), "the best") for mean in means]


class EverySecond(Verifier):
    """Accepts every second pair that it sees."""

    name = "every second"

    def __init__(self) -> None:
        self.count = 0

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [Verdict(self.next(), "counted") for _ in pairs]

    def next(self) -> bool:
        self.count += 1
        return self.count % 2 == 0


class Peeking(Verifier):
    """Requires nothing and looks at the target's step where there is one."""

    name, requires = "peeking", Requires.NOTHING

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [
            Verdict(p.target is None or p.target == p.draft, "peeked") for p in pairs
        ]


class GlobalDice(Verifier):
    """Draws from the global generator."""

    name = "dice"

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [Verdict(random.random() < 0.5, "thrown") for _ in pairs]


class Hoarder(ExactVerifier):
    """Keeps every pair."""

    def __init__(self) -> None:
        self.seen: list[Pair] = []

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        self.seen += pairs
        return super().judge(pairs)


class ArrivalOrder:
    """Prefers the draft that arrived first, as far as it can tell from when it was
    asked."""

    def __init__(self) -> None:
        self.arrived: dict[tuple[int, ...], int] = {}

    def choose(self, place: Place) -> Any:
        self.arrived.setdefault(place.drafts[-1].tokens, len(self.arrived))
        if place.more:
            return WAIT
        aligned = [j for j, verdict in enumerate(place.verdicts) if verdict.aligned]
        return min(
            aligned,
            key=lambda j: self.arrived.get(place.drafts[j].tokens, 999),
            default=None,
        )


class Longest:
    """Takes the longest draft, aligned or not."""

    def choose(self, place: Place) -> Any:
        lengths = [len(draft.tokens) for draft in place.drafts]
        return WAIT if place.more else lengths.index(max(lengths))


class Waits:
    """Never decides."""

    def choose(self, place: Place) -> Any:
        return WAIT


class Biased(RejectRule):
    """Accepts a hundredth more often than it should."""

    def outcomes(self, p_rows: torch.Tensor, proposal: Proposal) -> list[Outcome]:
        made = super().outcomes(p_rows, proposal)
        first = max(range(len(made)), key=lambda i: made[i].probability)
        for i, other in enumerate(made):
            if i != first and made[first].probability > 0.01:
                made[first] = replace(
                    made[first], probability=made[first].probability - 0.01
                )
                made[i] = replace(other, probability=other.probability + 0.01)
                break
        return made


class SureRule(AcceptanceRule):
    """A draft token stays iff it comes first; its outcomes add up to two."""

    name, lossless, trees = "sure", False, False

    def outcomes(self, p_rows: torch.Tensor, proposal: Proposal) -> list[Outcome]:
        return [Outcome(1.0, (), lambda: p_rows[0], untouched=True)] * 2


class OwnDraft(Drafter):
    """Draws one token from a fixed distribution, with noise from `key`; it states
    `q`."""

    name = "own"

    def __init__(self, key: Callable[[Any], int], stated: float = 1.0) -> None:
        self.key, self.stated = key, stated

    def propose(self, contexts: Sequence[Any], k: int) -> list[Proposal]:
        made = []
        for context in contexts:
            logits = torch.linspace(0, 3, 64, dtype=torch.float64)[None]
            row = distribution(logits, SamplingParams(1.0))
            q = distribution(logits, SamplingParams(self.stated))
            most = min(k, context.limit)
            token = sample(row, [self.key(context)])[0]
            made.append(Proposal.chain([token], q) if most > 0 else EMPTY)
        return made


def own_noise(context: Any) -> int:
    return Stream(context.draws.stream.state).fold_in("own").key(context.draws.offset)


class Leaky(ModelDrafter):
    """Forgets nothing."""

    def forget(self, branches: Iterable[Any]) -> None:
        return


class Deep(LookupDrafter):
    """Proposes three tokens whatever the limit."""

    def propose(self, contexts: Sequence[Any], k: int) -> list[Proposal]:
        return [Proposal.chain([1, 2, 3]) for _ in contexts]


class Alternating:
    """A router that takes turns by the number of calls."""

    def __init__(self) -> None:
        self.calls = 0

    def who_writes(self, index: int, previous: Step | None) -> Role:
        self.calls += 1
        return Role.DRAFT if self.calls % 2 else Role.TARGET


class Shared(Careful):
    """Two controllers with one memory."""

    kept: list[int] = []  # noqa: RUF012  # the mistake

    def depth(self, stats: Stats) -> int:
        self.kept.append(stats.accepted)
        return 1 + len(self.kept) % 3


class Widening(Careful):
    """Three controllers with one memory, for the width alone."""

    kept: list[int] = []  # noqa: RUF012  # the mistake

    def width(self, stats: Stats) -> int:
        self.kept.append(stats.accepted)
        return 1 + len(self.kept) % 3


class Trusting(Careful):
    """Takes it for granted that there is an entropy for every step."""

    entropies = True

    def width(self, stats: Any) -> int:
        return 1 if stats.draft_entropy < 0.5 else 2


class Drifting(SchedulerConfig):
    """A width that depends on chance."""

    def width_at(self, level: int) -> int:
        return random.randint(1, self.width)


class Vast(SchedulerConfig):
    """A width by level, whatever the run's."""

    def width_at(self, level: int) -> int:
        return 9 - level


class Stuck(SchedulerConfig):
    """The target never writes at the root."""

    def targets_at(self, level: int) -> bool:
        return level > 0


class SharedSegmenter(FixedSegmenter):
    """Counts the tokens of all steps together."""

    count: list[int] = []  # noqa: RUF012  # the mistake

    def __init__(self, token_bytes: Any) -> None:
        super().__init__(token_bytes, 4)

    def feed(self, token: int) -> bool:
        self.count.append(token)
        return len(self.count) % 5 == 0


class Endless(FixedSegmenter):
    """Ends no step."""

    def __init__(self, token_bytes: Any) -> None:
        super().__init__(token_bytes, 4)

    def feed(self, token: int) -> bool:
        return False


class Growing(StepProposer):
    """Proposes one more token at every call."""

    def __init__(self) -> None:
        self.calls = 0

    def propose(self, tokens: Sequence[int], width: int) -> Any:
        self.calls += 1
        return [tuple(tokens[: self.calls])]


class Eating(StepProposer):
    """Takes the last token off the prompt."""

    def propose(self, tokens: Any, width: int) -> Any:
        return [[tokens.pop()]]


class Inventing:
    """Begins with a token of its own."""

    def begin(self, correction: Any) -> Any:
        return (63, 63, 63)

    def keep(self, correction: Any, step: Step, number: float) -> bool:
        return True


class Impatient(Inventing):
    """Keeps every second step that it sees."""

    def __init__(self) -> None:
        self.calls = 0

    def begin(self, correction: Any) -> Any:
        return ()

    def keep(self, correction: Any, step: Step, number: float) -> bool:
        self.calls += 1
        return self.calls % 2 == 0


MISTAKES: dict[str, tuple[Callable[..., Any], str]] = {
    "a verifier that depends on its batch": (BestOfBatch, "own pair alone"),
    "a verifier that counts": (EverySecond, "same question|order of the questions"),
    "a verifier that reads what it does not require": (
        Peeking,
        "more than `requires` names",
    ),
    "a verifier that draws from the global generator": (
        GlobalDice,
        "same question|global",
    ),
    "a verifier that leaks": (Hoarder, "no leak"),
    "a chooser that prefers arrival order": (ArrivalOrder, "order|same question"),
    "a chooser that takes a rejected draft": (Longest, "aligned alternative"),
    "a chooser that never decides": (Waits, "aligned alternative"),
    "a rule that is biased by 0.01": (Biased, "target's distribution"),
    "a rule whose outcomes add up to two": (SureRule, "sum to 1"),
    "a drafter that reuses noise": (
        lambda: OwnDraft(lambda context: 7),
        "anew in every round",
    ),
    "a drafter that states a wrong q": (lambda: OwnDraft(own_noise, 2.0), "stated q"),
    "a drafter that takes the target's noise": (
        lambda: OwnDraft(lambda context: context.draws.sample_key(0)),
        "noise is not the target's",
    ),
    "a drafter that leaks": (
        lambda runner, sampling: Leaky(runner, sampling),
        "no leak",
    ),
    "a drafter that goes too deep": (Deep, "at most min"),
    "a router that counts": (Alternating, "same question|order of the questions"),
    "a controller with a shared memory": (Shared, "decides alike|share no state"),
    "a controller with a shared memory of widths": (
        Widening,
        "decides alike|share no state",
    ),
    "a schedule by chance": (Drifting, "same question|global"),
    "a schedule that is too wide": (Vast, "from 1 to 3"),
    "a schedule that cannot go on": (Stuck, "write at the root"),
    "a segmenter with a shared memory": (
        SharedSegmenter,
        "same question|share no state",
    ),
    "a segmenter that never ends": (Endless, "steps end"),
    "a proposer that counts": (Growing, "same question|order of the questions"),
    "a proposer that eats the prompt": (Eating, "left alone"),
    "a corrector that invents": (Inventing, "begins with less"),
    "a corrector that counts": (Impatient, "same question|order of the questions"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_planted_mistakes_are_caught(name: str) -> None:
    make, expected = MISTAKES[name]
    with pytest.raises((ContractError, VariantError), match=expected):
        check(make)


def test_a_controller_that_takes_entropies_for_granted_meets_none() -> None:
    with pytest.raises(TypeError, match="NoneType"):
        check(Trusting)


def test_honest_twins_of_the_mistakes_pass() -> None:
    """So that what is caught is the mistake and not its surroundings."""
    check(lambda: OwnDraft(own_noise))
    check(lambda runner, sampling: ModelDrafter(runner, sampling))


def test_the_biased_rules_of_the_laboratory_cannot_call_themselves_lossless() -> None:
    assert counterexamples()
    for one in counterexamples():
        assert not getattr(one, "lossless", False)


def test_what_is_no_part_is_told_so() -> None:
    with pytest.raises(ContractError, match="for no extension point"):
        check(lambda: object())
    with pytest.raises(TypeError, match="makes a new object each time"):
        check(ExactVerifier())  # type: ignore[arg-type]
    assert Step((1,), Finish.BOUNDARY) and Any


def test_all_parts_of_a_variant() -> None:
    """Each is held against the contract of its own extension point."""
    found = check_variant(
        lambda: replace(adaptive(), chooser=Majority(), rule=RejectRule())
    )
    assert {one.point for one in found} == {
        "controller",
        "may_follow",
        "chooser",
        "rule",
    }
    assert all(one.passed for one in found)
    [found_one] = check_variant(narrowing)
    assert found_one.point == "schedule"
    with pytest.raises(ContractError, match="own pair alone"):
        check_variant(lambda: replace(adaptive(), verifier=BestOfBatch()))
    with pytest.raises(TypeError, match="expected a Variant"):
        check_variant(Majority)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"widht": 3}, "such as 'width'"),
        ({"schedule": "synch"}, "expected one of sync, paper"),
    ],
)
def test_settings_are_checked_with_the_parts(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingError, match=said):
        check_variant(lambda: Variant(settings=settings))


def gossiping() -> Variant:
    """Its verifier and its chooser are right one by one, and share a list."""
    calls: list[int] = []

    class Counting(RandomVerifier):
        def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
            calls.append(len(pairs))
            return super().judge(pairs)

    class EverySecond:
        def choose(self, place: Place) -> int | None:
            may = place.verdicts[0].aligned and len(calls) % 2 == 0
            return 0 if may else None

    return Variant(Counting(1.0), chooser=EverySecond(), settings={"depth": 2})


def test_parts_that_share_state_are_found() -> None:
    """Which no check of one part can see."""
    assert all(one.passed for one in check_variant(gossiping))
    with Reasoner(dtype=torch.float64) as reasoner:
        with pytest.raises(
            ContractError, match="the same steps alone and together with others"
        ):
            check_answers(gossiping, reasoner, max_tokens=40)
        honest = check_answers(
            lambda: Variant(RandomVerifier(0.7)), reasoner, max_tokens=40
        )
        assert honest.passed
    with pytest.raises(TypeError, match="expected a Variant"):
        check_answers(lambda: None, reasoner)  # type: ignore[arg-type,return-value]
    with pytest.raises(SettingError, match="at least two texts"):
        check_answers(gossiping, reasoner, ["one question"])
    with (
        Reasoner() as rounded,
        pytest.raises(SettingError, match=r"expected torch\.float64"),
    ):
        check_answers(gossiping, rounded)
