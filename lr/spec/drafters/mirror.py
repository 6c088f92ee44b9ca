"""A draft model's own branches, one for each branch of the target, kept in step with it.

After a round the target's branch holds tokens that the draft did not write (a correction), or one
that it did not see (the token after a fully accepted proposal). `follow` cuts the draft's branch
back to what is common and makes the rest pending; its next forward swallows it. A branch of the
target that is new (a fork) is met with a fork of the draft's branch that has most in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lr.kvcache.branch import Branch
from lr.spec.runner import Runner


class Mirror:
    """The draft's branches, by the branch of the target that they follow."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._own: dict[Branch, Branch] = {}

    def follow(self, branch: Branch) -> Branch:
        """The draft's branch for `branch`, holding exactly its tokens, at least the last one
        pending.
        """
        own = self._own.get(branch)
        if own is None:
            own = self._own[branch] = self._begin(branch.tokens)
        follow(self.runner, own, branch.tokens)
        return own

    def forget(self, branches: Iterable[Branch]) -> None:
        for branch in branches:
            if branch in self._own:
                self.runner.close(self._own.pop(branch))

    def _begin(self, tokens: Sequence[int]) -> Branch:
        """A branch for tokens that are not followed yet: a fork of the one that shares the longest
        beginning, if any shares one.
        """
        best = max(self._own.values(), key=lambda own: common(own.tokens, tokens), default=None)
        if best is None or common(best.tokens, tokens) == 0:
            return self.runner.open(tokens)
        return self.runner.fork(best)


def follow(runner: Runner, branch: Branch, tokens: Sequence[int]) -> None:
    """Make `branch` hold `tokens`: what it has beyond the common beginning goes, what it lacks
    becomes pending, at least one token.
    """
    runner.rewind(branch, min(common(branch.tokens, tokens), len(tokens) - 1))
    branch.extend(tokens[len(branch) :])


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the common beginning of two token lists, by bisection over slices (their
    comparison is fast).
    """
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high:  # a[:low] == b[:low] and a[:high + 1] != b[:high + 1]
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
