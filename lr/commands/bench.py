"""`lr bench`: timings next to other implementations and to theory, and of real shapes
without a checkpoint. What is compared is measured in one run, alternately."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from rich.table import Table

from lr.commands import show
from lr.commands.info import memory_table
from lr.commands.options import DeviceOptions, DtypeName, ModelChoice, torch_dtype
from lr.commands.run import TINY
from lr.measure.bench.report import BenchWay, Spread, conditions, write_json
from lr.measure.datasets import ask, load_items
from lr.options import GenerateOptions, make_options
from lr.theory.distributions import Lognormal
from lr.theory.paper import paper_calibration
from lr.types import require

if TYPE_CHECKING:
    from lr.measure.bench.synthetic import Synthetic


@dataclass(frozen=True)
class BenchDecode:
    """Time plain decoding and token-level speculation against transformers' generate,
    prompt lookup and assisted generation, on the same checkpoints."""

    models: ModelChoice = field(default_factory=ModelChoice)
    dataset: str = "tiny:1000"  # Where the questions are from; as for lr run.
    problems: int = 4  # How many questions.
    repeats: int = 3  # How often each is answered in every way, after a warm-up.
    batches: tuple[int, ...] = (1,)
    """Batch sizes: so many rows with the same question at once."""
    tokens: int = 128  # Longest answer.
    k: int = 4  # Tokens that are drafted ahead, on both sides.
    json: Path | None = None  # Also write every figure to this file.

    def run(self) -> None:
        from lr.measure.bench import decode
        from lr.tiny.names import speaks_tiny

        show.at_least(self, problems=1, repeats=2, batches=1, tokens=1, k=1)
        show.require_files(json=self.json)
        draft = self.models.draft()
        content = head_of(self)
        out = show.console()
        items = load_items(self.dataset)[: self.problems]
        with self.models.load(needs_draft=draft is not None) as reasoner:
            bare = speaks_tiny(reasoner.codec)
            questions = [ask(item, bare=bare) for item in items]
            target = self.models.model
            ways = decode.contenders(reasoner, target, draft, self.tokens, self.k)
            out.print(show.in_words(content["conditions"]))
            total = len(ways) * (1 + self.repeats * len(questions))
            for rows in self.batches:
                able = [way for way in ways if rows == 1 or not way.one_row]
                with show.progress(f"{rows} row(s)", total) as advance:
                    decode.measure(able, questions, rows, self.repeats, advance)
                lines = decode.rows_of(able)
                title = f"{target}, {rows} row(s), temperature 0"
                out.print(show.table(("way", "tokens/s", "/ lr"), lines, title=title))
                content[f"batch {rows}"] = [
                    {"way": name, "rate": asdict(rate), "ratio": asdict(ratio)}
                    for name, rate, ratio in lines
                ]
        write_json(content, self.json)


def head_of(command: BenchDecode | BenchStep) -> dict[str, Any]:
    """The head of a benchmark's JSON file. Sets the threads, which belong to it."""
    models = command.models
    models.placement.set_threads(models.model, models.draft())
    return {"conditions": conditions(), "settings": show.settings_of(command)}


STEP_NOTES = """\
tok/s: of whole answers, all problems of a repeat together; median over the repeats. / ar: relative
to the tokens/s of plain decoding, repeat by repeat, quartiles in brackets. model: tok/s by the cost
line (docs/theory.md). right: share of right answers. steps, tokens: accepted of those judged or
drafted. tok/pass: tokens per pass of the target. target, draft, verifier: share of the time; with
the draft in a second process, target and draft overlap."""
STEP_COLUMNS = (
    "way",
    "tok/s:.0f",
    "/ ar",
    "model:.0f",
    "right:.3f",
    "steps",
    "tokens",
    "tok/pass",
    "target",
    "draft",
    "verifier",
)
STEP_NUMBERS = (
    "predicted_tokens_per_second",
    "accuracy",
    "step_acceptance",
    "token_acceptance",
    "tokens_per_target_pass",
    "target_share",
    "draft_share",
    "verifier_share",
)
"""The numbers of a row in the columns after its rate and its speedup."""


