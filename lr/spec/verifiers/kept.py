"""Questions to a model that begin alike: what they share is computed once and forked.

A verifier that asks a model many questions has rows of tokens with long common beginnings: the head
of a judge's prompt, or the chain that every step of a solution extends. `KeptPrefixes` keeps a few
branches from earlier calls. A new row starts as a fork of the one it shares most with, cut back to
the common part, so only what is new goes through the model, all rows in one ragged forward.

Example: kept are the 40 tokens of a prompt's head. Two rows of 95 and 90 tokens begin with it: two
forks, one forward of 55 + 50 tokens, then both forks are closed and the head stays.

Knows the runner by its protocol only. Read next: `judge.py`, `score.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lr.errors import OutOfBlocks
from lr.kvcache.branch import Branch
from lr.spec.drafters.mirror import common
from lr.spec.runner import Runner
from lr.types import require

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Row:
    """Token ids to run: the logits after the last `wanted` of them are asked for, the first `keep`
    are worth keeping (0: none).
    """

    tokens: Sequence[int]
    wanted: int = 1
    keep: int = 0


class KeptPrefixes:
    """The branches of one runner that are kept from call to call, at most `slots` of them; the
    longest unused goes first.
    """

    def __init__(self, runner: Runner, slots: int = 8) -> None:
        require(slots > 0, "slots", slots, "a whole number > 0")
        self.runner = runner
        self.slots = slots
        self.kept: list[Branch] = []

    def logits(self, rows: Sequence[Row]) -> list[Tensor]:
        """Per row the logits [wanted, v] after its last tokens, from one ragged forward over all
        rows.

        Rows that do not fit the cache together are run in halves. Raises `OutOfBlocks` if a single
        row does not fit an empty cache, `ContextError` for a row longer than the model's context;
        either way no branch stays behind.
        """
        branches: list[Branch] = []
        try:
            for row in rows:
                branches.append(self._begin(row))
            logits = self.runner.feed(branches, [row.wanted for row in rows]) if rows else []
        except BaseException as error:
            for branch in branches:
                self.runner.close(branch)
            if not isinstance(error, OutOfBlocks) or (len(rows) == 1 and not self.kept):
                raise
        else:
            for row, branch in zip(rows, branches, strict=True):
                self._keep(row, branch)
            return logits
        if len(rows) == 1:
            self.close()
            return self.logits(rows)
        middle = len(rows) // 2
        return self.logits(rows[:middle]) + self.logits(rows[middle:])

    def warm(self, tokens: Sequence[int]) -> None:
        """See that the cache holds `tokens` (at least one), so that rows that begin with them can
        fork it.
        """
        if all(common(branch.tokens, tokens) < len(tokens) for branch in self.kept):
            self.logits([Row(tokens, keep=len(tokens))])

    def close(self) -> None:
        """Give all kept branches back. The next call starts anew."""
        for branch in self.kept:
            self.runner.close(branch)
        self.kept = []

    def _begin(self, row: Row) -> Branch:
        """A branch that holds the row, with at least its last `wanted` tokens pending."""
        best = max(self.kept, key=lambda branch: common(branch.tokens, row.tokens), default=None)
        shared = (
            0
            if best is None
            else min(common(best.tokens, row.tokens), len(row.tokens) - row.wanted)
        )
        if best is None or shared <= 0:
            return self.runner.open(row.tokens)
        branch = self.runner.fork(best)
        self.runner.rewind(branch, shared)
        branch.extend(row.tokens[shared:])
        return branch

    def _keep(self, row: Row, branch: Branch) -> None:
        """Keep the beginning of a row that was run, unless a kept branch has it; what it extends is
        not needed any more.
        """
        if row.keep == 0:
            self.runner.close(branch)
            return
        self.runner.rewind(branch, min(row.keep, len(branch)))
        covering = next(
            (kept for kept in self.kept if common(kept.tokens, branch.tokens) == len(branch)), None
        )
        if covering is not None:  # used now: it moves to the end of the queue
            self.runner.close(branch)
            branch = covering
        gone = [
            kept
            for kept in self.kept
            if kept is not branch and common(kept.tokens, branch.tokens) == len(kept)
        ]
        self.kept = [kept for kept in self.kept if kept is not branch and kept not in gone] + [
            branch
        ]
        gone += self.kept[: -self.slots]
        self.kept = self.kept[-self.slots :]
        for old in gone:
            self.runner.close(old)
