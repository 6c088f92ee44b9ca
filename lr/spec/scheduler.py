"""Lookahead Reasoning as events in, commands out (arXiv 2506.19830, sections 3.1, 3.2,
appendix B).

The **root** is the end of what has been emitted. A tree of nodes hangs below it:

    root ── draft a ──> node A ── draft c ──> node C        the target's step after root: s
         └─ draft b ──> node B                              the target's step after A: t

After each node the draft writes W steps, each leading to a child, and the target writes
one. Once a node's target step and a child's draft step are complete, the verifier
judges the pair: here a and b against s, and c against t. Decisions are made only at the
root:

- A child is **accepted** if it is aligned and the siblings before it are not. (A verifier
  may choose otherwise among aligned ones, once all have verdicts.) Its draft step is
  emitted and it becomes the root. Work below it continues, so without a barrier the
  window slides.
- If no child is accepted, the target's step is emitted as the **correction** and a new tree starts.
  (A verdict may keep the first tokens of a rejected step: then the target continues them.)
- If no draft can come, the target's step is emitted as it is: after a full cycle, the **bonus**.

Work that can no longer be emitted is cancelled at once. A decision depends only on
steps and verdicts, and waits for them, so the order of events changes no answer (except
with `reject_late`).

No clock, tensor, tokenizer or thread is used: the engine runs this on models, tests on
scripts, theory on a simulated clock. Messages: `protocol.py`. A transcript:
`docs/scheduler.md`. Read next: `engine/engine.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

from lr.spec.checks import check_choice
from lr.spec.protocol import (
    FIRST_NODE,
    Cancel,
    Command,
    Draft,
    Drafted,
    Emit,
    Event,
    Judge,
    Judged,
    NodeId,
    ProtocolError,
    Release,
    Schedule,
    SchedulerConfig,
    Target,
    Targeted,
    Work,
    WorkKind,
)
from lr.spec.verifiers.base import verdict_by_form
from lr.types import EmittedStep, Finish, Origin, Step, Verdict

_COMPLETES = {
    Drafted: WorkKind.DRAFT,
    Targeted: WorkKind.TARGET,
    Judged: WorkKind.JUDGE,
}


@dataclass(slots=True, eq=False)
class Node:
    """A prefix and what is known about it. Only the scheduler changes it."""

    id: NodeId
    written: int  # tokens of the answer up to here (up to the parent until `step` is written)
    # In tokens, of the step that may follow (0: none); until `step` is written, of that.
    limit: int
    step: Step | None = None  # the last one; None: the prompt, or not written yet
    verdict: Verdict | None = None  # on that step, which is the draft's
    target_step: Step | None = None  # the target's own step from here
    begun: tuple[int, ...] = ()  # what that step begins with: tokens that are kept
    children: list[Node] = field(default_factory=list)  # one per alternative, in order
    # Steps may follow: the last one is written, not rejected, and leaves room.
    open: bool = True
    released: bool = False


class LookaheadScheduler:
    """The scheduler of one answer. Call `start` once and `handle` for every event;
    carry out the commands that they return, in order. `root`: the end of what has been
    emitted, with the tree below it. `work`: what was commanded and is not finished, in
    order. `done`: the answer is complete, no work is left, every node is released.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.root = Node(FIRST_NODE, 0, config.limits.step_limit(0))
        self.done = False
        self.work: dict[Work, Node] = {}
        self._cycle = 0  # index of the node at which the synchronous cycle began
        self._commands: list[Command] = []  # what this call is going to return
        self._cancelled: set[Work] = set()  # at the root or below, and no event yet

    def start(self) -> list[Command]:
        """The first commands. The first root is `FIRST_NODE`."""
        if self.work or self.done:
            raise ProtocolError("an answer has one start()")
        return self._advance()

    def handle(self, event: Event) -> list[Command]:
        """The commands that follow from `event`; none if its work was cancelled, or if
        the root has moved past its node.

        An impossible event raises `ProtocolError` and changes nothing: its work was
        never commanded or is finished, or its step is empty or too long.
        """
        work = Work(_COMPLETES[type(event)], event.node)  # what the event completes
        node = self.work.get(work)
        if node is None and event.node < self.root.id:  # of a tree that is gone
            return []
        if node is None and work in self._cancelled:
            self._cancelled.remove(work)  # a stale event comes only once
            return []
        if node is None:
            raise ProtocolError(f"{work} was never commanded, or is done already")
        written = None if isinstance(event, Judged) else event.step
        if written is not None and not 0 < len(written.tokens) <= node.limit:
            raise ProtocolError(f"{event}; expected a step of 1 to {node.limit} tokens")
        del self.work[work]
        match event:
            case Drafted(_, None):  # given up, or the draft failed
                self._prune(node)
            case Drafted(_, Step() as step):
                node.step = step
                node.written += len(step.tokens)  # now up to here
                node.limit = self.config.limits.step_limit(node.written)
                # nothing follows eos, or a cut
                node.open = step.finish is Finish.BOUNDARY and node.limit > 0
            case Targeted(_, step):
                node.target_step = step
            case Judged(_, verdict):
                self._settle(node, verdict)
        return self._advance()

    def set_depth(self, depth: int) -> None:
        """Look `depth` steps ahead from the next event on. Work that has begun
        continues."""
        self.config = replace(self.config, depth=depth)

    # After every event: judge, decide and start whatever is possible

    def _advance(self) -> list[Command]:
        if self.config.barrier and self.work:
            # Algorithm 1 has stages. Draft follows draft; all else waits for the stage
            # to end.
            self._start_drafts()
        else:
            self._judge_pairs()
            while not self.done and self._decide():  # one event may decide several
                pass
            if not self.done:
                self._start_drafts()
                if not (self.config.barrier and self.work):
                    self._start_rows()
                assert self.work, "there is always a target step or a draft to begin"
        commands, self._commands = self._commands, []
        return commands

    def _judge_pairs(self) -> None:
        """Reject draft steps whose form decides, and send the other pairs to the
        verifier."""
        for node in _open_nodes(self.root):
            for child in node.children:
                if not node.open:  # a rejection in this loop has released it
                    break
                if child.step is None or not self._unjudged(child):
                    continue
                # Alone, only a cut step fails by its form: compare it with itself.
                alone = not self.config.needs_target_step
                target = child.step if alone else node.target_step
                if target is None:
                    continue
                verdict = verdict_by_form(child.step, target)
                if verdict is not None:
                    self._settle(child, verdict)
                elif not alone:
                    command = Judge(child.id, node.id, child.step, target)
                    self._begin(WorkKind.JUDGE, child, command)

    def _decide(self) -> bool:
        """Emit the next step and move the root after it, if that is decided. Returns
        whether. If no draft step is accepted, its tokens that a verdict keeps are where
        the target's step begins anew."""
        decision = self._decision()
        if decision is None:
            return False
        choice, considered = decision
        # The verdict that decides comes last: the chosen step's, or that which keeps most.
        considered.sort(key=lambda judged: (judged[0] is choice, judged[1].keep))
        verdicts = [verdict for _, verdict in considered]
        index = self.root.id.index
        if choice is not None and choice.step is not None:
            step = EmittedStep(index, choice.step, Origin.ACCEPTED, verdicts[-1])
            self._emit(step, verdicts, choice, choice if choice.open else None)
            return True
        root = self.root
        for child in root.children:  # the verifier chose none of them
            self._prune(child)
        rejected = considered[-1][0].step if considered else None
        if rejected is not None:  # None: no draft step came
            root.begun = rejected.tokens[: verdicts[-1].keep]
        if (
            root.target_step
            and root.target_step.tokens[: len(root.begun)] != root.begun
        ):
            root.target_step = None  # the target writes again, after what is kept
        # a draft may still come
        if root.target_step is None or self._may_draft(root):
            return False
        # No child is accepted, or none can come.
        self._emit_target(root.target_step, rejected, verdicts)
        return True

    def _decision(self) -> tuple[Node | None, list[tuple[Node, Verdict]]] | None:
        """The accepted child of the root (None: no child is), and those that had a
        verdict by then. None: it is not decided yet. With `reject_late`, draft steps that
        are late are rejected here."""
        choose = self.config.choose
        considered = list[tuple[Node, Verdict]]()
        for child in self.root.children:
            awaited = Work(WorkKind.DRAFT, child.id) in self.work
            if (
                self.config.reject_late
                and awaited
                and self.root.target_step is not None
            ):
                late = Verdict(aligned=False, why="the draft step was late")
                self._settle(child, late)
            if child.verdict is not None:
                considered.append((child, child.verdict))
                if choose is None and child.verdict.aligned:
                    return child, considered
            elif awaited or child.step is not None:
                return None
        written = [(child, child.step, v) for child, v in considered if child.step]
        if choose is None or not written:
            return None, considered
        verdicts = [verdict for _, _, verdict in written]
        choice = choose([step for _, step, _ in written], verdicts)
        check_choice(choose, choice, verdicts)
        return None if choice is None else written[choice][0], considered

    def _emit_target(
        self, step: Step, rejected: Step | None, verdicts: list[Verdict]
    ) -> None:
        """Emit the target's step; a new tree follows it."""
        root = self.root
        index = root.id.index
        origin = Origin.TARGET
        verdict = None
        if verdicts:
            verdicts = [
                replace(v, aligned=False, why=f"aligned, not chosen: {v.why}")
                if v.aligned
                else v
                for v in verdicts
            ]
            origin = Origin.CORRECTION
            verdict = verdicts[-1]
        elif self.config.barrier and index > self._cycle:  # all drafts accepted
            origin = Origin.BONUS
        emitted = EmittedStep(index, step, origin, verdict, rejected)
        written = root.written + len(step.tokens)
        limit = self.config.limits.step_limit(written)
        ends = step.finish is Finish.EOS or not limit
        # the stem of a new tree
        after = Node(NodeId(index + 1, index + 1), written, limit, step)
        self._emit(emitted, verdicts, root, None if ends else after)

    def _emit(
        self,
        emitted: EmittedStep,
        verdicts: list[Verdict],
        node: Node,
        new: Node | None,
    ) -> None:
        """Emit a step. `new` is the new root, on the branches of `node`; None: the
        answer ends."""
        old = self.root
        self._commands.append(
            Emit(emitted, tuple(verdicts), node.id, new.id if new else None)
        )
        self.done = new is None
        if new is not None:
            self.root = new
            # A cycle ends at a target step, or at its last draft step if no target step
            # is due.
            if new is not node or not (self.config.needs_target_step or new.children):
                self._cycle = new.id.index
        for child in old.children:  # siblings of the accepted one, with all below
            if child is not new:
                self._prune(child)
        # After a target step the new root keeps the old one's branches.
        if new is None or new is node:
            old.children = []
            self._prune(old)
        # Names are in order: a later tree or a later level is larger.
        root_id = self.root.id
        self._cancelled = {work for work in self._cancelled if work.node >= root_id}

    def _start_drafts(self) -> None:
        """Begin W alternatives after every node where drafts may follow (section
        3.1)."""
        width = self.config.width
        for node in _open_nodes(self.root):
            if not self._may_draft(node):
                continue
            limit = self.config.limits.draft_limit(node.written, node.step)
            for sibling in range(width):
                name = node.id.child(sibling, width)
                child = Node(name, node.written, limit, open=False)
                node.children.append(child)
                self.work[Work(WorkKind.DRAFT, name)] = child
            names = tuple(child.id for child in node.children)
            self._commands.append(Draft(node.id, names, limit))

    def _start_rows(self) -> None:
        """Begin target steps (section 3.2) and lone judgements while rows are free,
        root first."""
        alone = not self.config.needs_target_step
        kinds = {WorkKind.TARGET, WorkKind.JUDGE} if alone else {WorkKind.TARGET}
        free = inf
        if self.config.max_target_rows is not None:
            taken = sum(kind in kinds for kind, _ in self.work)
            free = self.config.max_target_rows - taken
        for node in _open_nodes(self.root):
            if free > 0 and self._target_is_due(node):
                free -= 1
                command = Target(node.id, node.limit, node.begun)
                self._begin(WorkKind.TARGET, node, command)
            for child in node.children if alone else []:
                step = child.step
                if free > 0 and step is not None and self._unjudged(child):
                    free -= 1
                    judge = Judge(child.id, node.id, step, None)
                    self._begin(WorkKind.JUDGE, child, judge)

    # What may happen at a node

    def _level(self, node: Node) -> int:
        """Steps ahead of the root; with a barrier, of where the cycle began."""
        begin = self._cycle if self.config.barrier else self.root.id.index
        return node.id.index - begin

    def _may_draft(self, node: Node) -> bool:
        """Whether drafts after `node` may start and have not started yet."""
        if node.children or self._level(node) >= self.config.depth:
            return False
        return self.config.limits.draft_limit(node.written, node.step) > 0

    def _target_is_due(self, node: Node) -> bool:
        """Whether the target's step after `node` may start and has not started yet. If
        the verifier needs none, it starts at a root without draft steps left."""
        if node.target_step is not None or Work(WorkKind.TARGET, node.id) in self.work:
            return False
        if self.config.needs_target_step:
            paper = self.config.schedule is Schedule.PAPER
            # of schedule paper: k pairs, and no step at the frontier
            return not paper or self._level(node) < self.config.depth
        return node is self.root and all(child.released for child in node.children)

    def _unjudged(self, child: Node) -> bool:
        """Whether the verifier has yet to be asked about the draft step that leads
        here."""
        in_work = Work(WorkKind.JUDGE, child.id) in self.work
        return not (in_work or child.verdict or child.released)

    # Changes to the tree and to the work

    def _begin(self, kind: WorkKind, node: Node, command: Command) -> None:
        self.work[Work(kind, node.id)] = node
        self._commands.append(command)

    def _settle(self, child: Node, verdict: Verdict) -> None:
        child.verdict = verdict
        if not verdict.aligned:
            self._prune(child)

    def _prune(self, node: Node) -> None:
        """Cancel and release `node` and everything below it, unless it is released
        already."""
        if node.released:
            return
        for work in [Work(kind, node.id) for kind in WorkKind]:
            if self.work.pop(work, None) is not None:
                self._cancelled.add(work)
                self._commands.append(Cancel(work))
        for child in node.children:
            self._prune(child)
        node.released = True
        node.open = False
        self._commands.append(Release(node.id))  # after all that is below


def _open_nodes(root: Node) -> list[Node]:
    """The nodes after which steps may follow, level by level, siblings in order."""
    nodes = [root]
    for node in nodes:  # the list grows during the loop
        nodes += [child for child in node.children if child.open]
    return nodes