def ways_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The ways of a measurement beside each other, those of a mode together."""
    cells = [
        (
            row["way"],
            median(row["tokens_per_second"]),
            Spread(**row["speedup"]),
            *(row[name] for name in STEP_NUMBERS),
        )
        for row in rows
    ]
    groups = [row["mode"] for row in rows]
    return show.table(STEP_COLUMNS, cells, groups=groups)


@dataclass(frozen=True)
class BenchStep:
    """Time Lookahead Reasoning in all its forms against plain and token-level
    decoding."""

    models: ModelChoice = field(default_factory=ModelChoice)
    dataset: str = "stories:1000"  # Where the problems are from; as for lr run.
    problems: int = 6  # Problems per repeat.
    repeats: int = 3  # How often everything is measured, each time with other draws.
    generation: GenerateOptions = field(
        default_factory=lambda: GenerateOptions(depth=6, num_speculative_tokens=4)
    )
    only: tuple[str, ...] = ()
    """Only ar and the rows with these names or words in their names."""
    variant: tuple[str, ...] = ()
    """Variants of the method, one more row each; see lr generate."""
    json: Path | None = None  # Also write every figure to this file.

    def run(self) -> None:
        from lr.measure.bench import step

        show.at_least(self, problems=1, repeats=2)
        show.require_files(json=self.json)
        ways = self._ways()
        options = self.generation
        content = head_of(self)
        out = show.console(width=132)
        items = load_items(self.dataset)[: self.problems]
        total = len(ways) * (1 + self.repeats * len(items))
        with (
            self.models.load(needs_draft=True) as reasoner,
            show.progress("answering", total) as advance,
        ):
            tallies = step.measure(
                reasoner, ways, items, self.repeats, vars(options), advance
            )
        costs = step.fitted_costs(tallies)
        rows = step.rows(tallies, costs, options.depth, options.draft_forwards)
        out.print(show.in_words(content["conditions"]))
        out.print(ways_table(rows))
        for role, cost in zip(("target", "draft"), costs, strict=True):
            out.print(
                f"a pass of the {role} takes {1000 * cost.first:.2f} ms for one row of "
                f"one token, {1000 * cost.row:.2f} ms more for each row, "
                f"{1000 * cost.token:.2f} ms for each token beyond one per row"
            )
            content.setdefault("pass_seconds", {})[role] = asdict(cost)
        out.print(STEP_NOTES, style="dim")
        write_json(content | {"rows": rows}, self.json)

    def _ways(self) -> list[BenchWay]:
        from lr.measure.bench import step

        ways = step.ways(self.generation.num_speculative_tokens)
        names = [way.name for way in ways]
        chosen = {"ar"}
        for word in self.only or ("",):
            chosen |= {word} if word in names else {n for n in names if word in n}
        ways = [way for way in ways if way.name in chosen]
        ways += [
            BenchWay(name, "lr", step.OVERLAPPED, variant=name) for name in self.variant
        ]
        expected = f"words of the rows' names: {'; '.join(names)}"
        require(len(ways) > 1, "only", self.only, expected)
        return ways


LARGE = ("Qwen3-32B", "Qwen3-1.7B", "Qwen2.5-7B")
GPU_NOTES = """\
limit: the time of a pass that only moved its bytes, or only did its operations, at the rates
measured above. share: limit / time. The other columns are those of lr bench step; model: every model
on its own, at the cost of its passes in this run. Weights and acceptance are random, so answers mean
nothing; rates do."""
PASS_COLUMNS = ("model", "batch", "ms:.3f", "tok/s:.1f", "limit ms:.3f", "share:.3f")
GPU_WAYS = (
    "sd",
    "lr driver=lockstep",
    "lr driver=overlapped",
    "lr+sd driver=lockstep",
    "lr+sd driver=overlapped",
)


def passes_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Passes of plain decoding beside the least time that they can take."""
    cells = []
    for row in rows:
        seconds = median(row["seconds"])
        limit = row["limit"]
        rate = row["batch"] / seconds
        times = (1e3 * seconds, rate, 1e3 * limit, limit / seconds)
        cells.append((row["model"], row["batch"], *times))
    return show.table(PASS_COLUMNS, cells)


