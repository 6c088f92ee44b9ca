"""The contracts of the parts that work on steps; see `kit.py`."""

from __future__ import annotations

import inspect
import math
import pickle
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from lr.rng import Stream, uniform
from lr.spec.guard import GuardedFollow, guarded, guarded_verifier
from lr.spec.protocol import Limits, NodeId, Place, Schedule, SchedulerConfig
from lr.spec.variant import Correction, StepStats, Variant
from lr.spec.verifiers.base import Pair, Requires, Verifier
from lr.trace import Stats
from lr.types import Finish, SamplingParams, Step, Verdict
from lr.variants.kit.check import Checked, keeps_nothing, same_everywhere
from lr.watch.scripted import ScriptedRun, newest, oldest, shuffled

HIDDEN = 8  # the size of hidden states in the questions


def steps(chance: random.Random, vocab_size: int) -> Step:
    """A random step of 2 to 9 tokens."""
    length = chance.randint(2, 9)
    return Step(
        tuple(chance.randrange(vocab_size) for _ in range(length)), Finish.BOUNDARY
    )


def full_pairs(count: int, vocab_size: int, seed: int = 0) -> list[Pair]:
    """Random pairs with everything that can be required. Every third has equal
    steps."""
    chance, pairs = random.Random(seed), []
    noise = torch.Generator().manual_seed(seed)
    for number in range(count):
        draft = steps(chance, vocab_size)
        target = draft if number % 3 == 0 else steps(chance, vocab_size)
        t = len(draft.tokens)
        p, q, raw = (
            tuple((-4 * torch.rand(t, generator=noise)).tolist()) for _ in range(3)
        )
        prefix = tuple(
            chance.randrange(vocab_size) for _ in range(chance.randint(3, 12))
        )
        hidden, stream = (
            torch.randn(t, HIDDEN, generator=noise),
            Stream.root(seed).fold_in(number),
        )
        pairs.append(Pair(prefix, draft, target, raw, hidden, p, q, stream))
    return pairs


def only(pair: Pair, needs: Requires) -> Pair:
    """The pair with only what a verifier requires."""
    sampling = Requires.SAMPLING_LOGPROBS in needs
    return replace(
        pair,
        target=pair.target if Requires.TARGET_STEP in needs else None,
        logprobs=pair.logprobs if Requires.TARGET_LOGPROBS in needs else None,
        hidden=pair.hidden if Requires.HIDDEN in needs else None,
        target_sampling=pair.target_sampling if sampling else None,
        draft_sampling=pair.draft_sampling if sampling else None,
    )


def alike(a: Verdict | None, b: Verdict | None) -> bool:
    """Whether two verdicts are the same, with scores equal up to rounding."""
    if a is None or b is None or a.score is None or b.score is None:
        return (a is None) == (b is None) and getattr(a, "aligned", 0) == getattr(
            b, "aligned", 0
        )
    return a.aligned == b.aligned and math.isclose(
        a.score, b.score, rel_tol=1e-5, abs_tol=1e-6
    )


def check_verifier(
    found: Checked,
    make: Callable[[], Verifier],
    vocab_size: int,
    pairs: Sequence[Pair] | None = None,
) -> None:
    """Check: one verdict per pair, by this pair alone; `requires` is enough; no pair is
    kept."""
    needs = make().requires
    full = full_pairs(24, vocab_size) if pairs is None else list(pairs)
    asked = [only(pair, needs) for pair in full]

    def fresh() -> Verifier:
        return guarded_verifier(make())

    def alone(verifier: Verifier, pair: Pair) -> Verdict:
        return verifier.judge([pair])[0]

    each = same_everywhere(found, fresh, alone, asked, equal=alike)
    for batch in (asked, asked[::-1], asked[::2] * 2):
        together = fresh().judge(batch)
        expected = [each[asked.index(pair)] for pair in batch]
        for verdict, single in zip(together, expected, strict=True):
            what = "a verdict depends on its own pair alone, not on its batch"
            found.must(
                alike(verdict, single), what, f"{verdict} in a batch and {single} alone"
            )
    found.must(fresh().judge([]) == [], "no pairs give no verdicts", fresh().judge([]))
    reading = fresh()
    for pair, single in zip(full, each, strict=True):
        more = alone(reading, pair)
        what = "a pair that holds more than `requires` names gets the same verdict"
        found.must(
            alike(more, single), what, f"{more}, and {single} with what is required"
        )
    early = make().early_requires
    if early is not None:
        asked = [only(pair, early) for pair in full]
        first = same_everywhere(
            found, fresh, lambda v, pair: v.judge_early([pair])[0], asked, equal=alike
        )
        whole = fresh().judge_early(asked)
        same = all(alike(a, b) for a, b in zip(whole, first, strict=True))
        found.must(
            same,
            "an early verdict depends on its own pair alone",
            f"{whole} and {first}",
        )
    if pairs is None:
        lasting = make()
        made = [only(pair, needs) for pair in full_pairs(40, vocab_size, seed=1)]
        keeps_nothing(found, lambda pair: lasting.judge([pair]), made)


