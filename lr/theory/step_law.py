"""The exact law of an answer, step by step: the scheduler itself, with every draw
explored. It shows whether a verifier is lossless at the level of steps.

Target and draft are any functions from a text to the distribution of its next token.
Token 0 ends a step. `step_law` runs the real scheduler on steps that are drawn from
them, token by token, once for every way in which the draws can fall; the answer that
comes out gets the product of their probabilities. For a lossless verifier the sum is
the law of the target alone, which is the same function at depth 0, up to rounding.

Example: a verifier that accepts equal steps is lossless. One that accepts a draft step
with probability min(1, p/q) is not, because the correction is the target's own step; a
`corrector` that draws it from the residual makes it lossless. So does the ratio of both
steps (`tests/theory/test_step_law.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from lr.spec.protocol import (
    Drafted,
    Emit,
    Event,
    Judged,
    NodeId,
    SchedulerConfig,
    Targeted,
    WorkKind,
)
from lr.spec.scheduler import LookaheadScheduler
from lr.spec.verifiers.base import Pair, Verifier, verdicts_of
from lr.theory.exact import Model
from lr.types import Finish, Step, Verdict

T = TypeVar("T")
Text = tuple[int, ...]
Law = dict[Text, float]
Verdicts = Callable[[Pair], Mapping[Verdict, float]]
"""The possible verdicts on a pair, with their probabilities."""
Corrector = Callable[[Text, Step], Mapping[Step, float]]
"""The possible corrections of a rejected draft step after a text, likewise."""
Exploration = Generator[Sequence[float], int, T]
"""Yields the probabilities of some numbers, and is sent the number that is drawn."""
STEP_END = 0


def step_law(
    verifier: Verifier | Verdicts,
    target: Model,
    draft: Model,
    config: SchedulerConfig,
    corrector: Corrector | None = None,
) -> Law:
    """The probability of every answer, as its tokens. Limits in `config` keep it small.

    A verifier that draws (`pair.stream`) is given as a function to its verdicts and
    their probabilities. `corrector`: for verifiers that need no target step; without
    one, the target corrects, as in an answer."""
    return explore(partial(answer, verifier, target, draft, config, corrector))


def explore(begin: Callable[[], Exploration[T]]) -> dict[T, float]:
    """Every result of `begin`, with its probability."""
    law: dict[T, float] = defaultdict(float)
    waiting: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    while waiting:
        # Repeat the draws so far; at the next one, continue with every number.
        drawn, weight = waiting.pop()
        run = begin()
        try:
            chances = next(run)
            for number in drawn:
                chances = run.send(number)
        except StopIteration as complete:
            law[complete.value] += weight
        else:
            for number, chance in enumerate(chances):
                if chance > 0:
                    waiting.append(((*drawn, number), weight * chance))
    return law


def draw_from(law: Mapping[T, float]) -> Exploration[T]:
    """One of the values of a law."""
    number = yield list(law.values())
    return list(law)[number]


def answer(
    verifier: Verifier | Verdicts,
    target: Model,
    draft: Model,
    config: SchedulerConfig,
    corrector: Corrector | None,
) -> Exploration[Text]:
    """One answer. Of all work the oldest is done first."""
    scheduler = LookaheadScheduler(config)
    texts: dict[NodeId, Text] = {scheduler.root.id: ()}
    own: dict[NodeId, Step] = {}  # the target's steps
    emitted: Text = ()
    scheduler.start()
    while not scheduler.done:
        (kind, name), node = next(iter(scheduler.work.items()))
        parent = name if kind is WorkKind.TARGET else name.parent(config.width)
        text = texts[parent]
        event: Event
        if kind is WorkKind.TARGET:
            rejected = [child.step for child in node.children if child.step]
            if corrector is not None and rejected:
                own[name] = yield from draw_from(corrector(text, rejected[-1]))
            else:
                own[name] = yield from draw_step(target, text, node.limit, node.begun)
            event = Targeted(name, own[name])
        elif kind is WorkKind.DRAFT:
            step = yield from draw_step(draft, text, node.limit)
            texts[name] = text + step.tokens
            event = Drafted(name, step)
        else:
            assert node.step is not None
            pair = Pair(
                prefix=text,
                draft_step=node.step,
                own_step=own.get(parent),
                logprobs=logs(target, text, node.step),
                draft_logprobs=logs(draft, text, node.step),
            )
            if isinstance(verifier, Verifier):
                [verdict] = verdicts_of(verifier, (pair,))
            else:
                verdict = yield from draw_from(verifier(pair))
            event = Judged(name, verdict)
        for command in scheduler.handle(event):
            if isinstance(command, Emit):
                emitted += command.emitted.step.tokens
                texts[command.root or name] = emitted
    return emitted


def draw_step(
    model: Model, text: Text, limit: int, begun: Text = ()
) -> Exploration[Step]:
    """A step after `text`, drawn from the model; its first tokens may be there."""
    tokens = begun
    while len(tokens) < limit and tokens[-1:] != (STEP_END,):
        token = yield model(text + tokens).tolist()
        tokens += (token,)
    ends = tokens[-1] == STEP_END
    return Step(tokens, Finish.BOUNDARY if ends else Finish.LENGTH)


def logs(model: Model, text: Text, step: Step) -> tuple[float, ...]:
    """The log-probabilities of a step's tokens after a text."""
    return tuple(
        float(model(text + step.tokens[:place])[token].log())
        for place, token in enumerate(step.tokens)
    )


def largest_difference(first: Law, second: Law) -> float:
    """Between the probabilities of an answer in two laws."""
    return max(
        abs(first.get(text, 0) - second.get(text, 0)) for text in {*first, *second}
    )
