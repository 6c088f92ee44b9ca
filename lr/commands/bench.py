"""`lr bench`: timings of the tiny models, next to other implementations and to theory,
and of real shapes without a checkpoint. What is compared is measured in one run,
alternately."""

from __future__ import annotations

import gc
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lr.commands import show
from lr.commands.info import memory_plan, memory_table
from lr.commands.options import DeviceOptions, DtypeName, torch_dtype
from lr.commands.run import TINY
from lr.errors import CheckpointError
from lr.measure.bench.report import (
    BenchWay,
    acceptance_of,
    conditions,
    write_json,
)
from lr.options import LOOKAHEAD, MODES, Driver, GenerateOptions, Mode
from lr.theory.cost import Calibration
from lr.theory.distributions import Lognormal
from lr.theory.paper import paper_calibration
from lr.tiny.language import Split
from lr.tiny.stories import DATASETS
from lr.types import require

if TYPE_CHECKING:
    from lr.measure.bench.synthetic import Synthetic


@dataclass(frozen=True)
class Bench:
    """What most benchmarks share."""

    threads: int | None = 1  # CPU threads of each process.
    json: Path | None = None  # Also write every figure to this file.

    def begin(self, **least: int) -> dict[str, Any]:
        """Refuse impossible flags, set the threads, and return the head of the JSON
        file."""
        show.at_least(self, **least)
        show.require_files(json=self.json, figure=vars(self).get("figure"))
        DeviceOptions(threads=self.threads).set_threads()
        return {"conditions": conditions(), "settings": show.settings_of(self)}


DECODE_COLUMNS = (
    "contender", "batch", "ms per step:.3f", "quartiles", "tokens/s:.0f", "time / lr's",
    "quartiles",
)  # fmt: skip


@dataclass(frozen=True)
class BenchDecode(Bench):
    """Time plain decoding against transformers' generate and a bare loop with a static
    cache."""

    models: tuple[str, ...] = ("tiny-target", "tiny-draft", "random-12")
    """tiny-target, tiny-draft, random-12 (the tiny shape, 12 layers, random weights),
    0.6b-fp32, 0.6b-bf16 (Qwen3-0.6B's shape: about 4 GB of memory, some minutes)."""
    batches: tuple[int, ...] | None = (
        None  # Batch sizes. None: 1 2 4 8; 1 for the large shapes.
    )
    tokens: int | None = (
        None  # Steps per measurement. None: 64; 8 for the large shapes.
    )
    repeats: int = 7  # Measurements of every contender, alternately, after a warm-up.
    threads: int | None = (
        None  # CPU threads. None: one; all cores for the large shapes.
    )

    def run(self) -> None:
        import torch

        from lr.measure.bench import decode
        from lr.measure.bench.decode import DecodePlan

        for name in self.models:
            require(
                name in decode.NAMES,
                "models",
                name,
                f"names among {', '.join(decode.NAMES)}",
            )
        batches, tokens, threads = self.batches, self.tokens, self.threads
        longest = 1024 - decode.PROMPT_TOKENS
        require(
            tokens is None or 0 < tokens <= longest, "tokens", tokens, f"1 to {longest}"
        )
        content, out = self.begin(repeats=2, threads=1, batches=1), show.console()
        cores = os.cpu_count() or 1
        small = DecodePlan(
            batches or (1, 2, 4, 8), tokens or 64, self.repeats, threads or 1
        )
        large = DecodePlan(
            batches or (1,), tokens or 8, self.repeats, threads or cores, warm_up=1
        )
        names, timings = dict.fromkeys(self.models), list[decode.Timing]()
        groups = [([name for name in names if name not in decode.SHAPES], small)]
        # each large shape alone, to save memory
        groups += [([name], large) for name in names if name in decode.SHAPES]
        for group, plan in groups:
            torch.set_num_threads(plan.threads)
            lanes: list[decode.DecodeLane] = []
            for name in group:
                try:
                    lanes += decode.lanes(name)
                except CheckpointError as error:
                    out.print(f"{name} is left out: {error}")
            with show.progress("timing", len(lanes) * plan.runs) as advance:
                timings += decode.measure(lanes, plan, advance)
            del lanes
            gc.collect()  # free a large model before the next one is loaded
        out.print(show.in_words(content["conditions"]))
        for model in dict.fromkeys(t.model for t in timings):
            mine, rows = [t for t in timings if t.model == model], []
            sizes = [t.batch for t in mine]
            for one in mine:
                ours = mine[sizes.index(one.batch)]  # the first with this batch size
                ratio, spread = one.relative_to(ours), one.spread
                row = one.contender, one.batch, spread.median, spread.middle_half
                rows.append(
                    [*row, one.tokens_per_second, ratio.median, ratio.middle_half]
                )
            title = f"{model}, {mine[0].threads} thread(s)"
            out.print(show.table(DECODE_COLUMNS, rows, title=title, groups=sizes))
        words: dict[bool | None, str] = {
            True: "met",
            False: "missed",
            None: "not measured",
        }
        out.print("goals")
        for goal in decode.goals(timings):
            out.print(f"  {words[goal.met]:<13} {goal.text}: {goal.measured}")
        write_json(content | decode.document(timings), self.json)


