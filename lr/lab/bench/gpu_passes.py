"""One model by itself: milliseconds per step of plain decoding at several batch sizes, and of
reading a prompt, each beside its floor.

Decoding is timed as it is used: a `StepWriter` with keyed sampling on the paged cache, so a step is
a forward, the choice of a token per row, and the host's work between two. Read next: `roofline.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lr.engine.runner import ModelRunner
from lr.lab.bench.process import ReplayedLengths
from lr.lab.bench.report import Spread
from lr.lab.bench.roofline import Cost, Peaks, pass_cost, wait_for
from lr.model.qwen import CausalLM
from lr.rng import Stream
from lr.spec.write import StepJob, StepWriter
from lr.theory.distributions import Constant
from lr.trace import Trace
from lr.types import Role, SamplingParams


@dataclass(frozen=True)
class PassRow:
    """`what` was timed: `seconds` per step in every repeat; `cost`: what a step must do at
    least.
    """

    model: str
    what: str
    tokens_per_step: int
    seconds: tuple[float, ...]
    cost: Cost

    @property
    def spread(self) -> Spread:
        """Of the seconds."""
        return Spread.of(self.seconds)

    def share(self, peaks: Peaks) -> float:
        """The floor as a share of the time: 1 is the roofline."""
        return self.cost.seconds(peaks) / self.spread.median

    def figures(self, peaks: Peaks) -> dict[str, Any]:
        """For a report."""
        return asdict(self) | {
            "median_seconds": self.spread.median,
            "limit_seconds": self.cost.seconds(peaks),
            "bound": self.cost.bound(peaks),
            "share_of_limit": self.share(peaks),
        }


@dataclass(frozen=True)
class PassPlan:
    """How much is timed: `tokens` steps behind `prompt` tokens, `repeats` times, at each of
    `batches`.
    """

    batches: Sequence[int]
    prompt: int
    tokens: int
    repeats: int

    @property
    def runs(self) -> int:
        """How often something is timed per model, the first of each included, which does not
        count.
        """
        return (len(self.batches) + 1) * (self.repeats + 1)


def time_passes(
    name: str,
    model: CausalLM,
    sampling: SamplingParams,
    plan: PassPlan,
    progress: Callable[[], None] = lambda: None,
) -> list[PassRow]:
    """A row per batch size, and one for the prompt. `progress` is called after each of `plan.runs`
    runs.
    """
    prompt = [(7 * i + 3) % model.config.vocab_size for i in range(plan.prompt)]
    rows = []
    for batch in plan.batches:
        runner = _runner(
            model, batch, plan.prompt + plan.tokens
        )  # kept: what is recorded of its forwards is recorded once
        seconds = []
        for _ in range(plan.repeats + 1):
            seconds.append(_decode(runner, sampling, prompt, batch, plan.tokens) / plan.tokens)
            progress()
        length = plan.prompt + plan.tokens / 2
        cost = pass_cost(model.config, model.dtype, [1] * batch, [length] * batch, batch)
        rows.append(PassRow(name, f"decode, batch {batch}", batch, tuple(seconds[1:]), cost))
    runner = _runner(model, 1, plan.prompt)
    seconds = []
    for _ in range(plan.repeats + 1):
        seconds.append(_read(runner, prompt))
        progress()
    cost = pass_cost(model.config, model.dtype, [plan.prompt], [plan.prompt], 1)
    return [*rows, PassRow(name, f"prompt of {plan.prompt}", plan.prompt, tuple(seconds[1:]), cost)]


def _runner(model: CausalLM, rows: int, length: int) -> ModelRunner:
    return ModelRunner(model, num_blocks=rows * (length // model.attention.block_size + 2))


def _decode(
    runner: ModelRunner, sampling: SamplingParams, prompt: Sequence[int], rows: int, steps: int
) -> float:
    """Seconds of `steps` tokens behind `rows` copies of a prompt that was read before."""
    branches = [runner.open(prompt[:-1]) for _ in range(rows)]
    runner.feed(branches)
    for branch in branches:
        branch.append(prompt[-1])
    stream, segmenter = (
        Stream.root(0).child("bench"),
        ReplayedLengths(Constant(steps), Stream.root(0)),
    )
    writer = StepWriter(Role.TARGET, runner, sampling, segmenter, frozenset(), stream, Trace())
    wait_for(runner.model.device)
    started = time.perf_counter()
    writer.write([StepJob(branch, index, steps) for index, branch in enumerate(branches)])
    seconds = time.perf_counter() - started
    for branch in branches:
        runner.close(branch)
    return seconds


def _read(runner: ModelRunner, prompt: Sequence[int]) -> float:
    """Seconds to read a prompt."""
    branch = runner.open(prompt)
    wait_for(runner.model.device)
    started = time.perf_counter()
    runner.feed([branch])
    wait_for(runner.model.device)
    seconds = time.perf_counter() - started
    runner.close(branch)
    return seconds
