"""The judge: a language model decides whether two steps mean the same.

See arXiv 2506.19830, section 3.2 and Appendix A. The score is P(aligned) / (P(aligned)
+ P(unaligned)), so the judge has an ROC curve. It sees the texts of the two steps, not
the problem or the chain. It generates nothing: both possible answers are known, so the
prompt ends with their common beginning, and one row of logits gives the probability of
each continuation (`AnswerTokens`). Prompts share a long prefix, which is computed once
and forked (`PrefixCache`). One ragged forward decides all pairs of a batch. A pair that
does not fit the model's context or cache is rejected alone, with that reason.

The model is known by two protocols, a `Runner` and a `TextCodec`. `named.py` has
further verifiers that ask a model.
"""

import math
import re
import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from lr.errors import ContextError, LRError, OutOfBlocks
from lr.kvcache.branch import Branch, common_length
from lr.kvcache.cache import integers
from lr.result import reply
from lr.spec.runner import Runner, fork_longest
from lr.spec.sampling import not_finite
from lr.spec.verifiers.base import Decode, Pair, Verifier, texts_of, unless_equal
from lr.types import Verdict, require

JUDGE_TOKENS = 8192
"""Room for the prompts of one batch of pairs. A batch that does not fit is judged in
parts."""
FAILURES = 3
"""So many pairs in a row without a verdict, and the judge is lost."""


class TextCodec(Protocol):
    """A tokenizer, as verifiers use it. `name`: of its checkpoint. `generation_config`:
    what the checkpoint says about itself."""

    name: str
    generation_config: Mapping[str, Any]

    def encode(self, text: str) -> list[int]: ...
    def decode(self, tokens: Sequence[int]) -> str: ...
    def chat(self, question: str, *, enable_thinking: bool) -> list[int]: ...


class PromptedModel(NamedTuple):
    """A model that a verifier asks, and its tokenizer."""

    runner: Runner
    codec: TextCodec


class AnswerTokens(NamedTuple):
    """The possible answers: all begin with `common`, then answer i continues with
    `tokens[i]`.

    Example: if "aligned]" is the tokens (al, igned, ]) and "unaligned]" is (un, al,
    igned, ]), `common` is empty and `tokens` is (al, un). If " 7" and " 8" are (space,
    7) and (space, 8), the space is common, and 7 and 8 decide."""

    common: tuple[int, ...]
    tokens: tuple[int, ...]

    @classmethod
    def of(cls, answers: Sequence[Sequence[int]]) -> Self:
        """From the token ids of each answer. Raises `SettingError` if no single token
        decides."""
        # of the common beginning
        length = min(common_length(answers[0], answer) for answer in answers)
        # the first that differs
        tokens = tuple(answer[length] for answer in answers if len(answer) > length)
        one_decides = len(set(tokens)) == len(answers)
        expected = (
            "answers whose first tokens differ, or a model with another tokenizer"
        )
        require(one_decides, "token ids of the possible answers", answers, expected)
        return cls(tuple(answers[0][:length]), tokens)

    def read(self, logits: Tensor) -> list[tuple[list[float], float]]:
        """For each row, the answers' relative probabilities and their total
        probability. `logits` [b, v] are those after the common tokens. Waits for the
        device once."""
        tokens = integers(self.tokens, logits.device)
        log_p = logits.double().log_softmax(-1)[:, tokens]  # [b, answers]
        # the mass of all answers, [b, 1]
        total = log_p.logsumexp(-1, keepdim=True).exp()
        rows = torch.cat((log_p.softmax(-1), total), -1).tolist()  # [b, answers + 1]
        return [(p, total) for *p, total in rows]


class PromptRow(NamedTuple):
    """Token ids to run, for the logits after the last `wanted` of them. The first
    `keep` stay cached."""

    tokens: list[int]
    keep: int
    wanted: int = 1


