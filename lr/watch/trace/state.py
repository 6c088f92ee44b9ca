"""The state after the first events of a trace: the tree, the work in progress, the
output, and who holds which block of the caches.

    state = state_at(read_trace("trace.jsonl"), 120)    # after the first 120 events
    state.root, state.nodes["0:1"].draft.text, state.work, state.caches["target"].owners(3)

Only this module turns events into states; player, stepper and figures show them. Nodes
have the names of `spec/protocol.py`. A node that left the tree stays in `nodes`, with
the time in `gone`."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from lr.watch.trace.file import Header, Record, TraceError, TraceFile, step_after


@dataclass
class TokenState:
    """One token of a step. `source`: "drawn" by the model itself; "proposed" ahead and
    kept; "residual", replacing a rejected token; "after" a proposal without a rejected
    token; "" if the trace does not say. `refused`: the draft tokens that were rejected
    before this token."""

    token: int
    piece: str
    source: str = ""
    p: float | None = None  # its probability
    refused: tuple[dict[str, Any], ...] = ()


@dataclass
class StepState:
    """A step, as far as it is written."""

    tokens: list[TokenState] = field(default_factory=list)
    finish: str = ""  # while it is being written; then boundary, eos or length

    @property
    def text(self) -> str:
        return "".join(one.piece for one in self.tokens)

    def complete(self, step: dict[str, Any]) -> StepState:
        """Take the finished step, and keep what is known about its tokens."""
        if [one.token for one in self.tokens] != step["tokens"]:
            self.tokens = [TokenState(token, "") for token in step["tokens"]]
        for one, piece in zip(self.tokens, step["pieces"], strict=True):
            one.piece = piece
        self.finish = step["finish"]
        return self


@dataclass
class NodeState:
    """A prefix, by name. `index`: the number of the step after it."""

    name: str
    index: int
    parent: str | None = None
    draft: StepState | None = (
        None  # the draft step that leads here; None at a tree's first node
    )
    target: StepState | None = (
        None  # the target's own step after it, once that was begun
    )
    failed: str | None = None  # why there will be no draft step
    verdict: dict[str, Any] | None = None  # on `draft`
    unsure: bool = False
    accepted: bool = False  # `draft` joined the output
    children: list[str] = field(default_factory=list)
    gone: float | None = None  # when it left the tree

    @property
    def drafted(self) -> bool:
        """Whether the draft step that leads here is complete."""
        return self.draft is not None and self.draft.finish != ""

    @property
    def targeted(self) -> bool:
        """Whether the target's step after this node is complete."""
        return self.target is not None and self.target.finish != ""


@dataclass
class EmittedState:
    """A step of the output. An accepted draft step leads to `node`; a target's step
    follows it."""

    index: int
    origin: str
    step: StepState
    node: str
    verdict: dict[str, Any] | None = None
    rejected: StepState | None = None


@dataclass
class BranchState:
    """A live branch of a cache."""

    number: int
    blocks: list[int] = field(default_factory=list)
    length: int = 0
    node: str | None = None  # whose prefix it holds; None for a path of a token tree


@dataclass
class CacheState:
    """The blocks of one model's cache."""

    name: str
    total: int = 0
    block_size: int = 0
    branches: dict[int, BranchState] = field(default_factory=dict)

    def owners(self, block: int) -> list[int]:
        """The branches that hold a block, in order; as many as its refcount."""
        return self.owners_by_block().get(block, [])

    def owners_by_block(self) -> dict[int, list[int]]:
        """The branches that hold a block, in order of number, for all blocks in use."""
        found: dict[int, list[int]] = {}
        for number in sorted(self.branches):
            for block in self.branches[number].blocks:
                found.setdefault(block, []).append(number)
        return found

    def take(self, kind: str, data: dict[str, Any]) -> None:
        """Apply one event of this cache. Raises `KeyError` or `ValueError` if it is
        impossible."""
        branches, number = self.branches, data.get("branch", -1)
        match kind:
            case "open":
                branches[number] = BranchState(number)
            case "fork":
                source = branches[data["source"]]
                branches[number] = BranchState(
                    number, list(source.blocks), source.length
                )
            case "grow":
                for one, old, new in data["copies"]:
                    blocks = branches[one].blocks
                    blocks[blocks.index(old)] = new
                for one, block in data["fresh"]:
                    branches[one].blocks.append(block)
                for one, length in data["rows"]:
                    branches[one].length = length
            case "cut":
                branches[number].length = data["length"]
                kept = len(branches[number].blocks) - len(data["dropped"])
                del branches[number].blocks[kept:]
            case "close":
                del branches[number]
            case "restore":
                restored = data["length"], list(data["blocks"])
                branches[number].length, branches[number].blocks = restored
            case "hold":
                branches[number].node = data["node"]
            case "replace":
                branches[data["successor"]].node = branches[number].node
                branches[number].node = None


ENDS = {"drafted": "draft", "targeted": "target", "judged": "judge"}
"""By kind of event, the kind of work that it completes."""
CACHE_EVENTS = frozenset(
    {"open", "fork", "grow", "cut", "close", "restore", "hold", "replace"}
)


