"""The state that the events of a trace add up to, as data: the tree, who is writing what, the
output, the caches.

The player, the stepper and the figures all show this state, so they agree. It knows no picture. A
node that left the tree stays in `nodes` with `gone` set to the time it left. In plain decoding,
where nothing has a node, step i stands at "i:i", as behind a correction. Read next: `film.py`,
which makes states of events.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lr.lab.trace.caches import CacheState
from lr.lab.trace.header import Header


@dataclass
class TokenState:
    """One token of a step. `source`: "drawn" by the model itself; "guessed" ahead and kept;
    "residual": in place of a rejected guess; "after": behind the last guess, none being rejected;
    "" where the trace does not say. `p`: its probability."""

    token: int
    piece: str
    source: str = ""
    p: float | None = None


@dataclass
class StepState:
    """A step as far as it is written. `finish` is "" while it is being written, then boundary, eos
    or length.
    """

    tokens: list[TokenState] = field(default_factory=list)
    finish: str = ""

    @property
    def text(self) -> str:
        return "".join(one.piece for one in self.tokens)

    def complete(self, step: dict[str, Any]) -> None:
        """The step as a whole is there; what is known of its tokens stays."""
        known = [one.token for one in self.tokens] == step["tokens"]
        old = self.tokens if known else [TokenState(token, "") for token in step["tokens"]]
        for one, piece in zip(old, step["pieces"], strict=True):
            one.piece = piece
        self.tokens, self.finish = old, step["finish"]


@dataclass
class NodeState:
    """A prefix, by name. `draft`: the draft step that leads here (None: it is a root of the
    target's); `target`: the target's own step behind it, once it was begun. `verdict` is on
    `draft`. `index`: number of the step behind it."""

    name: str
    index: int
    parent: str | None = None
    sibling: int = 0
    draft: StepState | None = None
    target: StepState | None = None
    failed: str | None = None
    verdict: dict[str, Any] | None = None
    unsure: bool = False
    accepted: bool = False
    """The draft step that leads here joined the output."""
    children: list[str] = field(default_factory=list)
    born: float = 0.0
    gone: float | None = None

    @property
    def drafted(self) -> bool:
        """The draft step that leads here is complete."""
        return self.draft is not None and self.draft.finish != ""

    @property
    def targeted(self) -> bool:
        """The target's step behind it is complete."""
        return self.target is not None and self.target.finish != ""


@dataclass
class EmittedState:
    """A step of the output. `node`: an accepted draft step leads there, the target's own stands
    behind it.
    """

    index: int
    origin: str
    step: StepState
    node: str
    time: float
    verdict: dict[str, Any] | None = None
    rejected: StepState | None = None


@dataclass
class State:
    """Everything after `number` events. `work`: (kind, node) of what is in work, with the time
    since when, oldest first.
    """

    header: Header
    number: int = 0
    time: float = 0.0
    root: str = "0:0"
    nodes: dict[str, NodeState] = field(default_factory=dict)
    emitted: list[EmittedState] = field(default_factory=list)
    work: dict[tuple[str, str], float] = field(default_factory=dict)
    caches: dict[str, CacheState] = field(default_factory=dict)
    forwards: dict[str, int] = field(default_factory=dict)
    done: bool = False

    @classmethod
    def begin(cls, header: Header) -> State:
        """Before the first event."""
        state = cls(header, nodes={"0:0": NodeState("0:0", 0)})
        for name, size in header.caches.items():
            state.caches[name] = CacheState(name, size["blocks"], size["block_size"])
        return state

    @property
    def text(self) -> str:
        """The output so far."""
        return "".join(one.step.text for one in self.emitted)

    @property
    def live(self) -> list[NodeState]:
        """The nodes of the tree as it is now, root first, then level by level, siblings in
        order.
        """
        found, level = [], [self.root]
        while level:
            found += [self.nodes[name] for name in level if name in self.nodes]
            level = [
                child
                for name in level
                for child in (self.nodes[name].children if name in self.nodes else [])
                if self.nodes[child].gone is None
            ]
        return found

    def path(self, name: str) -> list[NodeState]:
        """The nodes from the root down to this one (from its tree's first node, if it has left the
        tree).
        """
        nodes: list[NodeState] = []
        step: str | None = name
        while step is not None and step in self.nodes:
            nodes.append(self.nodes[step])
            step = None if step == self.root else self.nodes[step].parent
        return nodes[::-1]

    def node(self, name: str) -> NodeState:
        """A node by name; it is made if it is new."""
        if name not in self.nodes:
            index = int(name.split(":")[1].split(".")[0])
            self.nodes[name] = NodeState(name, index, born=self.time)
        return self.nodes[name]

    def writing(self, data: dict[str, Any]) -> StepState:
        """The step that an event of a model is about."""
        node = self.node(data["node"] or f"{data['index']}:{data['index']}")
        if data["role"] == "draft":
            node.draft = node.draft or StepState()
            return node.draft
        node.target = node.target or StepState()
        return node.target
