"""`lr bench`: timings on the tiny models, beside other implementations and beside theory. What is
compared is measured in one run, in turns.
"""

from __future__ import annotations

import gc
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from lr.commands.options import Device, ModelChoice
from lr.commands.show import console, in_words, number, progress, require_folders, table
from lr.errors import CheckpointError
from lr.options import MODES, Mode
from lr.tiny.language import Split, problem
from lr.types import require

if TYPE_CHECKING:
    from lr.lab.bench.alpha import Places, Point
    from lr.lab.bench.decode import Lane, Plan, Timing
    from lr.lab.bench.report import Spread
    from lr.lab.bench.step import StepRow
    from lr.lab.bench.token import Answer, Answerer, Row
    from lr.reasoner import Reasoner
    from lr.theory.trace_metrics import PassCost

FOR_A_SPREAD = "at least 2, for a spread; 5 for a figure to publish"


def _middle_half(spread: Spread | None) -> str:
    """A median with its quartiles."""
    return "" if spread is None else f"{spread.median:.2f} [{spread.low:.2f}-{spread.high:.2f}]"


@dataclass(frozen=True)
class BenchDecode:
    """Time plain decoding, in ms per step, against transformers' generate and a bare static-cache
    loop, all in one run."""

    models: tuple[str, ...] = ("tiny-target", "tiny-draft", "random-12")
    """tiny-target, tiny-draft, random-12 (the tiny shape, 12 layers, random weights), 0.6b-fp32,
    0.6b-bf16 (Qwen3-0.6B's shape)."""
    shapes: bool = False
    """Add 0.6b-fp32 and 0.6b-bf16. They need about 4 GB of memory and some minutes."""
    batches: tuple[int, ...] | None = None
    """Batch sizes. None: 1 2 4 8, and 1 for the large shapes."""
    tokens: int | None = None
    """Steps per measurement. None: 64, and 8 for the large shapes."""
    repeats: int = 7
    """How often all contenders are measured in turn; one more turn, to warm up, is dropped."""
    threads: int | None = None
    """CPU threads. None: one, and all cores for the large shapes."""
    json: Path | None = None
    """Also write every single figure to this file."""

    def run(self) -> None:
        from lr.lab.bench.decode import document, goals, measure
        from lr.lab.bench.report import conditions, write_json

        self._check()
        facts, out = conditions(), console()
        timings: list[Timing] = []
        for names, plan in self._groups():
            with _threads(plan.threads):
                lanes = _lanes(names, out)
                with progress("timing", len(lanes) * plan.runs) as advance:
                    timings += measure(lanes, plan, advance)
            del lanes
            gc.collect()  # a large model goes before the next one comes
        out.print(in_words(facts))
        _print_tables(timings, out)
        words: dict[bool | None, str] = {True: "met", False: "missed", None: "not measured"}
        out.print("goals")
        for goal in goals(timings):
            out.print(f"  {words[goal.met]:<13} {goal.text}: {goal.measured}")
        if self.json is not None:
            write_json(document(timings, facts), self.json)

    def _check(self) -> None:
        from lr.lab.bench.decode import NAMES, PROMPT_TOKENS

        for name in self.models:
            require(name in NAMES, "models", name, f"names among {', '.join(NAMES)}")
        positive = all(batch > 0 for batch in self.batches or ())
        require(positive, "batches", self.batches, "whole numbers > 0")
        longest = 1024 - PROMPT_TOKENS
        fits = self.tokens is None or 0 < self.tokens <= longest
        require(fits, "tokens", self.tokens, f"1 to {longest}")
        require(self.repeats >= 2, "repeats", self.repeats, FOR_A_SPREAD)
        positive = self.threads is None or self.threads > 0
        require(positive, "threads", self.threads, "a whole number > 0")
        require_folders(json=self.json)

    def _groups(self) -> Iterator[tuple[list[str], Plan]]:
        """What is measured in turns with each other: all small models; each large one alone, for
        its memory."""
        from lr.lab.bench.decode import SHAPES, Plan

        names = list(dict.fromkeys((*self.models, *(SHAPES if self.shapes else ()))))
        small = [name for name in names if name not in SHAPES]
        if small:
            batches, tokens = self.batches or (1, 2, 4, 8), self.tokens or 64
            yield small, Plan(batches, tokens, self.repeats, self.threads or 1)
        for name in names:
            if name in SHAPES:
                batches, threads = self.batches or (1,), self.threads or os.cpu_count() or 1
                yield [name], Plan(batches, self.tokens or 8, self.repeats, threads, warm_up=1)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _lanes(names: Sequence[str], out: Console) -> list[Lane]:
    """All contenders on all models that are there; a checkpoint that is missing is named and left
    out."""
    from lr.lab.bench.decode import lanes

    found = []
    for name in names:
        try:
            found += lanes(name)
        except CheckpointError as error:
            out.print(f"{name} is left out: {error}")
    return found


