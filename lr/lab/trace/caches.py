"""Who holds which block, from the cache's events of a trace: branches with their blocks, blocks
with their holders.

Example with blocks of 4 tokens: branch 0 grows to 6 tokens in blocks 0 and 1; branch 1 is forked
from it, and now both hold 0 and 1; both grow by a token: branch 0 leaves block 1 for its copy 2.
`holders(1)` is then [1], `holders(0)` is [0, 1]. Knows nothing of steps and nodes but the names
that the events give. Read next: `state.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class BranchState:
    """A live branch. `node`: whom it belongs to (None: a passing one, such as a path of a token
    tree); `source`: what it was forked from."""

    number: int
    blocks: list[int] = field(default_factory=list)
    length: int = 0
    node: str | None = None
    source: int | None = None


@dataclass
class CacheState:
    """The blocks of one model's cache. `copied`: (from, to) of the last append, to show copy on
    write.
    """

    name: str
    total: int = 0
    block_size: int = 0
    branches: dict[int, BranchState] = field(default_factory=dict)
    copied: list[tuple[int, int]] = field(default_factory=list)

    @property
    def used(self) -> set[int]:
        """Blocks that somebody holds."""
        return {block for branch in self.branches.values() for block in branch.blocks}

    def holders(self, block: int) -> list[int]:
        """The branches that hold a block, in the order of their numbers; as many as its
        refcount.
        """
        return sorted(number for number, branch in self.branches.items() if block in branch.blocks)

    def holders_by_block(self) -> dict[int, list[int]]:
        """The same for all blocks that are held."""
        found: dict[int, list[int]] = {}
        for number in sorted(self.branches):
            for block in self.branches[number].blocks:
                found.setdefault(block, []).append(number)
        return found

    def take(self, data: dict[str, Any]) -> None:
        """One event of this cache."""
        getattr(self, f"_{data['event']}")(data)

    def _open(self, data: dict[str, Any]) -> None:
        self.branches[data["branch"]] = BranchState(data["branch"])

    def _fork(self, data: dict[str, Any]) -> None:
        origin = self.branches[data["source"]]
        new = BranchState(data["branch"], list(origin.blocks), origin.length, source=data["source"])
        self.branches[data["branch"]] = new

    def _grow(self, data: dict[str, Any]) -> None:
        self.copied = [(old, new) for _, old, new in data["copies"]]
        for number, old, new in data["copies"]:
            blocks = self.branches[number].blocks
            blocks[blocks.index(old)] = new
        for number, block in data["fresh"]:
            self.branches[number].blocks.append(block)
        for number, length in data["rows"]:
            self.branches[number].length = length

    def _cut(self, data: dict[str, Any]) -> None:
        branch = self.branches[data["branch"]]
        branch.length = data["length"]
        if data["dropped"]:
            del branch.blocks[-len(data["dropped"]) :]

    def _close(self, data: dict[str, Any]) -> None:
        del self.branches[data["branch"]]

    def _restore(self, data: dict[str, Any]) -> None:
        branch = self.branches[data["branch"]]
        branch.length, branch.blocks = data["length"], list(data["blocks"])

    def _hold(self, data: dict[str, Any]) -> None:
        self.branches[data["branch"]].node = data["node"]

    def _replace(self, data: dict[str, Any]) -> None:
        self.branches[data["heir"]].node = self.branches[data["branch"]].node
        self.branches[data["branch"]].node = None


CACHE_EVENTS = frozenset({"open", "fork", "grow", "cut", "close", "restore", "hold", "replace"})