STEP_NOTES = """\
tok/s: of whole answers, all problems of a repeat together; median over the repeats. / ar: relative
to the tokens/s of plain decoding, repeat by repeat, quartiles in brackets. model: tok/s by the cost
model (docs/results/step.md). right: share of right answers. steps, tokens: accepted of those judged
or drafted. tok/pass: tokens per pass of the target. target, draft, verifier: share of the time;
with the draft in a second process, target and draft overlap."""
STEP_COLUMNS = (
    "way",
    "tok/s:.0f",
    "/ ar",
    "model:.0f",
    "right:.3f",
    "steps",
    "tokens",
    "tok/pass",
)
MAIN = "lr, overlapped"  # The row that the cost model explains.


@dataclass(frozen=True)
class BenchStep(Bench):
    """Time Lookahead Reasoning on the tiny models against plain and token-level
    decoding."""

    dataset: Literal["stories", "tiny"] = "stories"  # Long or short held-out problems.
    problems: int = 6  # Problems per repeat.
    repeats: int = 3  # How often everything is measured, each time with other draws.
    depth: int = 6  # How many draft steps to write ahead.
    draft_forwards: int = (
        8  # Driver lockstep: the most draft tokens per token of the target.
    )
    k: int = 4  # Tokens per round that a draft model proposes.
    step_k: int = 20  # Tokens per round that a draft step proposes.
    verifier: str | None = None  # How steps are compared; None: as in the demo.
    temperature: float | None = None  # None: the checkpoint's own (0.6); 0 is greedy.
    only: tuple[
        str, ...
    ] = ()  # Only ar and the rows with these names or words in their names.
    variant: tuple[
        str, ...
    ] = ()  # Variants of the method, one more row each; see lr generate.

    def run(self) -> None:
        from lr.measure.bench import step
        from lr.reasoner import Reasoner

        content, out = self.begin(problems=1, repeats=2), show.console(width=132)
        chosen = self._chosen()
        tasks = [
            DATASETS[self.dataset](Split.TEST, index, 0)
            for index in range(self.problems)
        ]
        settings = {
            name: getattr(self, name)
            for name in ("depth", "draft_forwards", "temperature")
        }
        total = len(chosen) * (1 + self.repeats * self.problems)
        with (
            Reasoner(verifier=self.verifier) as reasoner,
            show.progress("answering", total) as advance,
        ):
            tallies = step.measure(
                reasoner, chosen, tasks, self.repeats, settings, advance
            )
        costs = step.fitted_costs(tallies)
        rows = step.rows(tallies, costs, self.depth, self.draft_forwards)
        out.print(show.in_words(content["conditions"]))
        cells = []
        for row in rows:
            tally = row.tally
            line = (
                tally.way.name,
                row.rate.median,
                row.speedup,
                row.predicted,
                tally.accuracy,
            )
            cells.append(
                (*line, *acceptance_of(tally.stats).values(), *tally.shares.values())
            )
        columns, modes = (
            (*STEP_COLUMNS, *tally.shares),
            [row.tally.way.mode for row in rows],
        )
        out.print(show.table(columns, cells, groups=modes))
        for role, cost in zip(("target", "draft"), costs, strict=True):
            first, more, each = (
                1000 * part for part in (cost.first, cost.row, cost.token)
            )
            out.print(
                f"a pass of the {role} takes {first:.2f} ms for one row of one token, {more:.2f} "
                f"ms more for each row, {each:.2f} ms for each token beyond one per row"
            )
        out.print(STEP_NOTES, style="dim")
        content["pass_seconds"] = {
            "target": asdict(costs[0]),
            "draft": asdict(costs[1]),
        }
        write_json(content | {"rows": [row.figures() for row in rows]}, self.json)

    def _chosen(self) -> list[BenchWay]:
        from lr.measure.bench import step

        ways = {way.name: way for way in step.ways(self.k, self.step_k)}
        asked = {"ar"}
        for word in self.only or ("",):
            asked |= {word} if word in ways else {name for name in ways if word in name}
        chosen = [way for name, way in ways.items() if name in asked]
        chosen += [
            BenchWay(name, "lr", step.OVERLAPPED, variant=name) for name in self.variant
        ]
        require(
            len(chosen) > 1,
            "only",
            self.only,
            f"words of the rows' names: {'; '.join(ways)}",
        )
        return chosen


