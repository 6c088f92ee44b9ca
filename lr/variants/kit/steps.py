"""The contracts of the parts that decide about steps."""

from __future__ import annotations

import gc
import math
import random
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from lr.rng import Stream
from lr.spec.checks import check_begun, check_bool, check_number, check_steps
from lr.spec.checks import check_choice as check_choice_value
from lr.spec.protocol import NodeId, Place
from lr.spec.variant import Correction, Progress
from lr.spec.verifiers.base import (
    Pair,
    Requires,
    Verifier,
    all_verdicts_of,
    verdicts_of,
)
from lr.trace import TokenRounds
from lr.types import Finish, SamplingParams, Step, Verdict
from lr.variants.kit.findings import Findings, Make, World, same_everywhere

CERTAIN, UNLIKELY = 0.0, 9.0  # nats per token, the edges of the questions


def random_step(chance: random.Random, world: World, length: int | None = None) -> Step:
    """A step of 1 to 9 random tokens; every fifth ends the text."""
    tokens = [
        chance.randrange(world.vocab_size)
        for _ in range(length or chance.randint(1, 9))
    ]
    if chance.random() < 0.2:
        return Step((*tokens, world.eos), Finish.EOS)
    return Step(tuple(tokens), Finish.BOUNDARY)


def random_pairs(count: int, world: World, seed: int = 0) -> list[Pair]:
    """Random pairs with everything that can be required, and the rare cases: one token,
    the end of the text, equal steps, the same draft after another prefix, tokens that
    top-p forbids, a draft that no model drew."""
    chance = random.Random(seed)
    noise = torch.Generator().manual_seed(seed)
    pairs: list[Pair] = []
    for number in range(count):
        draft = random_step(chance, world, 1 if number % 4 == 1 else None)
        if number % 4 == 3:
            draft = pairs[-1].draft  # after another prefix, with other probabilities
        target = draft if number % 3 == 0 else random_step(chance, world)
        if (target.finish is Finish.EOS) != (draft.finish is Finish.EOS):
            target = draft  # other pairs are decided by their form
        n = len(draft.tokens)
        scale = chance.choice([0.01, 1.0, UNLIKELY])
        rows = [(-scale * torch.rand(n, generator=noise)).tolist() for _ in range(3)]
        raw, p, q = map(tuple, rows)
        if number % 5 == 2:
            p = (-math.inf, *p[1:])
        prefix = tuple(
            chance.randrange(world.vocab_size) for _ in range(chance.randint(3, 12))
        )
        pairs.append(
            Pair(
                prefix,
                draft,
                target,
                logprobs=raw,
                hidden=torch.randn(n, world.hidden_size, generator=noise),
                target_sampling=p,
                draft_sampling=() if number % 7 == 4 else q,
                stream=Stream.root(seed).fold_in(number),
                index=number % 5,
                prompt=2,
            )
        )
    return pairs


def only(pair: Pair, needs: Requires) -> Pair:
    """The pair with only what a verifier requires."""
    sampling = Requires.SAMPLING_LOGPROBS in needs
    return replace(
        pair,
        target=pair.target if Requires.TARGET_STEP in needs else None,
        logprobs=pair.logprobs if Requires.TARGET_LOGPROBS in needs else None,
        hidden=None if pair.hidden is None or Requires.HIDDEN not in needs else pair.hidden.clone(),
        target_sampling=pair.target_sampling if sampling else None,
        draft_sampling=pair.draft_sampling if sampling else None,
    )  # fmt: skip


def alike(a: Verdict | None, b: Verdict | None) -> bool:
    """Whether two verdicts are the same, with scores equal up to rounding."""
    if a is None or b is None:
        return a is b
    close = a.score == b.score
    if a.score is not None and b.score is not None:
        close = math.isclose(a.score, b.score, rel_tol=1e-5, abs_tol=1e-6)
    return a.aligned == b.aligned and close


def _verifier(make: Make) -> Verifier:
    verifier = make().verifier
    assert verifier is not None
    return verifier


