"""`lr bench gpu`: plain decoding and the four modes at real shapes, next to the
roofline.

No pass is faster than the larger of bytes / bandwidth and operations / arithmetic rate,
both rates measured on the spot; docs/gpu.md says what is counted.

Example: 61 GiB of weights at 4 TB/s are 16.4 ms a token, whatever the batch, until n
rows of 2 * 32.8e9 operations take longer: at 700 TFLOP/s from about 175 rows on.

The limit of a run is the sum over all its passes as the trace counts them; where draft
and target have a device each, the larger of the two sums."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import prod
from statistics import median
from typing import Any

import torch

from lr.engine.answer import Answer
from lr.engine.runner import ModelRunner
from lr.kvcache.branch import BLOCK_SIZE
from lr.measure.bench import step
from lr.measure.bench.report import (
    BenchWay,
    Spread,
    acceptance_of,
    conditions,
    timed,
    wait_for,
)
from lr.measure.bench.synthetic import Synthetic, SyntheticAnswer, SyntheticVerifier
from lr.measure.report import cell, table
from lr.model.attention_choice import equip
from lr.model.config import ModelConfig
from lr.model.device import DeviceMap
from lr.model.qwen import CausalLM
from lr.model.weights import EMBEDDING_KEY, HEAD_KEY, load_model, pieces
from lr.options import LOOKAHEAD, GenerateOptions
from lr.reasoner import Reasoner
from lr.rng import Stream
from lr.spec.segmenters import FixedSegmenter
from lr.spec.verifiers.base import Verifier
from lr.spec.verifiers.judge import JUDGE_TOKENS
from lr.spec.write import StepJob, StepWriter, WriterConfig
from lr.theory.cost import Answers, Passes
from lr.trace import ForwardPass, Stats
from lr.types import Finish, Role, SamplingParams

GOAL = (
    0.75  # Of the bandwidth limit, that plain decoding at batch 1 is to reach on a GPU.
)


def runner_for(model: CausalLM, rows: int, length: int) -> ModelRunner:
    """A runner whose cache holds `rows` sequences of `length` tokens."""
    return ModelRunner(model, num_blocks=rows * (length // BLOCK_SIZE + 2))


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
    writer.write(jobs)
    seconds = time.perf_counter() - started
    for branch in branches:
        runner.close(branch)
    return seconds


@dataclass(frozen=True)
class Peaks:
    """What a device did: a large copy, and a large matrix product in the model's
    dtype."""

    bytes_per_second: float
    flops_per_second: float


@dataclass(frozen=True)
class Cost:
    """What a pass must do at least."""

    bytes: float
    flops: float

    def limit(self, peaks: Peaks) -> tuple[float, str]:
        """The least seconds it can take, and which of the two limits that is."""
        moved = self.bytes / peaks.bytes_per_second, "bandwidth"
        return max(moved, (self.flops / peaks.flops_per_second, "arithmetic"))


def pass_cost(
    config: ModelConfig,
    dtype: torch.dtype,
    counts: Sequence[float],
    lengths: Sequence[float],
    logit_rows: float,
) -> Cost:
    """A forward with `counts[i]` new tokens of a sequence that has `lengths[i]` with
    them.

    Logits are made for `logit_rows` rows. Averages are as good as counts."""
    outside = (EMBEDDING_KEY, HEAD_KEY)
    inner = [p for p in pieces(config) if len(p.shape) == 2 and p.key not in outside]
    matrices = sum(prod(p.shape) for p in inner)
    head, rows = config.vocab_size * config.hidden_size, sum(counts)
    seen = sum(
        n * (length - (n - 1) / 2) for n, length in zip(counts, lengths, strict=True)
    )
    cached = (
        2 * config.num_layers * config.num_kv_heads * config.head_dim
    )  # numbers per token
    numbers = matrices + head + rows * config.hidden_size + cached * sum(lengths)
    # q k^T and weights times v
    attention = 4 * config.num_layers * config.num_heads * config.head_dim * seen
    return Cost(
        numbers * dtype.itemsize,
        2 * matrices * rows + 2 * head * logit_rows + attention,
    )


def measure_peaks(
    device: torch.device, dtype: torch.dtype, *, small: bool = False
) -> Peaks:
    """Copy and multiply on `device`; about a second. `small`: sizes for a test."""
    size, edge = (1 << 24, 256) if small else (1 << 28, 1024)
    if device.type == "cuda" and not small:
        size, edge = min(1 << 32, int(torch.cuda.mem_get_info(device)[0]) // 4), 8192
    source = torch.randint(0, 127, (size,), dtype=torch.int8, device=device)
    goal = torch.empty_like(source)
    copied = 2 * size / timed(lambda: goal.copy_(source), device)  # read and written
    left, right = (torch.randn(edge, edge, device=device).to(dtype) for _ in range(2))
    return Peaks(copied, 2 * edge**3 / timed(lambda: left @ right, device))


@dataclass(frozen=True)
class GpuPlan:
    """What is timed, and how often. `options` are the engine's, but for mode and
    driver; `ways` have plain decoding first; `synthetic` decides. `progress` is called
    after each run."""

    options: GenerateOptions
    ways: Sequence[BenchWay]
    synthetic: Synthetic
    batches: Sequence[int] = (1, 2, 4, 8)
    prompt: int = 512  # Tokens before the answer.
    steps: int = 64  # Tokens of plain decoding that are timed at each batch size.
    repeats: int = 3  # Once more does not count.
    progress: Callable[[], None] = lambda: None


def time_passes(
    name: str, model: CausalLM, plan: GpuPlan, peaks: Peaks
) -> list[dict[str, Any]]:
    """Figures of plain decoding at each batch size, as it is used, and of reading a
    prompt."""
    prompt = [(7 * i + 3) % model.config.vocab_size for i in range(plan.prompt)]
    sampling = plan.options.sampling(SamplingParams())
    rows: list[dict[str, Any]] = []

    def repeated(what: str, tokens: int, once: Callable[[], float], cost: Cost) -> None:
        """Time `once` again and again; the first time does not count."""
        seconds = []
        for _ in range(plan.repeats + 1):
            seconds.append(once())
            plan.progress()
        (limit, bound), middle = cost.limit(peaks), Spread.of(seconds[1:]).median
        figures = {
            "model": name,
            "what": what,
            "tokens_per_step": tokens,
            "seconds": seconds[1:],
        }
        limits = {
            "limit_seconds": limit,
            "bound": bound,
            "share_of_limit": limit / middle,
        }
        rows.append(figures | {"median_seconds": middle} | limits)

    for batch in plan.batches:
        # kept over the repeats, with its CUDA graphs
        runner = runner_for(model, batch, plan.prompt + plan.steps)

        def decode(runner: ModelRunner = runner, batch: int = batch) -> float:
            return write_step(runner, sampling, prompt, batch, plan.steps) / plan.steps

        lengths = [plan.prompt + plan.steps / 2] * batch
        cost = pass_cost(model.config, model.dtype, [1] * batch, lengths, batch)
        repeated(f"decode, batch {batch}", batch, decode, cost)
    reader = runner_for(model, 1, plan.prompt)

    def read() -> float:
        branch = reader.open(prompt)
        seconds = timed(
            lambda: reader.forward([branch]), model.device, repeats=1, warm_up=0
        )
        reader.close(branch)
        return seconds

    cost = pass_cost(model.config, model.dtype, [plan.prompt], [plan.prompt], 1)
    repeated(f"prompt of {plan.prompt}", plan.prompt, read, cost)
    return rows


def ways(modes: Sequence[str], drivers: Sequence[str]) -> list[BenchWay]:
    """Every mode, those that look ahead with every driver."""
    return [
        BenchWay(
            f"{mode}, {driver}" if mode in LOOKAHEAD else mode, mode, {"driver": driver}
        )
        for mode in modes
        for driver in (drivers if mode in LOOKAHEAD else ["lockstep"])
    ]


@dataclass
class ModeRow(step.BenchTally):
    """What was measured of a way. `of_limit`: the share of the limit, by repeat."""

    of_limit: list[float] = field(default_factory=list)


def figures(
    rows: Sequence[ModeRow], passes: Sequence[list[Any]], plan: GpuPlan
) -> list[Any]:
    """The ways for a report; the first is plain decoding. `passes`: of target and
    draft.

    The prediction is that of `lr bench step`, each model by itself, at costs fitted to
    the plain decoding in `passes` and to the ways that run one model only: where two
    take turns on CUDA, the time of one's pass is found in the other's."""
    n, decoded = plan.steps, dict[Role, Passes]()
    for role, found in zip((Role.TARGET, Role.DRAFT), passes, strict=True):
        plain = [row for row in found if row["what"].startswith("decode")]
        seconds = {row["tokens_per_step"]: row["seconds"] for row in plain}
        decoded[role] = {
            (b, 0): (n * len(each), n * sum(each)) for b, each in seconds.items()
        }
    decode = step.BenchTally(
        BenchWay("decode", "ar"), answers=Answers(passes=[decoded])
    )
    alone = [row for row in rows if not row.stats.draft_passes]
    costs = step.fitted_costs([*alone, decode])
    depth, forwards = plan.options.depth, plan.options.draft_forwards
    return [
        {
            "way": row.way.name,
            "tokens_per_second": row.rates,
            "spread": asdict(one.rate),
            "speedup": asdict(one.speedup),
            "predicted_tokens_per_second": one.predicted,
            "share_of_limit": median(row.of_limit),
            "stats": asdict(row.stats),
            **acceptance_of(row.stats),
        }
        for row, one in zip(rows, step.rows(rows, costs, depth, forwards), strict=True)
    ]


def time_modes(
    reasoner: Reasoner, plan: GpuPlan, peaks: tuple[Peaks, Peaks]
) -> list[ModeRow]:
    """Run every way `plan.repeats` times, each repeat with other draws; one more does
    not count.

    `peaks`: of target's and draft's device."""
    same = {"depth": plan.options.depth, "drafter": plan.options.drafter}
    rows = [ModeRow(replace(way, settings=same | way.settings)) for way in plan.ways]
    lanes = [_answers(reasoner, row.way, plan) for row in rows]
    try:
        for repeat in range(plan.repeats + 1):
            for row, lane in zip(rows, lanes, strict=True):
                asked = next(lane)
                if repeat:  # the first pays for what is set up once
                    stats = asked.result.stats
                    row.seconds.append(0.0)
                    row.tokens.append(0)
                    row.take(
                        asked.result, stats.seconds, right=False
                    )  # there is no right answer
                    row.of_limit.append(
                        _limit(asked, stats, plan, peaks) / stats.seconds
                    )
                plan.progress()
    finally:
        for lane in lanes:
            lane.close()
    return rows


def _answers(
    reasoner: Reasoner, way: BenchWay, plan: GpuPlan
) -> Generator[Answer, None, None]:
    """Answers in one way, one after the other. Step draws continue from answer to
    answer; the warm-up answer and steps that were cut, always rejected,
    use up none."""
    options = replace(plan.options, mode=way.mode, **way.settings)  # type: ignore[arg-type]
    engine, verifier, prompt = reasoner.engine, reasoner.verifier, "x" * plan.prompt
    assert isinstance(verifier, SyntheticVerifier)
    samples = [replace(options, sample=sample) for sample in range(plan.repeats + 1)]
    first = 0
    for number, each in enumerate(samples):
        verifier.first = first
        answer = SyntheticAnswer(engine, prompt, each, verifier)
        answer.finish()
        if number:
            first += sum(step.finish is not Finish.LENGTH for step in answer.steps)
        yield answer


def _limit(
    asked: Answer, stats: Stats, plan: GpuPlan, peaks: tuple[Peaks, Peaks]
) -> float:
    """Seconds that all passes of an answer take at least; sequences count at their mean
    length."""
    target, draft = asked.engine.target, asked.engine.draft
    assert draft is not None
    length = plan.prompt + stats.tokens / 2
    sides = {Role.TARGET: (target, peaks[0]), Role.DRAFT: (draft, peaks[1])}
    limits = dict.fromkeys(sides, 0.0)
    for _, one in asked.trace.events:
        if isinstance(one, ForwardPass):
            model, peak = sides[one.role]
            counts, lengths = (
                [one.tokens / one.branches] * one.branches,
                [length] * one.branches,
            )
            cost = pass_cost(model.config, model.dtype, counts, lengths, one.tokens)
            limits[one.role] += cost.limit(peak)[0]
    apart = draft.device != target.device
    return max(limits.values()) if apart else sum(limits.values())


def bench(
    names: tuple[str, str, str | None],
    layout: DeviceMap,
    dtype: torch.dtype,
    plan: GpuPlan,
) -> dict[str, Any]:
    """Time the passes of both models and the ways of the plan; one document.

    `names`: shapes or folders of target, draft and judge; without a judge verdicts cost
    nothing. Every model has random weights in `dtype`. A target on several devices has
    the rates of the first so many times: what its ranks say to each other is no part of
    the limit."""
    first, ranks = layout.target[0], layout.ranks
    peaks = measure_peaks(first, dtype)
    spread = Peaks(ranks * peaks.bytes_per_second, ranks * peaks.flops_per_second)
    apart = layout.draft != first
    both = spread, measure_peaks(layout.draft, dtype) if apart else peaks
    reads = None
    if names[2] is not None:
        judge = load_model(f"dummy:{names[2]}", device=layout.judge, dtype=dtype)
        equip(judge)
        reads = ModelRunner(judge, num_blocks=-(-JUDGE_TOKENS // BLOCK_SIZE))
    verifier: Verifier = SyntheticVerifier(plan.synthetic, reads)
    target, draft = (f"dummy:{name}" for name in names[:2])
    with Reasoner(target, draft, verifier, device=layout, dtype=dtype) as reasoner:
        models = reasoner.engine
        assert models.draft is not None
        writers = zip(names, (models.target, models.draft), both, strict=False)
        passes = [
            time_passes(str(name), model, plan, peak) for name, model, peak in writers
        ]
        modes = time_modes(reasoner, plan, both)
    named = ", ".join(
        dict.fromkeys(map(str, (*layout.target, layout.draft, layout.judge)))
    )
    return {
        "conditions": conditions() | {"devices": named},
        "models": dict(zip(("target", "draft", "judge"), names, strict=True)),
        "synthetic": dict(plan.synthetic.facts()),
        "peaks": {"target": asdict(both[0]), "draft": asdict(both[1])},
        "passes": [*passes[0], *passes[1]],
        "modes": figures(modes, passes, plan),
    }


def report(document: dict[str, Any]) -> str:
    """The tables of a run, as Markdown, from its document."""
    lines = [
        ", ".join(f"{name} {value}" for name, value in document["conditions"].items()),
        "",
    ]
    for role, peaks in document["peaks"].items():
        copied, done = peaks["bytes_per_second"] / 1e9, peaks["flops_per_second"] / 1e12
        rates = f"copies {copied:.1f} GB/s and multiplies {done:.2f} TFLOP/s"
        lines.append(f"the {role}'s device {rates}")
    passes = [
        ["model", "what", "ms", "quartiles", "tok/s", "limit ms", "bound", "share"]
    ]
    for row in document["passes"]:
        spread = Spread.of([1e3 * seconds for seconds in row["seconds"]])
        rate = 1e3 * row["tokens_per_step"] / spread.median
        cells = [row["model"], row["what"], f"{spread.median:.3f}"]
        cells += [f"{spread.low:.3f}-{spread.high:.3f}", f"{rate:.0f}"]
        cells += [
            f"{1e3 * row['limit_seconds']:.3f}",
            row["bound"],
            cell(row["share_of_limit"]),
        ]
        passes.append(cells)
    facts = document["synthetic"]
    accepted = (
        f"steps accepted with {facts['alpha1']:.2f}, tokens with {facts['alpha2']:.3f}"
    )
    lengths = f"({facts['source']}); lengths of steps: {facts['target_lengths']}"
    lines += ["", *table(passes), "", f"{accepted} {lengths}", ""]
    modes = [
        ["way", "tok/s", "/ ar", "model", "/ model", "steps kept", "tok/pass", "share"]
    ]
    for row in document["modes"]:
        rate, model = row["spread"]["median"], row["predicted_tokens_per_second"]
        cells = [row["way"], f"{rate:.1f}", str(Spread(**row["speedup"]))]
        cells += [f"{model:.1f}", f"{rate / model:.2f}"]
        names = ("step_acceptance", "tokens_per_target_pass", "share_of_limit")
        modes.append([*cells, *(cell(row[name]) for name in names)])
    return "\n".join([*lines, *table(modes)])
