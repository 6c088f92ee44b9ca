"""What `Reasoner` returns: the steps of the answer, as text and token ids, each with
its author and its verdict; the trace; and the statistics computed from the trace.
"""

import codecs
import re
from dataclasses import dataclass
from typing import NamedTuple

from lr.trace import Stats, Trace, stats_of
from lr.types import Finish, Origin, Role, Verdict

# </think> of Qwen and DeepSeek, [/THINK] of Mistral, ◁/think▷ of Kimi, gpt-oss's channel
END_OF_THOUGHT = re.compile(
    r"[<\[◁]/[\w:]*th(?:ink|ought)\w*[>\]▷]|<\|channel\|>final<\|message\|>",
    re.IGNORECASE,
)
_BRACES = re.compile(
    r"(?P<box>\\{1,2}(?:boxed|fbox)\s*)?(?P<open>\{)|(?P<close>\})"
    # without braces: a number, one letter or one command (as \frac{1}{2} or \frac12),
    # never a word of a sentence
    r"|\\{1,2}boxed\s*(?P<bare>[-+]?\.?\d[^\s$\\{}]*|[A-Za-z](?![A-Za-z])"
    r"|(?!\\boxed)\\[a-zA-Z]+(?:\{[^{}]{0,200}\}|\d|\\[a-z]+(?=\d)){1,2})|\\.",
    re.DOTALL,
)


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


@dataclass(frozen=True, repr=False)
class Result:
    """An answer and its history, with the token ids of the prompt and of the steps."""

    question: str
    mode: str
    prompt: tuple[int, ...]
    steps: tuple[AnswerStep, ...]
    trace: Trace

    def __repr__(self) -> str:
        return (
            f"<Result: answer {self.answer!r}, mode {self.mode}, {len(self.steps)} steps, "
            f"{len(self.tokens)} tokens, question {self.question[:60]!r}>"
        )

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


def whole_characters(data: bytes, *, last: bool) -> tuple[str, bytes]:
    """The text of UTF-8 bytes, and the bytes at the end that begin a character. `last`:
    no more bytes follow, so none are held back. U+FFFD stands for what is no
    character. Example: b"a\\xc3" gives "a" and b"\\xc3", the beginning of "é"."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = decoder.decode(data, final=last)
    held, _ = decoder.getstate()
    return text, held


def reply(text: str) -> str:
    """The text after the last thought, which ends by `</think>` or other models' mark of
    it, or the whole text if there is none."""
    return END_OF_THOUGHT.split(text)[-1]


class Box(NamedTuple):
    """A `\\boxed{...}` in a text: where it starts and ends, and what it holds."""

    start: int
    end: int
    content: str


def boxed(text: str) -> str | None:
    """The content of the last box, or None. Example: "so \\boxed{\\frac{1}{2}}." gives
    "\\frac{1}{2}"."""
    closed = boxes(text)
    return closed[-1].content if closed else None


def boxes(text: str) -> list[Box]:
    """The innermost boxes that are closed and hold something; also `\\boxed 2`, without
    braces. Escaped braces (of a set) do not count. One pass: a model that repeats
    itself may write the command many thousand times."""
    closed: list[Box] = []
    open_braces: list[int | None] = []  # of each: where its box starts, if it has one
    for token in _BRACES.finditer(text):
        if token["bare"]:
            content = token["bare"].rstrip(".,;:")
            closed.append(Box(token.start(), token.end(), content))
        elif token["open"]:
            open_braces.append(token.start() if token["box"] else None)
        elif token["close"] and open_braces:
            start = open_braces.pop()
            if start is None or (closed and closed[-1].start > start):
                continue  # no box, or one around another box
            content = text[text.index("{", start) + 1 : token.start()].strip()
            if content:
                closed.append(Box(start, token.end(), content))
    return closed
