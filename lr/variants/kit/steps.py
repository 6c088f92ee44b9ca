"""The contracts of the parts that decide about steps."""

from __future__ import annotations

import gc
import math
import random
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from lr.rng import Stream
from lr.spec.checks import (
    check_begun,
    check_bool,
    check_choice,
    check_number,
    check_steps,
)
from lr.spec.protocol import NodeId, Place, Wait
from lr.spec.variant import Correction, Progress, Variant
from lr.spec.verifiers.base import (
    Pair,
    Requires,
    Verifier,
    all_verdicts_of,
    verdicts_of,
)
from lr.types import Finish, SamplingParams, Step, Verdict
from lr.variants.kit.findings import Findings, Make, Material, same_everywhere


def random_step(chance: random.Random, material: Material, length: int = 0) -> Step:
    """A step of 1 to 9 random tokens; every fifth ends the text."""
    length = length or chance.randint(1, 9)
    tokens = tuple(chance.randrange(material.vocab_size) for _ in range(length))
    if chance.random() < 0.2:
        return Step((*tokens, material.eos), Finish.EOS)
    return Step(tokens, Finish.BOUNDARY)


def random_pairs(count: int, material: Material, seed: int = 0) -> list[Pair]:
    """Random pairs with everything that can be required, and the rare cases: one token,
    the end of the text, equal steps, the same draft after another prefix, tokens that
    top-p forbids, a draft that no model drew."""
    chance = random.Random(seed)
    noise = torch.Generator().manual_seed(seed)
    pairs: list[Pair] = []
    for number in range(count):
        draft = random_step(chance, material, 1 if number % 4 == 1 else 0)
        if number % 4 == 3:
            draft = pairs[-1].draft  # after another prefix, with other probabilities
        target = random_step(chance, material)
        if number % 3 == 0 or target.finish is not draft.finish:
            target = draft  # steps that end differently never reach a verifier
        n = len(draft.tokens)
        nats = chance.choice([0.01, 1.0, 9.0])
        raw, p, q = (-nats * torch.rand(3, n, generator=noise)).tolist()
        if number % 5 == 2:
            p[0] = -math.inf
        length = chance.randint(3, 12)
        pairs.append(
            Pair(
                prefix=tuple(
                    chance.randrange(material.vocab_size) for _ in range(length)
                ),
                draft=draft,
                target=target,
                logprobs=tuple(raw),
                hidden=torch.randn(n, material.hidden_size, generator=noise),
                target_sampling=tuple(p),
                draft_sampling=() if number % 7 == 4 else tuple(q),
                stream=Stream.root(seed).fold_in(number),
                index=number % 5,
                prompt=2,
            )
        )
    return pairs


def only(pair: Pair, needs: Requires) -> Pair:
    """The pair with only what a verifier requires."""
    fields = {
        "target": Requires.TARGET_STEP,
        "logprobs": Requires.TARGET_LOGPROBS,
        "hidden": Requires.HIDDEN,
        "target_sampling": Requires.SAMPLING_LOGPROBS,
        "draft_sampling": Requires.SAMPLING_LOGPROBS,
    }
    dropped = {name: None for name, need in fields.items() if need not in needs}
    return replace(pair, **dropped)  # type: ignore[arg-type]


def alike(a: Verdict | None, b: Verdict | None) -> bool:
    """Whether two verdicts are the same, with scores equal up to rounding."""
    if a is None or b is None:
        return a is b
    close = a.score == b.score
    if a.score is not None and b.score is not None:
        close = math.isclose(a.score, b.score, rel_tol=1e-5, abs_tol=1e-6)
    return a.aligned == b.aligned and close


def verifier_of(variant: Variant) -> Verifier:
    """The variant's verifier, which it has."""
    assert variant.verifier is not None
    return variant.verifier


def judged(variant: Variant, pair: Pair) -> Verdict:
    """The verdict on a pair alone."""
    return verdicts_of(verifier_of(variant), [pair])[0]


def check_verifier(findings: Findings, make: Make, material: Material) -> None:
    """One verdict per pair, by this pair alone; `requires` is enough; no pair is kept
    or changed."""
    verifier = verifier_of(make())
    needs = verifier.requires
    full = random_pairs(24, material)
    pairs = [only(pair, needs) for pair in full]
    each = same_everywhere(findings, make, judged, pairs, equal=alike)
    if len({verdict.aligned for verdict in each}) == 1:
        findings.remarks.append(f"all random pairs: aligned is {each[0].aligned}")

    statement = "a verdict depends on its own pair alone, not on its batch"
    numbers = list(range(len(pairs)))
    for batch in (numbers, numbers[::-1], numbers[::2] * 2):
        verdicts = verdicts_of(verifier_of(make()), [pairs[i] for i in batch])
        for i, verdict in zip(batch, verdicts, strict=True):
            instead = f"{verdict} and {each[i]}"
            findings.must(alike(verdict, each[i]), statement, instead)
    nothing = verifier.judge([])
    findings.must(nothing == [], "no pairs give no verdicts", nothing)
    statement = "a pair that holds more than `requires` names gets the same verdict"
    for pair, verdict in zip(random_pairs(24, material), each, strict=True):
        more = judged(make(), pair)
        findings.must(alike(more, verdict), statement, f"{more} and {verdict}")
    for pair, untouched in zip(full, random_pairs(24, material), strict=True):
        assert pair.hidden is not None and untouched.hidden is not None
        same = torch.equal(pair.hidden, untouched.hidden)
        findings.must(same, "the hidden states are left as they are", "other numbers")

    if verifier.early_requires is not None:

        def early(variant: Variant, pair: Pair) -> Verdict | None:
            return all_verdicts_of(verifier_of(variant), [pair])[0]

        bare = [only(pair, verifier.early_requires) for pair in full]
        first = same_everywhere(findings, make, early, bare, equal=alike)
        sure = sum(verdict is not None for verdict in first)
        findings.remarks.append(f"sure early about {sure} of {len(first)} random pairs")
    if type(verifier).choose is not Verifier.choose:
        _check_choose(findings, make, material)

    pairs = [only(pair, needs) for pair in random_pairs(40, material, seed=1)]
    alive = [weakref.ref(pair) for pair in pairs]
    while pairs:
        verifier.judge([pairs.pop()])
    gc.collect()
    kept = sum(reference() is not None for reference in alive)
    findings.must(kept <= 10, "no pair is kept (no leak)", f"{kept} of 40 still held")


