"""Asking a language model: prompts that share their beginnings, answers read off one distribution.

Three verifiers put questions to a model (`judge.py`). They generate nothing. The possible answers
are known, so the answer is begun for the model, and the probability of each way to go on is read
from one row of logits (`AnswerTokens`). Prompts share long beginnings, the instructions of a judge
or the chain that every step extends; these are computed once and forked (`PrefixCache`).

This module knows the runner by its protocol only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lr.errors import ContextError, LRError, OutOfBlocks, SettingError
from lr.kvcache.branch import Branch
from lr.spec.runner import Runner
from lr.types import require


@dataclass(frozen=True)
class PromptedModel:
    """A model that a verifier asks.

    `encode` turns text into token ids and adds nothing; `chat` turns a question into a prompt in
    the model's chat format, up to where the assistant begins. `tiny`: it was trained for the pairs
    of a tiny language only and takes no instructions.
    """

    runner: Runner
    encode: Callable[[str], list[int]]
    chat: Callable[[str], list[int]]
    tiny: bool = False


@dataclass(frozen=True)
class AnswerTokens:
    """The possible answers: all begin with `common`, then answer i goes on with `tokens[i]`.

    None: the answer ends there. Example: "aligned]" may be the tokens (al, igned, ]) and
    "unaligned]" (un, al, igned, ]); then `common` is empty and `tokens` is (al, un). " 7" and " 8"
    may be (space, 7) and (space, 8): the space is common, 7 and 8 decide.
    """

    common: tuple[int, ...]
    tokens: tuple[int | None, ...]

    @classmethod
    def of(cls, answers: Sequence[Sequence[int]]) -> AnswerTokens:
        """From the token ids of each answer. Raises `SettingError` if one token cannot decide."""
        place = common_length(*answers)
        tokens = tuple(answer[place] if place < len(answer) else None for answer in answers)
        if len(set(tokens)) < len(tokens):
            raise SettingError(
                f"the possible answers are the token ids {[list(answer) for answer in answers]}, "
                "which one token does not tell apart. Choose answers that begin differently, or a "
                "model with another tokenizer."
            )
        return cls(tuple(answers[0][:place]), tokens)

    def read(self, logits: Tensor) -> tuple[list[float], float]:
        """The answers' probabilities relative to each other, and their total share (0 to 1).

        `logits` [v] follow the common tokens. An answer that ends there gets what the others leave.
        """
        log_p = torch.log_softmax(logits.double(), -1)
        going_on = [token for token in self.tokens if token is not None]
        chosen = log_p[going_on]
        if None not in self.tokens:
            return chosen.softmax(-1).tolist(), float(chosen.logsumexp(-1).exp())
        p = dict(zip(going_on, chosen.exp().tolist(), strict=True))
        rest = max(0.0, 1.0 - sum(p.values()))
        return [rest if token is None else p[token] for token in self.tokens], 1.0


@dataclass(frozen=True)
class Row:
    """Token ids to run. `wanted`: for how many of the last tokens logits are returned; `keep`: how
    many of the first tokens are worth caching (0: none).
    """

    tokens: Sequence[int]
    wanted: int = 1
    keep: int = 0


class PrefixCache:
    """Keeps up to `slots` branches of earlier calls; the one unused for longest is dropped first.

    A new row starts as a fork of the branch it shares most with, cut back to the common part, so
    only what is new is computed. Example: kept are the 40 tokens of a prompt's instructions. Two
    rows of 95 and 90 tokens begin with them: two forks, one forward of 55 + 50 tokens.
    """

    def __init__(self, runner: Runner, slots: int = 8) -> None:
        require(slots > 0, "slots", slots, "a whole number > 0")
        self.runner, self.slots = runner, slots
        self.kept: list[Branch] = []

    def logits(self, rows: Sequence[Row]) -> list[Tensor | LRError]:
        """Per row the logits [wanted, v] after its last tokens, in one ragged forward.

        Rows that do not fit the cache together run in halves. A row that cannot run even alone gets
        the error instead: `OutOfBlocks`, or `ContextError` if it is longer than the context.
        """
        if not rows:
            return []
        branches: list[Branch] = []
        try:
            for row in rows:
                branches.append(self._begin(row))
            logits = self.runner.forward(branches, [row.wanted for row in rows])
        except BaseException as error:
            for branch in branches:
                self.runner.close(branch)
            if not isinstance(error, (OutOfBlocks, ContextError)):
                raise
            if len(rows) > 1:
                middle = len(rows) // 2
                return self.logits(rows[:middle]) + self.logits(rows[middle:])
            if isinstance(error, ContextError) or not self.kept:
                return [error]
            self.close()  # what is kept may take the room that this row needs
            return self.logits(rows)
        for row, branch in zip(rows, branches, strict=True):
            self._keep(row, branch)
        return list(logits)

    def warm(self, tokens: Sequence[int]) -> None:
        """Cache `tokens` (at least one), so that rows that begin with them can fork."""
        if all(common_length(branch.tokens, tokens) < len(tokens) for branch in self.kept):
            self.logits([Row(tokens, keep=len(tokens))])

    def close(self) -> None:
        """Release all kept branches. The next call computes them again."""
        for branch in self.kept:
            self.runner.close(branch)
        self.kept = []

    def _begin(self, row: Row) -> Branch:
        """A branch that holds the row, with at least its last `wanted` tokens pending."""
        best = max(self.kept, key=lambda one: common_length(one.tokens, row.tokens), default=None)
        limit = len(row.tokens) - row.wanted
        shared = 0 if best is None else min(common_length(best.tokens, row.tokens), limit)
        if best is None or shared <= 0:
            return self.runner.open(row.tokens)
        branch = self.runner.fork(best)
        self.runner.rewind(branch, shared)
        branch.extend(row.tokens[shared:])
        return branch

    def _keep(self, row: Row, branch: Branch) -> None:
        """Keep the beginning of a row that ran, in place of kept branches that it extends."""
        if row.keep == 0:
            self.runner.close(branch)
            return
        self.runner.rewind(branch, min(row.keep, len(branch)))
        covering = [
            one for one in self.kept if common_length(one.tokens, branch.tokens) == len(branch)
        ]
        if covering:  # it is there already, and now the most recently used
            self.runner.close(branch)
            branch = covering[0]
        others = [one for one in self.kept if one is not branch]
        extended = [one for one in others if common_length(one.tokens, branch.tokens) == len(one)]
        staying = [one for one in others if one not in extended] + [branch]
        for old in [*extended, *staying[: -self.slots]]:
            self.runner.close(old)
        self.kept = staying[-self.slots :]


def common_length(*sequences: Sequence[int]) -> int:
    """How many first tokens all sequences share."""
    shortest = min(map(len, sequences))
    first = sequences[0]
    unequal = (i for i in range(shortest) if any(other[i] != first[i] for other in sequences[1:]))
    return next(unequal, shortest)
