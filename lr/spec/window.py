"""Where the window stands over the tree, and so what may begin at a node: the rules of
`schedule.py` applied to nodes.

A synchronous cycle counts its levels from the node where it began; the asynchronous schedules count
them from the root, so that the window slides with every step that is accepted. Read next:
`scheduler.py`.
"""

from __future__ import annotations

from lr.spec.eligibility import may_be_drafted
from lr.spec.schedule import SchedulerConfig
from lr.spec.seams import Router
from lr.spec.tree import Node
from lr.types import Role


class Window:
    """The root of the tree, the number of the step at which the cycle began, and what follows from
    them.
    """

    def __init__(self, config: SchedulerConfig, root: Node) -> None:
        self.config = config
        self.root = root
        self._cycle = root.id.index

    def slide(self, child: Node) -> None:
        """`child` of the root is the new root. If it ends a cycle at whose end no target step
        waits, the next begins with it at once.
        """
        self.root = child
        if not self.config.needs_target_step and not child.children:
            self._cycle = child.id.index

    def begin_anew(self, root: Node) -> None:
        """`root` is the first node of a new tree and of a new cycle."""
        self.root = root
        self._cycle = root.id.index

    def level(self, node: Node) -> int:
        """How many draft steps lie between `node` and level 0."""
        return node.id.index - (self._cycle if self.config.barrier else self.root.id.index)

    def draft_may_come(self, node: Node) -> bool:
        """Whether drafts behind `node` have not been commanded and may be."""
        return (
            not node.children
            and self.config.drafts_at(self.level(node))
            and may_be_drafted(
                node.previous, ignore_half_sentence=self.config.limits.ignore_half_sentence
            )
            and (self.config.router is None or self._drafts_first(self.config.router, node))
        )

    def _drafts_first(self, router: Router, node: Node) -> bool:
        return router.who_writes(node.id.index, node.previous) is Role.DRAFT

    def target_is_due(self, node: Node) -> bool:
        """Whether the target's step behind `node` has not been commanded and may be.

        Where the verifier needs no target step, it may only at a root that has no draft left, and
        where a score left a doubt.
        """
        if node.target_asked:
            return False
        if self.config.needs_target_step:
            return self.config.targets_at(self.level(node))
        in_doubt = any(child.unsure for child in node.children)
        return in_doubt or (node is self.root and all(child.released for child in node.children))
