"""What the scheduler says and hears: nine messages, the names of nodes, and the settings.

    events, in      Drafted   Targeted   Judged           this work is done
    commands, out   Draft     Target     Judge            begin this work
                    Cancel                                stop it; a late answer is ignored
                    Emit                                  this step joins the answer
                    Release                               this node is gone

A **node** is a prefix: the steps emitted so far plus a path of draft steps. A draft step is named
by the node that it leads to, a target step by the node that it starts from. When nodes come and go,
and what a driver does then: `docs/scheduler.md`.

*Keys of randomness.* Alternative j of `Draft(node)` may draw with the key (node.index, j),
`Target(node)` with (node.index). The path is not needed: at each index at most one step is emitted.

Plain data without torch; a trace records these very objects. Read next: `scheduler.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from lr.types import EmittedStep, Finish, Role, Step, Verdict, require, require_whole

if TYPE_CHECKING:
    from lr.spec.verifiers.base import Pair


class NodeId(NamedTuple):
    """The name of a node, "stem:index.number" (".0" is left out), used once in any order of events.

    `index`: number of the step that follows. `stem`: the index at which its tree began. `number`:
    its place in its level from the left; child j of node n is n * width + j.

    Example, width 2: alternatives after the prompt, `0:0`, lead to `0:1` and `0:1.1`, those of the
    second to `0:2.2` and `0:2.3`. If the target corrects step 0, the next root is `1:1`.
    """

    stem: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which no name needs
    number: int = 0

    def child(self, sibling: int, width: int) -> NodeId:
        """The node that alternative `sibling` (0 to width - 1) of the next step leads to."""
        return NodeId(self.stem, self.index + 1, self.number * width + sibling)

    def parent(self, width: int) -> NodeId:
        """The node before this one. The first node of a tree (index = stem) has none."""
        return NodeId(self.stem, self.index - 1, self.number // width)

    def __str__(self) -> str:
        return f"{self.stem}:{self.index}" + (f".{self.number}" if self.number else "")


class WorkKind(StrEnum):
    """The kinds of work. They are strings because these hash fast."""

    DRAFT = "draft"
    TARGET = "target"
    JUDGE = "judge"


class Work(NamedTuple):
    """One piece of work. A `Draft` for W children is W pieces, named by the children."""

    kind: WorkKind
    node: NodeId


# Commands


@dataclass(frozen=True, slots=True)
class Draft:
    """Write one step for each of `children`, each at most `limit` tokens long, from the prefix of
    `node`. Each child gets a `Drafted` of its own, in any order.
    """

    node: NodeId
    children: tuple[NodeId, ...]
    limit: int


@dataclass(frozen=True, slots=True)
class Target:
    """The target writes its own step after `node`, at most `limit` tokens. Answer: `Targeted`."""

    node: NodeId
    limit: int


@dataclass(frozen=True, slots=True)
class Judge:
    """Compare `draft`, the step from `parent` to `node`, with `target`, the target's step after
    `parent`. Answer: `Judged`. Without `target` the draft step is judged by itself, from a prefill
    on the target's side; after a doubt the target writes its step and a second `Judge` comes.
    """

    node: NodeId
    parent: NodeId
    draft: Step
    target: Step | None


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop a piece of work that is not done yet."""

    work: Work


@dataclass(frozen=True, slots=True)
class Emit:
    """A step joins the answer. `verdicts` decided it, in the order of the siblings: the last one
    is the step's own if it is an accepted draft step; for a correction all are unaligned.

    An accepted draft step leads to `node`; the target's step was written after `node`. `root` is
    the new root (None: the answer is complete) and takes over the branches of `node`. After a draft
    step it is `node` itself. After a target step it is a new name: the target's branch ends in that
    step already, the draft's gets it as uncomputed tokens. `Release` of the old root follows.
    """

    emitted: EmittedStep
    verdicts: tuple[Verdict, ...]
    node: NodeId
    root: NodeId | None


@dataclass(frozen=True, slots=True)
class Release:
    """`node` has left the tree: close its branches. Its work has been cancelled before."""

    node: NodeId


Command = Draft | Target | Judge | Cancel | Emit | Release

# Events


@dataclass(frozen=True, slots=True)
class Drafted:
    """The draft step that leads to `node`; None: no draft can come, go on without it."""

    node: NodeId
    step: Step | None


@dataclass(frozen=True, slots=True)
class Targeted:
    """The target's own step after `node`."""

    node: NodeId
    step: Step


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on the draft step to `node`; None: judged alone, it needs the target's step."""

    node: NodeId
    verdict: Verdict | None


Event = Drafted | Targeted | Judged
Message = Command | Event


# Settings


@dataclass(frozen=True)
class Limits:
    """How long an answer and its steps may become, in tokens.

    `ignore_half_sentence`: the step after a cut one starts in mid-sentence and is never drafted
    (the official code's rule; its limit is 100 tokens).
    """

    max_tokens: int
    max_step_tokens: int = 100
    ignore_half_sentence: bool = True

    def __post_init__(self) -> None:
        for name in ("max_tokens", "max_step_tokens"):
            require_whole(name, getattr(self, name), 1)

    def step_limit(self, written: int) -> int:
        """The longest next step after `written` tokens; 0 when nothing more may come."""
        return max(0, min(self.max_step_tokens, self.max_tokens - written))

    def may_be_drafted(self, previous: Step | None) -> bool:
        """Whether the step after `previous` (None: the prompt) can be accepted as a draft."""
        cut = previous is not None and previous.finish is Finish.LENGTH
        return not (cut and self.ignore_half_sentence)


