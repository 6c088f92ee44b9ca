"""The simulated twin of a calibrated pair of models: the formula's world first, then one thing
after the other that the formula leaves out.

Each refinement is a switch, in the order of `LADDER`; with none of them the simulation is the
closed form's world (`FORMULA`).

    chains    answers end after so many steps, and begin with a prompt
    lengths   steps are of the lengths that were recorded, not all alike
    batch     n target rows make each other 1 + b (n - 1) times as slow; a lone one is slower than in plain decoding, too; drafted tokens
              make a pass wider, and a round pays for its turn of the draft
    judge     a verdict takes v
    reading   the target must read a draft step before it can write behind it
    thread    draft and target take turns on one thread (the lockstep driver), and pay for every turn, instead of a machine each

The unit of time is T, a target step of mean length. This module knows no model. Read next:
`replayed.py`, `lr/theory/simulate.py`.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lr.spec.protocol import Limits, Schedule, SchedulerConfig
from lr.theory.calibration import Calibration, mean
from lr.theory.chance import Bernoulli, Constant, Duration, Resampled
from lr.theory.simulate import ENDLESS, World, simulate
from lr.theory.token_level import sd_tokens
from lr.types import require

LADDER = ("chains", "lengths", "batch", "judge", "reading", "thread")
FORMULA: tuple[str, ...] = ()
DRAFT_TICKS = 8
"""Draft forwards per target forward of the lockstep driver, by default."""


@dataclass(frozen=True)
class Twin:
    """A calibration with the refinements that are switched on. `tokens`: k drafted tokens per round
    inside the target's steps (0: none).
    """

    calibration: Calibration
    refinements: Collection[str] = LADDER
    tokens: int = 0

    def __post_init__(self) -> None:
        unknown = sorted(set(self.refinements) - set(LADDER))
        require(not unknown, "refinements", unknown, f"some of {', '.join(LADDER)}")
        require(self.tokens >= 0, "tokens", self.tokens, "a whole number >= 0")

    def round_cost(self, lone: float) -> float:
        """A round of one row, in plain target passes: the pass (`lone` without drafted tokens), k
        c2 + k b_positions, the turn.
        """
        found, batch = self.calibration, "batch" in self.refinements
        wider = (
            found.turn.value + self.tokens * found.b_positions.value
            if batch and self.tokens
            else 0.0
        )
        return lone + self.tokens * found.c2.value + wider

    def token_speed(self, lone: float) -> float:
        """How many times as fast as in plain decoding a lone target step is written, with
        `tokens`.
        """
        alpha, lengths = self.calibration.alpha2.value, self.calibration.target_lengths
        if "lengths" not in self.refinements or not lengths:
            return float(sd_tokens(alpha, self.tokens)) / self.round_cost(lone)
        rounds = rounds_per_step(alpha, self.tokens, max(lengths))
        return sum(lengths) / sum(rounds[n] for n in lengths) / self.round_cost(lone)

    @property
    def lone(self) -> float:
        """The pass of a lone row in a run with lookahead, in those of plain decoding."""
        return self.calibration.pace.value if "batch" in self.refinements else 1.0

    @property
    def overhead(self) -> float:
        """What a further row costs a batch, as a share of one row: with rounds, its own drafts and
        positions too.

        A batch of n rows takes lone (1 + b (n-1)) + k c2 (1 + b_draft (n-1)) + n k b_positions +
        turn.
        """
        if "batch" not in self.refinements:
            return 0.0
        found, k = self.calibration, self.tokens
        row = found.b.value * self.lone + k * (
            found.c2.value * found.b_draft.value + found.b_positions.value
        )
        return row / self.round_cost(self.lone)

    def world(self, schedule: Schedule, depth: int, seed: int = 0) -> World:
        """What the scheduler runs on."""
        found, on = self.calibration, set(self.refinements)
        round_cost = self.round_cost(self.lone)
        return World(
            Bernoulli(found.alpha1.value),
            target=self._target_steps(),
            draft=self._duration(found.c1.value, found.draft_lengths),
            judge=Constant(found.v.value if "judge" in on else 0.0),
            target_overhead=self.overhead,
            reading=found.reading_of(depth, barrier=schedule is Schedule.SYNC)
            if "reading" in on
            else 0.0,
            draft_turns=DRAFT_TICKS * found.token_ratio / round_cost if "thread" in on else None,
            change=0.0
            if self.tokens
            else found.turn.value / round_cost,  # a round has its turn already
            seed=seed,
        )

    def _target_steps(self) -> Duration:
        """The time of a lone target step. With tokens, rounds are drawn for each recorded length: a
        batch waits for its unluckiest row.
        """
        found = self.calibration
        if not self.tokens or "lengths" not in self.refinements or not found.target_lengths:
            return self._duration(1 / self.token_speed(self.lone), found.target_lengths)
        chance, unit = random.Random(0), self.round_cost(self.lone) / mean(found.target_lengths)
        law = round_law(found.alpha2.value, self.tokens)
        draws = max(1, 400 // len(found.target_lengths))
        return Resampled(
            [
                drawn_rounds(law, n, chance) * unit
                for n in found.target_lengths
                for _ in range(draws)
            ]
        )

    def _duration(self, average: float, lengths: tuple[int, ...]) -> Duration:
        if "lengths" not in self.refinements or not lengths:
            return Constant(average)
        unit = average / mean(lengths)
        return Resampled([n * unit for n in lengths])

    def speedup(self, schedule: Schedule, depth: int, steps: int = 4000, seed: int = 0) -> float:
        """Of lookahead `depth` steps, against plain decoding of as many answers; depth 0: of
        `tokens` alone.

        With chains, both begin with a prompt, the target's being about half of `start`.
        """
        lengths = self.calibration.chain_lengths
        if "chains" not in self.refinements or not lengths:
            if depth == 0:
                return self.token_speed(1.0)
            return simulate(
                SchedulerConfig(ENDLESS, schedule, depth), self.world(schedule, depth, seed), steps
            ).rate
        plain = spent = 0.0
        number = 0
        while plain < steps:
            n = lengths[number % len(lengths)]
            plain += self._plain(n)
            spent += self._spent(schedule, depth, n, seed * 1_000_003 + number)
            number += 1
        return plain / spent

    def _plain(self, steps: int) -> float:
        """The time of plain decoding."""
        return self.calibration.start.value / 2 + steps

    def _spent(self, schedule: Schedule, depth: int, steps: int, seed: int) -> float:
        """The time of an answer of so many steps."""
        half = self.calibration.start.value / 2
        if depth == 0:
            return steps / self.token_speed(1.0) + half * (2 if self.tokens else 1)
        config, world = (
            SchedulerConfig(Limits(steps), schedule, depth),
            self.world(schedule, depth, seed),
        )
        return 2 * half + simulate(config, world, steps).seconds


def rounds_per_step(alpha: float, k: int, longest: int) -> list[float]:
    """Expected rounds for a step of n tokens, n = 0 .. longest: what a round writes behind the
    step's end is dropped.

    m(n) = 1 + sum over i of P(N = i) m(n - i), N being the tokens of a round (1 to k + 1) and m(n)
    = 0 for n <= 0. Example: k = 0: n rounds; alpha = 1, k = 3: ceil(n / 4).
    """
    law = round_law(alpha, k)
    rounds = [0.0]
    for n in range(1, longest + 1):
        rounds.append(1 + sum(p * rounds[n - i] for i, p in enumerate(law, 1) if i < n))
    return rounds


def round_law(alpha: float, k: int) -> list[float]:
    """P(N = i) for i = 1 to k + 1, N being the tokens of a round: those accepted before the first
    rejection, and one more.
    """
    return [alpha ** (i - 1) * (1 - alpha) for i in range(1, k + 1)] + [alpha**k]


def drawn_rounds(law: Sequence[float], length: int, chance: random.Random) -> int:
    """How many rounds it takes to write `length` tokens, this time."""
    rounds = 0
    while length > 0:
        [written] = chance.choices(range(1, len(law) + 1), law)
        length -= written
        rounds += 1
    return rounds
