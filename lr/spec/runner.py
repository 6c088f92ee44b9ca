"""What speculation needs of a runner: branches that are opened, forked, fed, rewound and closed.
`engine/runner.py` is one.

This room never imports the model; it speaks to whatever satisfies this protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from lr.kvcache.branch import Branch

if TYPE_CHECKING:
    from torch import Tensor


class Runner(Protocol):
    """See `engine.runner.ModelRunner` for what each method promises."""

    def open(self, tokens: Sequence[int]) -> Branch: ...

    def fork(self, branch: Branch) -> Branch: ...

    def rewind(self, branch: Branch, length: int) -> None: ...

    def swap(self, branch: Branch, other: Branch) -> None: ...

    def close(self, branch: Branch) -> None: ...

    def tag(self, branch: Branch, node: tuple[int, int, int]) -> None: ...

    def forward(
        self, branches: Sequence[Branch], logits: Literal["last", "all"] | Sequence[int] = "last"
    ) -> list[Tensor]: ...
