"""What `Reasoner` returns: the answer, step by step, as text and as token ids, with who wrote each
step and why it was kept, the trace, and the statistics that follow from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from lr.trace import Stats, Trace, stats_of
from lr.types import Finish, Origin, Role, Verdict

BOX = "\\boxed{"
END_OF_THOUGHT = "</think>"


@dataclass(frozen=True)
class AnswerStep:
    """One step of an answer. `rejected`: the draft step that a correction replaced."""

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
    """An answer and how it came about, with the token ids of the prompt and of its steps."""

    question: str
    mode: str
    prompt: tuple[int, ...]
    steps: tuple[AnswerStep, ...]
    trace: Trace
    coupling: str = "independent"
    """How the draft's and the target's version of a step depend on each other: "independent" noise,
    "shared" noise, or "proposal": the draft step was proposed to the target token by token, and
    what the rule made of it depends on it."""

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for step in self.steps for token in step.tokens)

    @property
    def text(self) -> str:
        return "".join(step.text for step in self.steps)

    @property
    def answer(self) -> str | None:
        r"""What stands in the last `\boxed{...}` of the reply (after the thought)."""
        return boxed(reply(self.text))

    @property
    def finished(self) -> bool:
        """Whether the model ended the text itself, within the token budget and the context."""
        return bool(self.steps) and self.steps[-1].finish is Finish.EOS

    @property
    def stats(self) -> Stats:
        return stats_of(self.trace.events)


def reply(text: str) -> str:
    """What follows the last `</think>`, or all of the text where there is none."""
    return text.rpartition(END_OF_THOUGHT)[2]


def boxed(text: str) -> str | None:
    """The content of the last complete `\\boxed{...}`, or None. Example: "so
    \\boxed{\\frac{1}{2}}." gives "\\frac{1}{2}". Escaped braces (a set) do not count.
    """
    end = len(text)
    while (start := text.rfind(BOX, 0, end)) >= 0:
        depth, first = 1, start + len(BOX)
        for place in range(first, len(text)):
            escaped = text[place - 1] == "\\" and place > first
            depth += 0 if escaped else {"{": 1, "}": -1}.get(text[place], 0)
            if depth == 0:
                return text[first:place].strip()
        end = start
    return None
