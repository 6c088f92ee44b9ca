"""The one place where ways to answer are timed side by side.

A `Lab` answers every problem in every way; the ways alternate, so a change in the
machine's speed affects all of them. Each way writes a run folder like that of `lr run`,
and resumes where it stopped.

Every timed answer begins as in a fresh process: its variant is loaded anew. A variant
whose drafter declares `memory` has a second row, warm, in which it remembers the answers
before. Each way first writes a few tokens, so one that cannot run is refused before
anything is timed; one that fails later ends alone."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lr.measure import report
from lr.measure.datasets import Item
from lr.measure.grading import Grader
from lr.measure.models import Models
from lr.measure.report import Summary
from lr.measure.running import Evaluation, run_head
from lr.measure.store import AnswerKey, Store
from lr.measure.ways import Way, in_turn
from lr.options import GenerateOptions, Mode
from lr.spec.variant import Variant
from lr.types import require
from lr.variants.loading import load_variant

Row = dict[str, Any]
NOTE = "This was the way to answer: "


@dataclass(frozen=True)
class WayResult:
    """The answers of a way, compared with plain decoding."""

    way: Way
    summary: Summary

    @property
    def steps(self) -> list[tuple[str, int]]:
        """(origin, tokens) of every step."""
        return [
            (origin, tokens)
            for record in self.summary.run.records.values()
            for origin, tokens in record.get("steps", [])
        ]


@dataclass
class Lab:
    """Answers problems in several ways. `values`: what the experiment varies, as flags
    gave it. `concurrency`: problems answered together. `repeats`: answers per problem,
    with other draws. `data`: the fingerprint of the data set that `items` are from.
    `failures`: the errors of ways that failed while they were timed, by name."""

    items: Sequence[Item]
    work: Path
    models: Models
    options: GenerateOptions = field(default_factory=GenerateOptions)
    values: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    concurrency: int = 1
    repeats: int = 1
    data: str = ""
    failures: dict[str, Exception] = field(default_factory=dict, init=False)

    @property
    def mode(self) -> Mode:
        """How ways answer that name no mode."""
        return self.options.mode or "lr"

    def run(
        self, ways: Sequence[Way], progress: Callable[[str], None] = lambda name: None
    ) -> list[WayResult]:
        """Answer every problem in every way and compare; `failures` holds the errors of
        ways that end early. Calls `progress` after each answer. Raises the error of a
        way that cannot even begin."""
        for way in ways:
            alone = way.variant is None or self.concurrency == 1
            each = "1 with a variant: each of its answers begins anew"
            require(alone, "concurrency", self.concurrency, each)
        size = 2 * self.concurrency if self.concurrency > 1 else 1
        turns = [
            {
                AnswerKey(item.number, repeat)
                for item in self.items[first : first + size]
            }
            for repeat in range(self.repeats)
            for first in range(0, len(self.items), size)
        ]
        with Grader() as grader:
            # 1. Every way writes a few tokens, which sets up what it needs.
            begun: list[tuple[Way, Evaluation]] = []
            for way in ways:
                try:
                    evaluation = self._evaluation(way, grader)
                    remembers = evaluation.warm_up()
                except Exception as error:
                    error.add_note(NOTE + way.name)
                    raise
                begun.append((way, evaluation))
                if remembers:
                    cells = {head: f"{cell}, warm" for head, cell in way.cells.items()}
                    warm = replace(way, cells=cells, warm=True)
                    begun.append((warm, self._evaluation(warm, grader)))
            for way, evaluation in begun:
                num_done = len(evaluation.keys) - len(evaluation.missing)
                if way.warm and evaluation.missing and num_done:
                    evaluation.begin_again()  # nobody remembers what was answered
                    num_done = 0
                for _ in range(num_done):
                    progress(way.name)
            # 2. The ways take turns, and another begins each time.
            for number, keys in enumerate(turns):
                for way, evaluation in in_turn(begun, number):
                    if way.name in self.failures:
                        continue
                    try:
                        if not way.warm:
                            evaluation.variant = self._variant(way)
                        for _ in evaluation.run(keys):
                            progress(way.name)
                    except Exception as error:
                        error.add_note(NOTE + way.name)
                        self.failures[way.name] = error
            # 3. Whatever was answered is compared.
            answered = [(w, e.store) for w, e in begun if e.store.keys()]
            if not answered:
                raise next(iter(self.failures.values()))
            runs = [report.read_run(store.path, grader) for _, store in answered]
        numbers = {item.number for item in self.items}
        for run in runs:  # another --problems may have left more
            for key in [key for key in run.records if key.number not in numbers]:
                del run.records[key]
        baseline = report.choose_baseline(runs)
        return [
            WayResult(way, report.summarise(run, baseline))
            for (way, _), run in zip(answered, runs, strict=True)
        ]

    def _evaluation(self, way: Way, grader: Grader) -> Evaluation:
        """All problems in one way. The way's options override the variant's settings,
        and these what the ways have in common."""
        draft_alone = way.mode == "draft"
        variant = self._variant(way)
        settings = {"mode": self.mode, **variant.settings, **way.options}
        if way.mode is not None:
            settings["mode"] = "ar" if draft_alone else way.mode
        return Evaluation(
            self.models.reasoner(draft_alone=draft_alone),
            Store.open(self.work / way.name, self._head(way)),
            grader,
            self.items,
            replace(self.options, **settings),
            variant,
            samples=range(self.repeats),
            concurrency=self.concurrency,
            draft_alone=draft_alone,
        )

    def _variant(self, way: Way) -> Variant:
        """The way's parts of the method, loaded anew."""
        variant = Variant()
        if way.variant is not None:
            reasoner = self.models.reasoner(draft_alone=way.mode == "draft")
            variant = load_variant(way.variant, reasoner, anew=True)
            # The way's options win, even where they are the usual ones.
            stated = variant.settings.items()
            settings = {n: value for n, value in stated if n not in way.options}
            variant = replace(variant, settings=settings)
        if way.verifier is not None:
            variant = replace(variant, verifier=self.models.verifier(way.verifier))
        return variant

    def _head(self, way: Way) -> Row:
        """The content of the way's run.json."""
        settings = asdict(replace(self.options, **way.options)) | {
            **self.models.settings,
            "data": self.data,
            "mode": way.name if way.variant else way.mode or self.mode,
            "variant": way.variant,
            "warm": way.warm,
            "concurrency": self.concurrency,
        }
        if way.verifier is not None:
            settings["verifier"] = way.verifier
        device = self.models.reasoner().engine.target_model.device
        return run_head(settings, [device])