LARGE = ("Qwen3-32B", "Qwen3-1.7B", "Qwen2.5-7B")
GPU_NOTES = """\
limit: the time of a pass that only moved its bytes, or only did its operations, at the rates
measured above. share: limit / time. model: tok/s by the cost model of lr bench step, every model on
its own, at the cost of its passes in this run. / model: measured / model. Weights and acceptance
are random, so answers mean nothing; rates do."""


@dataclass(frozen=True)
class BenchGpu:
    """Time the four modes on models of real shapes with random weights and random
    acceptance."""

    target: str | None = None
    """A shape (Qwen3-32B, Qwen3-1.7B, Qwen3-0.6B, Qwen2.5-7B, tiny-target) or a
    directory with a config.json. None: Qwen3-32B on CUDA, tiny-target elsewhere."""
    draft: str | None = None  # None: Qwen3-1.7B on CUDA, tiny-draft elsewhere.
    judge: str | None = (
        None  # None: Qwen2.5-7B, or tiny-judge; none: verdicts cost nothing.
    )
    device: str = "auto"
    """The device of all models; cuda:0,cuda:1 spreads the target over both."""
    draft_device: str | None = None  # Another device for the draft.
    judge_device: str | None = None  # Another device for the judge.
    dtype: DtypeName | None = None  # None: bfloat16 on a GPU, float32 on the CPU.
    threads: int | None = (
        None  # CPU threads; None: one for tiny shapes, else torch's default.
    )
    modes: tuple[Mode, ...] = MODES  # The modes to time besides ar.
    drivers: tuple[Driver, ...] = (
        "lockstep",
        "overlapped",
    )  # The drivers of lr and lr+sd.
    batches: tuple[int, ...] = (1, 2, 4, 8)  # Batch sizes of plain decoding.
    prompt: int = 512  # Tokens before the answer.
    tokens: int = 256  # Tokens of an answer.
    repeats: int = 3  # How often everything is timed, after one warm-up.
    depth: int = 4  # How many draft steps to write ahead.
    k: int = 8  # Tokens drafted ahead in sd and lr+sd.
    drafter: Literal["ngram", "draft"] = "ngram"
    """What proposes tokens: prompt lookup that always finds something, or the draft
    model."""
    pair: Literal["r1", "qwen3"] = (
        "qwen3"  # Acceptance as in the paper: pair of Table 1 ...
    )
    dataset: str = (
        "GSM8K"  # ... on this data set. alpha1 is printed there, alpha2 is fitted.
    )
    calibration: Path | None = (
        None  # Instead: acceptance and step lengths from lr calibrate.
    )
    alpha1: float | None = None  # Acceptance of draft steps, instead of these.
    alpha2: float | None = None  # Acceptance of draft tokens, instead of these.
    step_tokens: float = (
        32.0  # Mean length of a step without a calibration: an assumption.
    )
    json: Path | None = None  # Also write every figure to this file.

    def run(self) -> None:
        import torch

        from lr.measure.bench import gpu
        from lr.model.device import DeviceMap

        show.at_least(self, prompt=2, tokens=2, repeats=2, step_tokens=1, batches=1)
        require(bool(self.batches), "batches", (), "at least one number")
        driven = bool(self.drivers) or not any(mode in LOOKAHEAD for mode in self.modes)
        require(
            driven, "drivers", self.drivers, "at least one for the modes lr and lr+sd"
        )
        show.require_files(json=self.json)
        places = {"draft": self.draft_device, "judge": self.judge_device}
        named = {role: place for role, place in places.items() if place is not None}
        layout = DeviceMap.of({"target": self.device.split(","), **named})
        first = layout.target[0]
        usual = LARGE if first.type == "cuda" else TINY
        target, draft = self.target or usual[0], self.draft or usual[1]
        judge = None if self.judge == "none" else self.judge or usual[2]
        DeviceOptions(threads=self.threads).set_threads(target, draft, judge)
        options = GenerateOptions(
            mode="lr+sd", driver="overlapped" if "overlapped" in self.drivers else "lockstep",
            depth=self.depth, drafter=self.drafter, num_speculative_tokens=self.k,
            max_tokens=self.tokens, temperature=0.6, top_p=0.95, top_k=20,  # Qwen3's recommendation
        )  # fmt: skip
        dummies = [
            None if name is None else f"dummy:{name}" for name in (target, draft, judge)
        ]
        dtype = torch_dtype(self.dtype, first.type) or torch.bfloat16
        at_once = len(self.modes) * len(self.drivers)  # every way keeps its caches
        longest = self.prompt + self.tokens
        memory = memory_plan(
            dummies, layout, self.dtype, options, longest, share=at_once
        )
        out = show.console()
        out.print(memory_table(memory))
        memory.check()
        chosen = gpu.ways(list(dict.fromkeys(("ar", *self.modes))), self.drivers)
        runs = (2 * (len(self.batches) + 1) + len(chosen)) * (self.repeats + 1)
        with show.progress("timing", runs) as advance:
            sizes = self.batches, self.prompt, min(self.tokens, 64), self.repeats
            plan = gpu.GpuPlan(options, chosen, self._synthetic(), *sizes, advance)
            found = gpu.bench((target, draft, judge), layout, dtype, plan)
        out.print(gpu.report(found), highlight=False)
        out.print(GPU_NOTES, style="dim")
        kept = [asdict(device) | {"needed": device.needed} for device in memory.devices]
        write_json(
            found | {"settings": show.settings_of(self), "memory": kept}, self.json
        )

    def _synthetic(self) -> Synthetic:
        """What decides acceptance: given numbers, else a calibration, else the paper's
        tables."""
        from lr.measure.bench.synthetic import Synthetic

        file, column = self.calibration, (self.pair, self.dataset)
        known = paper_calibration(*column) if file is None else Calibration.load(file)
        found = Synthetic.of_calibration(known, Lognormal(self.step_tokens, 0.5))
        given = {"alpha1": self.alpha1, "alpha2": self.alpha2}
        said: dict[str, Any] = {
            name: one for name, one in given.items() if one is not None
        }
        return (
            replace(found, **said, source=f"{found.source} but as given")
            if said
            else found
        )
