"""`lr report` compares runs, `lr verify` judges saved pairs again, `lr experiment`
repeats the paper's experiments on any models."""

from __future__ import annotations

import shlex
import sys
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from lr.commands.options import ModelChoice
from lr.commands.show import console, progress, require_at_least, require_files, table
from lr.errors import SettingError
from lr.measure import report
from lr.measure.datasets import fingerprint, load_items
from lr.measure.grading import Grader
from lr.measure.machine import conditions
from lr.measure.store import Store, write_json
from lr.options import GenerateOptions
from lr.spec.verifiers.base import Requires
from lr.types import require
from lr.watch.figures.plots import Curves, draw_panels

if TYPE_CHECKING:
    from lr.measure.models import Models
    from lr.measure.verifier_eval import SavedPair
    from lr.reasoner import Reasoner
    from lr.spec.verifiers.base import Pair


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
        notes = report.notes(summaries)
        heads, *cells = report.texts(rows)
        shown = table([head.replace(" ", "\n") for head in heads], cells, text=2)
        for shown_column in shown.columns:
            shown_column.overflow = "fold"
            shown_column.no_wrap = False
        out = console(width=200)
        out.print(shown)
        for note in notes:
            out.print(f"- {note}")
        out.print(report.LEGEND, style="dim")
        write_json({"rows": rows, "notes": notes}, self.json)


