"""`lr generate` answers one question with any checkpoint. `lr demo` races plain
decoding against lookahead, shows one rejection, and compares the modes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro
from rich.table import Table

from lr.commands import show
from lr.commands.options import AnswerFlags, ModelChoice
from lr.measure.speed_reason import beside_tokens_alone, speed_reason
from lr.options import LOOKAHEAD, MODES, Mode
from lr.result import Result
from lr.tiny import CHECKPOINTS
from lr.tiny.language import Split
from lr.tiny.stories import story
from lr.watch.recorded import first_answer, kept_and_rejected
from lr.watch.trace.file import header_of, trace_of, write_trace
from lr.watch.words import setting_of, summary, title_of

if TYPE_CHECKING:
    from lr.engine.answer import Answer
    from lr.spec.verifiers.base import Verifier


@contextmanager
def saving(path: Path | None, answer: Answer) -> Iterator[None]:
    """Write the trace of the answer made inside the block to `path`, even if the block
    fails."""
    failure = ""
    try:
        yield
    except BaseException as error:
        failure = f"{type(error).__name__}: {error}"
        raise
    finally:
        if path is not None:
            write_trace(path, trace_of(answer, failure))


def in_one_line(answer: Answer) -> str:
    """What answers: mode, models, precision, settings, the parts of a variant."""
    header = header_of(answer)
    return f"{title_of(header)}: {setting_of(header)}"


@dataclass(frozen=True)
class Generate(AnswerFlags):
    """Answer one question. Prints each step of the answer to standard output as soon as
    it is decided, on a terminal with its sign, and the statistics to standard error."""

    question: tyro.conf.Positional[str | None] = None
    """What to ask; the checkpoint's chat template wraps it. Left out: a sample
    problem."""
    trace: Path | None = None
    """Write every event to this file, as JSON lines: for lr trace, play and step."""

    def run(self) -> None:
        show.require_files(trace=self.trace)
        out = show.console()
        notes = show.console(stderr=True)
        note = partial(notes.print, style="dim", soft_wrap=False)
        answer = self.ask(self.question, detailed=self.trace is not None)
        question = answer.question
        note(in_one_line(answer))
        with saving(self.trace, answer):
            for step in answer:
                if out.is_terminal:
                    out.print(show.step_line(step), soft_wrap=False)
                else:
                    out.print(step.text, end="")
        result = answer.result
        if not out.is_terminal and not result.text.endswith("\n"):
            out.print()
        note(summary(result.stats))
        if not result.finished:
            most = f"{question.limits.max_tokens:,} tokens"
            note(
                f"the answer was cut at {most} (--max_tokens, or the target's context)"
            )
        drafted = max(0, question.limits.max_drafted)
        if question.options.needs_draft and len(result.tokens) > drafted:
            note(f"the draft's context ended after {drafted:,} tokens: no drafts since")
        overlapped = question.options.driver == "overlapped"
        reason = speed_reason(result.trace, overlapped=overlapped)
        if reason:
            note(reason)
            if is_usual(question.verifier, self.models):
                note(FASTER_FLAGS)


FASTER_FLAGS = (
    "The verifier is exact, as none is named: it keeps few draft steps and no wrong one. "
    "Faster on the pair in docs/results/real.md: --mode sd --num_speculative_tokens 16 "
    "--draft_confidence 0.7; more draft steps are kept by --verifier numbers."
)


def is_usual(verifier: Verifier, models: ModelChoice) -> bool:
    """Whether the verifier is the one of a pair for which nobody names one."""
    return models.verifier is None and verifier.name == "exact"


RACE = 197  # The test story of the race: 43 steps, one of them corrected at seed 0.
WORDS = (
    "✓: the draft's step, kept. ✗: the target's, after a rejection. ·: the target's alone. "
    "ar: plain decoding. sd: tokens drafted ahead. lr: steps drafted ahead. lr+sd: both. "
    "Draft and target work at the same time. kept: accepted of the judged draft steps. "
    "faster: tokens per second, compared with ar on this machine."
)
RACERS: tuple[Mode, ...] = ("ar", "lr")
OTHERS: tuple[Mode, ...] = ("sd", "lr+sd")
SHARE = 1 / 8
"""Of the demo's time, for each answer of the race; twice that for a long last step."""


