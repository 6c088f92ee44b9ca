"""What traces say about time and acceptance: the cost of a pass, and the work of an
answer.

A pass over n rows (branches) that adds m tokens beyond the first of each row takes
about

    first + row (n - 1) + token m    seconds

This line, one per model, fitted to the passes of real runs (`PassCost.fit`), is the
only cost model of this package: calibration, prediction and `lr bench step`
all use it. In runs on one thread (lockstep) the time between two passes (sampling,
forks, the scheduler) counts towards the pass that ends it; only verdicts are counted
apart. So the parts add up to the whole.

Example, a synchronous cycle of two drafts: draft, draft, ... | target reads draft step
1 (1 row, many tokens) | target reads step 2 with the first tokens of all rows (3 rows,
more tokens than rows) | target, target, ... (one token per row). Read next:
`calibration.py`, `predicted.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from lr.spec.protocol import Emit
from lr.trace import (
    ForwardPass,
    RunEvent,
    StepWritten,
    TokenRound,
    TokenRounds,
    VerifierCall,
)
from lr.types import Role

Timed = tuple[float, RunEvent]
"""(time of the event in seconds, event)."""
Passes = dict[tuple[int, int], tuple[int, float]]
"""(rows, tokens beyond the first of each row) -> (number of passes, their total
seconds)."""
Spans = list[tuple[float, float]]
"""(begin, end) of pieces of work."""


def covered(spans: Spans) -> float:
    """The length of the union of spans (begin, end). Example: (0, 2), (1, 3), (5, 6)
    cover 4."""
    total = reached = 0.0
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


@dataclass(frozen=True)
class PassCost:
    """Seconds: `first` for one row of one token, `row` per extra row, `token` per extra
    token."""

    first: float
    row: float = 0.0
    token: float = 0.0

    @classmethod
    def fit(cls, runs: Iterable[Passes]) -> PassCost:
        """Non-negative least squares over all passes; a part that does not vary costs
        0. The best fit is a plain one of some of the three parts; all choices are
        tried, small ones first."""
        groups = [(*key, *value) for passes in runs for key, value in passes.items()]
        if not groups:
            return cls(0.0)
        rows, more, count, total = np.array(groups, dtype=float).T
        columns = np.stack([np.ones_like(rows), rows - 1, more], axis=1)
        weight, best, least = np.sqrt(count), np.zeros(3), np.inf
        columns, seconds = columns * weight[:, None], total / count * weight
        # scipy.optimize.nnls computes the same, but scripts/gpu_check.py must run
        # without scipy
        for parts in ([0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]):
            found = np.zeros(3)
            found[parts] = np.linalg.lstsq(columns[:, parts], seconds, rcond=None)[0]
            error = float(np.linalg.norm(columns @ found - seconds))
            if (found >= 0).all() and error < least - 1e-9 * float(
                np.linalg.norm(seconds)
            ):
                best, least = found, error
        return cls(*map(float, best))

    def seconds(self, rows: float, more: float = 0.0) -> float:
        """The time of a pass over `rows` rows with `more` tokens beyond the first of
        each."""
        return self.first + self.row * (rows - 1) + self.token * more


@dataclass(frozen=True)
class Load:
    """The work of answers in one way of decoding, independent of what a pass costs.

    `acceptance`: the share of draft steps accepted. `target_passes`: passes of the
    target for each step; `draft_lengths`: tokens of each draft step; `chain_lengths`:
    steps of each answer (empty: an endless chain). `proposed`: tokens beyond the first
    in each row of a target pass; `draft_passes`: passes of the draft model that propose
    them (0: prompt lookup). A draft pass that writes a step reads `looked_up` draft
    tokens and adds `draft_tokens`. `verdict`: seconds per pair; `start`: seconds for
    both prompts."""

    acceptance: float
    target_passes: Sequence[float]
    draft_lengths: Sequence[int]
    chain_lengths: Sequence[int] = ()
    proposed: float = 0.0
    draft_passes: float = 0.0
    looked_up: float = 0.0
    draft_tokens: float = 1.0
    verdict: float = 0.0
    start: float = 0.0


@dataclass
class Answers:
    """What traces show of one way of decoding, added up over its answers. `judged`,
    `accepted`: by alternative: 0 for the first, 1 for the second, judged where the
    first was rejected, and so on. `start`: seconds for the prompts; `passes`: all later
    passes, by answer and model."""

    judged: Counter[int] = field(default_factory=Counter)
    accepted: Counter[int] = field(default_factory=Counter)
    verdict_seconds: float = 0.0
    pairs: int = 0
    start: float = 0.0
    passes: list[dict[Role, Passes]] = field(default_factory=list)
    rounds: dict[Role, TokenRounds] = field(
        default_factory=lambda: {role: TokenRounds() for role in Role}
    )
    chain_lengths: list[int] = field(default_factory=list)
    lengths: dict[Role, list[int]] = field(
        default_factory=lambda: {role: [] for role in Role}
    )
    emitted: list[int] = field(default_factory=list)

    def add(self, events: Sequence[Timed], *, alone: bool = True) -> None:
        """Add one answer. `alone`: only one model runs at a time, so a pass takes the
        time since the previous pass ended. Otherwise only the time of its own forward
        counts."""
        passes: dict[Role, Passes] = {Role.TARGET: {}, Role.DRAFT: {}}
        before, last, met = len(self.emitted), 0.0, set[Role]()
        for time, event in events:
            match event:
                case ForwardPass(role, rows, tokens, own):
                    seconds, last = time - last if alone else own, time
                    if role in met:
                        shape = rows, tokens - rows
                        count, total = passes[role].get(shape, (0, 0.0))
                        passes[role][shape] = count + 1, total + seconds
                    else:  # the prompt, which counts as no pass
                        self.start += seconds
                    met.add(role)
                case StepWritten(role, _, step):
                    self.lengths[role].append(len(step.tokens))
                case VerifierCall(pairs, seconds):
                    last += seconds
                    self.pairs += pairs
                    self.verdict_seconds += seconds
                case TokenRound(role):
                    self.rounds[role] += TokenRounds.of([event])
                case Emit(emitted, verdicts):
                    self.judged.update(range(len(verdicts)))
                    self.accepted.update(
                        i for i, one in enumerate(verdicts) if one.aligned
                    )
                    self.emitted.append(len(emitted.step.tokens))
        self.chain_lengths.append(len(self.emitted) - before)
        self.passes.append(passes)

    def load(self, *, lookup: bool, start: float = 0.0) -> Load:
        """The work of these answers. `lookup`: token drafts are looked up, at no
        cost."""
        rounds, own = self.rounds[Role.TARGET], self.rounds[Role.DRAFT]
        per_pass = rounds.emitted / rounds.count if rounds.count else 1.0
        proposed = rounds.drafted / rounds.count if rounds.count else 0.0
        return Load(
            acceptance=self.accepted[0] / self.judged[0] if self.judged else 0.0,
            target_passes=[
                n / per_pass for n in self.lengths[Role.TARGET] or self.emitted
            ],
            draft_lengths=self.lengths[Role.DRAFT],
            chain_lengths=self.chain_lengths,
            proposed=proposed,
            draft_passes=0.0 if lookup else proposed,
            looked_up=own.drafted / own.count if own.count else 0.0,
            draft_tokens=own.emitted / own.count if own.count else 1.0,
            verdict=self.verdict_seconds / self.pairs if self.pairs else 0.0,
            start=start,
        )


@dataclass
class Seen:
    """What the runs of one problem showed, on one thread; problems are the independent
    units of a calibration.

    `plain`: decoding without speculation. `lookahead`: synchronous Lookahead Reasoning.
    `tokens`: token-level speculation with the draft model. `pairs`: lookahead with two
    alternatives per position. `both`: speculation on both levels, run for the cost of
    its passes."""

    plain: Answers = field(default_factory=Answers)
    lookahead: Answers = field(default_factory=Answers)
    tokens: Answers = field(default_factory=Answers)
    pairs: Answers = field(default_factory=Answers)
    both: Answers = field(default_factory=Answers)
