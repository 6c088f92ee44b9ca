"""`lr generate`: one question, any checkpoint, the answer as it is decided."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import tyro
from rich.markup import escape

from lr.commands.models import ModelChoice
from lr.commands.show import STYLES, console, summary
from lr.commands.tracing import saving
from lr.lab.eval.signatures import DraftBottleneck, Signature, signatures
from lr.lab.trace.file import require_writable
from lr.options import GenerateOptions, needs_draft
from lr.result import Result
from lr.trace import StepJudged


def _commonest_reason(result: Result) -> str:
    reasons = Counter(
        event.verdict.why for _, event in result.trace.events if isinstance(event, StepJudged)
    )
    return escape(reasons.most_common(1)[0][0])


@dataclass(frozen=True)
class Generate:
    """Answer one question. The answer goes to standard output as it is decided, the statistics to
    standard error.
    """

    question: tyro.conf.Positional[str]
    """What to ask; the checkpoint's chat template is put around it."""
    models: ModelChoice = field(default_factory=ModelChoice)
    generation: GenerateOptions = field(default_factory=GenerateOptions)
    max_depth: int | None = None
    """The official tool's name of --depth; where both are given, this one counts."""
    explain: bool = False
    """Say also whether the run shows a signature of failure: a cascade of rejections, a target that
    waits for the draft.
    """

    trace: Path | None = None
    """Write everything that happens to this file, as JSON lines, for lr trace and the tools that
    show it.
    """

    def run(self) -> None:
        generation = self.generation
        if self.max_depth is not None:
            generation = dataclasses.replace(generation, depth=self.max_depth)
        if self.trace is not None:
            require_writable(self.trace)
        reasoner = self.models.load(needs_draft=needs_draft(generation))
        run = reasoner.run(
            self.question, detailed=self.trace is not None, **dataclasses.asdict(generation)
        )
        out = console()
        with saving(self.trace, run):
            for step in run:
                out.print(step.text, style=STYLES[step.origin], end="", markup=False)
        result = run.finish()
        if not result.text.endswith("\n"):
            out.print()
        notes = console(stderr=True)
        coupling = "" if self.generation.mode == "ar" else f", coupling {result.coupling}"
        notes.print(f"[dim]{summary(result.stats)}{coupling}[/]")
        if result.stats.judged and not result.stats.accepted:
            notes.print(
                f"[dim]no draft step was accepted; most often: {_commonest_reason(result)}[/]"
            )
        for signature in self._signatures(result) if self.explain else []:
            notes.print(f"[dim]{signature}[/]")
        if not result.finished:
            notes.print(
                "[dim]the answer was cut: the token budget (--max_tokens) or the context was reached[/]"
            )

    def _signatures(self, result: Result) -> list[Signature]:
        """Where the models take turns the target never waits for the draft, it only pays for it."""
        found = signatures(result.trace)
        alone = self.generation.driver == "lockstep"
        return [one for one in found if not (alone and isinstance(one, DraftBottleneck))]
