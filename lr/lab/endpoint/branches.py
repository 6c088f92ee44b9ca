"""Branches of a served model: lists of tokens. The cache is the server's, which finds what it knows
of a prompt by itself.

Read next: `writer.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lr.errors import ContextError, ProtocolError
from lr.kvcache.branch import Branch
from lr.kvcache.table import BlockTable
from lr.lab.endpoint.models import ServedModel
from lr.types import require


class ServedBranch(Branch):
    """A branch without a cache of ours: only its last token is ever pending. The first `start`
    tokens, the prompt, are put as `head`.
    """

    __slots__ = ("head", "start")

    def __init__(self, tokens: list[int], head: str, start: int) -> None:
        super().__init__(tokens, BlockTable(1))
        self.head, self.start = head, start

    @property
    def cached(self) -> int:
        return max(0, len(self.tokens) - 1)

    @property
    def pending(self) -> list[int]:
        return self.tokens[-1:]


class ServedRunner:
    """The branches of a served model; see `spec/runner.py`. It cannot `feed`: nobody here sees
    logits.
    """

    def __init__(self, model: ServedModel) -> None:
        self.model = model

    def open(self, tokens: Sequence[int]) -> ServedBranch:
        require(len(tokens) > 0, "the number of tokens to open a branch with", 0, "at least one")
        if len(tokens) > self.model.context:
            raise ContextError(
                f"{len(tokens)} tokens do not fit the context of {self.model}, {self.model.context}."
            )
        head = self.model.heads.get(tuple(tokens))
        return ServedBranch(
            list(tokens), self.model.text(tokens) if head is None else head, len(tokens)
        )

    def fork(self, branch: Branch) -> ServedBranch:
        assert isinstance(branch, ServedBranch)
        return ServedBranch(list(branch.tokens), branch.head, branch.start)

    def rewind(self, branch: Branch, length: int) -> None:
        del branch.tokens[length:]

    def become(self, branch: Branch, other: Branch) -> None:
        branch.tokens = other.tokens

    def close(self, branch: Branch) -> None:
        pass

    def belongs(self, branch: Branch, node: tuple[int, int, int]) -> None:
        pass

    def feed(self, branches: Sequence[Branch], logits: object = "last") -> list[Any]:
        raise ProtocolError(
            f"{self.model} is behind a server: it writes steps, but gives no logits."
        )
