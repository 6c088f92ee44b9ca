"""The scheduler's nine messages, the names of nodes, and the settings.

    events, in      Drafted   Targeted   Judged           this work is done
    commands, out   Draft     Target     Judge            begin this work
                    Cancel                                stop it; a late answer is ignored
                    Emit                                  this step joins the answer
                    Release                               this node has left the tree

A **node** is a prefix: the steps emitted so far plus a path of draft steps. A draft
step is named after the node that it leads to, a target step after the node that it
starts from. `docs/scheduler.md` says when nodes come and go, and how a driver responds.

*Keys of randomness.* `Target(node)` and alternative 0 of `Draft(node)` draw with the key
(node.index), alternative j > 0 with (node.index, j). A key needs no path: each index emits at
most one step, and whether a node is reached depends on earlier indices alone.

Plain data without torch; a trace records these very objects. Read next: `scheduler.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from sys import maxsize
from typing import NamedTuple

from lr.types import EmittedStep, Finish, Step, Verdict, require, require_whole


class NodeId(NamedTuple):
    """The name of a node: "stem:index.number" (".0" is left out), unique in any order
    of events.

    `index`: number of the step that follows. `stem`: the index at which its tree began.
    `number`: its position in its level, from the left; child j of node n has number n *
    width + j.

    Example, width 2: the two steps after the prompt, `0:0`, lead to `0:1` and `0:1.1`,
    those after `0:1.1` to `0:2.2` and `0:2.3`. If the target corrects step 0, the next
    root is `1:1`.
    """

    stem: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which no name needs
    number: int = 0

    def child(self, sibling: int, width: int) -> NodeId:
        """The node to which alternative `sibling` (0 to width - 1) of the next step
        leads."""
        return NodeId(self.stem, self.index + 1, self.number * width + sibling)

    def parent(self, width: int) -> NodeId:
        """The node before this one. The first node of a tree (index = stem) has
        none."""
        return NodeId(self.stem, self.index - 1, self.number // width)

    def __str__(self) -> str:
        return f"{self.stem}:{self.index}" + (f".{self.number}" if self.number else "")


FIRST_NODE = NodeId(0, 0)
"""The first root: the prompt."""


class WorkKind(StrEnum):
    """The kinds of work; strings, because strings hash fast."""

    DRAFT = "draft"
    TARGET = "target"
    JUDGE = "judge"


class Work(NamedTuple):
    """One piece of work. A `Draft` for W children is W pieces, one named after each
    child."""

    kind: WorkKind
    node: NodeId


# Commands


@dataclass(frozen=True, slots=True)
class Draft:
    """The draft writes one step from `node` to each of `children`, each at most `limit`
    tokens long. Answers: one `Drafted` per child, in any order.
    """

    node: NodeId
    children: tuple[NodeId, ...]
    limit: int


@dataclass(frozen=True, slots=True)
class Target:
    """The target writes its step after `node`, at most `limit` tokens long, and begins
    with those that a verdict keeps of a rejected draft step. Answer: `Targeted`."""

    node: NodeId
    limit: int
    begun: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Judge:
    """Compare `draft`, the step from `parent` to `node`, with `target`, the target's
    step after `parent`. Answer: `Judged`. Without `target` the draft step is judged
    alone.
    """

    node: NodeId
    parent: NodeId
    draft: Step
    target: Step | None


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop a piece of unfinished work."""

    work: Work


@dataclass(frozen=True, slots=True)
class Emit:
    """A step joins the answer. `verdicts` are the reasons; the one that decides is
    last: that of an accepted draft step, or, for a correction, that which keeps most. The
    others are in order of `keep`, then of the siblings.

    An accepted draft step leads to `node`; a target step was written after `node`.
    `root` is the new root (None: the answer is complete) and takes over the branches of
    `node`. After a draft step it is `node` itself, and `Release` of the old root
    follows. After a target step it has a new name: the target's branch already ends in
    that step, the draft's gets its tokens uncomputed.
    """

    emitted: EmittedStep
    verdicts: tuple[Verdict, ...]
    node: NodeId
    root: NodeId | None


@dataclass(frozen=True, slots=True)
class Release:
    """`node` has left the tree: close its branches. Its work has been cancelled
    already."""

    node: NodeId