def _print_tables(timings: Sequence[Timing], out: Console) -> None:
    """One table per model: a row per contender and batch size, and the given marks where there are
    some."""
    from lr.lab.bench.decode import GIVEN_MARKS, RANDOM_12, show

    columns = ("contender", "batch", "ms per step", "quartiles", "tokens/s", "time / lr's")
    found = {(t.model, t.contender, t.batch): t for t in timings}
    for model in dict.fromkeys(t.model for t in timings):
        mine = [t for t in timings if t.model == model]
        made = table((*columns, "quartiles"), title=f"{model}, {mine[0].threads} thread(s)")
        for batch in dict.fromkeys(t.batch for t in mine):
            for timing in (t for t in mine if t.batch == batch):
                ratio, spread = timing.relative_to(found[model, "lr", batch]), timing.spread
                made.add_row(
                    *(timing.contender, str(batch), f"{spread.median:.3f}", show(spread)),
                    *(f"{timing.tokens_per_second:.0f}", f"{ratio.median:.2f}", show(ratio)),
                )
            for who, ms in GIVEN_MARKS.items() if model == RANDOM_12 else ():
                if batch in ms:
                    made.add_row(f"{who} *", str(batch), f"{ms[batch]:.1f}", style="dim")
            made.add_section()
        out.print(made)
        if model == RANDOM_12:
            out.print(
                "* given mark: measured elsewhere, on an idle two-core machine with one thread; "
                "not part of this run."
            )


TOKEN_NOTES = """\
tok/s: of a whole answer, median over the problems, quartiles in brackets. / ar: times the tokens/s
of our plain decoding. / peer: times the tokens/s of the fastest transformers row of the same kind,
problem by problem. tok/pass: tokens per pass of the target. kept: accepted / drafted. length:
1 + accepted / rounds, the mean acceptance length."""


@dataclass(frozen=True)
class BenchToken:
    """Time token-level speculation on the tiny models against transformers' generate, assisted
    generation and prompt lookup."""

    problems: int = 24
    """How many held-out problems everybody answers, at every temperature; one more, to warm up, is
    dropped."""
    k: int = 4
    """Drafts per round, on both sides (the trees: their depth)."""
    temperature: tuple[float, ...] = (0.6, 0.0)
    """One table for each; 0 is greedy."""
    branching: tuple[int, ...] = (2, 1, 1, 1)
    """Our trees: how many candidates at each place."""
    seed: int = 0
    """The first problem's; every other has one more."""
    threads: int = 1
    """CPU threads."""
    json: Path | None = None
    """Also write every single figure to this file."""

    def run(self) -> None:
        from lr.lab.bench.report import conditions, write_json
        from lr.options import TokenOptions

        enough = "at least 2, for a spread; 20 for a figure to publish"
        require(self.problems >= 2, "problems", self.problems, enough)
        require(self.k >= 1, "k", self.k, "a whole number >= 1")
        proper = len(self.temperature) > 0 and all(t >= 0 for t in self.temperature)
        require(proper, "temperature", self.temperature, "numbers >= 0, such as 0.6 0")
        TokenOptions(branching=self.branching)
        require_folders(json=self.json)
        facts, out = conditions(), console()
        rows = self._measure()
        out.print(in_words(facts))
        for temperature in self.temperature:
            out.print(_token_table([r for r in rows if r.temperature == temperature], temperature))
        out.print(TOKEN_NOTES, style="dim")
        out.print(verdict(rows))
        if self.json is not None:
            names = ("problems", "k", "branching", "seed", "threads")
            settings = {name: getattr(self, name) for name in names}
            figures = [row.figures() for row in rows]
            write_json({"conditions": facts, "settings": settings, "rows": figures}, self.json)

    def _measure(self) -> list[Row]:
        from lr.lab.bench.token import answerers, measure
        from lr.reasoner import Reasoner

        Device(threads=self.threads).set_threads()
        contenders = answerers(Reasoner(), self.k, self.branching)
        temperatures = tuple(dict.fromkeys(self.temperature))
        total = len(contenders) * len(temperatures) * (self.problems + 1)
        with progress("answering", total) as advance, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what transformers says about its own settings

            def ask(contender: Answerer, temperature: float, index: int) -> Answer:
                question = problem(Split.TEST, index).question
                answer = contender.answer(question, temperature, self.seed + index)
                advance()
                return answer

            return measure(contenders, temperatures, self.problems, ask)