def check_verifier(findings: Findings, make: Make, world: World) -> None:
    """One verdict per pair, by this pair alone; `requires` is enough; no pair is kept or
    changed."""
    needs = _verifier(make).requires
    full = random_pairs(24, world)
    pairs = [only(pair, needs) for pair in full]

    def alone(verifier: Verifier, pair: Pair) -> Verdict:
        return verdicts_of(verifier, [pair])[0]

    each = same_everywhere(findings, lambda: _verifier(make), alone, pairs, equal=alike)
    if len({verdict.aligned for verdict in each}) == 1:
        findings.remarks.append(
            f"all random pairs got the same verdict: {each[0].aligned}"
        )
    numbers = list(range(len(pairs)))
    statement = "a verdict depends on its own pair alone, not on its batch"
    for batch in (numbers, numbers[::-1], numbers[::2] * 2):
        verdicts = verdicts_of(_verifier(make), [pairs[i] for i in batch])
        for i, verdict in zip(batch, verdicts, strict=True):
            findings.must(
                alike(verdict, each[i]), statement, f"{verdict} and {each[i]}"
            )
    nothing = _verifier(make).judge([])
    findings.must(nothing == [], "no pairs give no verdicts", nothing)
    reading = _verifier(make)
    statement = "a pair that holds more than `requires` names gets the same verdict"
    for pair, verdict in zip(full, each, strict=True):
        more = alone(reading, pair)
        findings.must(alike(more, verdict), statement, f"{more} and {verdict}")
    for pair, fresh in zip(pairs, random_pairs(24, world), strict=True):
        same = pair.hidden is None or torch.equal(pair.hidden, _hidden(fresh))
        findings.must(same, "the hidden states are left as they are", "other numbers")
    early = _verifier(make).early_requires
    if early is not None:
        bare = [only(pair, early) for pair in full]
        first = same_everywhere(
            findings,
            lambda: _verifier(make),
            lambda verifier, pair: all_verdicts_of(verifier, [pair])[0],
            [replace(pair, target=None) for pair in bare],
            equal=alike,
        )
        sure = sum(verdict is not None for verdict in first)
        findings.remarks.append(f"sure early about {sure} of {len(first)} random pairs")
    _keeps_nothing(findings, _verifier(make), world, needs)
    if type(_verifier(make)).choose is not Verifier.choose:
        _check_choose(findings, make, world)


def _hidden(pair: Pair) -> torch.Tensor:
    assert pair.hidden is not None
    return pair.hidden


def _keeps_nothing(
    findings: Findings, verifier: Verifier, world: World, needs: Requires
) -> None:
    """A verifier serves many answers, so it must not keep their pairs."""
    pairs = [only(pair, needs) for pair in random_pairs(40, world, seed=1)]
    alive = [weakref.ref(pair) for pair in pairs]
    while pairs:
        verifier.judge([pairs.pop()])
    gc.collect()
    left = sum(reference() is not None for reference in alive)
    findings.must(
        left <= 10, "no pair is kept (no leak)", f"{left} of 40 pairs still held"
    )


def random_places(world: World) -> Iterator[Place]:
    """Places of up to 4 alternatives with all verdicts, shown one more at a time."""
    chance = random.Random(2)
    for width in (1, 2, 3, 4):
        for bits in range(2**width):
            pairs = random_pairs(width, world, seed=chance.getrandbits(20))
            verdicts = [
                Verdict(bool(bits >> j & 1), "kit", round(chance.random(), 3))
                for j in range(width)
            ]
            for shown in range(1, width + 1):
                yield Place(
                    NodeId(0, 0),
                    tuple(NodeId(0, 1, j) for j in range(shown)),
                    tuple(pair.draft for pair in pairs[:shown]),
                    tuple(verdicts[:shown]),
                    width - shown,
                    tuple(pairs[:shown]),
                )


def _check_choose(findings: Findings, make: Make, world: World) -> None:
    def choose(verifier: Verifier, place: Place) -> Any:
        choice = verifier.choose(place)
        check_choice_value(choice, place)
        return choice

    places = list(random_places(world))
    choices = same_everywhere(findings, lambda: _verifier(make), choose, places)
    waits = any(p.more and not isinstance(c, int) and c is not None
                for p, c in zip(places, choices, strict=True))  # fmt: skip
    if not waits:
        findings.remarks.append("choose never waits, so it compares no alternatives")


