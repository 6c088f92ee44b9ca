"""The contracts of the parts that decide about steps.

`anew` is a function that returns the part of a new variant: the object of a verifier
or a step source; what makes a controller or a segmenter.
"""

import gc
import math
import random
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from lr.rng import Stream
from lr.spec.checks import check_bool, check_choice, check_number, check_steps
from lr.spec.protocol import Limits, Schedule, SchedulerConfig
from lr.spec.variant import Controller, Place, StepSource
from lr.spec.verifiers.base import Pair, Requires, Verifier, verdicts_of
from lr.spec.write import Segmenter, TokenBytes
from lr.theory.step_law import largest_difference, step_law
from lr.trace import Progress
from lr.types import Finish, Step, Verdict
from lr.variants.kit.findings import EOS, VOCAB_SIZE, Findings, same_everywhere
from lr.variants.kit.tokens import EXACT, HIDDEN_SIZE, random_rows


def random_tokens(chance: random.Random, n: int) -> tuple[int, ...]:
    """Tokens of the vocabulary."""
    return tuple(chance.choices(range(VOCAB_SIZE), k=n))


def random_step(chance: random.Random, length: int) -> Step:
    """A step of random tokens; every fifth also ends the text."""
    tokens = random_tokens(chance, length)
    if chance.random() < 0.2:
        return Step((*tokens, EOS), Finish.EOS)
    return Step(tokens, Finish.BOUNDARY)


def random_pairs(count: int, seed: int = 0) -> list[Pair]:
    """Random pairs with everything that can be required, and the rare cases: one token,
    the end of the text, equal steps, the same draft after another prefix, a draft
    that no model drew."""
    chance = random.Random(seed)
    pairs: list[Pair] = []
    for number in range(count):
        length = 1 if number % 4 == 1 else chance.randint(1, 9)
        draft = random_step(chance, length)
        if number % 4 == 3:
            # after another prefix, with other probabilities
            draft = pairs[-1].draft_step
        target = random_step(chance, chance.randint(1, 9))
        if number % 3 == 0 or target.finish is not draft.finish:
            target = draft  # steps that end differently never reach a verifier
        # a sure model, an average one, one that is surprised by every token
        nats = chance.choice([0.01, 1.0, 9.0])
        p, q = ([-nats * chance.random() for _ in draft.tokens] for _ in range(2))
        noise = torch.Generator().manual_seed(number)
        rows = len(draft.tokens) + 1
        pair = Pair(
            prefix=random_tokens(chance, chance.randint(3, 12)),
            draft_step=draft,
            own_step=target,
            logprobs=tuple(p),
            draft_logprobs=() if number % 7 == 4 else tuple(q),
            own_logprobs=tuple(-nats * (token % 9) for token in target.tokens),
            logits=torch.randn(rows, VOCAB_SIZE, generator=noise),
            hidden=torch.randn(rows, HIDDEN_SIZE, generator=noise),
            stream=Stream.root(seed).fold_in(number),
            index=number % 5,
            prompt=2,
        )
        pairs.append(pair)
    return pairs


def reduced(pairs: Sequence[Pair], needs: Requires) -> list[Pair]:
    """The pairs with only what a verifier requires."""
    fields = {
        "own_step": Requires.TARGET_STEP,
        "logprobs": Requires.TARGET_LOGPROBS,
        "draft_logprobs": Requires.DRAFT_LOGPROBS,
        "own_logprobs": Requires.OWN_LOGPROBS,
        "logits": Requires.LOGITS,
        "hidden": Requires.HIDDEN,
    }
    dropped: dict[str, Any] = {
        name: None for name, need in fields.items() if need not in needs
    }
    return [replace(pair, **dropped) for pair in pairs]


def alike(a: Verdict, b: Verdict) -> bool:
    """Whether two verdicts are the same, with scores equal up to rounding."""
    close = math.isclose(a.score or 0, b.score or 0, rel_tol=1e-5, abs_tol=1e-6)
    return close and (a.aligned, a.keep) == (b.aligned, b.keep)


def check_verifier(findings: Findings, anew: Callable[[], Verifier]) -> None:
    """One verdict per pair, by this pair alone; `requires` is enough; no pair is kept
    or changed."""

    def judge(verifier: Verifier, pair: Pair) -> Verdict:
        # A tuple, of which no pair can be taken away; a copy, which is freed at once, so
        # that the next one may have the same `id`.
        return verdicts_of(verifier, (replace(pair),))[0]

    def compare(verdicts: Sequence[Verdict], statement: str) -> None:
        for first, verdict in zip(alone, verdicts, strict=True):
            findings.must(alike(first, verdict), statement, f"{verdict} and {first}")

    verifier = anew()
    full = random_pairs(24)
    pairs = reduced(full, verifier.requires)
    alone = same_everywhere(findings, anew, judge, pairs, equal=alike)
    if len({verdict.aligned for verdict in alone}) == 1:
        findings.remarks.append(f"all random pairs: aligned is {alone[0].aligned}")
    compare(
        verdicts_of(anew(), tuple(pairs[::-1]))[::-1],
        "a verdict depends on its own pair alone, not on its batch",
    )
    findings.equal(verifier.judge([]), [], "no pairs give no verdicts")
    compare(
        [judge(anew(), pair) for pair in full],
        "a pair that holds more than `requires` names gets the same verdict",
    )
    same_everywhere(findings, anew, choose, random_alternatives())
    if verifier.lossless:
        check_lossless(findings, verifier)

    # pairs that nobody else holds: what is alive in the end was kept
    new = reduced(random_pairs(40, seed=1), verifier.requires)
    references = [weakref.ref(pair) for pair in new]
    while new:
        verifier.judge((new.pop(),))
    # cycles hold what nobody keeps
    gc.collect()
    held = sum(reference() is not None for reference in references)
    findings.must(held <= 10, "no pair is kept (no leak)", f"{held} of 40 still held")


