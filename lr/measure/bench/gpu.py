"""`lr bench gpu`: plain decoding and the four modes at real shapes with random weights,
next to the limit of the device.

No pass is faster than the larger of bytes / bandwidth and operations / arithmetic rate,
both rates measured on the spot. Example: 61 GiB of weights at 4 TB/s are 16.4 ms a
token, whatever the batch, until n rows of 2 * 32.8e9 operations take longer: at 700
TFLOP/s from about 175 rows on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch

from lr.engine.runner import ModelRunner
from lr.kvcache.branch import BLOCK_SIZE
from lr.measure.bench import step
from lr.measure.bench.report import BenchWay, conditions, timed, wait_for
from lr.measure.bench.synthetic import Synthetic, SyntheticAnswer, SyntheticVerifier
from lr.model.attention_choice import equip
from lr.model.config import ModelConfig
from lr.model.device import DeviceMap
from lr.model.qwen import CausalLM
from lr.model.weights import load_model, num_weights
from lr.options import GenerateOptions
from lr.reasoner import Reasoner
from lr.rng import Stream
from lr.spec.segmenters import FixedSegmenter
from lr.spec.verifiers.judge import JUDGE_TOKENS
from lr.spec.write import StepJob, StepWriter, WriterConfig
from lr.theory.cost import Answers
from lr.types import Finish, Role, SamplingParams


def write_step(
    runner: ModelRunner,
    sampling: SamplingParams,
    prompt: Sequence[int],
    rows: int,
    tokens: int,
) -> float:
    """Seconds in which a `StepWriter` writes one step of `tokens` tokens after the
    prompt, in each of `rows` sequences, as generation does. Reading the prompt does not
    count."""
    branches = [runner.open(prompt[:-1]) for _ in range(rows)]
    runner.forward(branches)
    for branch in branches:
        branch.append(prompt[-1])
    stream = Stream.root(0).fold_in("bench")
    endless = partial(FixedSegmenter, tokens=tokens + 1)
    config = WriterConfig(Role.TARGET, sampling, frozenset(), endless)
    writer = StepWriter(config, runner, lambda token: b"")
    jobs = [
        StepJob(branch, row, tokens, stream.fold_in(row))
        for row, branch in enumerate(branches)
    ]
    wait_for(runner.model.device)  # a GPU may still be reading the prompts
    started = time.perf_counter()
    writer.begin(jobs)
    while writer.busy:
        writer.poll()
    seconds = time.perf_counter() - started
    for branch in branches:
        runner.close(branch)
    return seconds


@dataclass(frozen=True)
class Rates:
    """What a device did with large tensors: bytes and operations per second."""

    copied: float
    read: float
    flops: float


def measure_rates(
    device: torch.device, dtype: torch.dtype, *, small: bool = False
) -> Rates:
    """Copy, read and multiply on `device`; about a second. `small`: sizes for a test."""
    size, edge = (1 << 24, 256) if small else (1 << 28, 1024)
    if device.type == "cuda" and not small:
        size = min(1 << 32, int(torch.cuda.mem_get_info(device)[0]) // 4)
        edge = 8192
    source = torch.ones(size // 4, dtype=torch.int32, device=device)
    goal = torch.empty_like(source)
    copied = 2 * size / timed(lambda: goal.copy_(source), device)  # read and written
    read = size / timed(source.amax, device)
    left, right = torch.randn(2, edge, edge, device=device).to(dtype)
    return Rates(copied, read, 2 * edge**3 / timed(lambda: left @ right, device))


def least_seconds(
    config: ModelConfig, dtype: torch.dtype, rates: Rates, rows: int, length: int
) -> float:
    """The least time of a pass over `rows` sequences of `length` tokens, one new in
    each: all weights and keys are read once, and every row meets every weight."""
    weights = num_weights(config)
    if not config.tie_word_embeddings:  # of the embedding only some rows are read
        weights -= config.vocab_size * config.hidden_size
    cached = config.cached_per_token * length * rows
    moved = (weights + cached) * dtype.itemsize
    return max(moved / max(rates.copied, rates.read), 2 * weights * rows / rates.flops)


WARM_UP = 160  # tokens of the answer that does not count


@dataclass(frozen=True)
class GpuPlan:
    """What is timed, and how often. `options` are the engine's, but for mode and
    driver; `ways` have plain decoding first; `synthetic` decides. `progress` is called
    after each run."""

    options: GenerateOptions
    ways: Sequence[BenchWay]
    synthetic: Synthetic
    batches: Sequence[int] = (1, 2, 4, 8)
    prompt: int = 512  # tokens before the answer
    steps: int = 64  # tokens of plain decoding that are timed at each batch size
    repeats: int = 3  # once more does not count
    progress: Callable[[], None] = lambda: None


def time_passes(
    name: str, model: CausalLM, plan: GpuPlan, rates: Rates
) -> list[dict[str, Any]]:
    """Seconds per token of plain decoding at each batch size, as it is used."""
    prompt = [(7 * i + 3) % model.config.vocab_size for i in range(plan.prompt)]
    sampling = plan.options.sampling(SamplingParams())
    rows = []
    for batch in plan.batches:
        blocks = batch * ((plan.prompt + plan.steps) // BLOCK_SIZE + 2)
        runner = ModelRunner(model, num_blocks=blocks)
        seconds = []
        for _ in range(plan.repeats + 1):
            spent = write_step(runner, sampling, prompt, batch, plan.steps)
            seconds.append(spent / plan.steps)
            plan.progress()
        runner.end()
        length = plan.prompt + plan.steps // 2
        limit = least_seconds(model.config, model.dtype, rates, batch, length)
        row = {"model": name, "batch": batch, "seconds": seconds[1:], "limit": limit}
        # On CUDA, one row alone has kernels that no other pass can use.
        rows.append(row | {"own_kernels": batch == 1 and model.device.type == "cuda"})
    return rows


def time_modes(reasoner: Reasoner, plan: GpuPlan) -> list[step.BenchTally]:
    """Answer in every way, `plan.repeats` times in turn, each repeat with other draws;
    a short one before them does not count: it pays for what is set up once."""
    same: dict[str, Any] = {
        "depth": plan.options.depth,
        "drafter": plan.options.drafter,
        "driver": "lockstep",
    }
    tallies = [
        step.BenchTally(replace(way, settings=same | way.settings)) for way in plan.ways
    ]
    verifier = reasoner.verifier
    assert isinstance(verifier, SyntheticVerifier)
    judged = dict.fromkeys(range(len(tallies)), 0)
    for repeat in range(plan.repeats + 1):
        max_tokens = plan.options.max_tokens or WARM_UP
        if repeat == 0:
            max_tokens = min(max_tokens, WARM_UP)
        for number, tally in enumerate(tallies):
            options = replace(
                plan.options,
                mode=tally.way.mode,  # type: ignore[arg-type]
                sample=repeat,
                max_tokens=max_tokens,
                **tally.way.settings,
            )
            # Draws of steps go on from answer to answer. A step that was cut is always
            # rejected and uses up none.
            verifier.first = judged[number]
            answer = SyntheticAnswer(
                reasoner.engine, "x" * plan.prompt, options, verifier
            )
            result = answer.finish()
            plan.progress()
            if repeat == 0:
                continue
            judged[number] += sum(s.finish is not Finish.LENGTH for s in result.steps)
            tally.seconds.append(0.0)
            tally.tokens.append(0)
            tally.take(result, result.stats.seconds, right=False)  # nothing is right
    return tallies


def figures(
    tallies: Sequence[step.BenchTally],
    passes: dict[Role, list[dict[str, Any]]],
    plan: GpuPlan,
) -> list[dict[str, Any]]:
    """The ways for a report; the first is plain decoding. `passes`: of target and
    draft.

    The prediction is that of `lr bench step`, each model by itself, at costs fitted to
    the plain decoding in `passes` and to the ways that run one model only: where two
    share a GPU, the time of one's pass is found in the other's. The target's line leaves
    out one row alone where that has kernels of its own."""
    n = plan.steps
    decoded = {
        role: {
            (row["batch"], 0): (n * len(row["seconds"]), n * sum(row["seconds"]))
            for row in rows
            if role is Role.DRAFT or not row["own_kernels"]
        }
        for role, rows in passes.items()
    }
    plain = step.BenchTally(BenchWay("decode", "ar"), answers=Answers(passes=[decoded]))
    own_kernels = any(row["own_kernels"] for row in passes[Role.TARGET])
    alone = [
        tally
        for tally in tallies
        if not tally.stats.draft_passes and not (own_kernels and tally.way.mode == "ar")
    ]
    costs = step.fitted_costs([*alone, plain])
    options = plan.options
    rows = step.rows(tallies, costs, options.depth, options.draft_forwards)
    return [row | {"accuracy": None} for row in rows]  # no answer means anything


def bench(
    names: tuple[str, str, str | None],
    layout: DeviceMap,
    dtype: torch.dtype,
    plan: GpuPlan,
) -> dict[str, Any]:
    """Time the passes of both models and the ways of the plan; one document.

    `names`: shapes or folders of target, draft and judge; without a judge
    verdicts cost nothing. A target on several devices has the rates of
    the first so many times."""
    rates = measure_rates(layout.target[0], dtype)
    spread = Rates(*(layout.ranks * rate for rate in asdict(rates).values()))
    reader = None
    if names[2] is not None:
        judge = load_model(f"dummy:{names[2]}", device=layout.judge, dtype=dtype)
        equip(judge)
        reader = ModelRunner(judge, num_blocks=-(-JUDGE_TOKENS // BLOCK_SIZE))
    target, draft = (f"dummy:{name}" for name in names[:2])
    verifier = SyntheticVerifier(plan.synthetic, reader)
    with Reasoner(target, draft, verifier, device=layout, dtype=dtype) as reasoner:
        engine = reasoner.engine
        assert engine.draft is not None
        passes = {
            Role.TARGET: time_passes(names[0], engine.target, plan, spread),
            Role.DRAFT: time_passes(names[1], engine.draft, plan, rates),
        }
        tallies = time_modes(reasoner, plan)
    return {
        "conditions": conditions(),
        "models": dict(zip(("target", "draft", "judge"), names, strict=True)),
        "synthetic": str(plan.synthetic),
        "rates": asdict(rates),
        "passes": [*passes[Role.TARGET], *passes[Role.DRAFT]],
        "modes": figures(tallies, passes, plan),
    }