class PrefixCache:
    """Keeps the last `slots` branches of earlier calls. Threads take turns.

    A new row starts as a fork of the kept branch with the longest common prefix, so
    only the rest is computed. Example: the 40 tokens of a prompt's instructions are
    kept. Two rows of 95 and 90 tokens that begin with them need two forks and one
    forward of 55 + 50 tokens."""

    # Of the class: a lock cannot be pickled, and a verifier can.
    lock = threading.RLock()

    def __init__(self, runner: Runner, slots: int = 8) -> None:
        self.runner = runner
        self.slots = slots  # branches that are kept, at most
        self.passes = 0
        self.branches: list[Branch] = []  # the latest last

    def logits(self, rows: Sequence[PromptRow]) -> list[Tensor | LRError]:
        """The logits [wanted, v] after the last tokens of each row, by one ragged
        forward.

        Rows that do not fit the cache together run in halves. A row that cannot run
        even alone gets the error instead: `OutOfBlocks`, or `ContextError` if it is
        longer than the context."""
        if not rows:
            return []
        with self.lock:
            branches = []
            try:
                # 1. Fork what is kept already; the rest is uncomputed.
                for row in rows:
                    branches.append(
                        fork_longest(self.runner, self.branches, row.tokens, row.wanted)
                    )
                # 2. One forward for all rows.
                self.passes += 1
                logits = self.runner.forward(branches, [row.wanted for row in rows])
            # 3. No room: half of the rows at a time, then without what is kept.
            except BaseException as error:
                for branch in branches:
                    self.runner.close(branch)
                if not isinstance(error, (OutOfBlocks, ContextError)):
                    raise
                if len(rows) > 1:
                    middle = len(rows) // 2
                    return self.logits(rows[:middle]) + self.logits(rows[middle:])
                if isinstance(error, ContextError) or not self.branches:
                    return [error]
                self.close()  # kept branches may occupy the room that this row needs
                return self.logits(rows)
            # 4. Keep the instructions of each prompt, drop what is about its steps.
            for row, branch in zip(rows, branches, strict=True):
                self.runner.rewind(branch, row.keep)
            self.branches += branches
            self.close(keep=self.slots)
            return list(logits)

    def close(self, *, keep: int = 0) -> None:
        """Release the kept branches but the last `keep`. The next call computes them
        again."""
        while len(self.branches) > keep:
            self.runner.close(self.branches.pop(0))


class AskingVerifier(Verifier):
    """Runs one row per pair and reads the verdict from the logits of the `answers`.

    If the answers together have less than `least_mass` of the probability, the model
    would say something else: that is no verdict, and `patience` pairs of this kind in a
    row are an error. `codec`: the model's."""

    codec: TextCodec
    prefixes: PrefixCache
    answers: AnswerTokens
    least_mass: float = 0.01
    patience: float = math.inf
    unanswered: int = 0  # pairs since the last verdict

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        results = self.prefixes.logits([*map(self.row_of, pairs)])
        self.passes = self.prefixes.passes
        # without the errors
        logits = [rows for rows in results if isinstance(rows, Tensor)]  # [1, v] each
        answers = iter(self.answers.read(torch.cat(logits)) if logits else ())
        return [
            # an error, not a score of 0
            no_verdict(f"not judged: {result}")
            if isinstance(result, LRError)
            else self.answered(*next(answers))
            for result in results
        ]

    @abstractmethod
    def row_of(self, pair: Pair) -> PromptRow:
        """The row that the model reads for a pair."""

    @abstractmethod
    def verdict(self, p: Sequence[float]) -> Verdict:
        """The verdict from the relative probabilities of the answers."""

    def answered(self, p: Sequence[float], mass: float) -> Verdict:
        """The verdict, if there is one. Raises `NumericalError` or `SettingError`."""
        if math.isnan(mass):
            raise not_finite(self.codec.name)
        if mass >= self.least_mass:  # else the model would say something else
            self.unanswered = 0
            return self.verdict(p)
        self.unanswered += 1
        why = f"it answers something else (mass {mass:.1e})"
        expected = f"one that answers in the words of its prompt, at once: {why}"
        require(self.unanswered < self.patience, "judge", self.codec.name, expected)
        return no_verdict(why)


def no_verdict(why: str) -> Verdict:
    """The rejection of a pair that could not be judged."""
    return Verdict(aligned=False, why=why, failed=True)


