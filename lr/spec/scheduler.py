"""Lookahead Reasoning, the whole algorithm: events in, commands out (arXiv 2506.19830, sections
3.1-3.2 and Appendix B).

Below the **root**, the end of what is emitted, hangs a tree of nodes. Behind every node the draft
writes W alternatives (each leads to a child) and the target one step of its own; when a node's
target step and a child's draft step are both there, the verifier judges the pair. Decisions are
made at the root only, in the order of the siblings:

- a child that is aligned, all before it being unaligned, is **accepted**: its draft step is emitted
  and it becomes the root; its siblings are cancelled. What is in work below it goes on. Without a
  barrier the window slides: new work begins behind.
- if no child is aligned, the target's step is emitted, as the **correction**; the tree is
  cancelled, a new one begins.
- where no draft step can come, the target's step is emitted as it is: at the end of a synchronous
  cycle this is the **bonus**.

A draft step that is rejected deeper down takes its subtree with it at once. Since a decision
depends on the steps alone, and nothing is decided before everything it depends on is there, the
output does not depend on the order of the events (but see `LateDrafts.REJECT`).

This module knows no clock, tensor, tokenizer or thread: `engine/lockstep.py` and
`engine/overlapped.py` run it on models, `lab/scripted/scripted.py` on scripts, `theory/simulate.py`
on a clock. Its words are in `commands.py`, the rules of the three schedules in `schedule.py` and
`window.py`, eligibility in `eligibility.py`. Its oracle is `reference.py`; a transcript is in
`docs/scheduler.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lr.errors import ProtocolError
from lr.spec.commands import (
    Command,
    Draft,
    Drafted,
    DraftFailed,
    Emit,
    Event,
    Judge,
    Judged,
    Kind,
    NodeId,
    Score,
    Scored,
    Survive,
    Target,
    Targeted,
    Unsure,
    Work,
)
from lr.spec.eligibility import verdict_by_form
from lr.spec.outbox import Outbox
from lr.spec.schedule import LateDrafts, SchedulerConfig
from lr.spec.tree import Node, breadth_first
from lr.spec.window import Window
from lr.types import EmittedStep, Finish, Origin, Step, Verdict


class LookaheadScheduler:
    """One chain of steps. Call `start` once, then `handle` with every event; both return the
    commands to carry out, in order.

    `done`: the chain has ended, by end of sequence or by its budget; then nothing is in work and
    every node is released.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.done = False
        self._window = Window(config, Node(NodeId(0, 0), limit=config.limits.step_limit(0)))
        self._out = Outbox()
        self._started = False

    @property
    def root(self) -> Node:
        """The end of what is emitted, with the tree below it; to look at, not to change."""
        return self._window.root

    @property
    def work(self) -> list[Work]:
        """What was commanded and is neither completed nor cancelled, in the order in which it was
        commanded.
        """
        return self._out.pieces()

    @property
    def rows(self) -> int:
        """Target rows in flight: target steps and scores."""
        return self._out.rows

    def start(self) -> list[Command]:
        """The first commands. The first root is `root.id`, that is NodeId(0, 0)."""
        if self._started:
            raise ProtocolError("start() was called twice: make one scheduler per chain.")
        self._started = True
        self._advance()
        return self._out.take()

    def handle(self, event: Event) -> list[Command]:
        """Take note of `event` and say what follows from it. An event for work that was cancelled
        changes nothing.

        Raises `ProtocolError`, having changed nothing, if the event cannot be: its work was never
        commanded or is completed already, or its step is empty or longer than was allowed.
        """
        work = Work(_kind(event), event.node)
        node = self._out.find(work)
        if node is None:
            return []
        _check_step(event, node)
        self._out.complete(work)
        self._note(event, node)
        self._advance()
        return self._out.take()

    def set_depth(self, depth: int) -> None:
        """Look `depth` steps ahead from the next event on; what is in work goes on. `paper` and
        `depth` emit the same steps all the same, as long as it is not 0.

        Raises `SettingError` for a depth that the schedule cannot have.
        """
        self.config = self._window.config = replace(self.config, depth=depth)

    def _note(self, event: Event, node: Node) -> None:
        match event:
            case Drafted(_, step):
                written = node.written + len(step.tokens)
                node.arrive(step, written, self.config.limits.step_limit(written))
            case DraftFailed():
                node.failed = True
                self._out.retire(node)
            case Targeted(_, step):
                node.target = step
            case Judged(_, verdict) | Scored(_, verdict):
                self._give(node, verdict)
            case Unsure():
                node.unsure = True

    def _give(self, node: Node, verdict: Verdict) -> None:
        node.verdict = verdict
        if not verdict.aligned:
            self._out.retire(node)

    # What follows

    def _advance(self) -> None:
        """Judge what can be judged, decide what can be decided, then begin what may begin.

        A synchronous cycle has stages (drafts, target steps, verdicts), and nothing of the next
        begins before all of one is there.
        """
        if self._at_barrier():
            self._start_drafts(
                breadth_first(self.root)
            )  # drafts follow each other at once; all else waits
            return
        while not self.done:
            self._judge_pairs()
            if not self._decide():
                break
        if not self.done:
            nodes = breadth_first(self.root)
            self._start_drafts(nodes)
            if not self._at_barrier():
                self._start_rows(nodes)
            assert self._out, "nothing is in work and the chain has not ended"

    def _at_barrier(self) -> bool:
        return self.config.barrier and len(self._out) > 0

    def _judge_pairs(self) -> None:
        """Settle by form, or give to the verifier, every draft step that has met its target
        step.
        """
        for node in breadth_first(self.root):
            for child in (
                node.children if node.goes_on else []
            ):  # a verdict by form may have released it on the way
                if child.draft is None or child.verdict is not None or child.judged:
                    continue
                alone = not self.config.needs_target_step and not child.unsure
                rival = (
                    child.draft if alone else node.target
                )  # alone, a step can only fail by being cut
                if rival is None:
                    continue
                verdict = verdict_by_form(child.draft, rival)
                if verdict is not None:
                    self._give(child, verdict)
                elif not alone:
                    child.judged = True
                    self._out.begin(Kind.JUDGE, child, Judge(child.id, node.id, child.draft, rival))

    def _start_drafts(self, nodes: Sequence[Node]) -> None:
        width = self.config.width
        for node in nodes:
            if not node.children and self._window.draft_may_come(node):
                node.children = [node.child(j, width) for j in range(width)]
                self._out.say(
                    Draft(node.id, tuple(child.id for child in node.children), node.limit)
                )
                for child in node.children:
                    self._out.note(Kind.DRAFT, child)

    def _start_rows(self, nodes: Sequence[Node]) -> None:
        """Begin target steps and scores as many as there are rows, nearest to the root first."""
        for node in nodes:
            if self._window.target_is_due(node) and self._row_is_free():
                node.target_asked = True
                self._out.begin(Kind.TARGET, node, Target(node.id, node.limit))
            for child in [] if self.config.needs_target_step else node.children:
                if (
                    child.draft is not None
                    and child.verdict is None
                    and not child.scored
                    and self._row_is_free()
                ):
                    child.scored = True
                    self._out.begin(Kind.SCORE, child, Score(child.id, node.id, child.draft))

    def _row_is_free(self) -> bool:
        return self.config.max_target_rows is None or self.rows < self.config.max_target_rows

    # Deciding at the root

    def _decide(self) -> bool:
        """Emit one step if it is decided, and move the root behind it."""
        root, verdicts = self.root, list[Verdict]()
        for child in root.children:
            if child.failed:
                continue
            if (
                child.awaited
                and root.target is not None
                and self.config.late_drafts is LateDrafts.REJECT
            ):
                self._give(child, Verdict(aligned=False, why="the draft step was late"))
            if child.verdict is None:
                return False
            verdicts.append(child.verdict)
            if child.verdict.aligned:
                self._accept(child, tuple(verdicts))
                return True
        if root.target is None or self._window.draft_may_come(root):
            return False
        self._fall_back(root.target, tuple(verdicts))
        return True

    def _accept(self, child: Node, verdicts: tuple[Verdict, ...]) -> None:
        """The draft step that leads to `child` joins the output; `child` is the new root."""
        old = self.root
        assert child.draft is not None
        emitted = EmittedStep(old.id.index, child.draft, Origin.ACCEPTED, verdicts[-1])
        self._out.say(Emit(emitted, verdicts, child.id))
        if child.goes_on:
            self._window.slide(child)
            self._out.say(Survive(child.id, child.id))
        else:
            self.done = True
        for sibling in old.children:
            if sibling is not self.root:
                self._out.retire(sibling)
        self._out.cancel(old)
        self._out.release(old)

    def _fall_back(self, step: Step, verdicts: tuple[Verdict, ...]) -> None:
        """The target's own step joins the output; a new tree begins behind it."""
        old, place = self.root, self.root.id.index
        if verdicts:
            rejected = [child.draft for child in old.children if child.verdict is not None]
            emitted = EmittedStep(place, step, Origin.CORRECTION, verdicts[-1], rejected[-1])
        else:
            is_bonus = self.config.barrier and self._window.level(old) > 0
            emitted = EmittedStep(place, step, Origin.BONUS if is_bonus else Origin.TARGET)
        self._out.say(Emit(emitted, verdicts, old.id))
        written = old.written + len(step.tokens)
        limit = 0 if step.finish is Finish.EOS else self.config.limits.step_limit(written)
        if limit:
            new = Node(NodeId(place + 1, place + 1), written, limit, previous=step)
            self._window.begin_anew(new)
            self._out.say(Survive(old.id, new.id))
        for child in old.children:
            self._out.retire(child)
        if not limit:
            self.done = True
            self._out.release(old)


def _kind(event: Event) -> Kind:
    """The kind of work that an event completes."""
    match event:
        case Drafted() | DraftFailed():
            return Kind.DRAFT
        case Targeted():
            return Kind.TARGET
        case Judged():
            return Kind.JUDGE
        case Scored() | Unsure():
            return Kind.SCORE


def _check_step(event: Event, node: Node) -> None:
    if isinstance(event, (Drafted, Targeted)) and not 0 < len(event.step.tokens) <= node.limit:
        raise ProtocolError(
            f"the {_kind(event).value} step reported for node {event.node} has {len(event.step.tokens)} tokens, expected 1 to "
            f"{node.limit}. A drafter that has nothing to say is reported as DraftFailed."
        )
