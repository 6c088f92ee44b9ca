"""The letters of the formulas, measured on a pair of models: calibrate, predict
speedups, compare them with a stopwatch.

`calibrate` collects what the formulas need from the traces of real runs: acceptance,
the cost line of a pass (`cost.py`), lengths, the time of a verdict. `closed_form` and
`predicted_speedup` then say what a way of decoding should gain."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

from lr.errors import LRError
from lr.options import GenerateOptions
from lr.theory.asynchronous import Window, lr_async_speedup
from lr.theory.cost import (
    DRAFT_FORWARDS,
    Answers,
    Load,
    PassCost,
    Timed,
    drafted_tokens,
    ratio_or,
    seconds_per_step,
)
from lr.theory.domain import geometric
from lr.theory.synchronous import lr_sync_cycle_speedup, sd_speedup
from lr.types import Role


@dataclass(frozen=True)
class Calibration:
    """A pair of models on one machine, with times in seconds.

    `alpha1`, `alpha2`: the share of judged draft steps, and of tried draft tokens, that
    was accepted. `plain_token`: a token of plain decoding; `target`, `draft`: passes in
    runs with speculation. `verdict`: per pair; `start`: the prompt, for both models.
    Lengths are those of every recorded step (in tokens) and chain (in steps); none: one
    token, an endless chain.
    `errors`: standard errors by name."""

    name: str
    alpha1: float  # accepted / judged draft steps
    alpha2: float  # accepted / tried draft tokens
    plain_token: float  # seconds of a pass of plain decoding
    target: PassCost
    draft: PassCost
    verdict: float = 0.0  # seconds
    start: float = 0.0  # seconds for the prompts, both models
    target_lengths: tuple[int, ...] = ()
    draft_lengths: tuple[int, ...] = ()
    chain_lengths: tuple[int, ...] = ()
    errors: Mapping[str, float] = field(default_factory=dict)  # jackknife, by letter
    conditions: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (0 <= self.alpha1 <= 1 and 0 <= self.alpha2 <= 1):
            raise ValueError("alpha1 and alpha2 are not both probabilities")

    def accepting(self, answers: Answers) -> Calibration:
        """The same costs, with the acceptance rates of `answers`. A rate that they do not
        show stays as it is."""
        rounds = answers.rounds
        return replace(
            self,
            alpha1=ratio_or(answers.accepted, answers.judged, self.alpha1),
            alpha2=ratio_or(rounds.accepted, rounds.tried, self.alpha2),
        )

    def step_tokens(self, options: GenerateOptions) -> float:
        """Mean tokens of an emitted step: lookahead keeps the draft's own."""
        kept = self.alpha1 if options.looks_ahead else 0.0  # the draft's own steps
        by_draft = fmean(self.draft_lengths or (1,))
        return kept * by_draft + (1 - kept) * fmean(self.target_lengths or (1,))

    @property
    def step_seconds(self) -> float:
        """T: a step of mean length in plain decoding."""
        return fmean(self.target_lengths or (1,)) * self.plain_token

    @property
    def c1(self) -> float:
        """A draft step, in T."""
        return fmean(self.draft_lengths or (1,)) * self.draft.first / self.step_seconds

    @property
    def c2(self) -> float:
        """A drafted token, in plain target passes."""
        return self.draft.first / self.plain_token

    @property
    def b(self) -> float:
        """A further row in a target batch, in units of a pass with one row."""
        return self.target.row / self.target.first

    @property
    def v(self) -> float:
        """A verdict, in T."""
        return self.verdict / self.step_seconds

    def expected_load(self, tokens: int = 0) -> Load:
        """The work of answers with `tokens` drafted tokens per round inside the
        target's steps. Rounds per step are drawn several times for each recorded
        length, since a batch waits for the row that needs the most rounds."""
        chance = random.Random(0)  # the same prediction every time
        # at least 400 rounds in all
        draws = 1 + 400 // (len(self.target_lengths) or 1) if tokens else 1
        rounds = [
            float(draw_rounds(self.alpha2, tokens, length, chance))
            for length in self.target_lengths
            for _ in range(draws)
        ]
        return Load(
            acceptance=self.alpha1,
            target_passes=rounds or [1 / float(geometric(self.alpha2, tokens + 1))],
            draft_lengths=self.draft_lengths,
            chain_lengths=self.chain_lengths,
            proposed=tokens,
            verdict=self.verdict,
            start=self.start,
        )

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Read a file. Raises `LRError` with its name and what is wrong."""
        import msgspec

        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, ValueError, RecursionError) as error:
            hint = "Make it with lr calibrate --output FILE."
            raise LRError(f"{path} is not a calibration: {error}. {hint}") from None


def draw_rounds(alpha: float, k: int, length: int, chance: random.Random) -> int:
    """Draw how many rounds of k drafted tokens a step of `length` tokens takes.

    A round writes 1 to k + 1 tokens; tokens beyond the end of the step are dropped.
    Example: ceil(length / 4) for alpha = 1, k = 3."""
    rounds = written = 0
    while written < length:
        # until the first rejection
        accepted = next((i for i in range(k) if chance.random() >= alpha), k)
        rounds += 1
        written += accepted + 1
    return rounds


# ---- measure


ProblemRuns = Mapping[str, Sequence[Timed]]
"""The events of one problem's answers, on one thread; problems are the independent units
of a calibration: "plain" decoding, synchronous "lookahead", "tokens" drafted by the
draft model, and steps and tokens together, "hybrid"."""


def calibrate(
    problems: Sequence[ProblemRuns], name: str, conditions: Mapping[str, Any]
) -> Calibration:
    """All parameters, with jackknife errors over at least two problems."""
    assert len(problems) >= 2
    without = [
        _estimate([*problems[:i], *problems[i + 1 :]], name)
        for i in range(len(problems))
    ]
    errors = {
        letter: jackknife([getattr(estimate, letter) for estimate in without])
        for letter in ("alpha1", "alpha2", "c1", "c2", "b", "v")
    }
    return replace(
        _estimate(problems, name), errors=errors, conditions=dict(conditions)
    )


def _estimate(problems: Sequence[ProblemRuns], name: str) -> Calibration:
    answers: dict[str, Answers] = {way: Answers() for way in problems[0]}
    for runs in problems:
        for way, events in runs.items():
            answers[way].add(events)
    plain = answers.pop("plain")
    # plain passes have other costs
    speculating = [passes for way in answers.values() for passes in way.passes]
    lookahead = answers["lookahead"]
    rounds = answers["tokens"].rounds
    plain_passes = [
        count_and_seconds
        for passes in plain.passes
        for count_and_seconds in passes[Role.TARGET].values()
    ]
    return Calibration(
        name=name,
        alpha1=ratio_or(lookahead.accepted, lookahead.judged),
        alpha2=ratio_or(rounds.accepted, rounds.tried),
        plain_token=ratio_or(
            sum(seconds for _, seconds in plain_passes),
            sum(count for count, _ in plain_passes),
        ),
        target=PassCost.fit(passes[Role.TARGET] for passes in speculating),
        draft=PassCost.fit(passes[Role.DRAFT] for passes in speculating),
        verdict=ratio_or(lookahead.verdict_seconds, lookahead.pairs),
        start=lookahead.start / len(problems),
        target_lengths=tuple(plain.emitted),
        draft_lengths=tuple(lookahead.draft_lengths),
        chain_lengths=tuple(plain.chain_lengths),
    )


def jackknife(estimates: Sequence[float]) -> float:
    """The standard error of an estimate, from the `estimates` that each leave out one of
    n independent problems."""
    mean = fmean(estimates)
    n = len(estimates)
    # Var = (n - 1) / n Σ (estimate - mean)², of estimates that share n - 2 problems.
    return sqrt((n - 1) / n * sum((value - mean) ** 2 for value in estimates))


def ratio_with_error(
    above: Sequence[float], below: Sequence[float]
) -> tuple[float, float]:
    """sum(above) / sum(below) over at least two problems, and its standard error."""
    a = sum(above)
    b = sum(below)
    # each problem left out once
    without = [(a - x) / (b - y) for x, y in zip(above, below, strict=True)]
    return a / b, jackknife(without)


# ---- predict


def closed_form(options: GenerateOptions, calibration: Calibration) -> float:
    """The formula's speedup at the calibrated values, if only the target speculates on
    tokens: it shortens the target's step and so makes the draft's dearer."""
    alpha = calibration.alpha1
    drafted = drafted_tokens(options)
    # Leviathan et al. for k drafts
    tokens = float(sd_speedup(calibration.alpha2, drafted, calibration.c2))
    c = calibration.c1 * tokens  # the target's step is shorter, the draft's is not
    if not options.looks_ahead:
        return tokens
    if options.schedule == "sync":
        return tokens * float(lr_sync_cycle_speedup(alpha, options.depth, c))
    c = min(c, 1 - 1e-9)  # a draft that is no faster than the target gains nothing
    window: Window = "paper" if options.schedule == "paper" else "depth"
    return tokens * float(lr_async_speedup(alpha, options.depth, c, window))


def plain_seconds(calibration: Calibration) -> float:
    """Seconds per step of plain decoding, whose prompt takes about half of both models'
    prompts."""
    load = calibration.expected_load()
    writing = fmean(load.target_passes) * calibration.plain_token
    return writing + calibration.start / 2 / load.steps_per_chain


def predicted_speedup(
    options: GenerateOptions,
    calibration: Calibration,
    draft_forwards: int | None = DRAFT_FORWARDS,
) -> float:
    """Tokens per second, over those of plain decoding, from the calibration alone."""
    load = calibration.expected_load(drafted_tokens(options))
    costs = calibration.target, calibration.draft
    seconds = seconds_per_step(options, load, costs, draft_forwards)
    plain = calibration.step_tokens(GenerateOptions(mode="ar"))
    # steps of the draft have another length
    longer = calibration.step_tokens(options) / plain
    return longer * plain_seconds(calibration) / seconds
