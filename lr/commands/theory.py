"""The formulas, their inputs, and how well they predict: `lr theory`, `lr theory
figures`, `lr calibrate` and `lr theory validation`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from lr.commands.options import ModelChoice
from lr.commands.show import at_least, console, progress, require_files, table
from lr.errors import SettingError
from lr.measure.bench.report import conditions, in_turn, write_json
from lr.options import Driver
from lr.spec.protocol import Schedule
from lr.theory import predicted
from lr.theory.calibration import Calibration, calibrate
from lr.theory.domain import DomainError, probability
from lr.theory.formula_vs_simulation import FORMULAS, Point
from lr.theory.predicted import Compared, Tried, drawn_ways
from lr.theory.trace_metrics import Answers, Seen, Timed
from lr.tiny.language import Split
from lr.tiny.stories import DATASETS
from lr.types import require
from lr.watch.figures.style import require_matplotlib
from lr.watch.figures.theory_figures import draw_all, draw_validation

if TYPE_CHECKING:
    from lr.reasoner import Reasoner


@dataclass(frozen=True)
class Theory:
    """Print formulas next to the real scheduler on a simulated clock, at given
    parameters. Times are in target steps."""

    formula: str = (
        "all"  # Which formulas: a name or its beginning, such as lr_async; all.
    )
    at: Point = field(default_factory=Point)

    def run(self) -> None:
        at = self.at
        at_least(at, k=1, width=1, steps=400, k2=1, c=0, v=0, b=0, beta=0)
        small = at.k <= 200 and at.width <= 8
        require(
            small, "k, width", (at.k, at.width), "at most 200 and 8 for a simulation"
        )
        require(at.beta > 0, "beta", at.beta, "a number > 0")
        chosen = [
            f
            for f in FORMULAS
            if self.formula == "all" or f.name.startswith(self.formula)
        ]
        names = ", ".join(sorted({f.name.split()[0] for f in FORMULAS}))
        require(
            bool(chosen),
            "formula",
            self.formula,
            f"all or the beginning of one of {names}",
        )
        probability("alpha", at.alpha)
        rows: list[Sequence[object]] = []
        outside: dict[str, DomainError] = {}
        for one in chosen:
            try:
                value, seen = (
                    float(one.value(at)),
                    one.simulated(at) if one.simulated else None,
                )
            except DomainError as error:
                outside[one.name] = error
                continue
            off = (seen.value - value) / seen.error if seen and seen.error else None
            found = (seen.value, seen.error, off) if seen else ()
            rows.append((one.name, one.text, value, *found))
        if not rows:
            raise next(iter(outside.values()))
        out = console()
        columns = (
            "function",
            "formula",
            "value:.4f",
            "simulated:.4f",
            "± s.e.:.4f",
            "off:+.1f",
        )
        out.print(table(columns, rows, text=2))
        said = "off: in standard errors. No figure: no schedule does what the formula describes."
        out.print(said, style="dim")
        for name, why in outside.items():
            out.print(f"{name} is not defined there: {why}", style="dim")


@dataclass(frozen=True)
class TheoryFigures:
    """Draw speedup against draft length, the schedules, the region where the hybrid
    wins, width."""

    folder: Path = Path(
        "docs/figures"
    )  # An existing folder for them. Needs the extra `plot`.

    def run(self) -> None:
        require(self.folder.is_dir(), "folder", str(self.folder), "an existing folder")
        require_matplotlib()
        for path in draw_all(self.folder):
            console().print(f"drawn: {path}")


MEASURED = {
    "alpha1": ("draft steps accepted / judged", 1),
    "alpha2": ("draft tokens accepted / tried", 1),
    "second_chance": ("second alternative accepted after the first was not", 1),
    "plain_token": ("ms, a token of plain decoding", 1000),
    "target_first": (
        "ms, a target pass of one row and token, with speculation ...",
        1000,
    ),
    "target_row": ("ms, ... each further row", 1000),
    "target_token": ("ms, ... each token more than one per row", 1000),
    "draft_first": ("ms, the same for the draft ...", 1000),
    "draft_row": ("ms", 1000),
    "draft_token": ("ms", 1000),
    "verdict": ("ms, a verdict", 1000),
    "start": ("ms, the prompt, both models", 1000),
}
DERIVED = {
    "step_seconds": "T, a target step in plain decoding, in seconds",
    "c1": "a draft step, in T",
    "c2": "a drafted token, in plain target passes",
    "b": "a further row of the target, as a share of one row",
    "v": "a verdict, in T",
    "reading": "the target reads a draft step along with a batch, in T",
}


@dataclass(frozen=True)
class Calibrate:
    """Measure acceptance, speed ratio, batching and judge latency of a pair of models
    from traces of real runs."""

    output: Path | None = None  # Write the calibration to this JSON file.
    problems: int = 24
    """How many problems, at least 4. Each runs six times: plain, lookahead, two
    alternatives, token level twice, both levels."""
    questions: Path | None = (
        None  # One per line in this file; None: tiny training problems.
    )
    dataset: Literal["tiny", "stories"] = "tiny"  # Short or long problems.
    depth: int = 4  # How many draft steps to write ahead.
    num_speculative_tokens: int = 4
    """How many tokens the draft model proposes per round of the token-level run, at
    least 2; a second run proposes one."""
    max_tokens: int | None = None  # Longest answer. None: 400; the context for stories.
    temperature: float | None = (
        None  # Of both models; 0 is greedy. None: as the models recommend.
    )
    seed: int = 1  # Same seed, same answers.
    clock: Literal["auto", "cpu", "wall"] = "auto"
    """cpu: processor time of this process, which other processes do not disturb; wall:
    the time that a user waits. auto: cpu if the models run on the CPU."""
    models: ModelChoice = field(default_factory=ModelChoice)

    def run(self) -> None:
        at_least(self, problems=4, num_speculative_tokens=2)
        require_files(output=self.output)
        asked, out = self.asked(), console()
        found, rows = self.measure(self.models.load(needs_draft=True), asked), []
        for name, (meaning, unit) in MEASURED.items():
            one = getattr(found, name)
            rows.append(
                (name, one.value * unit, one.low * unit, one.high * unit, meaning)
            )
        rows += [
            (n, getattr(found, n), None, None, meaning)
            for n, meaning in DERIVED.items()
        ]
        title = f"{found.name}, {len(found.chain_lengths)} problems, 95 % intervals"
        shown = table(
            ("", "value:.4g", "from:.4g", "to:.4g", "meaning"), rows, title=title
        )
        shown.columns[-1].justify = "left"
        out.print(shown)
        if self.output is not None:
            self.output.write_text(found.to_json(), encoding="utf-8")
            out.print(f"written: {self.output}")

    def measure(self, reasoner: Reasoner, asked: Sequence[str]) -> Calibration:
        """The calibration from these questions."""
        reasoner.generate(asked[0], max_tokens=40)  # warm up: the first call allocates
        seen, verifier, facts = [], reasoner.verifier, asdict(self)
        with progress("calibrating", len(asked)) as advance:
            for question in asked:
                seen.append(self.see(reasoner, question))
                advance()
        for name in ("output", "questions", "models"):
            del facts[name]
        facts["clock"] = clock_for(self.clock, reasoner).__name__
        facts["verifier"] = verifier if isinstance(verifier, str) else verifier.name
        models = f"{self.models.model} / {self.models.drafting()}"
        return calibrate(seen, models, facts | conditions())

    def see(self, reasoner: Reasoner, question: str) -> Seen:
        """Run one question six times."""
        limit = None if self.dataset == "stories" else 400
        own: dict[str, Any] = {
            "seed": self.seed,
            "max_tokens": self.max_tokens or limit,
        }
        own["temperature"] = self.temperature
        events = partial(timed, reasoner, question, self.clock, **own)
        seen = Seen()
        seen.plain.add(events(mode="ar"))
        seen.lookahead.add(events(mode="lr", schedule="sync", depth=self.depth))
        for k in (self.num_speculative_tokens, 1):
            seen.tokens.add(
                events(mode="sd", drafter="draft", num_speculative_tokens=k)
            )
        seen.pairs.add(events(mode="lr", schedule="sync", depth=1, width=2))
        # the draft's passes over several rows, which are rare in the other runs
        speculating = {
            "drafter": "draft",
            "num_speculative_tokens": self.num_speculative_tokens,
        }
        seen.both.add(events(mode="lr+sd", depth=2, width=2, **speculating))
        return seen

    def asked(self) -> list[str]:
        if self.questions is None:
            draw = DATASETS[self.dataset]
            return [draw(Split.TRAIN, i, 0).question for i in range(self.problems)]
        try:
            text = self.questions.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingError(
                f"questions is {str(self.questions)!r}, which cannot be read ({error})."
            ) from None
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        enough, there = len(lines) >= 4, f"{len(lines)} lines"
        require(enough, "questions", there, "at least 4 questions, one per line")
        return lines[: self.problems]


def clock_for(name: str, reasoner: Reasoner) -> Callable[[], float]:
    """The clock of that name for these models."""
    on_cpu = reasoner.models.target.device.type == "cpu"
    return (
        time.process_time
        if name == "cpu" or (name == "auto" and on_cpu)
        else time.perf_counter
    )


def timed(reasoner: Reasoner, question: str, clock: str, **options: Any) -> list[Timed]:
    """The events of one run, timed by the clock of that name."""
    run, now = reasoner.run(question, **options), clock_for(clock, reasoner)
    run.trace.clock, run.trace.start = now, now()
    return run.finish().trace.events


NOTES = """\
closed form: the formula. expected: the scheduler, simulated at the calibrated pass costs.
replayed: the same with the acceptance and lengths of these very answers, so that it predicts times
only. off: expected relative to measured. ±: standard error over problems."""


@dataclass(frozen=True)
class TheoryValidation:
    """Compare the predictions of a calibration with what the models do on other
    problems: in a fixed list of ways to run them or, with --draw, in random ways drawn
    after the calibration."""

    draw: int = 0
    """Draw this many ways after the calibration instead of using the list: mode,
    schedule, depth, width 1 to 3, tokens, temperature and, unless it is given,
    driver."""
    temperatures: tuple[float, ...] = (0.0, 0.6, 1.0)
    """With --draw: calibrate at each of these, and draw one of them for every way."""
    calibration: Path | None = None
    """A file from `lr calibrate --output`, of the same models on the same machine; all
    ways use its temperature. None: calibrate first, on the same number of training
    problems."""
    save_calibration: Path | None = None
    """Write the calibration of this run to this file; with --draw one file per
    temperature, which is added to the name."""
    problems: int = 16  # Held-out problems, each solved in every way.
    dataset: Literal["tiny", "stories"] = "tiny"  # Short or long problems.
    depths: tuple[int, ...] = (1, 2, 4, 8)  # Lookahead depths.
    tokens: tuple[int, ...] = (
        1,
        2,
        4,
    )  # Draft tokens of token-level speculation alone.
    inner: int = 4  # Draft tokens where both are combined; 0: do not combine them.
    schedules: tuple[Literal["sync", "paper", "depth"], ...] = (
        "sync",
        "depth",
    )  # To try.
    driver: Driver | None = None
    """overlapped: the draft in its own process, wall-clock time, and predictions for
    one machine per model. It needs idle cores and a calibration by the same clock.
    None: lockstep; with --draw either of the two, both by the wall clock."""
    seed: int = (
        2  # Same seed, same answers, and the same ways from the same calibration.
    )
    clock: Literal["auto", "cpu", "wall"] = "auto"  # As in `lr calibrate`.
    json: Path | None = None  # Also write every figure to this file.
    figure: Path | None = (
        None  # Also draw the figures, as PNG and SVG. Needs the extra `plot`.
    )
    models: ModelChoice = field(default_factory=ModelChoice)

    def run(self) -> None:
        least = (
            4 if self.calibration is None else 2
        )  # intervals need 4, a standard error 2
        at_least(self, problems=least)
        require(0 <= self.draw <= 64, "draw", self.draw, "0 (none) to 64 ways")
        require(
            len(self.temperatures) > 0,
            "temperatures",
            self.temperatures,
            "at least one",
        )
        if self.draw:
            listed = ("depths", "tokens", "inner", "schedules")
            named = [
                f"--{n}"
                for n in listed
                if getattr(self, n) != getattr(TheoryValidation, n)
            ]
            none = f"0 with {' and '.join(named)}: drawn ways come from no list"
            require(not named, "draw", self.draw, none)
        usual = self.temperatures == TheoryValidation.temperatures
        drawn = self.draw > 0 and self.calibration is None
        none = "the default: it counts with --draw alone, and not with --calibration"
        require(usual or drawn, "temperatures", self.temperatures, none)
        saved, none = (
            self.save_calibration,
            "none with --calibration: nothing new is measured",
        )
        require(
            saved is None or self.calibration is None,
            "save_calibration",
            str(saved),
            none,
        )
        require_files(json=self.json, figure=self.figure, save_calibration=saved)
        given = None if self.calibration is None else Calibration.load(self.calibration)
        rows, found = self._compare(self.models.load(needs_draft=True), given)
        out = console()
        columns = (
            "way",
            "closed form",
            "expected",
            "replayed",
            "measured",
            "±",
            "off:+.1%",
        )
        names = (
            "way.name",
            "formula",
            "expected",
            "replayed",
            "measured",
            "error",
            "gap",
        )
        cells = map(attrgetter(*names), rows)
        how = (
            f"; ways drawn after the calibration, seed {self.seed}" if self.draw else ""
        )
        out.print(table(columns, cells, title=f"speedup over plain decoding{how}"))
        out.print(NOTES, style="dim")
        gaps = [row.gap for row in rows], [1 / row.measured - 1 for row in rows]
        blind, trivial = (fmean(map(abs, one)) for one in gaps)
        near = sum(abs(row.gap) <= 0.1 for row in rows)
        out.print(
            f"off on average: expected {blind:.1%}; 1.00 for every way {trivial:.1%}"
        )
        out.print(f"expected is within 10 % in {near} of {len(rows)} ways")
        document: dict[str, Any] = {
            "driver": self.driver,
            "draw": self.draw,
            "seed": self.seed,
        }
        document |= {
            "calibration": next(iter(found.values())).name,
            "same_run": given is None,
        }
        document |= {
            "off": {"expected": blind, "1.00": trivial},
            "conditions": conditions(),
        }
        document["rows"] = [
            asdict(row) | {"way": row.way.name, "gap": row.gap} for row in rows
        ]
        if saved is not None:
            for at, one in found.items():
                path = saved.with_stem(f"{saved.stem}_{at:g}") if self.draw else saved
                path.write_text(one.to_json(), encoding="utf-8")
        write_json(document, self.json)
        for path in (
            draw_validation(document, self.figure) if self.figure is not None else ()
        ):
            out.print(f"drawn: {path}")

    def ways(self, at: float | None) -> list[Tried]:
        """The fixed list, at this temperature."""
        tokens = [Tried(tokens=k) for k in self.tokens]
        how = product(map(Schedule, self.schedules), self.depths)
        steps = [Tried(*one, driver=self.driver or "lockstep") for one in how]
        both = [replace(way, tokens=self.inner) for way in steps if self.inner]
        return [replace(way, temperature=at) for way in (*tokens, *steps, *both)]

    def _compare(
        self, reasoner: Reasoner, given: Calibration | None
    ) -> tuple[list[Compared], dict[float | None, Calibration]]:
        """A row for every way, and the calibrations by temperature."""
        found: dict[float | None, Calibration] = {}
        if given is None:
            sizes: dict[str, Any] = {"problems": self.problems, "dataset": self.dataset}
            for at in self.temperatures if self.draw else (None,):
                one = Calibrate(
                    **sizes, temperature=at, clock=self._clock(), models=self.models
                )
                found[at] = one.measure(reasoner, one.asked())
        else:
            clock = clock_for(self._clock(), reasoner).__name__
            its, wanted = (
                given.conditions.get("clock", clock),
                f"{clock} (--clock, --driver)",
            )
            require(its == clock, "the clock of the calibration", its, wanted)
            found[given.conditions.get("temperature")] = given
        ways = drawn_ways(self.draw, self.seed, list(found.values()), self.driver)
        ways = ways or self.ways(next(iter(found)))
        plain = {way: Tried(temperature=way.temperature) for way in ways}
        every = [*dict.fromkeys(plain.values()), *ways]
        # warm up: the first run allocates, and starts a process
        self._run(reasoner, 0, max(ways, key=lambda way: way.driver == "overlapped"))
        spent: dict[Tried, list[float]] = {way: [] for way in every}
        answers = {way: Answers() for way in every}
        with progress("measuring", self.problems) as advance:
            for number in range(self.problems):
                for way in in_turn(every, number):
                    events = self._run(reasoner, number, way)
                    answers[way].add(events)
                    spent[way].append(events[-1][0] / answers[way].chain_lengths[-1])
                advance()
        rows = []
        for way in ways:
            own, base = found[way.temperature], plain[way]
            measured, error = predicted.ratio_with_error(spent[base], spent[way])
            start = own.start.value
            works = [
                answers[each].load(lookup=False, start=start) for each in (way, base)
            ]
            forwards = None if way.driver == "overlapped" else predicted.DRAFT_FORWARDS
            expected = predicted.predicted_speedup(way, own, forwards)
            replayed = predicted.predicted_speedup(
                way, own, forwards, (works[0], works[1])
            )
            rows.append(
                Compared(way, measured, error, way.formula(own), expected, replayed)
            )
        return rows, found

    def _clock(self) -> Literal["auto", "cpu", "wall"]:
        """The clock to use: two processes share no processor time."""
        two = self.driver == "overlapped" or (self.draw > 0 and self.driver is None)
        return "wall" if two else self.clock

    def _run(self, reasoner: Reasoner, number: int, way: Tried) -> list[Timed]:
        modes = {(0, 0): "ar", (0, 1): "sd", (1, 0): "lr", (1, 1): "lr+sd"}
        how: dict[str, Any] = {
            "mode": modes[way.depth > 0, way.tokens > 0],
            "drafter": "draft",
        }
        how |= {
            "depth": way.depth or 1,
            "width": way.width,
            "schedule": way.schedule.value,
        }
        how |= {
            "num_speculative_tokens": way.tokens or 1,
            "temperature": way.temperature,
        }
        how |= {"driver": way.driver, "seed": self.seed}
        question = DATASETS[self.dataset](Split.TEST, number, 0).question
        return timed(reasoner, question, self._clock(), **how)