class Schedule(Enum):
    """When drafts and target steps may be written (a table: `docs/scheduler.md`).

    `sync` is Algorithm 1 of the paper (arXiv 2506.19830): g drafts, then g + 1 target steps, the
    last of them the bonus. `paper` is the asynchronous process of its Appendix B: k pairs of draft
    and target step in flight. `depth`, that of the official code: at most D unverified drafts.
    """

    SYNC = "sync"
    PAPER = "paper"
    DEPTH = "depth"


class Router(Protocol):
    """Decides, before anything is written, which model writes a step."""

    def who_writes(self, index: int, previous: Step | None) -> Role:
        """`Role.DRAFT`: the draft writes step `index` ahead and the verifier judges it.
        `Role.TARGET`: the target alone writes it. `previous` is the step before, accepted or still
        a draft (None: the prompt). Must be a pure function: it is called again, in any order.
        """
        ...


class Note(Protocol):
    """Tells the trace something of one's own; stepper and player show it with its fields.

    `Pair`, `Place`, `Correction` and a drafter's `Context` have one; an `Outcome` has its fields. A
    method of a router, proposer or controller, and `may_follow`, is given one if it has a
    parameter `note` (write `note=silent`).
    """

    def __call__(self, name: str, **fields: object) -> None:
        """`fields`: numbers, texts, truth values, None, lists of them. Where no trace is asked for
        it does nothing; it must not be called after the method in which it was given returns.
        """
        ...


def silent(name: str, **fields: object) -> None:
    """The `Note` where nothing is recorded: scripts and simulations."""


class Wait(Enum):
    """What a chooser answers that cannot decide yet."""

    WAIT = "wait"


WAIT = Wait.WAIT


@dataclass(frozen=True)
class Place:
    """The alternatives of one step, in the order of the siblings, up to the first one on which
    there is no verdict yet; `more` of them follow. What arrived out of order is not shown, so a
    choice cannot depend on the order of arrival.

    `pairs`: what the verifier saw of each, as its `requires` says; None where the form of the steps
    decided, or where no models run (scripts, simulations). `note` tells the trace something.
    """

    node: NodeId
    children: tuple[NodeId, ...]
    drafts: tuple[Step, ...]
    verdicts: tuple[Verdict, ...]
    more: int = 0
    pairs: tuple[Pair | None, ...] = ()
    note: Note = field(default=silent, compare=False, repr=False)


class Chooser(Protocol):
    """Chooses among the alternatives of a step (`lr/variants/choosers.py` has two more)."""

    def choose(self, place: Place) -> int | Literal[Wait.WAIT] | None:
        """The number in `place.drafts` of the one that is accepted; None: the target's step is
        emitted; `WAIT`: more must be known first, which is no answer where `place.more` is 0.

        Must be a pure function. It is called with one alternative, with two, and so on, until it
        does not wait. Verdicts are final: only an aligned alternative can be chosen.
        """
        ...


@dataclass(frozen=True)
class FirstAligned:
    """The first alternative that is aligned: the rule of the paper (section 3.1)."""

    def choose(self, place: Place) -> int | Literal[Wait.WAIT] | None:
        if place.verdicts and place.verdicts[-1].aligned:
            return len(place.verdicts) - 1
        return WAIT if place.more else None


@dataclass(frozen=True)
class SchedulerConfig:
    """The settings of a `LookaheadScheduler`, of which `GenerateOptions` explains most.

    `depth`: g, k or D of `Schedule`; 0 (not with `paper`) is plain decoding. `max_target_rows`
    counts lone judgements too; nodes near the root go first. `needs_target_step`: False if the
    verifier judges a draft step by itself; the target then writes only where none is accepted or
    the verifier is unsure. `router`: None lets the draft always go first. `may_follow`: whether
    drafts may follow the draft step that leads to a node before it is accepted (before the cycle is
    over, where there is a barrier).
    """

    limits: Limits
    schedule: Schedule = Schedule.DEPTH
    depth: int = 4
    width: int = 1
    max_target_rows: int | None = None
    reject_late: bool = False
    needs_target_step: bool = True
    router: Router | None = None
    chooser: Chooser = FirstAligned()
    may_follow: Callable[[NodeId], bool] | None = None

    def __post_init__(self) -> None:
        rows, paper = self.max_target_rows, self.schedule is Schedule.PAPER
        require_whole("depth", self.depth, 1 if paper else 0)
        require_whole("width", self.width, 1)
        require_whole("max_target_rows", 1 if rows is None else rows, 1)
        possible = self.schedule is Schedule.DEPTH and self.needs_target_step
        expected = 'wait: "reject" needs schedule "depth" and a verifier that sees both steps'
        require(possible or not self.reject_late, "late_drafts", "reject", expected)

    @property
    def barrier(self) -> bool:
        """Whether drafts, target steps and verdicts are stages that wait for each other."""
        return self.schedule is Schedule.SYNC

    def drafts_at(self, level: int) -> bool:
        """Whether drafts may follow a node of this level, counted from the root (the window slides)
        or, with a barrier, from the node where the cycle began.
        """
        return level < self.depth

    def targets_at(self, level: int) -> bool:
        """Whether the target may write at a node of this level."""
        return level < self.depth or self.schedule is not Schedule.PAPER

    def width_at(self, level: int) -> int:
        """How many alternatives follow a node, 1 to `width`. Here levels count from the node where
        the tree began: a window's root moves with time, and a tree must not depend on that.
        """
        return self.width