@dataclass(frozen=True)
class BenchGpu:
    """Time the four modes on models of real shapes with random weights and random
    acceptance."""

    target: str | None = None
    """A shape (Qwen3-32B, Qwen3-1.7B, Qwen3-0.6B, Qwen2.5-7B, tiny-target) or a
    directory with a config.json. None: Qwen3-32B on CUDA, tiny-target elsewhere."""
    draft: str | None = None  # None: Qwen3-1.7B on CUDA, tiny-draft elsewhere.
    judge: str | None = None
    """None: Qwen2.5-7B, or tiny-judge; none: verdicts cost nothing."""
    device: str = "auto"
    """The device of all models; cuda:0,cuda:1 spreads the target over both."""
    draft_device: str | None = None  # Another device for the draft.
    judge_device: str | None = None  # Another device for the judge.
    dtype: DtypeName | None = None  # None: bfloat16 on a GPU, float32 on the CPU.
    threads: int | None = None
    """CPU threads; None: one for tiny shapes, else torch's default."""
    ways: tuple[str, ...] = GPU_WAYS
    """The ways to answer besides ar: each a mode and settings, such as "sd
    drafter=draft" or "lr+sd depth=3 driver=overlapped"."""
    batches: tuple[int, ...] = (1, 2, 4, 8)  # Batch sizes of plain decoding.
    prompt: int = 512  # Tokens before the answer.
    tokens: int = 256  # Tokens of an answer.
    repeats: int = 3  # How often everything is timed, after one warm-up.
    depth: int | None = None  # How many draft steps to write ahead. None: 4 ...
    k: int | None = None  # Tokens drafted ahead in sd and lr+sd. None: 8 ...
    """... and 3 each where the draft shares the target's GPU, and its bandwidth."""
    pair: Literal["r1", "qwen3"] = "qwen3"
    """Acceptance as in the paper's Table 1: this pair of models ..."""
    dataset: str = "GSM8K"
    """... on this data set. alpha1 is printed there, alpha2 is fitted."""
    alpha1: float | None = None  # Acceptance of draft steps, instead of these.
    alpha2: float | None = None  # Acceptance of draft tokens, instead of these.
    step_tokens: float = 32.0
    """Mean length of a step: an assumption, since the paper prints no lengths."""
    json: Path | None = None  # Also write every figure to this file.

    def run(self) -> None:
        import torch

        from lr.measure.bench import gpu
        from lr.measure.memory import plan_memory
        from lr.model.device import DeviceMap

        show.at_least(self, prompt=2, tokens=2, repeats=2, step_tokens=1, batches=1)
        require(bool(self.batches), "batches", (), "at least one number")
        show.require_files(json=self.json)
        ways = [BenchWay.of(words) for words in dict.fromkeys(("ar", *self.ways))]
        # 1. Where the models are, and whether they fit.
        devices = {"target": self.device.split(",")}
        for role, device in (
            ("draft", self.draft_device),
            ("judge", self.judge_device),
        ):
            if device is not None:
                devices[role] = [device]
        layout = DeviceMap.of(devices)
        first = layout.target[0]
        usual = LARGE if first.type == "cuda" else TINY
        target = self.target or usual[0]
        draft = self.draft or usual[1]
        judge = None if self.judge == "none" else self.judge or usual[2]
        DeviceOptions(threads=self.threads).set_threads(target, draft, judge)
        shared = layout.shares_gpu
        options = GenerateOptions(
            mode="lr+sd",
            driver="overlapped" if any(way.overlapped for way in ways) else "lockstep",
            depth=self.depth or (3 if shared else 4),
            drafter="ngram",  # prompt lookup that always finds something
            num_speculative_tokens=self.k or (3 if shared else 8),
            max_tokens=self.tokens,
            temperature=0.6,  # this and the next two: Qwen3's recommendation
            top_p=0.95,
            top_k=20,
        )
        chosen = [make_options(options, mode=w.mode, **w.settings) for w in ways]
        fits = all(
            way.width == 1 and way.drafter in ("ngram", "draft") for way in chosen
        )
        require(fits, "ways", self.ways, "width 1, and drafter ngram or draft")
        names = (target, draft, judge)
        dtype = torch_dtype(self.dtype)
        if dtype is None:
            dtype = torch.float32 if first.type == "cpu" else torch.bfloat16
        memory = plan_memory(
            [None if name is None else f"dummy:{name}" for name in names],
            layout,
            dtype,
            options,
            self.prompt + self.tokens,
            share=len(ways),  # every way keeps its caches
        )
        out = show.console(width=132)
        out.print(memory_table(memory))
        memory.check()
        # 2. Time every way.
        runs = (2 * len(self.batches) + len(ways)) * (self.repeats + 1)
        with show.progress("timing", runs) as advance:
            plan = gpu.GpuPlan(
                options,
                ways,
                self._synthetic(),
                self.batches,
                self.prompt,
                min(self.tokens, 64),
                self.repeats,
                advance,
            )
            content = gpu.bench(names, layout, dtype, plan)
        out.print(show.in_words(content["conditions"]))
        rates = content["rates"]
        out.print(
            f"copies {rates['copied'] / 1e9:.1f} GB/s, reads {rates['read'] / 1e9:.1f} "
            f"GB/s, computes {rates['flops'] / 1e12:.2f} TFLOP/s"
        )
        out.print(content["synthetic"])
        out.print(passes_table(content["passes"]))
        out.print(ways_table(content["modes"]))
        out.print(GPU_NOTES, style="dim")
        needed = {device: memory.needed(device) for device in memory.free}
        settings = {"settings": show.settings_of(self), "memory": needed}
        write_json(content | settings, self.json)

    def _synthetic(self) -> Synthetic:
        """What decides acceptance: the paper's tables, or the numbers of the flags."""
        from lr.measure.bench.synthetic import Synthetic

        paper = paper_calibration(self.pair, self.dataset)
        chosen = self.alpha1 is not None or self.alpha2 is not None
        lengths = Lognormal(self.step_tokens, 0.5)
        return Synthetic(
            alpha1=paper.alpha1 if self.alpha1 is None else self.alpha1,
            alpha2=paper.alpha2 if self.alpha2 is None else self.alpha2,
            target=lengths,
            draft=lengths,
            source=f"{paper.name}{' but as given' if chosen else ''}",
        )
