"""The scheduler's outbox: the commands it is about to give, and the work that earlier ones have set
going.

Whatever begins is noted here until it is completed or cancelled, so that an event can be told from
one that is stale and from one that cannot be. Cancelled work may still be reported, because whoever
did it may have finished before it heard: such an event is stale and changes nothing. An event for
work that was never commanded, or that is completed already, is a mistake of the driver.

Cancelled work is remembered for `MEMORY` steps of the chain; anything that old is taken to be stale
without a look. Otherwise a long chain whose driver really stops its work, so that no stale event
ever clears the memory, would pile it up.
"""

from __future__ import annotations

from lr.errors import ProtocolError
from lr.spec.commands import Cancel, Command, Kind, Release, Work
from lr.spec.tree import Node

MEMORY = 1000


class Outbox:
    """Commands to be given, and pieces of work in flight. True while there is work. `rows`: how
    much of it occupies a target row.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._commands: list[Command] = []
        self._running: dict[Work, Node] = {}
        self._cancelled: set[Work] = set()
        self._newest = 0  # number of the newest step that work was commanded for
        self._tidied = 0  # its value when the memory was last gone through

    def __len__(self) -> int:
        return len(self._running)

    def pieces(self) -> list[Work]:
        """What is in flight, in the order in which it was commanded."""
        return list(self._running)

    def take(self) -> list[Command]:
        """The commands since the last time."""
        commands, self._commands = self._commands, []
        return commands

    def say(self, command: Command) -> None:
        """Give a command that sets no work going (or whose work is noted piece by piece, with
        `note`).
        """
        self._commands.append(command)

    def begin(self, kind: Kind, node: Node, command: Command) -> None:
        """Give a command that sets one piece of work going."""
        self.say(command)
        self.note(kind, node)

    def note(self, kind: Kind, node: Node) -> None:
        """Work has been set going for `node`."""
        work = Work(kind, node.id)
        assert work not in self._running, f"{work} was commanded twice"
        self._running[work] = node
        node.work.append(kind)
        self.rows += _is_row(kind)
        self._newest = max(self._newest, node.id.index)

    def find(self, work: Work) -> Node | None:
        """The node of work in flight; None if it was cancelled (asked once: the same stale event
        does not come twice).

        Raises `ProtocolError` if it was never commanded or is completed already.
        """
        node = self._running.get(work)
        if node is not None:
            return node
        if work in self._cancelled:
            self._cancelled.discard(work)
        elif work.node.index >= self._newest - MEMORY:
            raise ProtocolError(
                f"an event says that the {work.kind.value} work for node {work.node} is done, but it was never commanded, or is done "
                f"already. In work are: {', '.join(f'{w.kind.value} {w.node}' for w in self._running) or 'nothing'}."
            )
        return None

    def complete(self, work: Work) -> None:
        """Take finished work off the list."""
        self._running.pop(work).work.remove(work.kind)
        self.rows -= _is_row(work.kind)

    def cancel(self, node: Node) -> None:
        """Cancel all that is in flight for `node` itself."""
        for kind in tuple(node.work):
            work = Work(kind, node.id)
            self.complete(work)
            self._remember(work)
            self.say(Cancel(work))

    def release(self, node: Node) -> None:
        """`node` leaves the tree."""
        node.released, node.goes_on = True, False
        self.say(Release(node.id))

    def retire(self, node: Node) -> None:
        """Cancel all that is in flight for `node` and below it, and release them all; nothing if
        that was done before.
        """
        if not node.released:
            self.cancel(node)
            for child in node.children:
                self.retire(child)
            self.release(node)

    def _remember(self, work: Work) -> None:
        self._cancelled.add(work)
        if self._newest - self._tidied > MEMORY:
            self._cancelled = {
                old for old in self._cancelled if old.node.index >= self._newest - MEMORY
            }
            self._tidied = self._newest


def _is_row(kind: Kind) -> bool:
    return kind is Kind.TARGET or kind is Kind.SCORE