def verdict(rows: Sequence[Row]) -> str:
    """Whether we are ahead in every row, and where not."""
    behind = [row for row in rows if row.behind]
    if not behind:
        return "lr is ahead of transformers in tokens/s in every row."
    names = "; ".join(
        f"{row.name} at temperature {row.temperature:g} ({_middle_half(row.to_peer)})"
        for row in behind
    )
    return f"lr is NOT ahead of transformers in: {names}."


def _token_table(rows: Sequence[Row], temperature: float) -> Table:
    columns = ("who", "tok/s", "/ ar", "/ peer", "tok/pass", "kept", "length")
    made, kind = table(columns, title=f"temperature {temperature:g}"), rows[0].kind
    for row in rows:
        if row.kind != kind:
            kind = row.kind
            made.add_row()
        total, rate = row.total, row.rate
        made.add_row(
            *(f"{row.side}: {row.name}", f"{rate.median:.0f} [{rate.low:.0f}-{rate.high:.0f}]"),
            *(_middle_half(row.to_plain), _middle_half(row.to_peer)),
            f"{total.tokens_per_pass:.2f}",
            *(number(total.acceptance_rate), number(total.acceptance_length)),
        )
    return made


STEP_NOTES = """\
tok/s: of whole answers, all problems of a repeat together; median over the repeats. / ar: times the
tokens/s of plain decoding, repeat by repeat, quartiles in brackets. model: tok/s by the cost model
(docs/results/step.md). right: share of right answers. steps, tokens: accepted of those judged, or
drafted. tok/pass: tokens per pass of the target. target, draft, verifier: share of the time; with
the draft in a second process target and draft overlap."""
STEP_COLUMNS = ("way", "tok/s", "/ ar", "model", "right", "steps", "tokens", "tok/pass")
MAIN = "lr, overlapped"
"""The way that the cost model explains."""
MOST_STEPS = 9
"""A goal, a given, six operations and an answer."""


@dataclass(frozen=True)
class BenchStep:
    """Time Lookahead Reasoning on the tiny models in all its forms against plain decoding and
    token-level speculation."""

    problems: int = 16
    """How many held-out problems a repeat has."""
    min_steps: int = 0
    """Only problems whose solution has at least so many steps (3 to 9)."""
    repeats: int = 5
    """How often everything is done, each time with other draws."""
    depth: int = 3
    """How many draft steps are written ahead."""
    draft_ticks: int = 8
    """How many tokens the draft may write while the target writes one, where they take turns."""
    k: int = 3
    """Tokens that a draft model guesses ahead."""
    step_k: int = 20
    """Tokens that a draft step guesses ahead."""
    verifier: str | None = None
    """How steps are compared; None: the demo's."""
    temperature: float | None = None
    """None: the checkpoint's own (0.6); 0 is greedy."""
    only: tuple[str, ...] = ()
    """Only the rows whose names hold one of these words, and ar."""
    threads: int = 1
    """CPU threads, of each process."""
    json: Path | None = None
    """Also write every single figure to this file."""

    def run(self) -> None:
        from lr.lab.bench.report import conditions, write_json
        from lr.lab.bench.step import what_if

        require(self.problems >= 1, "problems", self.problems, "a whole number >= 1")
        fits = 0 <= self.min_steps <= MOST_STEPS
        require(fits, "min_steps", self.min_steps, f"0 to {MOST_STEPS}")
        require(self.repeats >= 2, "repeats", self.repeats, FOR_A_SPREAD)
        require_folders(json=self.json)
        Device(threads=self.threads).set_threads()
        facts, out = conditions(), console(width=132)
        found, costs = self._measure()
        out.print(in_words(facts))
        out.print(_step_table(found))
        out.print(f"a pass of the target takes {_cost(costs[0])}; of the draft {_cost(costs[1])}")
        plain = found[0].predicted
        for row in found:
            if row.tally.way.name == MAIN and plain is not None:
                rates = what_if(row.tally, costs, self.depth, self.draft_ticks)
                cases = "; ".join(f"{name}: {rate / plain:.2f}" for name, rate in rates.items())
                out.print(f"{MAIN}, times ar by the cost model, if {cases}")
        out.print(STEP_NOTES, style="dim")
        if self.json is not None:
            settings = {name: value for name, value in asdict(self).items() if name != "json"}
            content = {
                "conditions": facts,
                "settings": settings,
                "pass_seconds": {"target": asdict(costs[0]), "draft": asdict(costs[1])},
                "rows": [row.figures() for row in found],
            }
            write_json(content, self.json)

    def _measure(self) -> tuple[list[StepRow], tuple[PassCost, PassCost]]:
        from lr.lab.bench.step import fitted_costs, measure, rows, ways
        from lr.reasoner import Reasoner

        every = ways(self.k, self.step_k)
        chosen = [
            way
            for way in every
            if not self.only or way.mode == "ar" or any(word in way.name for word in self.only)
        ]
        names = "; ".join(way.name for way in every)
        require(len(chosen) > 1, "only", self.only, f"words of the rows' names: {names}")
        problems = (problem(Split.TEST, index) for index in count())
        long = (what for what in problems if len(what.steps) >= self.min_steps)
        tasks = list(islice(long, self.problems))
        settings = {name: getattr(self, name) for name in ("depth", "draft_ticks", "temperature")}
        total = len(chosen) * (1 + self.repeats * self.problems)
        with Reasoner(verifier=self.verifier) as reasoner, progress("answering", total) as advance:
            tallies = measure(reasoner, chosen, tasks, self.repeats, settings, advance)
        costs = fitted_costs(tallies)
        return rows(tallies, costs, self.depth, self.draft_ticks), costs


