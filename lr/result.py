"""What `Reasoner` returns: the answer, step by step, readable.

A `Result` is data: text, token ids, who wrote each step and why it was kept, the trace and the
statistics that follow from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from lr.lab.eval.answers import boxed, reply
from lr.trace import Stats, Trace, summarise
from lr.types import Finish, Origin, Role, Verdict


@dataclass(frozen=True)
class AnswerStep:
    """One step of an answer. `rejected` is the text of the draft step that a correction
    replaced.
    """

    index: int
    text: str
    tokens: tuple[int, ...]
    origin: Origin
    finish: Finish
    verdict: Verdict | None = None
    rejected: str | None = None

    @property
    def author(self) -> Role:
        """Whose words they are."""
        return Role.DRAFT if self.origin is Origin.ACCEPTED else Role.TARGET


@dataclass(frozen=True)
class Result:
    """An answer and how it came about. `tokens` are the ids of all steps in order; `prompt` those
    before them.
    """

    question: str
    mode: str
    prompt: tuple[int, ...]
    steps: tuple[AnswerStep, ...]
    trace: Trace
    coupling: str = "independent"
    """How the draft's and the target's version of a place hang together: "independent" noise,
    "shared" noise, or "proposal": the draft step was proposed to the target, token by token, by a
    rule whose outcome depends on it."""

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for step in self.steps for token in step.tokens)

    @property
    def text(self) -> str:
        return "".join(step.text for step in self.steps)

    @property
    def answer(self) -> str | None:
        r"""What stands in the last `\boxed{...}` of the reply (after the thought, if there is
        one).
        """
        return boxed(reply(self.text))

    @property
    def finished(self) -> bool:
        """Whether the model ended the text itself, within the token budget and the context."""
        return bool(self.steps) and self.steps[-1].finish is Finish.EOS

    @property
    def stats(self) -> Stats:
        return summarise(self.trace)