def places(vocab_size: int) -> Iterator[Place]:
    """Places of all widths up to 4 with all verdicts, shown with one more alternative
    each time."""
    chance = random.Random(2)
    for width in (1, 2, 3, 4):
        for bits in range(2**width):
            pairs = full_pairs(width, vocab_size, seed=chance.getrandbits(20))
            verdicts = tuple(
                Verdict(bool(bits >> j & 1), "kit", round(chance.random(), 3))
                for j in range(width)
            )
            children = tuple(NodeId(0, 1, j) for j in range(width))
            drafts = tuple(pair.draft for pair in pairs)
            for m in range(1, width + 1):
                seen = (
                    children[:m],
                    drafts[:m],
                    verdicts[:m],
                    width - m,
                    tuple(pairs[:m]),
                )
                yield Place(NodeId(0, 0), *seen)


def _fresh(name: str, make: Callable[[], Any]) -> Callable[[], Any]:
    """A function that makes new guarded parts of a kind."""
    return lambda: getattr(guarded(Variant(**{name: make()})), name)


def check_chooser(found: Checked, make: Callable[[], Any], vocab_size: int) -> None:
    """Check: a pure choice of an aligned alternative, in every order of arrival."""
    fresh, asked = _fresh("chooser", make), [*places(vocab_size)]
    same_everywhere(found, fresh, lambda chooser, place: chooser.choose(place), asked)
    for seed in range(4):
        _confluent(found, seed, width=3, chooser=fresh)


def check_router(found: Checked, make: Callable[[], Any], vocab_size: int) -> None:
    """Check: a pure function of the number of the step and the step before."""
    chance = random.Random(3)
    asked = [
        (index, steps(chance, vocab_size) if index else None) for index in range(12)
    ] * 2
    fresh = _fresh("router", make)
    same_everywhere(found, fresh, lambda router, one: router.who_writes(*one), asked)
    for seed in range(4):
        _confluent(found, seed, width=2, router=fresh)


