"""`lr generate`: one question, any checkpoint, the answer as it is decided."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import tyro
from rich.markup import escape

from lr.commands import show
from lr.commands.options import ModelChoice, VariantChoice
from lr.lab.eval.failure_modes import DraftBottleneck, failure_modes
from lr.lab.trace.file import require_writable
from lr.options import GenerateOptions
from lr.result import Result
from lr.spec.protocol import Emit

if TYPE_CHECKING:
    from lr.engine.engine import Run
    from lr.model.codec import Codec


@contextmanager
def saving(path: Path | None, run: Run) -> Iterator[None]:
    """Write the trace of what is answered inside to `path` (None: nowhere), also if it is
    interrupted or fails."""
    from lr.lab.trace.replay import save_trace

    try:
        yield
    except BaseException as error:
        if path is not None:
            save_trace(path, run, why=f"{type(error).__name__}: {error}")
        raise
    if path is not None:
        save_trace(path, run)


@dataclass(frozen=True)
class Generate:
    """Answer one question. The answer goes to standard output as it is decided, the statistics to
    standard error."""

    question: tyro.conf.Positional[str | None] = None
    """What to ask; the checkpoint's chat template is put around it. Left out: a sample problem."""
    models: ModelChoice = field(default_factory=ModelChoice)
    generation: GenerateOptions = field(default_factory=GenerateOptions)
    own: VariantChoice = field(default_factory=VariantChoice)
    max_depth: int | None = None  # The official name of --depth; it counts if both are given.
    explain: bool = False  # Name failure modes too: cascades of rejections, waits for the draft.
    trace: Path | None = None
    """Write everything that happens to this file, as JSON lines, for lr trace and the tools that
    show it."""

    def run(self) -> None:
        options = self.generation
        if self.max_depth is not None:
            options = dataclasses.replace(options, depth=self.max_depth)
        if self.trace is not None:
            require_writable(self.trace)
        out, notes = show.console(), show.console(stderr=True)
        reasoner = self.models.load(needs_draft=options.needs_draft)
        run = reasoner.run(
            self.models.question(self.question),
            variant=self.own.load(reasoner),
            detailed=self.trace is not None,
            **dataclasses.asdict(options),
        )
        with saving(self.trace, run):
            for step in run:
                out.print(step.text, style=show.STYLES[step.origin], end="", markup=False)
        result = run.finish()
        if not result.text.endswith("\n"):
            out.print()
        for note in self._notes(result, reasoner.codec):
            notes.print(f"[dim]{escape(note)}[/]")

    def _notes(self, result: Result, codec: Codec) -> Iterator[str]:
        stats = result.stats
        coupling = "" if self.generation.mode == "ar" else f", coupling {result.coupling}"
        yield show.summary(stats) + coupling
        if asks := show.unheeded(codec):
            yield asks
        if stats.judged and not stats.accepted:
            events = (event for _, event in result.trace.events)
            emits = (e for e in events if isinstance(e, Emit))
            reasons = Counter(v.why for emit in emits for v in emit.verdicts)
            yield f"no draft step was accepted; most often: {reasons.most_common(1)[0][0]}"
        for found in failure_modes(result.trace) if self.explain else []:
            # where the models take turns, the target pays for the draft but never waits for it
            if self.generation.driver != "lockstep" or not isinstance(found, DraftBottleneck):
                yield str(found)
        if not result.finished:
            yield "the answer was cut: the token budget (--max_tokens) or the context was reached"
