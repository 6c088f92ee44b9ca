"""`lr report` compares runs, `lr verify` judges saved pairs again, `lr experiment`
repeats the paper's experiments on any models."""

from __future__ import annotations

import shlex
import sys
import time
from contextlib import closing
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from lr.commands.options import ModelChoice
from lr.commands.show import at_least, console, progress, require_files, table
from lr.errors import SettingError
from lr.measure import report
from lr.measure.bench.report import conditions, write_json
from lr.measure.datasets import fingerprint, load_items
from lr.measure.grading import Grader
from lr.options import GenerateOptions
from lr.spec.verifiers.base import Requires
from lr.types import require
from lr.watch.figures.plots import Curves, draw

if TYPE_CHECKING:
    from lr.measure.experiments import Lab


@dataclass(frozen=True)
class Report:
    """Compare runs: accuracy with intervals, speedup paired by problem, acceptance."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of lr run or of the official tool."""
    baseline: str | None = None
    """Folder or mode to compare with. None: the first in mode ar."""
    json: Path | None = None  # Also write the numbers to this file.

    def run(self) -> None:
        require(bool(self.runs), "runs", self.runs, "folders such as runs/*")
        require_files(json=self.json)
        with Grader() as grader:
            runs = [report.read_run(path, grader) for path in self.runs]
        baseline = report.choose_baseline(runs, self.baseline)
        summaries = [report.summarise(run, baseline) for run in runs]
        rows = [summary.row for summary in summaries]
        heads, *cells = report.texts(rows)
        shown = table([head.replace(" ", "\n") for head in heads], cells, text=2)
        for shown_column in shown.columns:
            shown_column.overflow = "fold"
            shown_column.no_wrap = False
        out = console(width=200)
        out.print(shown)
        for note in report.notes(summaries):
            out.print(f"- {note}")
        out.print(report.LEGEND, style="dim")
        content = {"rows": report.plain(rows), "notes": report.notes(summaries)}
        write_json(content, self.json)