def _step_table(rows: Sequence[StepRow]) -> Table:
    made, mode = table((*STEP_COLUMNS, "target", "draft", "verifier")), "ar"
    for row in rows:
        tally, stats = row.tally, row.tally.stats
        if tally.way.mode != mode:
            mode = tally.way.mode
            made.add_row()
        parts = (stats.target_seconds, stats.draft_seconds, stats.verifier_seconds)
        made.add_row(
            *(tally.way.name, f"{row.rate.median:.0f}", _middle_half(row.speedup)),
            "" if row.predicted is None else f"{row.predicted:.0f}",
            f"{tally.accuracy:.3f}",
            *(number(stats.step_acceptance), number(stats.token_acceptance)),
            f"{stats.tokens_per_target_pass or 0:.2f}",
            *(f"{tally.share(part):.2f}" for part in parts),
        )
    return made


def _cost(cost: PassCost) -> str:
    """The line through the passes of the ways that run one model at a time."""
    first, row, token = (1000 * part for part in (cost.first, cost.row, cost.token))
    return (
        f"{first:.2f} ms for one row of one token, {row:.2f} ms more for each row, {token:.2f} ms "
        "for each token beyond one per row"
    )


GOAL = 0.03
"""A trace may cost this share of the tokens per second."""


@dataclass(frozen=True)
class BenchTrace:
    """Time answers with the trace off, on, and written to a file: every question in all three ways,
    one directly after the other."""

    modes: tuple[Mode, ...] = MODES
    """The modes to measure, with driver lockstep."""
    overlapped: bool = True
    """Measure mode lr with driver overlapped, too."""
    problems: int = 6
    """How many held-out problems of the tiny language."""
    repeats: int = 3
    """How often each is answered in every way."""
    models: ModelChoice = field(default_factory=ModelChoice)

    def run(self) -> None:
        from lr.lab.bench.report import conditions
        from lr.lab.bench.trace_cost import measure

        require(self.problems >= 1, "problems", self.problems, "a whole number >= 1")
        turns = self.problems * self.repeats
        require(turns >= 2, "repeats", self.repeats, "enough for two turns, to have a spread")
        settings: dict[str, dict[str, Any]] = {mode: {"mode": mode} for mode in self.modes}
        if self.overlapped:
            settings["lr, overlapped"] = {"mode": "lr", "driver": "overlapped"}
        questions = [problem(Split.TEST, index).question for index in range(self.problems)]
        with (
            self.models.load(needs_draft=True) as reasoner,
            progress("measuring", len(settings) * turns) as advance,
            tempfile.TemporaryDirectory() as folder,
        ):
            path = Path(folder, "trace.jsonl")
            measured = measure(reasoner, questions, settings, self.repeats, path, advance)
        out = console()
        out.print(in_words(conditions()))
        columns = ("mode", "tokens/s, off", "on", "middle half", "on and file", "middle half")
        made = table((*columns, "events/token", "kB"), title=f"{turns} turns per row")
        for one in measured:
            cells = [one.name, f"{one.tokens_per_second:.0f}"]
            for how in ("on", "file"):
                spread = one.spread(how)
                cells.append(f"{spread.median - 1:+.1%}")
                cells.append(f"{spread.low - 1:+.1%} to {spread.high - 1:+.1%}")
            made.add_row(*cells, f"{one.per_token:.1f}", f"{one.size / turns / 1000:.0f}")
        out.print(made)
        over = [one.name for one in measured if one.spread("on").median - 1 > GOAL]
        met = f"not met by {', '.join(over)}" if over else "met"
        out.print(f"goal: on costs at most {GOAL:.0%}: {met}")


