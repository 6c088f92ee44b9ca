"""The words between the scheduler and whoever runs it: events go in, commands come out. Plain
frozen data.

    in    Drafted  DraftFailed  Targeted  Judged  Scored  Unsure     something that was commanded is there
    out   Draft  Target  Judge  Score                                begin this work
          Cancel                                                     stop that work; what still arrives of it is ignored
          Emit                                                       this step joins the output
          Survive  Release                                           what becomes of the branches

A **node** is a prefix: the steps emitted so far plus a path of draft steps. Its name is a `NodeId`.
A draft step is named by the node it leads to, so one name is enough for everything: `Drafted(node)`
is the step that leads to `node`, `Judge(node)` asks about that step, `Targeted(node)` is the step
that the target wrote behind `node`. All of them carry on the chain's step number `node.index`,
except that the draft step that *leads to* a node is one place before it: its number is that of its
parent.

Every node is announced once (`LookaheadScheduler.start` tells the first root, `Draft.children` the
alternatives, `Survive.root` a root after a step of the target) and leaves once: by `Release`, or by
`Survive` under a new name. So a driver that keeps one branch per node and model needs no
bookkeeping of its own: it opens a branch where a node is announced and closes it at `Release`.

*Keys of randomness.* Alternative j of `Draft(node)` may draw with the key (node.index, j),
`Target(node)` with (node.index): no path is needed, because at each place of the chain at most one
node's step is ever emitted; nodes that share noise never meet in the output.

This module does not know when anything is commanded: that is `scheduler.py`, by the rules in
`schedule.py`. A worked transcript is in `docs/scheduler.md`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from lr.types import EmittedStep, Step, Verdict


class NodeId(NamedTuple):
    """The name of a node. It does not depend on the order in which things happen, and is never used
    twice in a chain.

    `index`: number of the step that follows the node, counted from 0 over the whole chain. `stem`:
    number of the step at which its tree began, after the prompt or after a step of the target.
    `number`: its place among the width ** (index - stem) nodes of its level, counted from the left;
    child j of node n has the number n * width + j.

    Example, width 2: the prompt is `0:0`; its alternatives lead to `0:1` and `0:1.1`, those of the
    second of them to `0:2.2` and `0:2.3`. If step 0 is corrected by the target, the tree goes on at
    `1:1`; had `0:1.1` been accepted, `0:1.1` were the new root.
    """

    stem: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which a name has no use for
    number: int = 0

    def child(self, sibling: int, width: int) -> NodeId:
        """The node behind alternative `sibling` (0 to width - 1) of the step that follows this
        node.
        """
        return NodeId(self.stem, self.index + 1, self.number * width + sibling)

    def parent(self, width: int) -> NodeId:
        """The node whose alternative leads here. The first node of a tree (index = stem) has
        none.
        """
        return NodeId(self.stem, self.index - 1, self.number // width)

    def __str__(self) -> str:
        return f"{self.stem}:{self.index}" + (f".{self.number}" if self.number else "")


class Kind(str, Enum):
    """The four kinds of work. They are strings, too, because those are hashed fastest: every event
    looks up its work.
    """

    DRAFT = "draft"
    TARGET = "target"
    JUDGE = "judge"
    SCORE = "score"


class Work(NamedTuple):
    """One piece of work that can be completed or cancelled on its own. A `Draft` with W children is
    W pieces, named by the children.
    """

    kind: Kind
    node: NodeId


# Commands


@dataclass(frozen=True, slots=True)
class Draft:
    """Write one alternative for each of `children`, each at most `limit` tokens long, all from the
    prefix of `node`.

    Each is answered on its own, in any order, by `Drafted` or `DraftFailed` under the child's name.
    """

    node: NodeId
    children: tuple[NodeId, ...]
    limit: int


@dataclass(frozen=True, slots=True)
class Target:
    """The target writes its own step behind `node`, at most `limit` tokens long. Answered by
    `Targeted`.
    """

    node: NodeId
    limit: int


@dataclass(frozen=True, slots=True)
class Judge:
    """Compare the draft step that leads from `parent` to `node` with the target's step behind
    `parent`. Answered by `Judged`.
    """

    node: NodeId
    parent: NodeId
    draft: Step
    target: Step


@dataclass(frozen=True, slots=True)
class Score:
    """Judge the draft step that leads from `parent` to `node` by itself, from a prefill of the
    parent's row.

    Comes instead of `Judge` for verifiers that need no target step. Answered by `Scored`, or by
    `Unsure`: then the target writes its step after all, and a `Judge` follows.
    """

    node: NodeId
    parent: NodeId
    draft: Step


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop a piece of work that was commanded and is not completed."""

    work: Work


@dataclass(frozen=True, slots=True)
class Emit:
    """A step joins the output. `verdicts` are those that decided it, in the order of the siblings.

    For an accepted draft step the last one is its own; for a correction all are unaligned. Verdicts
    on pairs behind a rejection, and on siblings behind an accepted one, were not decided on and
    appear nowhere. `node`, for those who look on: an accepted draft step leads there, the target's
    own step was written behind it.
    """

    emitted: EmittedStep
    verdicts: tuple[Verdict, ...] = ()
    node: NodeId | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Survive:
    """`root` is the new root, and the branches of `node` are its branches: no forward, no copy.

    After an accepted draft step both are the node that it leads to. After a step of the target,
    `node` is the old root, whose target branch ends in that step already and on whose draft branch
    it becomes pending. Comes right behind the `Emit`, before what else follows from it is released:
    the old root's branches are still open.
    """

    node: NodeId
    root: NodeId


@dataclass(frozen=True, slots=True)
class Release:
    """`node` has left the tree; its branches can be closed. Whatever was in work for it has been
    cancelled before.
    """

    node: NodeId


Command = Draft | Target | Judge | Score | Cancel | Emit | Survive | Release

# Events


@dataclass(frozen=True, slots=True)
class Drafted:
    """The draft step that leads to `node` is written."""

    node: NodeId
    step: Step


@dataclass(frozen=True, slots=True)
class DraftFailed:
    """There will be no draft step that leads to `node`. Counts as an alternative that was not
    there; if all fail, the target's step is taken as it is."""

    node: NodeId
    why: str


@dataclass(frozen=True, slots=True)
class Targeted:
    """The target's own step behind `node` is written."""

    node: NodeId
    step: Step


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on the draft step that leads to `node`, after `Judge`.

    A verifier that raises or runs out of time is reported as `Verdict(aligned=False, why=...)`.
    """

    node: NodeId
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Scored:
    """The verdict on the draft step that leads to `node`, after `Score`. Failures as with
    `Judged`.
    """

    node: NodeId
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Unsure:
    """`Score` gave no verdict on the draft step that leads to `node`: it has to be compared with
    the target's step.
    """

    node: NodeId


Event = Drafted | DraftFailed | Targeted | Judged | Scored | Unsure
