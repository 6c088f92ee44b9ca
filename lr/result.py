"""What `Reasoner` returns: the steps of the answer, as text and token ids, each with
its author and its verdict; the trace; and the statistics computed from the trace.
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
        """The model that wrote the text."""
        return Role.DRAFT if self.origin is Origin.ACCEPTED else Role.TARGET


@dataclass(frozen=True)
class Result:
    """An answer and its history, with the token ids of the prompt and of the steps."""

    question: str
    mode: str
    prompt: tuple[int, ...]
    steps: tuple[AnswerStep, ...]
    trace: Trace
    coupling: str = "independent"
    """How the draft's and the target's versions of a step are related. "independent"
    and "shared" describe the noise. "proposal": the draft step was also proposed to the
    target token by token, so the target's step depends on it."""

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for step in self.steps for token in step.tokens)

    @property
    def text(self) -> str:
        return "".join(step.text for step in self.steps)

    @property
    def answer(self) -> str | None:
        r"""The content of the last `\boxed{...}` after the thought, or None."""
        return boxed(reply(self.text))

    @property
    def finished(self) -> bool:
        """Whether the model ended the text itself, rather than the token budget or the
        context."""
        return bool(self.steps) and self.steps[-1].finish is Finish.EOS

    @property
    def stats(self) -> Stats:
        return stats_of(self.trace.events)


def reply(text: str) -> str:
    """The text after the last `</think>`, or the whole text if it has none."""
    return text.rpartition(END_OF_THOUGHT)[2]


def boxed(text: str) -> str | None:
    """The content of the last complete `\\boxed{...}`, or None. Escaped braces (of a
    set) do not count. Example: "so \\boxed{\\frac{1}{2}}." gives "\\frac{1}{2}".
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