@dataclass(frozen=True)
class Verify:
    """Judge saved pairs of steps again, with one or more verifiers: how much is
    accepted, how much of it is wrong, the ROC curve, the cost. Or fit one to them."""

    pairs: tyro.conf.Positional[Path]
    """The folder of a run with --save_pairs, or a file of pairs."""
    verifiers: tuple[str, ...] = ("exact", "numbers", "likelihood")
    """By name, such as judge:0.5 fitted:FILE.json embedding:0.95@PATH. saved: the
    verdicts that the file holds."""
    fit: Path | None = None
    """Also fit a verifier to the labels and write it to this file. The verifier
    fitted:FILE uses it."""
    signals: tuple[str, ...] = ()
    """The signals of the fit (docs/verifiers.md). None: all that ask no model."""
    wrong: float = 0.05
    """The threshold of the fit: the one that accepts most if at most this share of it
    is wrong."""
    reference: str | None = None
    """The verifier that counts as right. None: the labels in the file, else the oracle,
    which only the tiny language has."""
    sheet: Path | None = None
    """Only write --pairs_in_sheet pairs to this file, for a reader to label."""
    pairs_in_sheet: int = 200  # How many pairs, evenly spread over the run.
    models: ModelChoice = field(default_factory=ModelChoice)
    json: Path | None = None  # Also write every number and curve to this file.
    figure: Path | None = None
    """Also draw ROC, acceptance and error, as PNG and SVG (extra `plot`)."""

    def run(self) -> None:
        from lr.measure import verifier_eval as ev

        require_at_least(self, pairs_in_sheet=1)
        require(0 < self.wrong < 1, "wrong", self.wrong, "a share between 0 and 1")
        require_files(
            json=self.json, figure=self.figure, sheet=self.sheet, fit=self.fit
        )
        saved = ev.load_pairs(self.pairs)
        if self.sheet is not None:
            complete = [pair for pair in saved if pair.target is not None]
            step = max(1, len(complete) // self.pairs_in_sheet)
            chosen = complete[::step][: self.pairs_in_sheet]
            Store(self.sheet.parent).write_lines(self.sheet.name, ev.pair_lines(chosen))
            console().print(f"{len(chosen)} pairs to label: {self.sheet}")
            return
        with closing(models_of(self.models)) as models:
            self._judge(models, saved)

    def _judge(self, models: Models, saved: list[SavedPair]) -> None:
        from lr.measure import fit as fitting
        from lr.measure import verifier_eval as ev
        from lr.spec.verifiers.fitted import SIGNALS, required

        # 1. The pairs, the truth, the verifiers.
        pairs = [pair.pair() for pair in saved]
        truth = self._truth(models, saved, pairs)
        problems = [pair.problem for pair in saved]
        texts = ev.SheetTexts.of(saved)
        names = [name for name in dict.fromkeys(self.verifiers) if name != "saved"]
        verifiers = {name: models.verifier(name, texts) for name in names}
        scorers = {}
        signals = self.signals or tuple(SIGNALS)
        if self.fit is not None:
            scorers = models.scorers(signals)
            needed = required(signals, scorers)
            ev.require_evidence("the fit", needed, pairs)
            drawn = all(pair.draft_logprobs for pair in pairs)
            if Requires.DRAFT_LOGPROBS in needed and not drawn:
                raise SettingError(
                    "no model drew some of these draft steps (a step source wrote them): "
                    "fit to --signals that do not begin with draft_."
                )
        models.require_vocabulary(pairs)

        # 2. Their verdicts.
        results = {}
        for name, verifier in verifiers.items():
            ev.replay(verifier, pairs[: ev.BATCH])  # warm up
            judged = ev.replay(verifier, pairs)
            swapped = None
            if verifier.requires == Requires.TARGET_STEP:
                swapped = ev.replay(verifier, ev.swapped(pairs))
            results[name] = (judged, swapped)
        if "saved" in self.verifiers:
            saved_verdicts = tuple(pair.verdict for pair in saved)
            results["saved"] = (ev.ReplayedVerdicts(saved_verdicts), None)
        if self.fit is not None:
            fit, judged = fitting.fit_pairs(
                signals, pairs, truth, problems, texts.decode, scorers, self.wrong
            )
            results["fitted, other problems"] = (judged, None)
            facts = {"data": self.pairs.name, "command": shlex.join(sys.argv[1:])}
            write_json(fit.content(facts), self.fit)

        # 3. How right they are.
        rows = []
        content = {}
        roc = []
        errors = []
        for name, (judged, swapped) in results.items():
            quality = ev.quality(judged, truth, swapped)
            shares = fitting.shares(judged.scores, truth, problems)
            cells = [quality.accepted, quality.error, *map(str, shares.values())]
            rows.append((name, *cells, quality.order_flips, quality.ms_per_pair))
            points = ev.curve(judged.scores, truth)
            content[name] = asdict(quality) | {"curve": points, "estimates": shares}
            roc.append((name, [(p.false_rate, p.true_rate) for p in points]))
            errors.append((name, [(p.accepted, p.error) for p in points]))
        heads = ["accepts:.3f", "of it\nwrong:.3f", *fitting.SHARES]
        heads += ["order\nflips:.3f", "ms\nper pair:.3f"]
        console(width=200).print(table(["verifier", *heads], rows))
        write_json(content, self.json)
        if self.figure is not None:
            roc.append(("a coin", [(0.0, 0.0), (1.0, 1.0)]))
            panels = [
                Curves("ROC", "false pairs accepted", "true pairs accepted", roc),
                Curves("the price", "share accepted", "of them wrong", errors),
            ]
            draw_panels(panels, self.figure)

    def _truth(
        self, models: Models, saved: list[SavedPair], pairs: list[Pair]
    ) -> list[bool]:
        """The labels, or the verdicts of the reference."""
        from lr.measure import verifier_eval as ev

        labels = [pair.label for pair in saved]
        if self.reference is None and labels.count(None) < len(labels):
            if None in labels:
                raise SettingError(
                    f"{labels.count(None)} of {len(labels)} pairs have no label: label "
                    "them too, leave them out, or name a --reference, such as judge."
                )
            return [bool(label) for label in labels]
        name = self.reference or ("oracle" if models.is_tiny else None)
        if name is None:
            raise SettingError(
                "these pairs have no labels and this model no oracle: name a "
                "--reference, such as judge."
            )
        verifier = models.verifier(name)
        models.require_vocabulary(pairs)
        judged = ev.replay(verifier, pairs)
        return [verdict.aligned for verdict in judged.verdicts]


def models_of(choice: ModelChoice) -> Models:
    """The models of these flags, not loaded yet."""
    from lr.measure.models import Models

    def load(draft_alone: bool) -> Reasoner:
        if draft_alone:
            return choice.reasoner(choice.required_draft(), None)
        return choice.reasoner(choice.model, choice.draft())

    settings = choice.settings() | {"draft_model": choice.draft()}
    return Models(load, choice.judge_model, settings)


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
    or ways to answer, each a mode and settings, such as "sd drafter=ngram", "lr
    verifier=likelihood depth=2" or "lr driver=lockstep". None: those of the paper."""
    variant: tuple[str, ...] = ()
    """For experiment speedup: variants of the method, one more row each (two, cold and
    warm, if it remembers earlier answers); see lr generate. Its settings win over
    these."""
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
        from lr.measure.lab import Lab

        names = list(EXPERIMENTS) if self.name == "all" else [self.name]
        choices = f"one of {', '.join(EXPERIMENTS)}, or all"
        require(names[0] in EXPERIMENTS, "name", self.name, choices)
        require_at_least(self, problems=2, concurrency=1, repeats=1)
        rows = not self.variant or self.name == "speedup"
        require(rows, "variant", self.variant, "none: only speedup has rows for them")
        self.models.required_draft()
        notes = console(stderr=True)
        for name in names:
            experiment = EXPERIMENTS[name]
            count = self.problems or experiment.problems
            dataset = self.dataset or f"tiny:{count}"
            all_items = load_items(dataset, seed=self.generation.seed)
            items = all_items[:count]
            lab = Lab(
                items,
                self.work / name,
                models_of(self.models),
                self.generation,
                values=self.values,
                variants=self.variant,
                concurrency=self.concurrency or (1 if experiment.timed else 8),
                repeats=self.repeats,
                data=fingerprint(all_items),
            )
            with closing(lab.models):
                ways = experiment.ways(lab)
                total = len(ways) * len(items) * self.repeats
                notes.print(f"{name}: {len(ways)} ways, {total} answers in {lab.work}")
                with progress(name, total) as advance:
                    results = lab.run(ways, advance)
                command = shlex.join(["lr", *sys.argv[1:]])
                files = write_results(name, results, self.output, command, conditions())
            console().print(files[0].read_text(encoding="utf-8"))
            notes.print(f"written: {', '.join(map(str, files))}")
            for error in lab.failures.values():
                raise error  # the rows of the others are written
