"""`lr generate` answers one question with any checkpoint. `lr demo` races plain
decoding against lookahead, shows one rejection, and compares the modes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro
from rich.table import Table

from lr.commands import show
from lr.commands.options import ModelChoice, VariantChoice
from lr.measure.speed_reason import speed_reason
from lr.options import LOOKAHEAD, MODES, GenerateOptions, Mode
from lr.result import Result
from lr.tiny import CHECKPOINTS
from lr.tiny.language import Problem, Split
from lr.tiny.stories import story
from lr.watch.stepper.words import counted

if TYPE_CHECKING:
    from lr.engine.answer import Answer
    from lr.reasoner import Reasoner


@contextmanager
def saving(path: Path | None, answer: Answer) -> Iterator[None]:
    """Write the trace of the answer made inside the block to `path`, even if the block
    fails."""
    from lr.watch.trace.record import save_trace

    why = ""
    try:
        yield
    except BaseException as error:
        why = f"{type(error).__name__}: {error}"
        raise
    finally:
        if path is not None:
            save_trace(path, answer, why)


def picked(reasoner: Reasoner, options: GenerateOptions) -> str:
    """What answers, in one line: mode, models, verifier, precision, threads."""
    import torch

    engine = reasoner.engine
    parts = [f"mode {options.mode}", f"target {engine.names.get('target')}"]
    if options.needs_draft:
        parts.append(f"draft {engine.names.get('draft')}")
    if options.looks_ahead:
        parts.append(f"verifier {engine.names.get('verifier')}")
    dtype = str(engine.target.dtype).removeprefix("torch.")
    parts.append(f"{dtype} on {engine.target.device}")
    parts.append(counted(torch.get_num_threads(), "CPU thread"))
    return ", ".join(parts)


@dataclass(frozen=True)
class Generate:
    """Answer one question. Prints each step of the answer to standard output as soon as
    it is decided, on a terminal with its sign, and the statistics to standard error."""

    question: tyro.conf.Positional[str | None] = None
    """What to ask; the checkpoint's chat template wraps it. Left out: a sample
    problem."""
    models: ModelChoice = field(default_factory=ModelChoice)
    generation: GenerateOptions = field(default_factory=GenerateOptions)
    own: VariantChoice = field(default_factory=VariantChoice)
    max_depth: int | None = None
    """The official tool's name for --depth; wins if both are given."""
    trace: Path | None = None
    """Write every event to this file, as JSON lines: for lr trace, play, draw and
    step."""

    def run(self) -> None:

        options = self.generation
        if self.max_depth is not None:
            options = replace(options, depth=self.max_depth)
        show.require_files(trace=self.trace)
        out = show.console()
        notes = show.console(stderr=True)
        note = partial(notes.print, style="dim", soft_wrap=False)
        reasoner = self.models.load(needs_draft=options.needs_draft)
        answer = reasoner.run(
            self.models.question(self.question),
            options,
            variant=self.own.load(reasoner),
            detailed=self.trace is not None,
        )
        note(picked(reasoner, answer.options))
        tiny = self.models.model in CHECKPOINTS
        with saving(self.trace, answer):
            for step in answer:
                if out.is_terminal:
                    out.print(show.step_line(step, tiny=tiny), soft_wrap=False)
                else:
                    out.print(step.text, end="")
        result = answer.result
        if not out.is_terminal and not result.text.endswith("\n"):
            out.print()
        note(show.summary(result.stats))
        if not result.finished:
            note("the answer was cut (--max_tokens, or the context)")
        overlapped = answer.options.driver == "overlapped"
        reason = speed_reason(result.trace, overlapped=overlapped)
        if reason:
            note(reason)


RACE = 197  # The test story of the race: 43 steps, one of them corrected at seed 0.
WORDS = (
    "ar: plain decoding. sd: tokens drafted ahead. lr: steps drafted ahead. lr+sd: both. "
    "Draft and target work at the same time. kept: accepted of the judged draft steps. "
    "faster: tokens per second, compared with ar on this machine."
)


