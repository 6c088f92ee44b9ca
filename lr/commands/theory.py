"""The formulas, their inputs, and how well they predict: `lr theory` and `lr
calibrate`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeVar

from rich.table import Table

from lr.commands.options import ModelChoice
from lr.commands.show import console, progress, require_at_least, require_files, table
from lr.measure.datasets import ask, load_items
from lr.measure.machine import conditions
from lr.measure.store import write_json
from lr.measure.ways import Way, in_turn
from lr.options import LOOKAHEAD, Driver, GenerateOptions, make_options
from lr.theory.calibration import (
    Calibration,
    calibrate,
    closed_form,
    predicted_speedup,
    ratio_with_error,
)
from lr.theory.cost import DRAFT_FORWARDS, Answers, Timed
from lr.theory.domain import DomainError, probability
from lr.theory.formula_vs_simulation import FORMULAS, Point
from lr.tiny.language import Split
from lr.tiny.stories import DATASETS
from lr.trace import stats_of
from lr.types import require

if TYPE_CHECKING:
    from lr.reasoner import Reasoner

T = TypeVar("T")


@dataclass(frozen=True)
class Theory:
    """Print formulas next to the real scheduler on a simulated clock, at given
    parameters. Times are in target steps."""

    formula: str = "all"  # A name or its beginning, such as lr_async; or all.
    at: Point = field(default_factory=Point)

    def run(self) -> None:
        at = self.at
        require_at_least(at, k=1, width=1, steps=400, c=0, v=0, b=0, beta=0)
        small = at.k <= 200 and at.width <= 8
        expected = "at most 200 and 8 for a simulation"
        require(small, "k, width", (at.k, at.width), expected)
        require(at.beta > 0, "beta", at.beta, "a number > 0")
        probability("alpha", at.alpha)
        beginning = "" if self.formula == "all" else self.formula
        chosen = [each for each in FORMULAS if each.name.startswith(beginning)]
        names = ", ".join(sorted({each.name.split()[0] for each in FORMULAS}))
        expected = f"all or the beginning of one of {names}"
        require(bool(chosen), "formula", self.formula, expected)
        rows: list[Sequence[object]] = []
        undefined: list[str] = []
        for formula in chosen:
            try:
                value = float(formula.value(at))
                simulated = formula.simulated(at)
            except DomainError as error:
                undefined.append(f"{formula.name} is not defined there: {error}")
                continue
            surplus = simulated.value - value
            off = surplus / simulated.error if simulated.error else None
            words = (formula.name, formula.text)
            rows.append((*words, value, simulated.value, simulated.error, off))
        figures = ("value:.4f", "simulated:.4f", "± s.e.:.4f", "off:+.1f")
        out = console()
        if rows:
            out.print(table(("function", "formula", *figures), rows, text=2))
        for line in ("off: in standard errors.", *undefined):
            out.print(line, style="dim")


MEANINGS = {
    "alpha1": "draft steps accepted / judged",
    "alpha2": "draft tokens accepted / tried",
    "c1": "a draft step, in steps of plain decoding",
    "c2": "a drafted token, in passes of plain decoding",
    "b": "a further row of the target, as a share of one row",
    "v": "a verdict, in steps of plain decoding",
}
TOKENS = "num_speculative_tokens"
PLAIN_WAY = Way({"way": "ar"}, "ar")
COMPARED_WAYS = (
    *(Way({"way": f"sd {k}"}, "sd", {TOKENS: k}) for k in (2, 4)),
    *(
        Way(
            {"way": f"{schedule} {depth}"}, "lr", {"schedule": schedule, "depth": depth}
        )
        for schedule, depths in (("sync", (1, 2, 4)), ("depth", (1, 2, 4, 6)))
        for depth in depths
    ),
    *(
        Way({"way": f"depth {depth} + sd 4"}, "lr+sd", {"depth": depth, TOKENS: 4})
        for depth in (2, 6)
    ),
)
"""The ways to answer that `lr calibrate --compare` measures."""


@dataclass(frozen=True)
class Calibrate:
    """Measure what the formulas take on a pair of models, from traces of real runs:
    acceptance, the cost line of a pass, the time of a verdict. With --compare, predict
    speedups from it and measure them on other problems. Time is processor time where
    one thread on a CPU computes, else the time on the wall. Ctrl-C ends the calibration
    or the comparison; what is done counts, from two problems on."""

    output: Path | None = None  # Write the calibration to this JSON file.
    compare: int = 0  # Then measure so many held-out problems, in eleven ways.
    json: Path | None = None  # Also write the comparison to this file.
    problems: int = 24  # How many problems, at least 4. Each runs four times.
    dataset: str = "tiny"
    """tiny or stories, short or long problems of the tiny language; or a file as for lr
    run, whose first problems calibrate. Those after them are compared."""
    depth: int = 4  # How many draft steps to write ahead.
    num_speculative_tokens: int = 4  # Draft tokens per round.
    max_tokens: int | None = None  # Longest answer. None: 400; the context for stories.
    temperature: float | None = None  # 0 is greedy. None: as the models recommend.
    seed: int = 1  # Same seed, same answers.
    driver: Driver = "lockstep"
    """Of the comparison. overlapped: the draft in its own process, and the prediction
    gives each model a machine of its own. It needs idle cores."""
    models: ModelChoice = field(default_factory=ModelChoice)

    def run(self) -> None:
        require_at_least(self, problems=4, num_speculative_tokens=1)
        require(self.compare != 1, "compare", self.compare, "0, or at least 2")
        require_files(output=self.output, json=self.json)
        out = console()
        with self.models.load(needs_draft=True) as reasoner:
            calibration = self.measure(reasoner)
            out.print(_parameters(calibration))
            if self.output is not None:
                self.output.write_text(calibration.to_json(), encoding="utf-8")
                out.print(f"written: {self.output}")
            if not self.compare:
                return
            rows = self.comparison(reasoner, calibration)
        figures = ("closed form", "predicted", "measured", "±", "off:+.1%")
        for_kept = ("kept:.2f", "for kept", "off:+.1%")
        cells = [list(row.values()) for row in rows]
        title = "speedup over plain decoding"
        out.print(table(("way", *figures, *for_kept), cells, title=title))
        out.print(
            "predicted: the scheduler, simulated at the calibrated costs and acceptance. "
            f"{_near(rows, 'gap')}. ±: standard error.\n"
            "kept: of the steps judged in these answers. for kept: the prediction at "
            "the share of steps and tokens that these answers kept. "
            f"{_near(rows, 'gap_for_kept')}."
        )
        document = {
            "calibration": calibration.name,
            "driver": self.driver,
            "conditions": conditions(),
            "rows": rows,
        }
        write_json(document, self.json)

    def measure(self, reasoner: Reasoner) -> Calibration:
        """The calibration, from training problems."""
        questions = self._questions(Split.TRAIN)
        reasoner.generate(questions[0], max_tokens=40)  # the first call allocates
        k = self.num_speculative_tokens
        modes = {
            "plain": GenerateOptions(mode="ar"),
            "lookahead": GenerateOptions(mode="lr", schedule="sync", depth=self.depth),
            "tokens": GenerateOptions(mode="sd", num_speculative_tokens=k),
            "hybrid": GenerateOptions(mode="lr+sd", depth=2, num_speculative_tokens=k),
        }
        problems = _of_each(
            "calibrating",
            questions,
            lambda question, _: {
                name: self._events(reasoner, question, options)
                for name, options in modes.items()
            },
        )
        verifier = reasoner.verifier
        settings = asdict(self)
        for name in ("output", "compare", "json", "driver", "models"):
            del settings[name]
        settings["problems"] = len(problems)
        settings["clock"] = self._clock(reasoner).__name__
        settings["verifier"] = verifier if isinstance(verifier, str) else verifier.name
        models = f"{self.models.model} / {self.models.draft()}"
        return calibrate(problems, models, settings | conditions())

    def comparison(
        self, reasoner: Reasoner, calibration: Calibration
    ) -> list[dict[str, Any]]:
        """Every way on held-out problems, each in turn: the closed form, the prediction,
        the measured speedup with its standard error, and the prediction at the
        acceptance of these answers: a few answers keep more or less by chance."""
        questions = self._questions(Split.TEST)
        self._events(
            reasoner, questions[0], self._options(COMPARED_WAYS[-1])
        )  # a first run
        problems = _of_each(
            "comparing",
            questions,
            lambda question, number: {
                way.name: self._events(reasoner, question, self._options(way))
                for way in in_turn([PLAIN_WAY, *COMPARED_WAYS], number)
            },
        )
        forwards = None if self.driver == "overlapped" else DRAFT_FORWARDS
        plain = [_per_token(runs[PLAIN_WAY.name]) for runs in problems]
        rows = []
        for way in COMPARED_WAYS:
            answers = Answers()
            for runs in problems:
                answers.add(runs[way.name])
            accepting = calibration.accepting(answers)
            options = self._options(way)
            expected = predicted_speedup(options, calibration, forwards)
            for_kept = predicted_speedup(options, accepting, forwards)
            taken = [_per_token(runs[way.name]) for runs in problems]
            measured, error = ratio_with_error(plain, taken)
            row = {
                **way.cells,
                "formula": closed_form(options, calibration),
                "expected": expected,
                "measured": measured,
                "error": error,
                "gap": expected / measured - 1,
                "kept": accepting.alpha1 if options.looks_ahead else None,
                "for_kept": for_kept,
                "gap_for_kept": for_kept / measured - 1,
            }
            rows.append(row)
        return rows

    def _questions(self, split: Split) -> list[str]:
        """Those that calibrate (train), or those that are compared (test)."""
        count = self.problems if split is Split.TRAIN else self.compare
        if self.dataset in DATASETS:
            draw = DATASETS[self.dataset]
            return [draw(split, number, 0).question for number in range(count)]
        items = load_items(self.dataset)
        expected = f"at most the {len(items)} problems of the data set"
        wanted = self.problems + self.compare
        require(wanted <= len(items), "problems and compare", wanted, expected)
        first = 0 if split is Split.TRAIN else self.problems
        return [ask(item) for item in items[first : first + count]]

    def _options(self, way: Way) -> GenerateOptions:
        """The options of an answer in this way."""
        ahead = way.mode in LOOKAHEAD
        driver = self.driver if ahead else "lockstep"
        return make_options(mode=way.mode, driver=driver, **way.options)

    def _events(
        self, reasoner: Reasoner, question: str, options: GenerateOptions
    ) -> list[Timed]:
        """The events of one run, timed."""
        longest = None if self.dataset == "stories" else 400
        answer = reasoner.run(
            question,
            options,
            seed=self.seed,
            max_tokens=self.max_tokens or longest,
            temperature=self.temperature,
        )
        clock = self._clock(reasoner)
        answer.trace.clock = clock
        answer.trace.start = clock()
        return answer.finish().trace.events

    def _clock(self, reasoner: Reasoner) -> Callable[[], float]:
        import torch

        on_cpu = reasoner.engine.target_model.device.type == "cpu"
        one_process = self.driver == "lockstep" or not self.compare
        alone = on_cpu and one_process and torch.get_num_threads() == 1
        return time.process_time if alone else time.perf_counter


def _of_each(
    label: str, questions: Sequence[str], runs: Callable[[str, int], T]
) -> list[T]:
    """`runs(question, number)` for every question in order, with progress. Ctrl-C ends
    it; at least two that are done count."""
    done: list[T] = []
    with progress(label, len(questions)) as advance:
        try:
            for number, question in enumerate(questions):
                done.append(runs(question, number))
                advance()
        except KeyboardInterrupt:
            if len(done) < 2:
                raise
            console().print(f"stopped: the first {len(done)} problems count")
    return done


def _per_token(events: list[Timed]) -> float:
    """Seconds per token of an answer."""
    return events[-1][0] / stats_of(events).tokens


def _near(rows: Sequence[dict[str, Any]], gap: str) -> str:
    """How far off the predictions are."""
    gaps = [abs(row[gap]) for row in rows]
    near = sum(gap <= 0.1 for gap in gaps)
    return f"Off by {fmean(gaps):.1%} on average; within 10 % in {near} of {len(rows)} ways"


def _parameters(calibration: Calibration) -> Table:
    """The measured parameters as a table."""
    rows: list[Sequence[object]] = [
        (name, getattr(calibration, name), calibration.errors[name], meaning)
        for name, meaning in MEANINGS.items()
    ]
    parts = {
        "first": "of one row and token",
        "row": "each further row",
        "token": "each token more than one per row",
    }
    for role in ("target", "draft"):
        for part, meaning in parts.items():
            milliseconds = 1000 * getattr(getattr(calibration, role), part)
            words = f"ms, a pass: {meaning}"
            rows.append((f"{role} {part}", milliseconds, None, words))
    plain = 1000 * calibration.plain_token
    rows.append(("plain token", plain, None, "ms, a token of plain decoding"))
    title = f"{calibration.name}, {len(calibration.chain_lengths)} problems"
    columns = ("", "value:.4g", "± s.e.:.2g", "meaning")
    shown = table(columns, rows, title=title)
    shown.columns[-1].justify = "left"
    return shown