def check_lossless(findings: Findings, verifier: Verifier) -> None:
    """The answers have the target's distribution, by exploring the scheduler."""
    config = SchedulerConfig(
        Limits(max_tokens=3, max_step_tokens=2),
        needs_target_step=Requires.TARGET_STEP in verifier.requires,
        choose=verifier.choose if verifier.chooses else None,
    )
    target, draft = (cache(random_rows(seed, 2)) for seed in (1, 2))
    plain = step_law(verifier, target, draft, replace(config, depth=0))
    for schedule, depth, width in ((Schedule.SYNC, 2, 1), (Schedule.DEPTH, 1, 2)):
        ahead = replace(config, schedule=schedule, depth=depth, width=width)
        error = largest_difference(step_law(verifier, target, draft, ahead), plain)
        findings.must(
            error < EXACT,
            "a lossless verifier emits the target's steps, by exploring the scheduler",
            f"probabilities that differ by {error:.3g}",
        )


Alternatives = tuple[list[Step], list[Verdict]]


def choose(verifier: Verifier, alternatives: Alternatives) -> int | None:
    """The verifier's choice, checked as in an answer."""
    choice = verifier.choose(*alternatives)
    check_choice(verifier.choose, choice, alternatives[1])
    return choice


def random_alternatives() -> list[Alternatives]:
    """1 to 4 alternatives, with their verdicts."""
    chance = random.Random(2)
    places = []
    for _ in range(60):
        drafts = [random_step(chance, 4) for _ in range(chance.randint(1, 4))]
        # a step that is rejected by its form has no score
        verdicts = [
            Verdict(score > 0.5, "kit", score if score > 0.25 else None)
            for score in (chance.random() for _ in drafts)
        ]
        places.append((drafts, verdicts))
    return places


def check_controller(
    findings: Findings, anew: Callable[[], Callable[[], Controller]]
) -> None:
    """Equal answers for equal histories, alone and beside another answer."""

    def choice(controller: Controller, progress: Progress) -> tuple[int, int | None]:
        depth, tokens = controller.depth(progress), controller.tokens(progress)
        check_number("controller", controller.depth, depth, 0)
        if tokens is not None:
            check_number("controller", controller.tokens, tokens, 0)
        return depth, tokens

    def choose_depths(
        make: Callable[[], Controller], history: Sequence[Progress]
    ) -> list[Any]:
        controllers = [make(), make()]  # of two answers at the same time
        chosen = []
        for progress in history:
            first, second = (choice(controller, progress) for controller in controllers)
            findings.equal(first, second, "two answers of one process share nothing")
            chosen.append(first)
        return chosen

    chance = random.Random(4)
    histories = []
    # A count of calls has no period that would hide it.
    for share, steps in ((0.2, 17), (0.6, 19), (0.9, 23)):
        aligned = [chance.random() < share for _ in range(steps)]
        progress = [
            Progress(n, 9 * n, sum(aligned[:n]), n, 2 * n) for n in range(1, steps + 1)
        ]
        histories.append(progress)
    same_everywhere(findings, anew, choose_depths, histories)


def check_step_source(findings: Findings, anew: Callable[[], StepSource]) -> None:
    """Steps depend on their places alone, whatever else is in the batch."""

    def write(source: StepSource, places: Sequence[Place]) -> Any:
        steps = source.write(places)
        check_steps(source, steps, len(places), VOCAB_SIZE)
        return [None if step is None else tuple(step) for step in steps]

    chance = random.Random(5)
    texts = [random_tokens(chance, n) for n in range(2, 60)]
    places = [
        Place(text, 2, len(text) % 3, Stream.root(number))
        for number, text in enumerate(texts)
    ]
    alone = same_everywhere(findings, anew, write, [[place] for place in places])
    findings.equal(
        write(anew(), places[::-1])[::-1],
        [step for [step] in alone],
        "a step depends on its own place alone, not on its batch",
    )


def check_segmenter(
    findings: Findings, anew: Callable[[], Callable[[TokenBytes], Segmenter]]
) -> None:
    """Equal boundaries for equal tokens, a new object for each step, steps that end."""
    pieces = [bytes([code]) for code in b"abcdefghijkl .,?!\n\n\n"]
    pieces += [b"\n\n", b".\n\n", b" So", b"Wait"]
    token_bytes = pieces.__getitem__

    def split(
        make: Callable[[TokenBytes], Segmenter], tokens: Sequence[int]
    ) -> list[int]:
        """Where steps end."""
        segmenter = make(token_bytes)
        ends = []
        for position, token in enumerate(tokens):
            complete = segmenter.feed(token)
            check_bool("segmenter", segmenter.feed, complete)
            if complete:
                ends.append(position)
                segmenter = make(token_bytes)
        return ends

    chance = random.Random(7)
    texts = [chance.choices(range(len(pieces)), k=120) for _ in range(12)]
    ends = same_everywhere(findings, anew, split, texts)
    findings.must(any(ends), "steps end", "no boundary in 1,440 random tokens")
