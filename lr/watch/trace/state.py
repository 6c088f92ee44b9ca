"""The state after the first events of a trace: the tree, the work in progress, the
output, and who holds which block of the caches.

    state = state_at(read_trace("trace.jsonl"), 120)    # after the first 120 events
    state.root, state.nodes["0:1"].draft.text, state.work, state.caches["target"].refcounts[3]

Only this module turns events into states; player, stepper and figures show them. Nodes
have the names of `spec/protocol.py`. A node that left the tree stays in `nodes`, with
the time in `gone`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from lr.engine import recorder as cache
from lr.kvcache.branch import blocks_for
from lr.spec.protocol import (
    Cancel,
    Draft,
    Drafted,
    Emit,
    Judge,
    Judged,
    NodeId,
    Release,
    Target,
    Targeted,
)
from lr.trace import (
    Ended,
    ForwardPass,
    RoundDetail,
    StepWritten,
    TokenRound,
    TokenWritten,
)
from lr.types import Origin, Role, Step, Verdict
from lr.watch.trace.file import (
    Bytes,
    Header,
    Record,
    TraceFile,
    pieces_of,
    step_after,
)


@dataclass
class TokenState:
    """One token of a step. `source`: "drawn" by the model itself; "proposed" ahead and
    kept, or "refused"; "residual", replacing a rejected token; "after" a proposal
    without a rejected token; "" if the trace does not say. `p`: its probability; `q`,
    `accept`: of a draft token, that under the drafter and that of acceptance."""

    token: int
    piece: str
    source: str = ""  # drawn, proposed, refused, residual, after
    p: float | None = None  # under the target
    q: float | None = None  # under the drafter; only of a proposed token
    accept: float | None = None  # the probability that it stays


@dataclass
class StepState:
    """A step, as far as it is written. A rejected draft token stands in `tokens` where
    it was tried."""

    tokens: list[TokenState] = field(default_factory=list)
    finish: str = ""  # while it is being written; then boundary, eos or length

    @property
    def written(self) -> list[TokenState]:
        """The tokens without the rejected ones."""
        return [token for token in self.tokens if token.source != "refused"]

    @property
    def text(self) -> str:
        return "".join(token.piece for token in self.written)

    def complete(self, step: Step, token_bytes: Bytes) -> StepState:
        """Take the finished step, and keep what is known about its tokens."""
        if tuple(token.token for token in self.written) != step.tokens:  # no details
            self.tokens = [TokenState(token, "") for token in step.tokens]
        pieces = pieces_of(step.tokens, token_bytes)
        for token, piece in zip(self.written, pieces, strict=True):
            token.piece = piece
        self.finish = step.finish.value
        return self


@dataclass
class NodeState:
    """A prefix, by name. `index`: the number of the step after it. `draft`: the draft
    step that leads here; None at a tree's first node. `target`: the target's own step
    after it, once that was begun. `verdict`: on `draft`."""

    name: str
    index: int
    parent: str | None = None
    draft: StepState | None = None  # leads here
    target: StepState | None = None  # starts here
    failed: str | None = None  # why there will be no draft step
    verdict: Verdict | None = None
    accepted: bool = False  # `draft` joined the output
    children: list[str] = field(default_factory=list)
    gone: float | None = None  # when it left the tree


@dataclass
class EmittedState:
    """A step of the output."""

    index: int
    origin: str
    step: StepState
    verdict: Verdict | None = None
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

    total: int
    block_size: int
    branches: dict[int, BranchState] = field(default_factory=dict)

    @property
    def refcounts(self) -> Counter[int]:
        """By block in use, how many branches hold it."""
        return Counter(b for branch in self.branches.values() for b in branch.blocks)

    def take(self, event: cache.CacheEvent) -> None:
        """Apply one event of this cache."""
        branches = self.branches
        match event:
            case cache.BranchForked(_, number, source):
                origin = branches[source]
                blocks = list(origin.blocks)  # shared, not copied
                branches[number] = BranchState(number, blocks, origin.length)
            case cache.BranchesGrew(_, rows, copies, fresh):
                for number, old, new in copies:
                    blocks = branches[number].blocks
                    blocks[blocks.index(old)] = new  # copy on write
                for number, length in rows:
                    self.branch(number).length = length
                for number, block in fresh:
                    branches[number].blocks.append(block)
            case cache.BranchCut(_, number, length):
                branch = self.branch(number)
                branch.length = length
                # whole blocks behind the end
                del branch.blocks[blocks_for(length, self.block_size) :]
            case cache.BranchClosed(_, number):
                branches.pop(number, None)
            case cache.BranchHolds(_, number, node):
                for branch in branches.values():
                    if branch.node == str(node):  # the name moves to another branch
                        branch.node = None
                self.branch(number).node = str(node)

    def branch(self, number: int) -> BranchState:
        """The branch of that number, empty if it is new."""
        return self.branches.setdefault(number, BranchState(number))


ENDS = {"drafted": "draft", "targeted": "target", "judged": "judge"}
"""By kind of event, the kind of work that it completes."""


@dataclass
class State:
    """Everything after `number` events. `work`: the unfinished pieces of work as (kind,
    node), with the time when each began, oldest first. `touched`: the nodes of the last
    event."""

    header: Header
    number: int = 0  # events so far
    time: float = 0.0
    root: str = "0:0"
    nodes: dict[str, NodeState] = field(default_factory=dict)
    emitted: list[EmittedState] = field(default_factory=list)
    work: dict[tuple[str, str], float] = field(default_factory=dict)  # since when
    caches: dict[str, CacheState] = field(default_factory=dict)
    forwards: dict[str, int] = field(default_factory=dict)  # by role
    done: bool = False
    touched: set[str] = field(default_factory=set, compare=False)

    @classmethod
    def begin(cls, header: Header) -> State:
        state = cls(header, nodes={"0:0": NodeState("0:0", 0)})
        for name, size in header.caches.items():
            state.caches[name] = CacheState(size["blocks"], size["block_size"])
        return state

    @property
    def text(self) -> str:
        return "".join(emitted.step.text for emitted in self.emitted)

    @property
    def live(self) -> list[NodeState]:
        """The nodes of the present tree, level by level, siblings in order."""
        live: list[NodeState] = []
        level = [self.nodes[self.root]] if self.root in self.nodes else []
        while level:
            live += level
            # of the next level
            children = [self.nodes[name] for node in level for name in node.children]
            level = [child for child in children if child.gone is None]
        return live

    def node(self, node: NodeId | str) -> NodeState:
        """The node of that name, made if it is new."""
        name = str(node)
        if name not in self.nodes:
            self.nodes[name] = NodeState(name, step_after(name))
        self.touched.add(name)
        return self.nodes[name]

    def writing(self, role: Role, node: NodeId | None, index: int) -> StepState:
        """The step that a model is writing. Plain decoding names no nodes; step i
        belongs to "i:i"."""
        state = self.node(node or f"{index}:{index}")
        if role is Role.DRAFT:
            state.draft = state.draft or StepState()
            return state.draft
        state.target = state.target or StepState()
        return state.target


def apply_event(state: State, record: Record) -> None:
    """Change `state` by the next event."""
    state.number = record.number + 1
    state.time = record.time
    state.touched.clear()
    token_bytes = record.token_bytes
    match record.event:
        case Draft(node, children):
            parent = state.node(node)
            for child in children:
                state.node(child).parent = parent.name
                parent.children.append(str(child))
                state.work["draft", str(child)] = state.time
        case Target(node) | Judge(node):
            state.node(node)
            state.work[record.kind, str(node)] = state.time
        case Cancel((kind, node)):
            state.work.pop((kind.value, state.node(node).name), None)
        case Drafted(node) | Targeted(node) | Judged(node) as event:
            work = (ENDS[record.kind], str(node))
            if state.work.pop(work, None) is not None:  # else late: ignore it
                _answered(state.node(node), event, token_bytes)
        case Emit() as event:
            _emit(state, event, token_bytes)
        case Release(node):
            state.node(node).gone = state.time
        case StepWritten(role, index, step, node):
            state.writing(role, node, index).complete(step, token_bytes)
        case TokenWritten(role, node, index, offset, token, p):
            writing = state.writing(role, node, index)
            if len(writing.written) == offset:  # else it was cancelled and begun again
                piece = record.text_of([token])
                writing.tokens.append(TokenState(token, piece, "drawn", p))
        case TokenRound(detail=RoundDetail() as detail) as event:
            writing = state.writing(event.role, event.node, event.index)
            if len(writing.written) == detail.offset:
                writing.tokens += _round(detail, event.emitted, record)
        case ForwardPass(role):
            state.forwards[role.value] = state.forwards.get(role.value, 0) + 1
        case Ended(done):
            state.done = done
        case cache.CacheEvent() as event:
            state.caches[event.cache].take(event)


def _answered(
    node: NodeState, event: Drafted | Targeted | Judged, token_bytes: Bytes
) -> None:
    """A piece of work is finished."""
    match event:
        case Targeted(_, step):
            node.target = (node.target or StepState()).complete(step, token_bytes)
        case Judged(_, verdict):
            node.verdict = verdict
        case Drafted(_, None):
            node.failed = "no draft can come"
        case Drafted(_, Step() as step):
            node.draft = (node.draft or StepState()).complete(step, token_bytes)


def _emit(state: State, event: Emit, token_bytes: Bytes) -> None:
    """A step joins the output."""
    node = state.node(event.node)
    emitted = event.emitted
    accepted = emitted.origin is Origin.ACCEPTED
    node.accepted = node.accepted or accepted
    # whose words join the answer
    written = (node.draft if accepted else node.target) or StepState()
    step = StepState(list(written.tokens))
    rejected = None
    if emitted.rejected is not None:
        rejected = StepState().complete(emitted.rejected, token_bytes)
    state.emitted.append(
        EmittedState(
            index=emitted.index,
            origin=emitted.origin.value,
            step=step.complete(emitted.step, token_bytes),
            verdict=emitted.verdict,
            rejected=rejected,
        )
    )
    if event.root is not None:
        state.root = state.node(event.root).name
        if event.root != event.node:  # the node continues under a new name
            node.gone = state.time


def _round(detail: RoundDetail, emitted: int, record: Record) -> list[TokenState]:
    """The tokens of a round in the order in which they were tried, up to the last one
    that was emitted.

    Example: of the draft tokens a, b and c the first was kept and the second rejected,
    for which the model wrote d: a, b (refused), d."""
    tokens = []
    for draft in detail.draft_tokens:
        if draft.kept is not None:  # it was tried
            source = "proposed" if draft.kept else "refused"
            piece = record.text_of([draft.token])
            tokens.append(
                TokenState(draft.token, piece, source, draft.p, draft.q, draft.accept)
            )
    rejected = any(token.source == "refused" for token in tokens)
    source = "residual" if rejected else "after"  # from what the last token was drawn
    piece = record.text_of([detail.token])
    tokens.append(TokenState(detail.token, piece, source, detail.p))
    ends = [i for i, token in enumerate(tokens, 1) if token.source != "refused"]
    return tokens[: [0, *ends][emitted]]  # a step may end inside the round


def state_at(trace: TraceFile, number: int) -> State:
    """The state after the first `number` events (0: none)."""
    state = State.begin(trace.header)
    for record in trace.records[: max(0, number)]:
        apply_event(state, record)
    return state