def at_least(threshold: float, score: float, why: str) -> Verdict:
    """Aligned iff the score is at least the threshold. Raises `NumericalError` for
    NaN."""
    if math.isnan(score):
        raise not_finite(f"the verifier's model ({why})")
    return Verdict(score >= threshold, why=why, score=score)


# The steps follow the instructions, so all prompts share a long prefix.
JUDGE_PROMPT = """\
You see two versions, A and B, of one step in the solution of a problem. Could one take the place \
of the other without changing the solution? That is so if both do the same thing with the same \
facts and come to the same values and conclusions. How it is said does not matter: wording, order, \
notation, length. What is said does: if a number, a sign, a name, a unit, an operation or a claim \
differs, or stands in only one of them, they are not interchangeable.

Answer with one word in brackets: [aligned] if they are interchangeable, [unaligned] if they are \
not or if you cannot tell.

<version A>
{first}
</version A>

<version B>
{second}
</version B>"""
BARE_PROMPT = "{first}\n\n{second}"
"""For a judge trained for nothing else: two steps, no instructions."""
ANSWER_BEGUN = "["
VERDICT_WORDS = ("aligned", "unaligned")
OPEN_THOUGHT = re.compile(
    r"[<\[◁][\w:]*th(?:ink|ought)\w*[>\]▷]|<\|channel\|>analysis", re.IGNORECASE
)
"""The mark of a thought that begins. In what follows the last thought, it is open."""


def fill_prompt(prompt: str, first: str, second: str) -> str:
    """The prompt about two texts. Braces are text, except in {first} and {second}."""
    texts = {"{first}": first, "{second}": second}
    return re.sub("{first}|{second}", lambda place: texts[place[0]], prompt)


class JudgeVerifier(AskingVerifier):
    """Accepts equal texts, and if the judge's score is at least `threshold`.

    In the prompt the target's step is `{first}`, the draft's `{second}`. `prompt` None:
    the one that the judge was trained for, "judge_prompt" in its
    generation_config.json, else `JUDGE_PROMPT`. Raises `SettingError` for a model whose
    chat template opens a thought."""

    name = "judge"
    patience = FAILURES

    def __init__(
        self,
        judge: PromptedModel,
        decode: Decode,
        threshold: float = 0.5,
        prompt: str | None = None,
    ) -> None:
        require(0 <= threshold <= 1, "threshold", threshold, "a probability, 0 to 1")
        self.codec = codec = judge.codec
        self.decode = decode
        self.threshold = threshold
        trained = codec.generation_config.get("judge_prompt", JUDGE_PROMPT)
        self.prompt = prompt or str(trained)
        complete = "{first}" in self.prompt and "{second}" in self.prompt
        require(complete, "judge_prompt", self.prompt, "{first} and {second} in it")
        opening = codec.decode(codec.chat("0", enable_thinking=False))
        at_once = not OPEN_THOUGHT.search(reply(opening))
        expected = "one that answers at once: its chat template opens a thought"
        require(at_once, "judge", codec.name, expected)
        # where "aligned]" and "unaligned]" part
        answers = [codec.encode(f"{word}]") for word in VERDICT_WORDS]
        self.answers = AnswerTokens.of(answers)
        # the judge goes on after "["
        self.begun = [*codec.encode(ANSWER_BEGUN), *self.answers.common]
        self.prefixes = PrefixCache(judge.runner)
        # The instructions, which stay cached: what prompts about different texts share.
        self.head = common_length(self.row("0", "0"), self.row("Then", "Then"))

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return unless_equal(pairs, self.decode, super().judge)

    def row(self, first: str, second: str) -> list[int]:
        """The token ids of the prompt about two texts, without thinking, with the
        answer begun."""
        question = fill_prompt(self.prompt, first, second)
        return [*self.codec.chat(question, enable_thinking=False), *self.begun]

    def row_of(self, pair: Pair) -> PromptRow:
        return PromptRow(self.row(*texts_of(pair, self.decode)), keep=self.head)

    def verdict(self, p: Sequence[float]) -> Verdict:
        return at_least(self.threshold, p[0], f"judge: P(aligned) = {p[0]:.3f}")