class _Script:
    """Steps and verdicts as a function of the prefix."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def draft(self, prefix: Sequence[Step], sibling: int) -> Step | None:
        return self._step("draft", prefix, sibling)

    def target(self, prefix: Sequence[Step]) -> Step:
        return self._step("target", prefix, 0)

    def judge(
        self, prefix: Sequence[Step], draft: Step, target: Step | None
    ) -> Verdict:
        number = self._number("judge", prefix, hash(draft.tokens) & 0xFFFF)
        return Verdict(number < 0.6, "scripted", number)

    def _step(self, who: str, prefix: Sequence[Step], sibling: int) -> Step:
        number = self._number(who, prefix, sibling)
        ends = number < 0.05
        return Step((1 + int(number * 97), 2), Finish.EOS if ends else Finish.BOUNDARY)

    def _number(self, who: str, prefix: Sequence[Step], more: int) -> float:
        said = (token for step in prefix for token in step.tokens)
        return uniform(Stream.root(self.seed).fold_in(who, more, *said).key(0))


def _confluent(
    found: Checked,
    seed: int,
    *,
    width: int,
    kind: type[SchedulerConfig] = SchedulerConfig,
    **parts: Callable[[], Any],
) -> None:
    """The scheduler must emit the same steps in every order of arrival."""
    for schedule in Schedule:
        emitted = []
        for order in (oldest, newest, shuffled(seed), shuffled(seed + 99)):
            made = {name: make() for name, make in parts.items()}
            config = kind(Limits(24), schedule, 2, width, **made)
            emitted.append(ScriptedRun(config, _Script(seed), order).run())
        what = "the same steps are emitted in whatever order drafts and verdicts arrive"
        found.must(all(one == emitted[0] for one in emitted), what, "different steps")


def check_schedule(
    found: Checked, make: Callable[..., Any], vocab_size: int, width: int = 3
) -> None:
    """Check: the tree's shape depends on level and settings alone, and the root is
    never stuck."""
    kind: Any = make if inspect.isclass(make) else make()
    configs = [
        kind(Limits(24), one, depth, width) for one in Schedule for depth in (1, 2, 5)
    ]

    def shape(_: object, asked: tuple[Any, int]) -> tuple[Any, ...]:
        config, level = asked
        return config.width_at(level), config.drafts_at(level), config.targets_at(level)

    asked = [(config, level) for config in configs for level in range(7)]
    shapes = same_everywhere(found, lambda: kind, shape, asked)
    widths = [one for one, *_ in shapes]
    good = all(type(one) is int and 1 <= one <= width for one in widths)
    found.must(
        good, f"width_at gives whole numbers from 1 to {width}", sorted(set(widths))
    )
    flags = {type(flag) for _, *both in shapes for flag in both}
    found.must(flags == {bool}, "drafts_at and targets_at give True or False", flags)
    roots = all(config.targets_at(0) for config in configs)
    found.must(
        roots, "the target may write at the root (level 0)", "targets_at(0) is False"
    )
    cycles = [
        (one, level) for one in configs if one.barrier for level in range(one.depth + 1)
    ]
    stuck = sorted({level for one, level in cycles if not one.targets_at(level)})
    what = "with a barrier the target may write at every level down to depth"
    found.must(not stuck, what, f"targets_at is False at {stuck}")
    far = sorted(
        {level for one, level in asked if level >= one.depth and one.drafts_at(level)}
    )
    found.must(
        not far,
        "no draft begins at level `depth` or below",
        f"drafts_at({far}) is True",
    )
    for seed in range(4):
        _confluent(found, seed, width=width, kind=kind)


def check_controller(found: Checked, make: Callable[..., Any], vocab_size: int) -> None:
    """Check: equal answers for equal histories, and no state shared between two
    questions.

    The histories have entropies only if the controller asks for them, and even then
    some are None.
    """
    chance, now, history = random.Random(4), Stats(), list[StepStats]()
    asks: Any = guarded(Variant(controller=make)).controller
    wanted = asks("a").entropies
    for _ in range(40):
        kept = chance.random() < 0.6
        now += Stats(0.01, 1, 9, int(kept), 1, 2, 3, 8, 0.01, 0.01)
        known = wanted and chance.random() < 0.8
        nats = [2 * chance.random() if known else None for _ in range(2)]
        history.append(
            StepStats(**vars(now), draft_entropy=nats[0], target_entropy=nats[1])
        )

    def fresh(question: str) -> Any:
        control: Any = guarded(Variant(controller=make)).controller
        return control(question)

    def answers(control: Any, stats: StepStats) -> tuple[Any, ...]:
        return control.depth(stats), control.tokens(stats), control.width(stats)

    control, started = fresh("a"), time.perf_counter()
    alone = [answers(control, stats) for stats in history]
    found.seconds = (time.perf_counter() - started) / len(alone)
    control = fresh("a")
    again = [answers(control, stats) for stats in history]
    found.must(again == alone, "a new controller decides alike", f"{again} and {alone}")
    one, other, mixed = fresh("a"), fresh("b"), []
    for stats in history:
        mixed.append(answers(one, stats))
        answers(other, StepStats(1.0, 3, 3, 0, 3))
    found.must(mixed == alone, "two controllers share no state", f"{mixed} and {alone}")


def check_proposer(found: Checked, make: Callable[[], Any], vocab_size: int) -> None:
    """Check: a pure function of the tokens, which it does not change; at most `width`
    steps."""
    chance = random.Random(5)
    asked = [
        ([chance.randrange(vocab_size) for _ in range(n)] * 2, 1 + n % 3)
        for n in range(2, 40)
    ]

    def ask(proposer: Any, one: tuple[list[int], int]) -> Any:
        tokens, width = one
        before = list(tokens)
        made = proposer.propose(tokens, width)
        found.must(tokens == before, "the tokens are left alone", tokens)
        return [None if step is None else tuple(step) for step in made]

    same_everywhere(found, _fresh("proposer", make), ask, asked)


def check_corrector(found: Checked, make: Callable[[], Any], vocab_size: int) -> None:
    """Check: pure functions; a correction begins like a rejected step."""
    chance, asked = random.Random(6), []
    for number, pair in enumerate(full_pairs(12, vocab_size)):
        step = steps(chance, vocab_size)
        logprobs = tuple(-chance.random() for _ in step.tokens)
        correction = Correction(
            pair.prefix, (pair,), SamplingParams(), number % 3, logprobs
        )
        asked.append((correction, step, chance.random()))

    def ask(corrector: Any, one: tuple[Correction, Step, float]) -> Any:
        correction, step, number = one
        begun = tuple(corrector.begin(correction))
        tokens = correction.rejected[0].draft.tokens
        begins = begun == tokens[: len(begun)] and len(begun) < len(tokens)
        found.must(
            begins,
            "it begins with less than a whole rejected step",
            f"{begun} of {tokens}",
        )
        return begun, corrector.keep(correction, step, number)

    same_everywhere(found, _fresh("corrector", make), ask, asked)


def check_may_follow(
    found: Checked, make: Callable[..., bool], vocab_size: int
) -> None:
    """Check: a pure function of the node, the step and its log-probabilities."""
    asked = [
        (NodeId(0, n + 1), pair.draft, () if n % 4 == 0 else pair.draft_sampling or ())
        for n, pair in enumerate(full_pairs(16, vocab_size))
    ]
    same_everywhere(
        found, lambda: GuardedFollow(make), lambda follows, one: follows(*one), asked
    )


def check_segmenter(found: Checked, make: Callable[..., Any], vocab_size: int) -> None:
    """Check: equal boundaries for equal tokens, a new object for each step, steps that
    do end."""
    chance = random.Random(7)
    spoken = [b".", b"\n", b"\n\n", b" ", b". ", b".\n\n", b"So", b"Wait", b"?"]
    pieces = spoken + [
        bytes([97 + n % 26]) * (1 + n % 3) for n in range(vocab_size - len(spoken))
    ]
    texts = [[chance.randrange(vocab_size) for _ in range(120)] for _ in range(12)]

    def fresh() -> Any:
        maker = guarded(Variant(segmenter=make)).segmenter
        assert maker is not None
        return lambda: maker(pieces.__getitem__)

    def ends(begin: Callable[[], Any], tokens: list[int]) -> tuple[int, ...]:
        segmenter, places = begin(), []
        for place, token in enumerate(tokens):
            if segmenter.feed(token):
                places.append(place)
                segmenter = begin()
        return tuple(places)

    cuts = same_everywhere(found, fresh, ends, texts)
    one, other = fresh()(), fresh()()
    mixed = [
        (one.feed(a), other.feed(b))[0] for a, b in zip(texts[0], texts[1], strict=True)
    ]
    alone = fresh()()
    same = [alone.feed(token) for token in texts[0]]
    first = mixed.index(True) + 1 if True in mixed else len(mixed)
    found.must(
        mixed[:first] == same[:first], "two segmenters share no state", "different ends"
    )
    total = sum(map(len, cuts))
    found.must(total > 0, "steps end: some boundary in 1,440 random tokens", "none")
    try:
        pickle.dumps(make)
    except (
        Exception
    ) as error:  # pickle raises different exceptions for different objects
        found.notes.append(
            f"not for driver overlapped, which sends it to a process ({error})"
        )