Command = Draft | Target | Judge | Cancel | Emit | Release

# Events


@dataclass(frozen=True, slots=True)
class Drafted:
    """The draft step that leads to `node`; None: no draft step will come, go on without
    it."""

    node: NodeId
    step: Step | None


@dataclass(frozen=True, slots=True)
class Targeted:
    """The target's own step after `node`."""

    node: NodeId
    step: Step


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on the draft step to `node`."""

    node: NodeId
    verdict: Verdict


Event = Drafted | Targeted | Judged
Message = Command | Event


class ProtocolError(RuntimeError):
    """A driver reports what cannot have happened: the fault is in the driver."""


# Settings


@dataclass(frozen=True)
class Limits:
    """How long an answer and its steps may become, in tokens.

    `ignore_half_sentence`: never draft the step after a cut one, since it starts in
    mid-sentence (the rule of the official code, where steps are cut at 100 tokens).
    `max_drafted`: how many tokens of the answer fit the draft's context; from there on
    the target writes alone.
    """

    max_tokens: int
    max_step_tokens: int = 100  # as in the official code
    ignore_half_sentence: bool = True
    max_drafted: int = maxsize  # no limit

    def __post_init__(self) -> None:
        for name in ("max_tokens", "max_step_tokens"):
            require_whole(name, getattr(self, name), 1)

    def step_limit(self, written: int) -> int:
        """The longest next step after `written` tokens; 0 if none may follow."""
        return max(0, min(self.max_step_tokens, self.max_tokens - written))

    def draft_limit(self, written: int, previous: Step | None) -> int:
        """The longest draft step after `written` tokens, the last of which are those of
        `previous` (None: no step is before it, or it was not cut); 0 if none may
        follow."""
        # it may end in mid-sentence
        cut = previous is not None and previous.finish is Finish.LENGTH
        if cut and self.ignore_half_sentence:
            return 0
        return max(0, min(self.step_limit(written), self.max_drafted - written))


class Schedule(Enum):
    """When drafts and target steps may be written (`docs/scheduler.md` has a table).

    `sync`: Algorithm 1 of the paper (arXiv 2506.19830); g drafts, then g + 1 target
    steps, of which the last is the bonus. `paper`: the asynchronous process of Appendix
    B; k pairs of draft and target step in flight. `depth`: the process of the official
    code; at most D unverified drafts.
    """

    SYNC = "sync"
    PAPER = "paper"
    DEPTH = "depth"


Choose = Callable[[Sequence[Step], Sequence[Verdict]], int | None]
"""The index of the accepted alternative, or None: see `Verifier.choose`."""


@dataclass(frozen=True)
class SchedulerConfig:
    """The settings of a `LookaheadScheduler`; `GenerateOptions` explains most of them.

    `depth`: g, k or D of `Schedule`; 0 (not with `paper`) is plain decoding.
    `max_target_rows` also counts draft steps that are judged alone; nodes near the root
    come first. `needs_target_step`: False if the verifier judges draft steps alone;
    then the target writes only where none is accepted.
    `choose`: `Verifier.choose`; None: the first aligned alternative.
    """

    limits: Limits
    schedule: Schedule = Schedule.DEPTH
    depth: int = 4  # gamma of section 3.1
    width: int = 1  # W alternatives per position
    max_target_rows: int | None = None  # k1 in k1 k2 <= M (section 3.3)
    reject_late: bool = False
    needs_target_step: bool = True
    choose: Choose | None = None

    def __post_init__(self) -> None:
        paper = self.schedule is Schedule.PAPER
        require_whole("depth", self.depth, 1 if paper else 0)
        require_whole("width", self.width, 1)
        if self.max_target_rows is not None:
            require_whole("max_target_rows", self.max_target_rows, 1)
        possible = self.schedule is Schedule.DEPTH and self.needs_target_step
        expected = (
            'wait: "reject" needs schedule "depth" and a verifier that sees both steps'
        )
        require(possible or not self.reject_late, "late_drafts", "reject", expected)

    @property
    def barrier(self) -> bool:
        """Whether drafts, target steps and verdicts are separate stages, one after
        another."""
        return self.schedule is Schedule.SYNC
