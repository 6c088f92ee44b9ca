"""The tree of nodes below the root: what is written, judged and known about each. Data and a walk; decides nothing.

    root ── draft a ──> node a ── draft c ──> node c        a node's prefix is everything from the prompt down to it
         └─ draft b ──> node b                              `node.draft` leads to it, `node.target` is the target's step behind it

`node.verdict` is about `node.draft` against `node.parent.target`. The scheduler (`scheduler.py`) writes here; pictures may read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from lr.spec.commands import NodeId
from lr.types import Finish, Step, Verdict


@dataclass(slots=True, eq=False)
class Node:
    """A prefix. `written`: its tokens, without the prompt's; `previous`: its last step (None: the prompt); `limit`: how long the step
    behind it may be, in tokens, 0 if the chain ends here.

    While the draft step that leads here is `awaited`, `written` and `limit` are still the parent's.
    """

    id: NodeId
    written: int = 0
    limit: int = 0
    previous: Step | None = None
    draft: Step | None = None
    """The draft step that leads here; the first node of a tree has none."""
    awaited: bool = False
    """`draft` is commanded and not there yet."""
    failed: bool = False
    """There will be no draft step that leads here."""
    verdict: Verdict | None = None
    """On `draft`."""
    scored: bool = False
    """`draft` was given to be judged by itself."""
    unsure: bool = False
    """That gave no verdict: `draft` has to be compared with the target's step."""
    judged: bool = False
    """`draft` was given to be compared."""
    target: Step | None = None
    """The target's own step from here."""
    target_asked: bool = False
    children: list[Node] = field(default_factory=list)
    """One per alternative, in order; empty until they are commanded."""
    released: bool = False
    """Nothing may begin here any more: the draft was rejected or failed, or the chain went another way."""

    @property
    def goes_on(self) -> bool:
        """Whether steps may follow: its draft is there and ended in a boundary, is not rejected, and the budget leaves room."""
        if self.released or self.awaited or not self.limit:
            return False
        return self.draft is None or self.draft.finish is Finish.BOUNDARY

    def arrive(self, step: Step, written: int, limit: int) -> None:
        """The draft step that leads here is there: the node is a prefix now."""
        self.awaited = False
        self.draft = self.previous = step
        self.written, self.limit = written, limit


def breadth_first(root: Node) -> Iterator[Node]:
    """Every node at which steps may follow, level by level, siblings in order.

    A node that is released while the walk stands at its parent is not visited.
    """
    level = [root]
    while level:
        below: list[Node] = []
        for node in level:
            if node.goes_on:
                yield node
                below.extend(node.children)
        level = below