def random_places(material: Material) -> Iterator[Place]:
    """Places of up to 4 alternatives with all verdicts, shown one more at a time."""
    chance = random.Random(2)
    for width in (1, 2, 3, 4):
        for bits in range(2**width):
            pairs = random_pairs(width, material, seed=chance.getrandbits(20))
            scores = [round(chance.random(), 3) for _ in pairs]
            aligned = [bool(bits >> j & 1) for j in range(width)]
            verdicts = [
                Verdict(a, "kit", s) for a, s in zip(aligned, scores, strict=True)
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


def _check_choose(findings: Findings, make: Make, material: Material) -> None:
    def choose(variant: Variant, place: Place) -> Any:
        choice = verifier_of(variant).choose(place)
        check_choice(choice, place)
        return choice

    places = list(random_places(material))
    choices = same_everywhere(findings, make, choose, places)
    if not any(isinstance(choice, Wait) for choice in choices):
        findings.remarks.append("choose never waits, so it compares no alternatives")


def check_controller(findings: Findings, make: Make, material: Material) -> None:
    """Equal answers for equal histories; two answers share nothing."""

    def answers(variant: Variant, history: Sequence[Progress]) -> list[Any]:
        controller = variant.make("controller")
        numbers = []
        for progress in history:
            depth, tokens = controller.depth(progress), controller.tokens(progress)
            check_number("controller", controller.depth, depth, 0)
            if tokens is not None:
                check_number("controller", controller.tokens, tokens, 0)
            numbers.append((depth, tokens))
        return numbers

    chance = random.Random(4)
    histories = []
    for share in (0.2, 0.6, 0.9):
        accepted, history = 0, []
        for steps in range(1, 21):
            accepted += chance.random() < share
            history.append(Progress(steps, 9 * steps, accepted, steps, 2 * steps))
        histories.append(history)
    same_everywhere(findings, make, answers, histories)


def check_step_source(findings: Findings, make: Make, material: Material) -> None:
    """A pure function of the tokens, which it does not change."""

    def steps_after(variant: Variant, question: tuple[list[int], int]) -> list[Any]:
        source = variant.step_source
        assert source is not None
        before, width = question
        tokens = list(before)
        steps = source.steps_after(tokens, 2, width)
        check_steps(source, steps, width, material.vocab_size)
        findings.must(tokens == before, "the tokens are left as they are", tokens)
        return [None if step is None else tuple(step) for step in steps]

    chance = random.Random(5)
    texts = [
        [chance.randrange(material.vocab_size) for _ in range(n)] * 2
        for n in range(2, 30)
    ]
    questions = [(text, 1 + len(text) % 3) for text in texts]
    same_everywhere(findings, make, steps_after, questions)


def check_corrector(findings: Findings, make: Make, material: Material) -> None:
    """Pure functions; a correction begins like a rejected step; some step is kept."""

    def correct(variant: Variant, question: tuple[Correction, Step, float]) -> Any:
        corrector = variant.corrector
        assert corrector is not None
        correction, step, number = question
        begun = corrector.begin(correction)
        longest = len(correction.rejected[0].draft.tokens)
        check_begun(corrector, begun, correction.rejected, longest + 1)
        keeps = corrector.keep(correction, step, number)
        check_bool("corrector", corrector.keep, keeps)
        return tuple(begun), keeps

    chance = random.Random(6)
    questions = []
    for number, pair in enumerate(random_pairs(24, material)):
        step = random_step(chance, material)
        logprobs = tuple(-4 * chance.random() for _ in step.tokens)
        sampling = SamplingParams()
        correction = Correction(pair.prefix, (pair,), sampling, number % 3, logprobs, 2)
        # Every fourth number is 0: there a draw keeps what it can keep at all.
        questions.append((correction, step, chance.random() if number % 4 else 0.0))
    answers = same_everywhere(findings, make, correct, questions)
    kept = any(keeps for _, keeps in answers)
    findings.must(kept, "some step of the target is kept", "none of 24: no end")


def check_segmenter(findings: Findings, make: Make, material: Material) -> None:
    """Equal boundaries for equal tokens, a new object for each step, steps that end."""
    pieces = [b".", b"\n", b"\n\n", b" ", b". ", b".\n\n", b"So", b"Wait", b"?", b","]
    pieces += [bytes([97 + n % 26]) * (1 + n % 3) for n in range(50)]

    def ends(variant: Variant, tokens: Sequence[int]) -> tuple[int, ...]:
        def begin() -> Any:
            return variant.make("segmenter", pieces.__getitem__)

        segmenter, places = begin(), []
        for place, token in enumerate(tokens):
            complete = segmenter.feed(token)
            check_bool("segmenter", segmenter.feed, complete)
            if complete:
                places.append(place)
                segmenter = begin()
        return tuple(places)

    chance = random.Random(7)
    texts = [[chance.randrange(len(pieces)) for _ in range(120)] for _ in range(12)]
    places = same_everywhere(findings, make, ends, texts)
    findings.must(any(places), "steps end", "no boundary in 1,440 random tokens")
