"""Answers in turns, and what they amount to: one row per contender and temperature.

Every problem is answered by all contenders one after the other, and the problem after it begins
with the next contender, so that a drift of the machine's speed, and a warm cache, meet all of them
alike. One figure stands for one problem: its tokens per second. A row shows the median and
quartiles over the problems; ratios are taken within a problem. The other shares (acceptance, tokens
per pass) are those of all problems together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from operator import add
from statistics import median
from typing import Any

from lr.lab.bench.timing import Spread
from lr.lab.bench.token import OURS, THEIRS, Answer, Answerer

Ask = Callable[[Answerer, float, int], Answer]
"""A contender's answer at a temperature to the problem of a number."""


@dataclass(frozen=True)
class Row:
    """One contender at one temperature. `to_plain`: how many times as many tokens/s as our own
    plain decoding.

    `peer`: the fastest contender of the other side and the same kind; `to_peer`: how many times its
    tokens/s. None on the other side.
    """

    side: str
    name: str
    kind: str
    temperature: float
    rates: tuple[float, ...]
    total: Answer
    rate: Spread
    to_plain: Spread
    peer: str | None
    to_peer: Spread | None

    @property
    def behind(self) -> bool:
        """Whether the other side's best is faster."""
        return self.to_peer is not None and self.to_peer.median <= 1

    def figures(self) -> dict[str, Any]:
        """For JSON."""
        total = self.total
        names = ("tokens_per_pass", "acceptance_rate", "acceptance_length")
        return asdict(self) | {name: getattr(total, name) for name in names}


def measure(
    contenders: Sequence[Answerer], temperatures: Sequence[float], problems: int, ask: Ask
) -> list[Row]:
    """All contenders on problems 0, 1, ... at every temperature. Problem `problems` warms them up
    and is dropped.
    """
    answers: dict[tuple[float, int], list[Answer]] = {}
    for temperature in temperatures:
        for contender in contenders:
            ask(contender, temperature, problems)
    for number in range(problems):
        for temperature in temperatures:
            for who in in_turn(len(contenders), number):
                answer = ask(contenders[who], temperature, number)
                answers.setdefault((temperature, who), []).append(answer)
    return [
        row
        for t in temperatures
        for row in rows(contenders, t, [answers[t, w] for w in range(len(contenders))])
    ]


def in_turn(count: int, number: int) -> list[int]:
    """The order of problem `number`. Example: 3 contenders, problem 1: (1, 2, 0)."""
    first = number % count
    return [*range(first, count), *range(first)]


def rows(
    contenders: Sequence[Answerer], temperature: float, answers: Sequence[Sequence[Answer]]
) -> list[Row]:
    """The rows of one temperature from every contender's answers, in order; the first contender is
    our plain decoding.
    """
    rates = [tuple(answer.rate for answer in mine) for mine in answers]
    made = []
    for contender, mine, some in zip(contenders, rates, answers, strict=True):
        peer = _peer(contenders, rates, contender) if contender.side == OURS else None
        made.append(
            Row(
                contender.side,
                contender.name,
                contender.kind,
                temperature,
                mine,
                reduce(add, some),
                Spread.of(mine),
                _ratio(mine, rates[0]),
                None if peer is None else contenders[peer].name,
                None if peer is None else _ratio(mine, rates[peer]),
            )
        )
    return made


def _peer(contenders: Sequence[Answerer], rates: Sequence[Sequence[float]], mine: Answerer) -> int:
    others = [i for i, one in enumerate(contenders) if one.side == THEIRS and one.kind == mine.kind]
    return max(others, key=lambda i: median(rates[i]))


def _ratio(mine: Sequence[float], others: Sequence[float]) -> Spread:
    return Spread.of([a / b for a, b in zip(mine, others, strict=True)])
