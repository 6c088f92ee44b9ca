"""The schema of a trace file, version 1: which kinds of event there are, their fields, what each
means. One table.

Files are written, read and validated by this table, and the tables of `docs/trace.md` are made from
it (a test compares them). A field is an attribute of the event's class, by the same name unless
`source` says otherwise ("emitted.index").

*Versions.* A change that old readers can live with (a new kind of event, a new field) leaves the
version as it is: readers skip the kinds and fields that they do not know. Anything else raises
`VERSION`, and files of another version are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lr.lab.trace.fields import (
    BLOCKS,
    BOOL,
    KEY_TEXT,
    NODE_NAME,
    NODES,
    NUMBER,
    ORIGIN,
    PAIRS,
    ROLE,
    ROUND,
    STEP,
    TEXT,
    TOKEN,
    TRIPLES,
    VERDICT,
    WHOLE,
    WORK,
    FieldType,
    nullable,
)
from lr.tracing import details, events

VERSION = 1


@dataclass(frozen=True)
class Field:
    """A field of an event. `source`: the attribute it comes from, where that has another name."""

    kind: FieldType
    means: str
    source: str = ""


@dataclass(frozen=True)
class EventKind:
    """A kind of event: its class, what it says, its fields in order. `pieces`: fields with one
    token id, whose text stands beside it.
    """

    made: type
    says: str
    fields: Mapping[str, Field]
    piece: str | None = None


_CHILD = Field(NODE_NAME, "the node that the draft step leads to")
_PLACE = Field(NODE_NAME, "the node behind which the target's step stands")
_LIMIT = Field(WHOLE, "the longest step allowed, in tokens")
_INDEX = Field(WHOLE, "number of the step in the chain, from 0")
_CACHE = Field(
    TEXT, "whose cache: target, draft, or guesser (the draft model guessing tokens for the target)"
)
_BRANCH = Field(WHOLE, "the branch, by a number used once per cache")
_DROPPED = Field(BLOCKS, "blocks the branch gives up")
_FREED = Field(BLOCKS, "those of them that are free now: nobody else held them")
_WORK = Field(WORK, "which kind of work")
_OWNER = Field(
    nullable(NODE_NAME),
    "the node it is written for (a draft step leads there); null in plain decoding",
)
_ROLE = Field(ROLE, "which model")

KINDS: dict[str, EventKind] = {
    # the scheduler's commands
    "draft": EventKind(
        events.DraftBegan,
        "the draft is to write alternatives behind a node",
        {
            "node": Field(NODE_NAME, "the node behind which they stand"),
            "children": Field(NODES, "the node that each alternative leads to, in order"),
            "limit": _LIMIT,
        },
    ),
    "target": EventKind(
        events.TargetBegan, "the target is to write its own step", {"node": _PLACE, "limit": _LIMIT}
    ),
    "judge": EventKind(
        events.JudgeBegan,
        "the verifier is to compare a draft step with the target's",
        {"node": _CHILD, "parent": Field(NODE_NAME, "the node behind which both stand")},
    ),
    "score": EventKind(
        events.ScoreBegan,
        "the verifier is to judge a draft step without the target's",
        {"node": _CHILD, "parent": Field(NODE_NAME, "the node behind which it stands")},
    ),
    "cancel": EventKind(
        events.Cancelled,
        "a piece of work is stopped; what still arrives of it is ignored",
        {"work": _WORK, "node": Field(NODE_NAME, "the node of the work")},
    ),
    "emit": EventKind(
        events.StepEmitted,
        "a step joins the output",
        {
            "index": Field(WHOLE, _INDEX.means, "emitted.index"),
            "step": Field(STEP, "the step", "emitted.step"),
            "origin": Field(ORIGIN, "how it came into the output", "emitted.origin"),
            "verdict": Field(nullable(VERDICT), "the verdict that decided it", "emitted.verdict"),
            "rejected": Field(
                nullable(STEP), "the draft step that a correction replaces", "emitted.rejected"
            ),
            "node": Field(
                nullable(NODE_NAME), "where an accepted draft step leads; where the target's stands"
            ),
        },
    ),
    "survive": EventKind(
        events.Survived,
        "the root moves on, with the branches of a node; nothing is computed or copied",
        {
            "node": Field(NODE_NAME, "whose branches"),
            "root": Field(NODE_NAME, "the new root (the same, or a new name)"),
        },
    ),
    "release": EventKind(
        events.Released,
        "a node leaves the tree and its branches are closed",
        {"node": Field(NODE_NAME, "the node")},
    ),
    # what the scheduler is told
    "drafted": EventKind(
        events.DraftArrived,
        "a draft step is there",
        {"node": _CHILD, "step": Field(STEP, "the step")},
    ),
    "undrafted": EventKind(
        events.DraftMissing,
        "a draft step will never come",
        {"node": _CHILD, "why": Field(TEXT, "the reason")},
    ),
    "targeted": EventKind(
        events.TargetArrived,
        "a target step is there",
        {"node": _PLACE, "step": Field(STEP, "the step")},
    ),
    "judged": EventKind(
        events.VerdictArrived,
        "a verdict is there",
        {
            "node": _CHILD,
            "verdict": Field(VERDICT, "the verdict"),
            "alone": Field(BOOL, "whether the target's step was not looked at"),
        },
    ),
    "unsure": EventKind(
        events.VerdictMissing, "judged alone, a draft step got no verdict", {"node": _CHILD}
    ),
    "decided": EventKind(
        events.StepJudged,
        "a verdict took part in a decision (those behind the first rejection do not)",
        {"index": _INDEX, "verdict": Field(VERDICT, "the verdict")},
    ),
    # the models
    "forward": EventKind(
        events.ForwardPass,
        "one ragged forward is over",
        {
            "role": _ROLE,
            "branches": Field(WHOLE, "rows"),
            "tokens": Field(WHOLE, "positions over all rows"),
            "seconds": Field(NUMBER, "how long it took"),
        },
    ),
    "token": EventKind(
        details.TokenWritten,
        "a model wrote a token that nobody had guessed",
        {
            "role": _ROLE,
            "node": _OWNER,
            "index": _INDEX,
            "offset": Field(WHOLE, "tokens of the step before it"),
            "token": Field(TOKEN, "the token"),
            "p": Field(NUMBER, "its probability after temperature and filters"),
            "key": Field(KEY_TEXT, "the key of the draw"),
        },
        piece="token",
    ),
    "round": EventKind(
        events.TokenRound,
        "one round of token-level speculation on one branch",
        {
            "role": _ROLE,
            "index": _INDEX,
            "proposed": Field(WHOLE, "tokens guessed"),
            "depth": Field(WHOLE, "depth of the guess (its length, for a chain)"),
            "accepted": Field(WHOLE, "guesses that stay"),
            "emitted": Field(
                WHOLE,
                "tokens that join the step: the accepted and the one behind, up to the step's end",
            ),
            "node": _OWNER,
            "detail": Field(nullable(ROUND), "every guess with its probabilities, see below"),
        },
    ),
    "written": EventKind(
        events.StepWritten,
        "a model finished a step",
        {"role": _ROLE, "index": _INDEX, "step": Field(STEP, "the step"), "node": _OWNER},
    ),
    "verifier": EventKind(
        events.VerifierCall,
        "the verifier has answered",
        {
            "pairs": Field(WHOLE, "pairs it was asked about"),
            "seconds": Field(NUMBER, "how long it took"),
        },
    ),
    "span": EventKind(
        events.WorkSpan,
        "simulated workers: a piece of work is over",
        {
            "work": _WORK,
            "node": Field(NODE_NAME, "the node of the work"),
            "start": Field(NUMBER, "when a worker began on it"),
            "completed": Field(BOOL, "false: it was cancelled"),
        },
    ),
    "draw": EventKind(
        details.Draw,
        "a number was drawn",
        {
            "purpose": Field(TEXT, "what for"),
            "node": Field(nullable(NODE_NAME), "for which node"),
            "key": Field(KEY_TEXT, "the key"),
            "value": Field(NUMBER, "what came of it"),
        },
    ),
    # the cache
    "open": EventKind(
        details.BranchOpened, "an empty branch", {"cache": _CACHE, "branch": _BRANCH}
    ),
    "fork": EventKind(
        details.BranchForked,
        "a branch that shares all blocks of another; nothing is copied",
        {
            "cache": _CACHE,
            "branch": _BRANCH,
            "source": Field(WHOLE, "the branch it is forked from"),
        },
    ),
    "grow": EventKind(
        details.BranchesGrew,
        "one forward appends to branches",
        {
            "cache": _CACHE,
            "rows": Field(PAIRS, "[branch, its new length in tokens]"),
            "copies": Field(TRIPLES, "[branch, shared block, its copy]: copy on write"),
            "fresh": Field(PAIRS, "[branch, new block], in order"),
        },
    ),
    "cut": EventKind(
        details.BranchCut,
        "a branch is cut back",
        {
            "cache": _CACHE,
            "branch": _BRANCH,
            "length": Field(WHOLE, "tokens it keeps"),
            "dropped": _DROPPED,
            "freed": _FREED,
        },
    ),
    "close": EventKind(
        details.BranchClosed,
        "a branch is gone",
        {"cache": _CACHE, "branch": _BRANCH, "dropped": _DROPPED, "freed": _FREED},
    ),
    "restore": EventKind(
        details.BranchRestored,
        "a forward failed; a branch is as it was before it",
        {
            "cache": _CACHE,
            "branch": _BRANCH,
            "length": Field(WHOLE, "its tokens"),
            "blocks": Field(BLOCKS, "all its blocks"),
        },
    ),
    "hold": EventKind(
        details.BranchHolds,
        "a branch belongs to a node",
        {
            "cache": _CACHE,
            "branch": _BRANCH,
            "node": Field(NODE_NAME, "the node whose prefix it holds"),
        },
    ),
    "replace": EventKind(
        details.BranchReplaced,
        "one branch takes the place of another, which is about to be closed",
        {
            "cache": _CACHE,
            "branch": _BRANCH,
            "heir": Field(WHOLE, "the branch that goes on in its place"),
        },
    ),
    "end": EventKind(
        details.Ended,
        "the last event; a file without it was cut short",
        {
            "done": Field(BOOL, "whether the chain came to its end"),
            "why": Field(TEXT, "else, what ended it"),
        },
    ),
}
KIND_OF = {kind.made: name for name, kind in KINDS.items()}
