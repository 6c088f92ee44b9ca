"""`lr bench gpu`: real shapes without a checkpoint, beside the roofline. `lr reproduce table1`: the
paper's table of speedups, with ours beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lr.commands import show
from lr.commands.info import memory_plan, memory_table
from lr.commands.options import Device, DtypeName, torch_dtype
from lr.commands.run import OFFICIAL, TINY, Run, RunModels
from lr.errors import SettingError
from lr.lab.bench.report import conditions, write_json
from lr.lab.eval.grading import Grader
from lr.lab.eval.report import cell, choose_baseline, make_row, read_run, table
from lr.lab.eval.store import Store, read_object
from lr.options import LOOKAHEAD, MODES, Driver, GenerateOptions, Mode
from lr.theory.calibration import Calibration
from lr.theory.distributions import Lognormal
from lr.theory.paper import DATASETS, TABLE_1, paper_calibration
from lr.types import require

if TYPE_CHECKING:
    from lr.lab.bench.synthetic import Synthetic

LARGE = ("Qwen3-32B", "Qwen3-1.7B", "Qwen2.5-7B")
GPU_NOTES = """\
limit: what a pass would take if it only moved its bytes, or only did its operations, at the rates
measured above. share: limit / time. model: tok/s by the cost model of lr bench step, each model by
itself at what its passes cost in this run. / model: measured / that. Weights are random and what is
kept is drawn: answers mean nothing, rates do."""


@dataclass(frozen=True)
class BenchGpu:
    """Time decoding and the four modes on models of real shapes with random weights; what is
    accepted is drawn."""

    target: str | None = None
    """A shape (Qwen3-32B, Qwen3-1.7B, Qwen3-0.6B, Qwen2.5-7B, tiny-target) or a directory with a
    config.json. None: Qwen3-32B on CUDA, tiny-target elsewhere."""
    draft: str | None = None  # None: Qwen3-1.7B, or tiny-draft.
    judge: str | None = None  # None: Qwen2.5-7B, or tiny-judge; none: verdicts cost nothing.
    device: str = "auto"
    """Where the target runs, and all others that are not placed elsewhere. cuda:0,cuda:1: it is
    spread over both."""
    draft_device: str | None = None  # Where the draft runs. None: with the target.
    judge_device: str | None = None  # Where the judge runs. None: with the target.
    dtype: DtypeName | None = None  # None: bfloat16 on a GPU, float32 on the CPU.
    threads: int | None = None  # CPU threads; None: one for tiny shapes, else torch's default.
    modes: tuple[Mode, ...] = MODES  # The modes to time, and ar.
    drivers: tuple[Driver, ...] = ("lockstep", "overlapped")  # How lr and lr+sd are driven.
    batches: tuple[int, ...] = (1, 2, 4, 8)  # Batch sizes of plain decoding.
    prompt: int = 512  # Tokens before the answer.
    tokens: int = 256  # Tokens of an answer.
    repeats: int = 3  # How often everything is timed; once more does not count.
    depth: int = 4  # How many draft steps ahead.
    k: int = 8  # Tokens guessed ahead in sd and lr+sd.
    drafter: Literal["ngram", "draft"] = "ngram"
    """Who guesses tokens: prompt lookup that always finds something, or the draft model."""
    pair: Literal["r1", "qwen3"] = "qwen3"  # Acceptance as in the paper: pair of Table 1 ...
    dataset: str = "GSM8K"  # ... on which data set. alpha1 is printed there, alpha2 fitted.
    calibration: Path | None = None  # Acceptance, step lengths from lr calibrate, instead.
    alpha1: float | None = None  # Acceptance of draft steps, instead of that.
    alpha2: float | None = None  # Acceptance of draft tokens, instead of that.
    step_tokens: float = 32.0  # Mean length of a step without a calibration: an assumption.
    json: Path | None = None  # Also write every figure to this file.

    def run(self) -> None:
        import torch

        from lr.lab.bench import gpu
        from lr.model.device import DeviceMap

        show.at_least(self, prompt=2, tokens=2, repeats=2, step_tokens=1, batches=1)
        require(bool(self.batches), "batches", (), "at least one number")
        driven = bool(self.drivers) or not any(mode in LOOKAHEAD for mode in self.modes)
        require(driven, "drivers", self.drivers, "at least one for the modes lr and lr+sd")
        show.require_files(json=self.json)
        places = {"draft": self.draft_device, "judge": self.judge_device}
        named = {role: place for role, place in places.items() if place is not None}
        layout = DeviceMap.of({"target": self.device.split(","), **named})
        first = layout.target[0]
        usual = LARGE if first.type == "cuda" else TINY
        target, draft = self.target or usual[0], self.draft or usual[1]
        judge = None if self.judge == "none" else self.judge or usual[2]
        Device(threads=self.threads).set_threads(target, draft, judge)
        options = GenerateOptions(
            mode="lr+sd",
            driver="overlapped" if "overlapped" in self.drivers else "lockstep",
            drafter=self.drafter,
            num_speculative_tokens=self.k,
            depth=self.depth,
            max_tokens=self.tokens,
            temperature=0.6,  # this and the next two as Qwen3 recommends
            top_p=0.95,
            top_k=20,
        )
        dummies = [None if name is None else f"dummy:{name}" for name in (target, draft, judge)]
        dtype = torch_dtype(self.dtype, first.type) or torch.bfloat16
        at_once = len(self.modes) * len(self.drivers)  # each way keeps its caches
        longest = self.prompt + self.tokens
        memory = memory_plan(dummies, layout, dtype, options, longest, share=at_once)
        out = show.console()
        out.print(memory_table(memory))
        memory.check()
        chosen = gpu.ways(list(dict.fromkeys(("ar", *self.modes))), self.drivers)
        runs = (2 * (len(self.batches) + 1) + len(chosen)) * (self.repeats + 1)
        with show.progress("timing", runs) as advance:
            sizes = self.batches, self.prompt, min(self.tokens, 64), self.repeats
            plan = gpu.Plan(options, chosen, self._synthetic(), *sizes, advance)
            found = gpu.bench((target, draft, judge), layout, dtype, plan)
        out.print(gpu.report(found), highlight=False)
        out.print(GPU_NOTES, style="dim")
        kept = [asdict(device) | {"needed": device.needed} for device in memory.devices]
        write_json(found | {"settings": show.settings_of(self), "memory": kept}, self.json)

    def _synthetic(self) -> Synthetic:
        """What decides: given numbers first, then a calibration, then the paper's tables."""
        from lr.lab.bench.synthetic import Synthetic

        lengths = Lognormal(self.step_tokens, 0.5)
        if self.calibration is not None:
            known = Calibration.load(self.calibration)
        else:
            known = paper_calibration(self.pair, self.dataset)
        found = Synthetic.of_calibration(known, lengths)
        given = {"alpha1": self.alpha1, "alpha2": self.alpha2}
        said: dict[str, Any] = {name: one for name, one in given.items() if one is not None}
        return replace(found, **said, source=f"{found.source} but as given") if said else found


