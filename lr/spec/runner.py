"""What speculation needs of a runner: branches that are opened, forked, fed, rewound and closed.
`engine/runner.py` is one. Nothing in `lr/spec` imports the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from lr.kvcache.branch import Branch, common_length

if TYPE_CHECKING:
    from torch import Tensor


class Runner(Protocol):
    """See `engine.runner.ModelRunner` for what each method promises."""

    def open(self, tokens: Sequence[int], *, shared: bool = False) -> Branch: ...
    def fork(self, branch: Branch) -> Branch: ...
    def rewind(self, branch: Branch, length: int) -> None: ...
    def swap(self, branch: Branch, other: Branch) -> None: ...
    def close(self, branch: Branch) -> None: ...
    def tag(self, branch: Branch, node: tuple[int, int, int]) -> None: ...
    def forward(
        self, branches: Sequence[Branch], logits: Literal["last", "all"] | Sequence[int] = "last"
    ) -> list[Tensor]: ...


WORTH_A_FORWARD = 16
"""Tokens. Fewer that several branches would all compute are not computed ahead of them."""


def fork_longest(
    runner: Runner, branches: Iterable[Branch], tokens: list[int], wanted: int = 1
) -> Branch:
    """A branch of `tokens`, at least the last `wanted` of them uncomputed: a fork of the one among
    `branches` with the longest common beginning, if any; of a long one it computes the rest first.
    """
    best = max(branches, key=lambda one: common_length(one.tokens, tokens), default=None)
    shared = min(common_length(best.tokens, tokens), len(tokens) - wanted) if best else 0
    if best is None or shared <= 0:
        return runner.open(tokens)
    both = min(shared, len(best) - 1)
    if both - best.num_computed_tokens > WORTH_A_FORWARD:
        read_up_to(runner, best, both)
    branch = runner.fork(best)
    runner.rewind(branch, shared)
    branch.extend(tokens[shared:])
    return branch


def read_up_to(runner: Runner, branch: Branch, length: int) -> None:
    """Compute the first `length` tokens, unless they are computed already: forks share them."""
    if branch.num_computed_tokens < length:
        rest = branch.tokens[length:]
        del branch.tokens[length:]
        try:
            runner.forward([branch])
        finally:
            branch.extend(rest)
