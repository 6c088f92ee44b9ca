"""The events of a trace: plain frozen data, each a thing that happened at one moment.

Two sorts. *Statistics* (`ForwardPass`, `StepWritten`, `TokenRound`, `VerifierCall`, `StepJudged`,
`StepEmitted`) are always recorded: every number of a report is a function of them (`stats.py`).
*Details* are recorded where the trace asks for them (`Trace.detailed`): every command and event of
the scheduler, every token with its probability and its key, every change of the cache. They are
what the player, the stepper and the figures show.

Nodes are named as in `spec/protocol.py`, by (stem, index, number); this module need not know more.
How events stand in a file is in `schema.py`; `docs/trace.md` has the table.
"""

from __future__ import annotations

from dataclasses import dataclass

from lr.types import EmittedStep, Role, Step, Verdict

Node = tuple[int, int, int]
"""(stem, index, number): a `NodeId`, written "stem:index.number", or "stem:index" for number 0."""


# Statistics


@dataclass(frozen=True)
class ForwardPass:
    """One ragged forward: `branches` rows, `tokens` positions over all rows, duration in
    seconds.
    """

    role: Role
    branches: int
    tokens: int
    seconds: float


@dataclass(frozen=True)
class StepWritten:
    """A model finished a step. `index` is its place in the chain; `node`: where it stands (the
    draft's leads there).
    """

    role: Role
    index: int
    step: Step
    node: Node | None = None


@dataclass(frozen=True)
class StepJudged:
    """A verdict was decided on (a pair behind the first rejection is not)."""

    index: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Guess:
    """A token that was guessed ahead, and what became of it.

    `p`, `q`: the target's and the draft's probability of it (1 where the draft was certain).
    `parent`: the guess before it, -1 for the end of the branch. `accept`: the probability that it
    stays once it is tried, its parent accepted and its earlier siblings not; None where that cannot
    come to pass. `uniform`: in chains decided by a coin, the coin as this guess sees it: uniform on
    [0, 1], and the guess stays if it is below `accept`; None elsewhere. `kept`: None if it was
    never tried.
    """

    token: int
    parent: int
    p: float
    q: float
    accept: float | None
    uniform: float | None
    kept: bool | None


@dataclass(frozen=True, slots=True)
class RoundDetail:
    """A round of token-level speculation in full. `offset`: tokens the step had before. `coin`:
    what decided (None: no coin), drawn with `coin_key`.

    `token` came behind the guesses that stay: drawn with `key` from the law that the rule left
    (`residual`), or, where no guess was in its place (`residual` False), from the target's own,
    with plain decoding's key. `p`: its probability under the target.
    """

    offset: int
    guesses: tuple[Guess, ...]
    coin: float | None
    coin_key: int | None
    token: int
    p: float
    residual: bool
    key: int


@dataclass(frozen=True)
class TokenRound:
    """One round of token-level speculation on one branch that had a proposal.

    `proposed` tokens (nodes of the tree), `depth` of the proposal, `accepted` of them; `emitted`
    tokens of the round, the one after the accepted ones included, that belong to the step (what
    lies behind the step's end is dropped).
    """

    role: Role
    index: int
    proposed: int
    depth: int
    accepted: int
    emitted: int
    node: Node | None = None
    detail: RoundDetail | None = None


@dataclass(frozen=True)
class VerifierCall:
    """The verifier was asked about a batch of pairs; duration in seconds."""

    pairs: int
    seconds: float


@dataclass(frozen=True)
class StepEmitted:
    """A step joined the output. `node`: the accepted draft step leads there; the target's own was
    written behind it.
    """

    emitted: EmittedStep
    node: Node | None = None


# Details: the scheduler's commands and what it is told


@dataclass(frozen=True, slots=True)
class DraftBegan:
    """The draft is to write one alternative for each of `children`, behind `node`."""

    node: Node
    children: tuple[Node, ...]
    limit: int


@dataclass(frozen=True, slots=True)
class TargetBegan:
    """The target is to write its own step behind `node`."""

    node: Node
    limit: int


@dataclass(frozen=True, slots=True)
class JudgeBegan:
    """The verifier is to compare the draft step that leads to `node` with the target's step behind
    `parent`.
    """

    node: Node
    parent: Node


@dataclass(frozen=True, slots=True)
class ScoreBegan:
    """The verifier is to judge the draft step that leads to `node` by itself."""

    node: Node
    parent: Node


@dataclass(frozen=True, slots=True)
class DraftArrived:
    """The scheduler hears of the draft step that leads to `node`."""

    node: Node
    step: Step


@dataclass(frozen=True, slots=True)
class DraftMissing:
    """There will be no draft step that leads to `node`."""

    node: Node
    why: str


@dataclass(frozen=True, slots=True)
class TargetArrived:
    """The scheduler hears of the target's step behind `node`."""

    node: Node
    step: Step


@dataclass(frozen=True, slots=True)
class VerdictArrived:
    """The scheduler hears the verdict on the draft step that leads to `node`; `alone`: without the
    target's step.
    """

    node: Node
    verdict: Verdict
    alone: bool


@dataclass(frozen=True, slots=True)
class VerdictMissing:
    """Judged alone, the draft step that leads to `node` got no verdict: the verifier wants to see
    the target's step.
    """

    node: Node


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A piece of work is stopped; `work` is "draft", "target", "judge" or "score"."""

    work: str
    node: Node


@dataclass(frozen=True, slots=True)
class Survived:
    """`root` is the new root, on the branches of `node`."""

    node: Node
    root: Node


@dataclass(frozen=True, slots=True)
class Released:
    """`node` has left the tree, and its branches are closed."""

    node: Node


@dataclass(frozen=True, slots=True)
class WorkSpan:
    """Simulated workers only: a piece of work is over that was in work from `start` to now;
    `completed` or else cancelled.
    """

    work: str
    node: Node
    start: float
    completed: bool
