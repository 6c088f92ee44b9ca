"""The protocol through which speculation uses a model: open, fork, run, rewind and
close branches. `engine/runner.py` implements it. Nothing in `lr/spec` imports the
model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from lr.kvcache.branch import Branch, common_length

if TYPE_CHECKING:
    from torch import Tensor


class Runner(Protocol):
    """`engine.runner.ModelRunner` documents the methods."""

    @property
    def context(self) -> int: ...
    @property
    def branches(self) -> Mapping[Branch, None]: ...
    @property
    def hidden(self) -> list[Tensor]: ...
    def open(self, tokens: Sequence[int]) -> Branch: ...
    def fork(self, branch: Branch) -> Branch: ...
    def rewind(self, branch: Branch, length: int) -> None: ...
    def replace(self, branch: Branch, by: Branch) -> None: ...
    def close(self, branch: Branch) -> None: ...
    def tag(self, branch: Branch, node: tuple[int, int, int]) -> None: ...
    def forward(
        self,
        branches: Sequence[Branch],
        logits: Literal["last", "all"] | Sequence[int] = "last",
    ) -> list[Tensor]: ...


WORTH_A_FORWARD = 16
"""More uncomputed tokens than this, shared by a fork, are computed once, in a forward of
their own."""


def fork_longest(
    runner: Runner, branches: Iterable[Branch], tokens: list[int], wanted: int = 1
) -> Branch:
    """A branch of `tokens`, at least the last `wanted` of them uncomputed: a fork of
    the one in `branches` with the longest common prefix, if any."""

    def in_common(branch: Branch) -> int:
        return common_length(branch.tokens, tokens)

    origin = max(branches, key=in_common, default=None)  # None: there is no branch
    shared = min(in_common(origin), len(tokens) - wanted) if origin else 0
    if origin is None or shared <= 0:
        return runner.open(tokens)
    return fork_at(runner, origin, shared, tokens[shared:])


def fork_at(
    runner: Runner, origin: Branch, length: int, tokens: Sequence[int] = ()
) -> Branch:
    """A branch of the first `length` tokens of `origin`, then `tokens`, which are
    uncomputed. If many of the shared tokens are uncomputed, they are computed first,
    once for both."""
    shared = min(length, len(origin) - 1)  # its last token may be uncomputed
    if shared - origin.num_computed_tokens > WORTH_A_FORWARD:
        read_up_to(runner, origin, shared)
    branch = runner.fork(origin)  # copies nothing
    runner.rewind(branch, length)  # may cut into a step that is being written
    branch.extend(tokens)
    return branch


def reuse_computed(runner: Runner, branch: Branch) -> None:
    """Let a branch continue on what another branch of the runner has computed of its
    tokens, if that is more.

    Example: of "a b c d" one token is computed, and another branch has computed "a b c
    x". Then three are, in blocks that both share."""

    def computed(other: Branch) -> int:
        common = common_length(other.tokens, branch.tokens)
        return min(common, other.num_computed_tokens, len(branch) - 1)

    origin = max(runner.branches, key=computed)
    length = computed(origin)
    if length > computed(branch):
        successor = fork_at(runner, origin, length, branch.tokens[length:])
        runner.replace(branch, successor)


def read_up_to(runner: Runner, branch: Branch, length: int) -> None:
    """Compute the first `length` tokens, unless they are computed already, for forks to
    share."""
    if branch.num_computed_tokens < length:
        later_tokens = branch.tokens[length:]  # put aside during the forward
        del branch.tokens[length:]
        try:
            runner.forward([branch])
        finally:
            branch.extend(later_tokens)