@dataclass
class State:
    """Everything after `number` events. `work`: the unfinished pieces of work as (kind,
    node), with the time when each began, oldest first. `touched`: the nodes of the last
    event."""

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
    touched: set[str] = field(default_factory=set, compare=False)

    @classmethod
    def begin(cls, header: Header) -> State:
        state = cls(header, nodes={"0:0": NodeState("0:0", 0)})
        for name, size in header.caches.items():
            state.caches[name] = CacheState(name, size["blocks"], size["block_size"])
        return state

    @property
    def text(self) -> str:
        return "".join(one.step.text for one in self.emitted)

    @property
    def live(self) -> list[NodeState]:
        """The nodes of the present tree, level by level, siblings in order."""
        found = []
        level = [self.nodes[self.root]] if self.root in self.nodes else []
        while level:
            found += level
            children = [self.nodes[name] for node in level for name in node.children]
            level = [child for child in children if child.gone is None]
        return found

    def node(self, name: str) -> NodeState:
        """The node of that name, made if it is new."""
        if name not in self.nodes:
            self.nodes[name] = NodeState(name, step_after(name))
        self.touched.add(name)
        return self.nodes[name]

    def writing(self, data: dict[str, Any]) -> StepState:
        """The step of a model's event. Plain decoding names no nodes; step i belongs to
        "i:i"."""
        node = self.node(data["node"] or f"{data['index']}:{data['index']}")
        if data["role"] == "draft":
            node.draft = node.draft or StepState()
            return node.draft
        node.target = node.target or StepState()
        return node.target


def apply_event(state: State, record: Record) -> None:
    """Change `state` by the next event. Raises `TraceError` for a branch or block that
    does not exist, because lines before the event are missing."""
    data, kind = record.data, record.kind
    state.number, state.time = record.number + 1, record.time
    state.touched.clear()
    match kind:
        case "draft":
            parent = state.node(data["node"])
            for name in data["children"]:
                state.node(name).parent = parent.name
                parent.children.append(name)
                state.work["draft", name] = state.time
        case "target" | "judge":
            state.node(data["node"])
            state.work[kind, data["node"]] = state.time
        case "cancel":
            state.work.pop((data["work"], data["node"]), None)
        case "drafted" | "targeted" | "judged":
            if (
                state.work.pop((ENDS[kind], data["node"]), None) is not None
            ):  # else late: ignore it
                _answered(state.node(data["node"]), data)
        case "emit":
            _emit(state, data)
        case "release":
            state.node(data["node"]).gone = state.time
        case "note" if data["node"] is not None:
            state.node(data["node"])
        case "written":
            state.writing(data).complete(data["step"])
        case "token":
            tokens = state.writing(data).tokens
            if len(tokens) == data["offset"]:
                tokens.append(
                    TokenState(data["token"], data["piece"], "drawn", data["p"])
                )
        case "round" if data["detail"] is not None:
            _round(state.writing(data).tokens, data["emitted"], data["detail"])
        case "forward":
            state.forwards[data["role"]] = state.forwards.get(data["role"], 0) + 1
        case "end":
            state.done = data["done"]
        case _ if kind in CACHE_EVENTS:
            name = data["cache"]
            try:
                state.caches.setdefault(name, CacheState(name)).take(kind, data)
            except (KeyError, ValueError) as error:
                raise TraceError(
                    f"line {record.number + 2} (event {record.number}, {kind}) is about a branch "
                    f"or block of the {name} cache that does not exist at that time: {error}. "
                    "Lines before it are missing; record the trace again."
                ) from error


def _answered(node: NodeState, data: dict[str, Any]) -> None:
    """A piece of work is finished."""
    if data["event"] == "targeted":
        node.target = (node.target or StepState()).complete(data["step"])
    elif data["event"] == "judged":
        node.verdict, node.unsure = data["verdict"], data["verdict"] is None
    elif data["step"] is None:
        node.failed = "no draft can come"
    else:
        node.draft = (node.draft or StepState()).complete(data["step"])


def _emit(state: State, data: dict[str, Any]) -> None:
    node, accepted = state.node(data["node"]), data["origin"] == "accepted"
    known = (node.draft if accepted else node.target) or StepState()
    step = StepState([copy.copy(token) for token in known.tokens]).complete(
        data["step"]
    )
    rejected = (
        None if data["rejected"] is None else StepState().complete(data["rejected"])
    )
    node.accepted = node.accepted or accepted
    place = (data["index"], data["origin"], step, node.name)
    state.emitted.append(EmittedState(*place, data["verdict"], rejected))
    if data["root"] is not None:
        state.root = state.node(data["root"]).name
        if data["root"] != node.name:  # the node continues under a new name
            node.gone = state.time


def _round(tokens: list[TokenState], emitted: int, detail: dict[str, Any]) -> None:
    if len(tokens) != detail["offset"]:
        return
    kept = [one for one in detail["draft_tokens"] if one["kept"]]
    new = [TokenState(one["token"], one["piece"], "proposed", one["p"]) for one in kept]
    refused = [one for one in detail["draft_tokens"] if one["kept"] is False]
    source = "residual" if detail["residual"] or refused else "after"
    new.append(TokenState(detail["token"], detail["piece"], source, detail["p"]))
    for one in refused:
        place, above = 0, one["parent"]
        while above >= 0:
            place, above = place + 1, detail["draft_tokens"][above]["parent"]
        new[place].refused += (one,)
    tokens += new[:emitted]


def state_at(trace: TraceFile, number: int) -> State:
    """The state after the first `number` events (0: none)."""
    state = State.begin(trace.header)
    for record in trace.records[: max(0, number)]:
        apply_event(state, record)
    return state
