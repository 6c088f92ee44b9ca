"""The twin of answers that are known: their steps, lengths and verdicts are what they were, and
only times are predicted.

What is left of the gap between twin and models then is no matter of luck, nor of how well
independence describes acceptance or lengths: it is what the twin says a pass, a row, a turn costs.
This module knows no model. Read next: `reality.py`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from lr.spec.protocol import Limits, Schedule, SchedulerConfig
from lr.theory.calibration import Calibration, exactly, mean
from lr.theory.chance import ByPlace, Replay
from lr.theory.observe import Answered
from lr.theory.simulate import simulate
from lr.theory.token_level import sd_tokens
from lr.theory.twin import Twin, drawn_rounds, round_law

DRAWS = 8
"""How often an answer with token-level rounds is simulated: how many rounds a step takes is
drawn.
"""


def replayed(
    twin: Twin,
    schedule: Schedule,
    depth: int,
    answers: Sequence[Answered],
    plain: Sequence[Answered],
) -> float:
    """The speedup of these answers over those of plain decoding to the same questions, times per
    step as `lr theory reality` measures them.

    At least one answer. Depth 0: of token-level speculation alone, in the rounds that there were.
    """
    if twin.tokens:
        twin = replace(twin, calibration=_accepting(twin, answers))
    half = twin.calibration.start.value / 2
    token = 1 / mean(twin.calibration.target_lengths)
    before = sum((half + token * sum(a.target_lengths)) / a.steps for a in plain)
    after = sum(_spent(twin, schedule, depth, a) / a.steps for a in answers)
    return before / after


def acceptance_of(tokens_per_round: float, k: int) -> float:
    """The alpha at which rounds of k drafted tokens write so many on average: `sd_tokens`
    backwards, by bisection.
    """
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if float(sd_tokens(middle, k)) < tokens_per_round else (low, middle)
        )
    return low


def _accepting(twin: Twin, answers: Sequence[Answered]) -> Calibration:
    """The calibration with the alpha2 that explains how many tokens these very rounds accepted."""
    rounds = sum(a.rounds for a in answers)
    if not rounds:
        return twin.calibration
    alpha = acceptance_of(1 + sum(a.tokens_accepted for a in answers) / rounds, twin.tokens)
    return replace(twin.calibration, alpha2=exactly(alpha))


def _spent(twin: Twin, schedule: Schedule, depth: int, answer: Answered) -> float:
    """The time of an answer, in T."""
    found = twin.calibration
    half, target = found.start.value / 2, mean(found.target_lengths)
    if depth == 0:
        return 2 * half + answer.rounds * twin.round_cost(1.0) / target
    drafts = ByPlace([n * found.c1.value / mean(found.draft_lengths) for n in answer.draft_lengths])
    total, draws = 0.0, DRAWS if twin.tokens else 1
    for seed in range(draws):
        chance, law = random.Random(seed), round_law(found.alpha2.value, twin.tokens)
        rows = ByPlace(
            [
                drawn_rounds(law, n, chance) * twin.round_cost(twin.lone) / target
                for n in answer.target_lengths
            ]
        )
        world = replace(
            twin.world(schedule, depth, seed),
            acceptance=Replay(answer.accepted),
            target=rows,
            draft=drafts,
        )
        run = simulate(SchedulerConfig(Limits(answer.steps), schedule, depth), world, answer.steps)
        total += run.seconds
    return 2 * half + total / draws