@dataclass(frozen=True)
class Demo:
    """Watch plain decoding and lookahead answer the same question in real time; then
    one rejection in slow motion, and all modes in one table. Other models than the tiny
    ones: --model and --draft_model."""

    question: tyro.conf.Positional[str | None] = None
    """What to ask. Left out: a long problem for the tiny models, a short one for any
    others."""
    seconds: float = 60.0
    """Be done after about this time: slow models show the beginnings of their answers,
    and as many modes as fit."""
    max_tokens: int | None = None
    """Longest answer in tokens; None: no limit for the tiny models, 80 for others."""
    depth: int = 6  # Draft steps to write ahead.
    seed: int = 0  # Same seed, same answers.
    models: ModelChoice = field(default_factory=ModelChoice)

    @property
    def tiny(self) -> bool:
        return self.models.model in CHECKPOINTS

    def run(self) -> None:
        from lr.watch.race import Column, answer_within, race, show_end

        show.require_at_least(self, seconds=1, depth=1)
        out = show.console()
        say = partial(out.print, soft_wrap=False)
        with self.models.load(needs_draft=True) as reasoner:
            end = time.monotonic() + self.seconds
            question = self.question
            if question is None and self.tiny:
                question = story(Split.TEST, RACE, 0).question
            question = self.models.question(question)

            def begin(mode: Mode, longest: int | None = None) -> Answer:
                options = self._options(mode, longest)
                return reasoner.run(question, detailed=True, **options)

            say(in_one_line(begin("lr")), style="dim")
            say("", question, "")
            if self.tiny:  # Their first call allocates longer than they answer.
                for mode in RACERS:
                    begin(mode, 2).finish()

            # 1. The race, and one rejection in slow motion. If plain decoding had to
            # stop, the others write no more tokens than it did.
            share = SHARE * self.seconds
            plain = Column("plain decoding", begin("ar"))
            results: dict[Mode, Result] = {"ar": race([plain], share, out)}
            stats = results["ar"].stats
            length = None if results["ar"].finished else stats.tokens
            racers = [plain, Column("lookahead", begin("lr", length))]
            if reasoner.engine.worker is not None:
                reasoner.engine.worker.start()  # before the clock starts
            results["lr"] = race(racers, share, out)
            show_end(racers, out)
            # 2. The other modes, as far as the time goes.
            with show.progress("comparing", len(OTHERS)) as advance:
                for number, mode in enumerate(OTHERS):
                    share = (end - time.monotonic()) / (len(OTHERS) - number)
                    if share / 2 > stats.seconds / max(1, stats.steps):  # a step
                        answer = begin(mode, length)
                        results[mode] = answer_within(answer, share / 2)
                    advance()
        say("", table_of(results))
        say(WORDS, style="dim")
        reason = speed_reason(results["lr"].trace, overlapped=True)
        if reason:
            say(f"lr was {reason}.", style="bold")
        if is_usual(reasoner.verifier, self.models):
            say(FASTER_FLAGS, style="dim")
        if "sd" in results and "lr+sd" in results:
            reason = beside_tokens_alone(results["sd"].trace, results["lr+sd"].trace)
            say(f"lr+sd was {reason}.", style="bold")
        if self.tiny:
            kept, rejected = kept_and_rejected(first_answer())
            say("\nSteps of real models (lr play shows the whole answer):")
            say(f"kept      {kept.draft}", style="green")
            say(f"rejected  {rejected.draft}", style="dim")
            say(f"  instead {rejected.target}", style="yellow")

    def _options(self, mode: Mode, longest: int | None) -> dict[str, Any]:
        """The options of one mode, with answers of at most `longest` tokens. A real
        pair gets short answers of short steps."""
        options: dict[str, Any] = {"mode": mode, "depth": self.depth, "seed": self.seed}
        options["driver"] = "overlapped" if mode in LOOKAHEAD else "lockstep"
        options["max_tokens"] = longest or self.max_tokens
        if not self.tiny:
            options["max_tokens"] = options["max_tokens"] or 80
            options["segmenter"] = "sentence"
        return options


def table_of(results: Mapping[Mode, Result]) -> Table:
    """The modes beside each other."""
    plain = results["ar"].stats.tokens_per_second
    rows = []
    for mode in MODES:
        if mode in results and results[mode].steps:
            stats = results[mode].stats
            speed = stats.tokens_per_second
            ratio = speed / plain if speed and plain else None
            per_pass = stats.tokens_per_target_pass
            rows.append((mode, stats.step_acceptance, per_pass, speed, ratio))
    heads = ("mode", "kept", "tokens / pass", "tokens / s:.1f", "faster")
    return show.table(heads, rows)