ALPHA_NOTES = """\
tokens per round: 1 + accepted / rounds. α: accepted / tried. G(α) = (1 - α^(k+1)) / (1 - α). by
place: one rate per place, from the other half of the problems. off: measured minus predicted, in
standard errors of the measurement (jackknife over problems). short: rounds with fewer than k
drafts. emitted: tokens of a round that are still there after the step's end was cut."""
ALPHA_COLUMNS = ("k", "rounds", "short", "α", "measured", "± s.e.", "G(α)", "off", "by place")


@dataclass(frozen=True)
class BenchAlpha:
    """Measure how many tokens a round of token-level speculation decides, and compare with theory.
    Rule reject, a fixed k."""

    problems: int = 128
    """How many held-out problems to solve, for every k."""
    longest: int = 8
    """k goes from 1 to this."""
    temperature: float = 0.6
    """Of target and draft."""
    seed: int = 0
    """Same seed: same figures."""
    threads: int = 1
    """CPU threads."""
    json: Path | None = None
    """Also write every figure to this file."""
    figure: Path | None = None
    """Also draw them: to this file and its twin, PNG and SVG. Needs matplotlib (the extra
    `plot`)."""

    def run(self) -> None:
        from lr.lab.bench.alpha import draw, point
        from lr.lab.bench.report import conditions, write_json
        from lr.lab.viz.style import require_matplotlib
        from lr.reasoner import Reasoner

        require(self.problems >= 4, "problems", self.problems, "at least 4, for a standard error")
        require(1 <= self.longest <= 64, "longest", self.longest, "1 to 64")
        require(self.temperature >= 0, "temperature", self.temperature, "a number >= 0")
        require_folders(json=self.json, figure=self.figure)
        if self.figure is not None:
            require_matplotlib()
        Device(threads=self.threads).set_threads()
        reasoner, points = Reasoner(), []
        with progress("k", self.longest) as advance:
            for k in range(1, self.longest + 1):
                rounds = [self._rounds(reasoner, index, k) for index in range(self.problems)]
                points.append(point(k, rounds))
                advance()
        out, settings = console(), ("problems", "temperature", "seed")
        out.print(_alpha_table(points))
        out.print(ALPHA_NOTES, style="dim")
        document = {
            "settings": {name: getattr(self, name) for name in settings},
            "points": [asdict(p) | {"gaps": p.gaps} for p in points],
            "conditions": conditions(),
        }
        if self.json is not None:
            write_json(document, self.json)
        if self.figure is not None:
            for path in draw(document, self.figure):
                out.print(f"drawn: {path}")

    def _rounds(self, reasoner: Reasoner, index: int, k: int) -> Places:
        """The rounds of one problem."""
        from lr.lab.bench.alpha import Places
        from lr.trace import TokenRound

        made = reasoner.generate(
            problem(Split.TEST, index).question,
            mode="sd",
            drafter="draft",
            acceptance="reject",
            coupling="independent",
            temperature=self.temperature,
            top_p=1.0,
            top_k=0,
            min_p=0.0,
            num_speculative_tokens=k,
            seed=self.seed,
            max_tokens=400,
        )
        events = (event for _, event in made.trace.events)
        return Places.of((event for event in events if isinstance(event, TokenRound)), k)


def _alpha_table(points: Sequence[Point]) -> Table:
    made = table((*ALPHA_COLUMNS, "off", "emitted"), text=0, title="tokens per round")
    for p in points:
        off, off_place = p.gaps
        made.add_row(
            *(str(p.k), str(p.rounds), f"{p.cut:.1%}", f"{p.alpha:.4f}", f"{p.measured:.3f}"),
            *(f"{p.error:.3f}", f"{p.constant:.3f}", f"{off:+.1f}", f"{p.by_place:.3f}"),
            *(f"{off_place:+.1f}", f"{p.emitted:.3f}"),
        )
    return made
