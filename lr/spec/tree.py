"""The tree of nodes below the root: what is written, judged and known about each. Data and a walk;
decides nothing.

    root ── draft a ──> node a ── draft c ──> node c        a node's prefix is everything from the prompt down to it
         └─ draft b ──> node b                              `node.draft` leads to it, `node.target` is the target's step behind it

`node.verdict` is about `node.draft` against `node.parent.target`. The scheduler (`scheduler.py`)
writes here; pictures may read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lr.spec.commands import Kind, NodeId
from lr.types import Finish, Step, Verdict


@dataclass(slots=True, eq=False)
class Node:
    """A prefix. `written`: its tokens, without the prompt's; `previous`: its last step (None: the
    prompt); `limit`: how long the step behind it may be, in tokens, 0 if the chain ends here.

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
    goes_on: bool = True
    """Whether steps may follow: the draft step that leads here is there, ended in a boundary, is
    not rejected, and leaves room.
    """
    released: bool = False
    """Nothing may begin here any more: the draft was rejected or failed, or the chain went another
    way.
    """
    work: list[Kind] = field(default_factory=list)
    """What is in flight under this node's name."""

    def child(self, sibling: int, width: int) -> Node:
        """The node that an alternative will lead to, its draft step being awaited."""
        return Node(
            self.id.child(sibling, width), self.written, self.limit, awaited=True, goes_on=False
        )

    def arrive(self, step: Step, written: int, limit: int) -> None:
        """The draft step that leads here is there: the node is a prefix now, of `written`
        tokens.
        """
        self.awaited = False
        self.draft = self.previous = step
        self.written, self.limit = written, limit
        self.goes_on = step.finish is Finish.BOUNDARY and limit > 0


def breadth_first(root: Node) -> list[Node]:
    """The nodes at which steps may follow, level by level, siblings in order."""
    found, level = [], [root]
    while level:
        found += level
        level = [child for node in level for child in node.children if child.goes_on]
    return found
