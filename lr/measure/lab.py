"""The one place where ways to answer are timed side by side.

A `Lab` answers every problem in every way; the ways alternate, so a change in the
machine's speed affects all of them. Each way writes a run folder like that of `lr run`,
and resumes where it stopped.

Every timed answer begins as in a fresh process: its variant is loaded anew. A variant
whose drafter declares `memory` has a second row, warm, in which it remembers the answers
before. Each way first writes a few tokens, so one that cannot run is refused before
anything is timed; one that fails later ends alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, product
from pathlib import Path
from typing import Any

from lr.engine.verifiers import VerifierChoice, asked_model
from lr.measure import report
from lr.measure.datasets import Item
from lr.measure.grading import Grader
from lr.measure.report import Summary
from lr.measure.running import Evaluation, engine_options, identified, run_head
from lr.measure.store import AnswerKey, Store
from lr.measure.verifier_eval import SheetTexts, read_logprobs
from lr.measure.ways import Way, in_turn
from lr.options import GenerateOptions, Mode
from lr.reasoner import Reasoner
from lr.spec.variant import Variant
from lr.spec.verifiers.base import Pair, Requires, Verifier
from lr.spec.verifiers.fitted import SCORES, SIGNALS
from lr.tiny.names import speaks_tiny
from lr.types import require
from lr.variants.loading import load_variant

Row = dict[str, Any]
NOTE = "This was the way to answer: "
ASK_NO_MODEL = ("exact", "likelihood", "numbers", "fitted")


@dataclass(frozen=True)
class WayResult:
    """The answers of a way, compared with plain decoding."""

    way: Way
    lab: Lab
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
    """Answers problems in several ways. `load(True)` gives the draft alone. `values`:
    what the experiment varies, as flags gave it. `concurrency`: problems answered
    together. `repeats`: answers per problem, with other draws. `data`: the fingerprint
    of the data set that `items` are from. `head`: facts for run.json. `failures`: the
    errors of ways that failed while they were timed, by name."""

    items: Sequence[Item]
    work: Path
    load: Callable[[bool], Reasoner]
    options: GenerateOptions = field(default_factory=GenerateOptions)
    values: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    judge: str | None = None
    concurrency: int = 1
    repeats: int = 1
    data: str = ""
    head: Mapping[str, Any] = field(default_factory=dict)
    failures: dict[str, Exception] = field(default_factory=dict, init=False)
    _reasoners: dict[bool, Reasoner] = field(default_factory=dict, init=False)
    _verifiers: dict[str, Verifier] = field(default_factory=dict, init=False)
    _warm: dict[str, Variant] = field(default_factory=dict, init=False)

    @property
    def mode(self) -> Mode:
        """How ways answer that name no mode."""
        return self.options.mode or "lr"

    def reasoner(self, *, draft_alone: bool = False) -> Reasoner:
        if draft_alone not in self._reasoners:
            self._reasoners[draft_alone] = self.load(draft_alone)
        return self._reasoners[draft_alone]

    def verifier_named(self, name: str, texts: SheetTexts | None = None) -> Verifier:
        """A verifier by name, loaded once; judge@PATH and embedding:0.95@PATH name its
        checkpoint. With the `texts` of a sheet, one that asks no model loads none.
        Raises `SettingError` if a checkpoint is missing."""
        if texts is not None and name.partition(":")[0] in ASK_NO_MODEL:
            choice = VerifierChoice(name, texts)  # type: ignore[arg-type]
            if not choice.asks_model:
                return choice.build(None)
        if name not in self._verifiers:
            kind, _, checkpoint = name.partition("@")
            if not checkpoint and kind.startswith("judge"):
                checkpoint = self.judge or ""
            reasoner = self.reasoner()
            target = reasoner.engine.target_model
            choice = VerifierChoice(
                kind,
                reasoner.codec,
                checkpoint or None,
                target.device,
                reasoner.engine.loader,
            )
            self._verifiers[name] = choice.build(target)
        return self._verifiers[name]

    def scorers(self, signals: Sequence[str]) -> dict[str, Verifier]:
        """The verifiers whose scores are signals. Raises `SettingError` for a signal
        that does not exist."""
        known = (*SIGNALS, *SCORES)
        for name in signals:
            require(name in known, "signals", name, f"one of {', '.join(known)}")
        return {name: self.verifier_named(name) for name in signals if name in SCORES}

    def require_vocabulary(self, pairs: Sequence[Pair]) -> None:
        """Raise `SettingError` if the model, if one was loaded, cannot have written the
        pairs."""
        if not self._reasoners:
            return
        codec = self.reasoner().codec
        largest = max(max((*pair.prefix, *pair.draft_step.tokens)) for pair in pairs)
        wrote = f"the target that wrote these pairs: they have token {largest}"
        require(largest < codec.vocab_size, "model", codec.name, wrote)

    def with_logprobs(self, pairs: Sequence[Pair], requires: Requires) -> list[Pair]:
        """The pairs, all read by the target or the draft if one of them has no
        log-probabilities of it that are required. Raises `SettingError` if the models
        are not those of the pairs."""
        read = list(pairs)
        for evidence, flag, name in (
            (Requires.TARGET_LOGPROBS, "model", "logprobs"),
            (Requires.DRAFT_LOGPROBS, "draft_model", "draft_logprobs"),
        ):
            if evidence not in requires or all(vars(pair)[name] for pair in read):
                continue
            reasoner = self.reasoner()
            engine = reasoner.engine
            model = engine.target_model if flag == "model" else engine.draft_model
            expected = "a model: the pairs hold no log-probabilities of it"
            require(model is not None, flag, None, expected)
            assert model is not None
            self.require_vocabulary(read)
            rows = read_logprobs(asked_model(model, reasoner.codec).runner, read)
            logs_of: list[dict[str, Any]] = [{name: logs} for logs in rows]
            read = [replace(p, **logs) for p, logs in zip(read, logs_of, strict=True)]
        return read

    @property
    def is_tiny(self) -> bool:
        """Whether the models speak the tiny language, which has an oracle."""
        return speaks_tiny(self.reasoner().codec)

    def run(
        self, ways: Sequence[Way], progress: Callable[[str], None] = lambda name: None
    ) -> list[WayResult]:
        """Answer every problem in every way and compare; `failures` holds the errors of
        ways that end early. Calls `progress` after each answer. Raises the error of a
        way that cannot even begin."""
        size = 2 * self.concurrency if self.concurrency > 1 else 1
        turns = list(product(range(self.repeats), range(0, len(self.items), size)))
        for way in ways:
            alone = way.variant is None or self.concurrency == 1
            each = "1 with a variant: each of its answers begins anew"
            require(alone, "concurrency", self.concurrency, each)
        with Grader() as grader:
            # 1. Every way writes a few tokens, which sets up what it needs.
            tried = list(chain.from_iterable(self._try(way, grader) for way in ways))
            stores = {
                way.name: Store.open(self.work / way.name, self._head(way))
                for way in tried
            }
            keys = {AnswerKey(i.number, n) for i in self.items for n, _ in turns}
            for way in tried:
                store = stores[way.name]
                if way.warm and not keys <= store.done():  # nobody remembers those
                    for key in store.done():
                        (store.path / key.file).unlink()
            # 2. The ways take turns, and another begins each time.
            for number, (repeat, first) in enumerate(turns):
                items = self.items[first : first + size]
                for way in in_turn(tried, number):
                    if way.name in self.failures:
                        continue
                    store = stores[way.name]
                    try:
                        evaluation = self._evaluation(way, items, repeat, store, grader)
                        num_done = len(evaluation.keys) - len(evaluation.missing)
                        for _ in chain(range(num_done), evaluation.run()):
                            progress(way.name)
                    except Exception as error:
                        error.add_note(NOTE + way.name)
                        self.failures[way.name] = error
            # 3. Whatever was answered is compared.
            answered = [way for way in tried if stores[way.name].keys()]
            if not answered:
                raise next(iter(self.failures.values()))
            runs = [report.read_run(stores[w.name].path, grader) for w in answered]
        numbers = {item.number for item in self.items}
        for run in runs:  # another --problems may have left more
            for key in [key for key in run.records if key.number not in numbers]:
                del run.records[key]
        baseline = report.choose_baseline(runs)
        return [
            WayResult(way, self, report.summarise(run, baseline))
            for way, run in zip(answered, runs, strict=True)
        ]

    def _try(self, way: Way, grader: Grader) -> Iterator[Way]:
        """Write a few tokens in a way, untimed. Yields the way, and then, if its drafter
        declares memory, the warm one."""
        try:
            store = Store(self.work / way.name)
            evaluation = self._evaluation(way, self.items, 0, store, grader)
            evaluation.missing = evaluation.keys  # whether there are answers or not
            remembers = evaluation.warm_up()
        except Exception as error:
            error.add_note(NOTE + way.name)
            raise
        yield way
        if remembers:
            cells = {head: f"{cell}, warm" for head, cell in way.cells.items()}
            yield replace(way, cells=cells, warm=True)

    def close(self) -> None:
        for reasoner in self._reasoners.values():
            reasoner.close()

    def _evaluation(
        self,
        way: Way,
        items: Sequence[Item],
        repeat: int,
        store: Store,
        grader: Grader,
    ) -> Evaluation:
        """Some problems in one way."""
        reasoner = self.reasoner(draft_alone=way.mode == "draft")
        # New, unless the way is warm and has answered before.
        variant = self._warm.get(way.name, Variant())
        if way.variant is not None and way.name not in self._warm:
            variant = load_variant(way.variant, reasoner, anew=True)
            if way.warm:
                self._warm[way.name] = variant
        # The way's options override the variant's settings.
        stated = {n: v for n, v in variant.settings.items() if n not in way.options}
        settings = {**stated, **way.options}
        variant = replace(variant, settings=stated)
        if way.verifier is not None:
            variant = replace(variant, verifier=self.verifier_named(way.verifier))
        mode = way.mode or settings.get("mode", self.mode)
        options = engine_options(mode, "generate", replace(self.options, **settings))
        return Evaluation(
            reasoner,
            store,
            grader,
            items,
            mode,
            options,
            samples=(repeat,),
            concurrency=self.concurrency,
            variant=variant,
        )

    def _head(self, way: Way) -> Row:
        """The content of the way's run.json."""
        settings = asdict(replace(self.options, **way.options)) | {
            **self.head,
            "data": self.data,
            "mode": way.name if way.variant else way.mode or self.mode,
            "variant": way.variant,
            "warm": way.warm,
            "concurrency": self.concurrency,
        }
        if way.verifier is not None:
            settings["verifier"] = way.verifier
        device = self.reasoner().engine.target_model.device
        return run_head(identified(settings), [str(device)])