def check_controller(findings: Findings, make: Make, world: World) -> None:
    """Equal answers for equal histories; two answers share nothing."""
    chance = random.Random(4)
    history: list[Progress] = []
    now = Progress(rounds=TokenRounds.of([]))
    for _ in range(40):
        kept = int(chance.random() < 0.6)
        now = replace(
            now,
            steps=now.steps + 1,
            tokens=now.tokens + 9,
            drafted=now.drafted + 2,
            judged=now.judged + 1,
            accepted=now.accepted + kept,
        )
        history.append(now)

    def answer(controller: Any, progress: Progress) -> tuple[int, int | None]:
        depth, tokens = controller.depth(progress), controller.tokens(progress)
        check_number("controller", controller.depth, depth, 0)
        if tokens is not None:
            check_number("controller", controller.tokens, tokens, 0)
        return depth, tokens

    def fresh() -> Any:
        return make().make("controller")

    first, second = fresh(), fresh()
    alone = [answer(first, progress) for progress in history]
    again = [answer(second, progress) for progress in history]
    findings.must(
        again == alone, "a new controller decides alike", f"{again} and {alone}"
    )
    variant = make()
    first, second = variant.make("controller"), variant.make("controller")
    mixed = []
    for progress in history:
        mixed.append(answer(first, progress))
        answer(second, Progress(steps=3, judged=3, rounds=now.rounds))
    findings.must(mixed == alone, "two answers share no state", f"{mixed} and {alone}")


def check_step_source(findings: Findings, make: Make, world: World) -> None:
    """A pure function of the tokens, which it does not change."""
    chance = random.Random(5)
    questions = [
        ([chance.randrange(world.vocab_size) for _ in range(n)] * 2, 1 + n % 3)
        for n in range(2, 30)
    ]

    def ask(source: Any, question: tuple[list[int], int]) -> Any:
        tokens, width = question
        before = list(tokens)
        steps = source.steps_after(tokens, 2, width)
        check_steps(source, steps, width, world.vocab_size)
        findings.must(tokens == before, "the tokens are left as they are", tokens)
        tokens[:] = before
        return [None if step is None else tuple(step) for step in steps]

    same_everywhere(findings, lambda: make().step_source, ask, questions)


def check_corrector(findings: Findings, make: Make, world: World) -> None:
    """Pure functions; a correction begins like a rejected step; some step is kept."""
    chance = random.Random(6)
    questions = []
    for number, pair in enumerate(random_pairs(24, world)):
        step = random_step(chance, world)
        logprobs = tuple(-4 * chance.random() for _ in step.tokens)
        correction = Correction(
            pair.prefix, (pair,), SamplingParams(), number % 3, logprobs, prompt=2
        )
        # Every fourth number is 0: there a draw keeps what it can keep at all.
        questions.append((correction, step, chance.random() if number % 4 else 0.0))

    def ask(corrector: Any, question: tuple[Correction, Step, float]) -> Any:
        correction, step, number = question
        begun = corrector.begin(correction)
        rejected = correction.rejected
        check_begun(corrector, begun, rejected, len(rejected[0].draft.tokens) + 1)
        keeps = corrector.keep(correction, step, number)
        check_bool("corrector", corrector.keep, keeps)
        return tuple(begun), keeps

    answers = same_everywhere(findings, lambda: make().corrector, ask, questions)
    kept = any(keeps for _, keeps in answers)
    findings.must(kept, "some step of the target is kept", "none of 24: no end")


def check_segmenter(findings: Findings, make: Make, world: World) -> None:
    """Equal boundaries for equal tokens, a new object for each step, steps that end."""
    chance = random.Random(7)
    spoken = [b".", b"\n", b"\n\n", b" ", b". ", b".\n\n", b"So", b"Wait", b"?", b","]
    letters = [bytes([97 + n % 26]) * (1 + n % 3) for n in range(50)]
    pieces = spoken + letters
    texts = [[chance.randrange(len(pieces)) for _ in range(120)] for _ in range(12)]

    def fresh() -> Callable[[], Any]:
        variant = make()
        return lambda: variant.make("segmenter", pieces.__getitem__)

    def ends(begin: Callable[[], Any], tokens: Sequence[int]) -> tuple[int, ...]:
        segmenter, places = begin(), []
        for place, token in enumerate(tokens):
            complete = segmenter.feed(token)
            check_bool("segmenter", segmenter.feed, complete)
            if complete:
                places.append(place)
                segmenter = begin()
        return tuple(places)

    cuts = same_everywhere(findings, fresh, ends, texts)
    begin = fresh()
    first, second = begin(), begin()
    mixed = []
    for a, b in zip(texts[0], texts[1], strict=True):
        mixed.append(first.feed(a))
        second.feed(b)
        if mixed[-1]:
            break
    alone = begin()
    same = [alone.feed(token) for token in texts[0][: len(mixed)]]
    findings.must(mixed == same, "two steps share no state", "other ends")
    findings.must(any(cuts), "steps end", "no boundary in 1,440 random tokens")