@dataclass(frozen=True)
class Verify:
    """Judge saved pairs of steps again, with one or more verifiers: how much is
    accepted, how much of it is wrong, the ROC curve, the cost."""

    pairs: tyro.conf.Positional[Path]
    """The folder of a run with --save_pairs, or a file that --sheet wrote."""
    verifiers: tuple[str, ...] = ("judge",)
    """By name, such as judge:0.5 exact embedding:0.95@PATH."""
    reference: str | None = None
    """The verifier that counts as right. None: the labels in the file, else the oracle,
    which only the tiny language has."""
    sheet: Path | None = None
    """Only write --pairs_in_sheet pairs to this file, for a reader to label."""
    pairs_in_sheet: int = 200  # How many pairs, evenly spread over the run.
    models: ModelChoice = field(default_factory=ModelChoice)
    batch: int = 16  # Pairs per call; the cost of a decision depends on it.
    json: Path | None = None  # Also write every number and curve to this file.
    figure: Path | None = None
    """Also draw ROC, acceptance and error, as PNG and SVG (extra `plot`)."""

    def run(self) -> None:
        from lr.measure.verifier_eval import load_pairs, write_sheet

        at_least(self, batch=1, pairs_in_sheet=1)
        require_files(json=self.json, figure=self.figure, sheet=self.sheet)
        saved = load_pairs(self.pairs)
        with closing(lab_of(self.models, [], Path())) as lab:
            if self.sheet is not None:
                complete = [entry for entry in saved if entry[0].target is not None]
                step = max(1, len(complete) // self.pairs_in_sheet)
                chosen = complete[::step][: self.pairs_in_sheet]
                write_sheet(self.sheet, chosen, lab.reasoner().codec.decode)
                console().print(f"{len(chosen)} pairs to label: {self.sheet}")
                return
            self._judge(lab, saved)

    def _judge(self, lab: Lab, saved: list[Any]) -> None:
        from lr.measure import verifier_eval as ev

        pairs = [pair for pair, _ in saved]
        labels = [entry.label for _, entry in saved]
        if self.reference is None and None not in labels:
            truth = [bool(label) for label in labels]
        else:
            name = self.reference or ("oracle" if lab.is_tiny else None)
            if name is None:
                raise SettingError(
                    "these pairs have no labels and this model no oracle: name a "
                    "--reference, such as judge."
                )
            judged = ev.replay(lab.verifier_named(name), pairs, self.batch)
            truth = [verdict.aligned for verdict in judged.verdicts]
        rows = []
        content = {}
        roc = []
        errors = []
        for name in dict.fromkeys(self.verifiers):
            verifier = lab.verifier_named(name)
            ev.replay(verifier, pairs[: self.batch], self.batch)  # warm up
            judged = ev.replay(verifier, pairs, self.batch)
            swapped = None
            if verifier.requires & Requires.TARGET_STEP:
                swapped = ev.replay(verifier, ev.swapped(pairs), self.batch)
            quality = ev.quality(judged, truth, swapped)
            rows.append((name, *vars(quality).values()))
            points = ev.curve(judged.scores, truth)
            content[name] = asdict(quality) | {"curve": [asdict(p) for p in points]}
            roc.append((name, [(p.false_rate, p.true_rate) for p in points]))
            errors.append((name, [(p.accepted, p.error) for p in points]))
        heads = [
            f"{column.name}:.3f".replace("_", "\n") for column in fields(ev.Quality)
        ]
        console().print(table(["verifier", *heads], rows))
        write_json(content, self.json)
        if self.figure is not None:
            false = "false pairs accepted"
            true = "true pairs accepted"
            roc.append(("a coin", [(0.0, 0.0), (1.0, 1.0)]))
            panels = [
                Curves("ROC", false, true, roc),
                Curves("the price", "share accepted", "of them wrong", errors),
            ]
            draw(panels, self.figure)


def lab_of(models: ModelChoice, items: list[Any], work: Path, **settings: Any) -> Lab:
    """A lab with the models of these flags."""
    from lr.measure.experiments import Lab

    def load(draft_alone: bool) -> Any:
        draft = models.draft()
        if draft_alone and draft is not None:
            return models.reasoner(draft, None)
        return models.reasoner(models.model, draft)

    head = {
        "model": models.model,
        "draft_model": models.draft(),
        "judge_model": models.judge_model,
        "verifier": models.verifier,
        **asdict(models.placement),
    }
    judge = models.judge_model
    return Lab(items, work, load, judge=judge, head=head, **settings)


@dataclass(frozen=True)
class ExperimentCommand:
    """Run one of the paper's experiments, or all of them, on any models. The same
    command again continues."""

    name: tyro.conf.Positional[str]
    """speedup (Table 1), verifiers (Table 2), width (Table 3), profile, budget,
    segmentation, or all."""
    models: ModelChoice = field(default_factory=ModelChoice)
    dataset: str | None = None  # As for lr run; None: problems of the tiny language.
    problems: int | None = None
    """How many problems; None: a number that suits the tiny models."""
    repeats: int = 1  # How often each problem is answered, with other draws.
    values: tuple[str, ...] = ()
    """What the experiment varies: verifiers (NAME or NAME@CHECKPOINT), widths, budgets,
    or ways to answer, each a mode and settings, such as "sd drafter=ngram" or "lr
    verifier=likelihood depth=2". None: those of the paper."""
    variant: tuple[str, ...] = ()
    """For experiment speedup: variants of the method, one more row each; see lr
    generate."""
    concurrency: int | None = None
    """Problems answered at the same time. None: one where speed is measured, else 8."""
    generation: GenerateOptions = field(
        default_factory=lambda: GenerateOptions(driver="overlapped")
    )
    output: Path = Path("results")  # The folder for tables, figures and JSON.
    work: Path = Path("runs/experiments")
    """The folder that keeps the answers between calls."""

    def run(self) -> None:
        from lr.measure.experiments import EXPERIMENTS, write_results

        names = list(EXPERIMENTS) if self.name == "all" else [self.name]
        choices = f"one of {', '.join(EXPERIMENTS)}, or all"
        require(names[0] in EXPERIMENTS, "name", self.name, choices)
        at_least(self, problems=2, concurrency=1, repeats=1)
        rows = not self.variant or self.name == "speedup"
        require(rows, "variant", self.variant, "none: only speedup has rows for them")
        draft = self.models.draft()
        require(draft is not None, "draft_model", None, "a draft for this target")
        notes = console(stderr=True)
        for name in names:
            started = time.monotonic()
            experiment = EXPERIMENTS[name]
            count = self.problems or experiment.problems
            dataset = self.dataset or f"tiny:{count}"
            all_items = load_items(dataset, seed=self.generation.seed)
            items = all_items[:count]
            lab = lab_of(
                self.models,
                items,
                self.work / name,
                options=self.generation,
                values=self.values,
                variants=self.variant,
                concurrency=self.concurrency or (1 if experiment.timed else 8),
                repeats=self.repeats,
                data=fingerprint(all_items),
            )
            with closing(lab):
                arms = experiment.arms(lab)
                total = len(arms) * len(items) * self.repeats
                notes.print(f"{name}: {len(arms)} arms, {total} answers in {lab.work}")
                with progress(name, total) as advance:
                    results = lab.run(arms, advance)
                words = ["experiment", self.name]
                if sys.argv[1:2] == ["experiment"]:
                    words = sys.argv[1:]
                machine = conditions()
                facts = ("cpu", "cores", "load", "python", "torch")
                files = write_results(
                    name,
                    results,
                    self.output,
                    f"lr {shlex.join(words)}",
                    {fact: machine[fact] for fact in facts},
                )
            console().print(files[0].read_text(encoding="utf-8"), soft_wrap=True)
            seconds = time.monotonic() - started
            written = ", ".join(map(str, files))
            notes.print(f"{name}: {seconds:.0f} s; written: {written}")