@dataclass(frozen=True)
class Demo:
    """Watch plain decoding and lookahead answer the same question in real time; then
    one rejection in slow motion, and all modes in one table. Other models than the tiny
    ones: --model and --draft_model; verifier likelihood, unless you give another."""

    question: tyro.conf.Positional[str | None] = None
    """What to ask. Left out: a long problem for the tiny models, a short one for any
    others."""
    problems: int = 2  # How many held-out problems the table compares (tiny models).
    seconds: float = 40.0  # Begin no further answer for the table after this time.
    max_tokens: int | None = None
    """Longest answer in tokens; None: no limit for the tiny models, 80 for others."""
    depth: int = 6  # Draft steps to write ahead.
    seed: int = 0  # Same seed, same answers.
    models: ModelChoice = field(default_factory=ModelChoice)

    def run(self) -> None:
        from lr.watch.race import Race

        show.at_least(self, problems=1, seconds=0, depth=1)
        out = show.console()
        tiny = self.models.model in CHECKPOINTS
        models = self.models
        if not tiny and models.verifier is None and models.judge_model is None:
            models = replace(models, verifier="likelihood")
        with models.load(needs_draft=True) as reasoner:
            question = self.question
            if question is None and tiny:
                question = story(Split.TEST, RACE, 0).question
            question = self.models.question(question)
            line = picked(reasoner, GenerateOptions(mode="lr"))
            out.print(line, style="dim", soft_wrap=False)
            # The first call allocates, and starts the draft's process.
            for mode in ("ar", "lr"):
                reasoner.generate(question, **self._options(mode) | {"max_tokens": 2})
            out.print("", question, "", soft_wrap=False)
            race = Race(
                reasoner.run(question, detailed=True, **self._options("ar")),
                reasoner.run(question, detailed=True, **self._options("lr")),
            )
            race.show(out)
            tasks: list[Problem | str] = [question]
            if tiny and self.question is None:
                tasks = [story(Split.TEST, n, 0) for n in range(self.problems)]
            tallies = self._compare(reasoner, tasks)
        out.print("", table_of(tallies), soft_wrap=False)
        out.print(WORDS, style="dim", soft_wrap=False)
        if "lr" in tallies and tallies["lr"].reason:
            out.print(f"lr was {tallies['lr'].reason}.", style="bold", soft_wrap=False)

    def _options(self, mode: Mode) -> dict[str, Any]:
        """The options of one mode. A real pair gets short answers of short steps."""
        tiny = self.models.model in CHECKPOINTS
        overlapped = mode in LOOKAHEAD
        return {
            "mode": mode,
            "depth": self.depth,
            "seed": self.seed,
            "driver": "overlapped" if overlapped else "lockstep",
            "segmenter": "blank_line" if tiny else "sentence",
            "max_tokens": self.max_tokens or (None if tiny else 80),
        }

    def _compare(
        self, reasoner: Reasoner, tasks: list[Problem | str]
    ) -> dict[Mode, Tally]:
        """Answer the questions in every mode, the modes alternating, until the time is
        up: after a whole round, but in the first round after any mode."""
        tallies: dict[Mode, Tally] = {}
        end = time.monotonic() + self.seconds
        with show.progress("comparing", len(tasks) * len(MODES)) as advance:
            for index, task in enumerate(tasks):
                for mode in MODES:
                    may_stop = index == 0 or mode == MODES[0]
                    if tallies and may_stop and time.monotonic() > end:
                        return tallies
                    question = task if isinstance(task, str) else task.question
                    result = reasoner.generate(question, **self._options(mode))
                    tallies.setdefault(mode, Tally()).add(result, task)
                    advance()
        return tallies


@dataclass
class Tally:
    """The answers of one mode, added up."""

    answers: int = 0
    right: int = 0
    tokens: int = 0
    seconds: float = 0.0
    passes: int = 0
    judged: int = 0
    accepted: int = 0
    reason: str = ""  # why the last one was or was not faster

    def add(self, result: Result, task: Problem | str) -> None:
        stats = result.stats
        self.answers += 1
        self.right += not isinstance(task, str) and result.answer == str(task.answer)
        self.tokens += stats.tokens
        self.seconds += stats.seconds
        self.passes += stats.target_passes
        self.judged += stats.judged
        self.accepted += stats.accepted
        self.reason = speed_reason(result.trace, overlapped=result.mode in LOOKAHEAD)

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


def table_of(tallies: dict[Mode, Tally]) -> Table:
    """The modes beside each other."""
    plain = tallies["ar"]
    rows = [
        (
            mode,
            f"{tally.right}/{tally.answers}" if plain.right else "",
            tally.accepted / tally.judged if tally.judged else None,
            tally.tokens / tally.passes,
            tally.speed,
            tally.speed / plain.speed,
        )
        for mode, tally in tallies.items()
    ]
    heads = ("mode", "right", "kept", "tokens / pass", "tokens / s:.0f", "faster")
    return show.table(heads, rows)
