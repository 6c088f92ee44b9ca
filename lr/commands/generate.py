"""`lr generate`: one question, any checkpoint, the answer as it is decided."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import tyro

from lr.commands.models import ModelChoice
from lr.commands.show import STYLES, console, summary
from lr.eval.signatures import signatures
from lr.options import GenerateOptions, needs_draft


@dataclass(frozen=True)
class Generate:
    """Answer one question. The answer goes to standard output as it is decided, the statistics to standard error."""

    question: tyro.conf.Positional[str]
    """What to ask; the checkpoint's chat template is put around it."""
    models: ModelChoice = field(default_factory=ModelChoice)
    generation: GenerateOptions = field(default_factory=GenerateOptions)
    explain: bool = False
    """Say also whether the run shows a signature of failure: a cascade of rejections, a target that waits for the draft."""

    def run(self) -> None:
        reasoner = self.models.load(needs_draft=needs_draft(self.generation))
        run = reasoner.run(self.question, **dataclasses.asdict(self.generation))
        out = console()
        for step in run:
            out.print(step.text, style=STYLES[step.origin], end="", markup=False)
        result = run.finish()
        if not result.text.endswith("\n"):
            out.print()
        notes = console(stderr=True)
        notes.print(f"[dim]{summary(result.stats)}[/]")
        for signature in signatures(result.trace) if self.explain else []:
            notes.print(f"[dim]{signature}[/]")
        if not result.finished:
            notes.print("[dim]the answer was cut: the token budget (--max_tokens) or the context was reached[/]")
