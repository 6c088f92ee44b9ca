"""The formulas, their inputs, and how well they predict: `lr theory` and `lr
calibrate`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.table import Table

from lr.commands.options import ModelChoice
from lr.commands.show import console, progress, require_at_least, require_files, table
from lr.measure.datasets import ask, load_items
from lr.measure.machine import conditions
from lr.measure.store import write_json
from lr.measure.ways import in_turn
from lr.options import Driver, GenerateOptions, make_options
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
from lr.tiny.stories import DATASETS
from lr.trace import stats_of
from lr.types import require

if TYPE_CHECKING:
    from lr.reasoner import Reasoner


@dataclass(frozen=True)
class Theory:
    """Print formulas next to the real scheduler on a simulated clock, at given
    parameters. Times are in target steps."""

    formula: str = ""  # A name or its beginning, such as lr_async. Left out: all.
    at: Point = field(default_factory=Point)

    def run(self) -> None:
        at = self.at
        require_at_least(at, k=1, width=1, steps=400, c=0, v=0, b=0, beta=0)
        require(at.beta > 0, "beta", at.beta, "a number > 0")
        probability("alpha", at.alpha)
        chosen = [each for each in FORMULAS if each.name.startswith(self.formula)]
        names = ", ".join(sorted({each.name.split()[0] for each in FORMULAS}))
        expected = f"the beginning of one of {names}"
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
COMPARED_WAYS = {
    **{f"sd {k}": make_options(mode="sd", num_speculative_tokens=k) for k in (2, 4)},
    **{
        f"{schedule} {depth}": make_options(mode="lr", schedule=schedule, depth=depth)
        for schedule, depths in (("sync", (1, 2, 4)), ("depth", (1, 2, 4, 6)))
        for depth in depths
    },
    **{
        f"depth {n} + sd 4": make_options(
            mode="lr+sd", depth=n, num_speculative_tokens=4
        )
        for n in (2, 6)
    },
}
"""The ways to answer that `lr calibrate --compare` measures."""


@dataclass(frozen=True)
class Calibrate:
    """Measure what the formulas take on a pair of models, from traces of real runs:
    acceptance, the cost line of a pass, the time of a verdict. With --compare, predict
    speedups from it and measure them on other problems. Time is processor time where
    one thread on a CPU computes, else the time on the wall."""

    output: Path | None = None  # Write the calibration to this JSON file.
    compare: int = 0  # Then measure so many held-out problems, in eleven ways.
    json: Path | None = None  # Also write the comparison to this file.
    problems: int = 24  # How many problems, at least 4. Each runs four times.
    dataset: str = "tiny"
    """tiny or stories, short or long problems of the tiny language; or a file as for lr
    run. Its first problems calibrate, those after them are compared."""
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
                write_json(asdict(calibration), self.output)
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
        """The calibration, from the first problems."""
        questions = self._questions()[: self.problems]
        reasoner.generate(questions[0], max_tokens=40)  # the first call allocates
        k = self.num_speculative_tokens
        modes = {
            "plain": GenerateOptions(mode="ar"),
            "lookahead": GenerateOptions(mode="lr", schedule="sync", depth=self.depth),
            "tokens": GenerateOptions(mode="sd", num_speculative_tokens=k),
            "hybrid": GenerateOptions(mode="lr+sd", depth=2, num_speculative_tokens=k),
        }
        problems = self._answers("calibrating", reasoner, questions, modes)
        settings = asdict(self)
        for name in ("output", "compare", "json", "driver", "models"):
            del settings[name]
        settings["clock"] = self._clock(reasoner).__name__
        settings["verifier"] = reasoner.engine.names["verifier"]
        models = f"{self.models.model} / {self.models.draft()}"
        return calibrate(problems, models, settings | conditions())

    def comparison(
        self, reasoner: Reasoner, calibration: Calibration
    ) -> list[dict[str, Any]]:
        """Every way on held-out problems, each in turn: the closed form, the prediction,
        the measured speedup with its standard error, and the prediction at the
        acceptance of these answers: a few answers keep more or less by chance."""
        questions = self._questions()[self.problems :]
        ways = {"ar": GenerateOptions(mode="ar")}
        for name, options in COMPARED_WAYS.items():
            driver = self.driver if options.looks_ahead else "lockstep"
            ways[name] = replace(options, driver=driver)
        *_, last = ways.values()
        self._events(reasoner, questions[0], last)  # the first one sets things up
        problems = self._answers("comparing", reasoner, questions, ways)
        forwards = None if self.driver == "overlapped" else DRAFT_FORWARDS
        plain = [_per_token(runs["ar"]) for runs in problems]
        rows = []
        for name in COMPARED_WAYS:
            answers = Answers()
            for runs in problems:
                answers.add(runs[name])
            accepting = calibration.accepting(answers)
            options = ways[name]
            expected = predicted_speedup(options, calibration, forwards)
            for_kept = predicted_speedup(options, accepting, forwards)
            taken = [_per_token(runs[name]) for runs in problems]
            measured, error = ratio_with_error(plain, taken)
            row = {
                "way": name,
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

    def _questions(self) -> list[str]:
        """Those that calibrate, then those that are compared."""
        count = self.problems + self.compare
        tiny = self.dataset in DATASETS
        items = load_items(f"{self.dataset}:{count}" if tiny else self.dataset)
        expected = f"at most the {len(items)} problems of the data set"
        require(count <= len(items), "problems and compare", count, expected)
        return [ask(item, bare=tiny) for item in items[:count]]

    def _answers(
        self,
        title: str,
        reasoner: Reasoner,
        questions: Sequence[str],
        ways: Mapping[str, GenerateOptions],
    ) -> list[dict[str, list[Timed]]]:
        """For each question the events of its answers by way; another one begins each
        time."""
        answers = []
        with progress(title, len(questions)) as advance:
            for number, question in enumerate(questions):
                names = in_turn([*ways], number)
                answers.append(
                    {
                        name: self._events(reasoner, question, ways[name])
                        for name in names
                    }
                )
                advance()
        return answers

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