TARGETS = {"qwen3": OFFICIAL, "r1": (
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
    OFFICIAL[2],
)}  # fmt: skip
"""Target, draft and judge of the pairs of Table 1."""
NOTES = {
    True: "ours: dummy weights of published shapes. Accepted steps and tokens are drawn with the "
    "paper's rates (alpha 1 printed, alpha 2 fitted to SD), so alpha is no result; speedups are.",
    False: "ours: real models; speedup is all tokens over all seconds against plain decoding, "
    "paired by problem.",
}


@dataclass(frozen=True)
class Table1:
    """Repeat the paper's Table 1: lookahead, token-level speculation and both, against plain
    decoding. The same command again goes on after the last answer, or data set with --dummy."""

    output: Path = Path("runs/table1")
    """Results and table1.md are in its folder PAIR or dummy-PAIR, which goes on only with the card,
    versions, models and settings that made it."""
    pair: Literal["qwen3", "r1"] = "qwen3"  # Which block of the table.
    datasets: tuple[str, ...] = ("AIME24", "GSM8K")  # Columns of the table, by the paper's names.
    dummy: bool = False
    """Random weights of the published shapes and the paper's acceptance rates: what the method
    costs here, without weights or data."""
    data: Path = Path("data")  # Folder with NAME.jsonl for each of --datasets, unless --dummy.
    problems: int | None = None  # Only so many problems of each data set. None: all.
    depth: int = 4  # How many draft steps ahead.
    k: int = 8  # Tokens that prompt lookup guesses.
    prompt: int = 512  # With --dummy: tokens before an answer.
    tokens: int = 512  # With --dummy: tokens of an answer.
    repeats: int = 3  # With --dummy: how often each mode is timed.
    models: RunModels = field(default_factory=RunModels)

    def run(self) -> None:
        self._check()
        heads = ("data set", "", "alpha", "lookahead", "SD", "both")
        out, title, notes = show.console(), f"Table 1, {TABLE_1[self.pair].name}", NOTES[self.dummy]
        folder = self.output / (f"dummy-{self.pair}" if self.dummy else self.pair)
        head = {"tool": "lr reproduce table1", "settings": self._made_by()}
        with Store.open(folder, head) as store:
            rows = [[name, *cells] for name in self.datasets for cells in self._rows(name, folder)]
            facts, lines = show.in_words(conditions()), table([heads, *rows])
            page = [f"# {title}", "", facts, "", notes, "", *lines]
            store.write_lines("table1.md", page)
        out.print(show.table(heads, rows, text=2, title=title))
        out.print(notes, style="dim")
        out.print(folder / "table1.md", soft_wrap=True)

    def _made_by(self) -> dict[str, Any]:
        """What all numbers of a table have in common: where they were measured, and with what."""
        facts, devices = conditions(), self.models.devices()
        where = ("lr", "torch", "cuda", "cards", "card" if "card" in facts else "cpu")
        own = ("depth", "k", *(("prompt", "tokens", "repeats") if self.dummy else ()))
        made = self._models().settings() | {name: facts.get(name) for name in where}
        made |= {name: getattr(self, name) for name in own}
        dtype = torch_dtype(self.models.placement.dtype, devices[0]) or "the checkpoint's"
        return made | {"devices": list(devices), "dtype": str(dtype)}

    def _check(self) -> None:
        for name in self.datasets:
            require(name in DATASETS, "datasets", name, f"names among {', '.join(DATASETS)}")
        require(bool(self.datasets), "datasets", self.datasets, "at least one")
        show.at_least(self, depth=1, k=1, problems=1, prompt=1, tokens=1, repeats=1)
        missing = [str(self._file(n)) for n in self.datasets if not self._file(n).is_file()]
        if missing and not self.dummy:
            raise SettingError(
                f"there is no {', no '.join(missing)}. Put the problems there, one JSON object per "
                "line (docs/evaluation.md), name another folder with --data, or take --dummy, "
                "which needs no data."
            )
        if self.models.model is None:
            import torch

            if not torch.cuda.is_available():
                raise SettingError(
                    "table 1 runs models of 32B, which needs a CUDA device with room for them, and "
                    "there is none here. To see what the command does, name a small model: "
                    "--model tiny-target."
                )

    def _file(self, dataset: str) -> Path:
        return self.data / f"{dataset}.jsonl"

    def _rows(self, dataset: str, folder: Path) -> Iterator[list[str]]:
        """What the paper printed, and what was measured here."""
        pair, at = TABLE_1[self.pair], DATASETS.index(dataset)
        printed = (pair.acceptance, pair.lookahead, pair.tokens, pair.both)
        yield ["paper", *(f"{numbers[at]:.2f}" for numbers in printed)]
        measured = self._drawn if self.dummy else self._answered
        yield ["ours", *map(cell, measured(dataset, folder))]

    def _drawn(self, dataset: str, folder: Path) -> list[float | None]:
        """Acceptance and speedups of `lr bench gpu`, whose file is kept."""
        file = folder / f"{dataset}.json"
        models, places = self._models(), self.models.devices()
        bench = BenchGpu(
            models.model, models.draft_model, models.judge_model, *places, batches=(1,),
            pair=self.pair, dataset=dataset, depth=self.depth, k=self.k, modes=MODES,
            drivers=("overlapped",), dtype=self.models.placement.dtype, json=file,
            prompt=self.prompt, tokens=self.tokens, repeats=self.repeats,
        )  # fmt: skip
        if not file.is_file():
            bench.run()
        kept = read_object(file)
        rows = {row["way"].partition(",")[0]: row for row in kept["modes"]}
        speedups = [rows[mode]["speedup"]["median"] for mode in ("lr", "sd", "lr+sd")]
        return [rows["lr"]["step_acceptance"], *speedups]

    def _answered(self, dataset: str, folder: Path) -> list[float | None]:
        """Acceptance and speedups of `lr run` in each mode, which goes on where it stopped."""
        folders, models = [], self._models()
        for mode in MODES:
            folders.append(folder / f"{dataset}-{mode}")
            how: dict[str, Any] = {"mode": mode, "max_depth": self.depth}
            how |= {"num_speculative_tokens": self.k, "driver": "overlapped"}
            how |= {"dataset": str(self._file(dataset)), "end_qid": self.problems}
            Run(output=folders[-1], models=models, **how).run()
        with Grader() as grader:
            runs = [read_run(folder, grader) for folder in folders]
        rows = {run.mode: make_row(run, choose_baseline(runs)) for run in runs}
        return [rows["lr"].step_acceptance, *(rows[m].speedup for m in ("lr", "sd", "lr+sd"))]

    def _models(self) -> RunModels:
        """The models of the pair, or those that were named."""
        own, names = self.models, TARGETS[self.pair]
        if own.model is not None:
            chosen, _ = replace(own, judge_port=None).chosen("table1")  # `Run` asks the port
            names = (chosen.model or "", chosen.draft_model or "", chosen.judge_model or "")
        model, draft, judge = own.model or names[0], own.draft_model or names[1], own.judge_model
        return replace(own, model=model, draft_model=draft, judge_model=judge or names[2])
