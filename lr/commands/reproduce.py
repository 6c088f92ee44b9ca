"""`lr reproduce table1`: the paper's table of speedups, with ours beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from lr.commands import show
from lr.commands.gpu import BenchGpu
from lr.commands.run import OFFICIAL, Run, RunModels
from lr.errors import SettingError
from lr.lab.eval.report import cell, choose_baseline, make_row, read_run, table
from lr.options import Mode
from lr.theory.paper import DATASETS, TABLE_1
from lr.types import require

MODES: tuple[Mode, ...] = ("ar", "sd", "lr", "lr+sd")
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
    decoding. The same command again goes on where it was interrupted."""

    output: Path = Path("runs/table1")  # Where results are kept; table1.md is the table.
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
        from lr.lab.bench.report import conditions

        self._check()
        self.output.mkdir(parents=True, exist_ok=True)
        rows = [[name, *cells] for name in self.datasets for cells in self._rows(name)]
        heads = ("data set", "", "alpha", "lookahead", "SD", "both")
        out = show.console()
        out.print(show.table(heads, rows, text=2, title=f"Table 1, {TABLE_1[self.pair].name}"))
        out.print(NOTES[self.dummy], style="dim")
        facts, text = show.in_words(conditions()), "\n".join(table([heads, *rows]))
        page = f"# Table 1, {TABLE_1[self.pair].name}\n\n{facts}\n\n{NOTES[self.dummy]}\n\n{text}\n"
        (self.output / "table1.md").write_text(page, encoding="utf-8")
        out.print(self.output / "table1.md", soft_wrap=True)

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

    def _rows(self, dataset: str) -> Iterator[list[str]]:
        """What the paper printed, and what was measured here."""
        pair, at = TABLE_1[self.pair], DATASETS.index(dataset)
        printed = (pair.acceptance, pair.lookahead, pair.tokens, pair.both)
        yield ["paper", *(f"{numbers[at]:.2f}" for numbers in printed)]
        found = self._drawn(dataset) if self.dummy else self._answered(dataset)
        yield ["ours", *map(cell, found)]

    def _drawn(self, dataset: str) -> list[float | None]:
        """Acceptance and speedups of `lr bench gpu`, whose file is kept."""
        file = (self.output / f"dummy-{self.pair}-{dataset}.json").absolute()
        models, places = self._models(), self.models.devices()
        bench = BenchGpu(
            models.model, models.draft_model, models.judge_model, *places, batches=(1,),
            pair=self.pair, dataset=dataset, depth=self.depth, k=self.k, modes=MODES,
            drivers=("overlapped",), dtype=self.models.placement.dtype, json=file,
            prompt=self.prompt, tokens=self.tokens, repeats=self.repeats,
        )  # fmt: skip
        kept = json.loads(file.read_text("utf-8")) if file.is_file() else {}
        if kept.get("settings") != json.loads(json.dumps(show.settings_of(bench))):
            bench.run()
            kept = json.loads(file.read_text("utf-8"))
        rows = {row["way"].partition(",")[0]: row for row in kept["modes"]}
        speedups = [rows[mode]["speedup"]["median"] for mode in ("lr", "sd", "lr+sd")]
        return [rows["lr"]["step_acceptance"], *speedups]

    def _answered(self, dataset: str) -> list[float | None]:
        """Acceptance and speedups of `lr run` in each mode, which goes on where it stopped."""
        from lr.lab.eval.grading import Grader

        folders, models = [], self._models()
        for mode in MODES:
            folders.append(self.output / f"{self.pair}-{dataset}-{mode}")
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
