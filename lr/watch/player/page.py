"""The player's page: template, style, program and trace in one file that needs no
network.

    write_text("page.html", player_page(read_trace("trace.jsonl")))

The states of the trace (`states_of`) are computed here, as histories of what changed at
which event, and a sentence for every event, the clock, the statistics. The program looks
states up and never computes one, so seeking is fast in a long trace. Texts of a trace
reach the page as JSON and are shown as text, never as markup. Read next: `states.js`,
which looks states up; `figures/tree.py`, which decides what a box says."""

import json
import re
from dataclasses import asdict
from html import escape
from importlib.resources import files
from typing import Any

from lr.engine.recorder import BranchesGrew, BranchForked, CacheEvent
from lr.spec.protocol import Emit, Judged
from lr.trace import ForwardPass, RoundDetail, StepWritten, TokenRound, TokenWritten
from lr.types import Verdict
from lr.watch.figures.clock import timeline_of
from lr.watch.figures.tree import Standing, cards_of
from lr.watch.player.story import race_of, tour_of
from lr.watch.trace.file import Record, TraceFile
from lr.watch.trace.state import (
    EmittedState,
    State,
    StepState,
    apply_event,
)
from lr.watch.words import ORIGINS, is_rejection, say, setting_of, summary, title_of

SCRIPTS = "states page tree answer clock cache story player controls".split()


def player_page(trace: TraceFile) -> str:
    """The page as HTML."""
    subject = trace.header.question or ""
    title = title_of(trace.header) + (f": {subject}" if subject else "")
    parts = {
        "title": escape(title if len(title) <= 100 else title[:99] + "…"),
        "style": _part("style.css"),
        "data": as_script_data(page_data(trace)),
        "script": '"use strict";\n'
        + "\n".join(_part(f"{name}.js") for name in SCRIPTS),
    }
    # the slots of page.html
    return re.sub(r"{{(\w+)}}", lambda slot: parts[slot[1]], _part("page.html"))


def page_data(trace: TraceFile) -> dict[str, Any]:
    """Everything that the page's program reads."""
    header = trace.header
    records = trace.records
    # after which events a draft step is rejected, and a draft token
    steps = [record.number + 1 for record in records if is_rejection(record)]
    tokens = [record.number + 1 for record in records if False in _fates(record)]
    return {
        "title": title_of(header),
        "setting": " · ".join([setting_of(header), *trace.notes]),
        "summary": summary(trace.stats, header.unit),
        "question": header.question,
        "unit": header.unit,
        "depth": header.depth,
        # plain decoding: no tree to draw
        "plain": not any(record.kind == "draft" for record in records),
        "events": [_event(record) for record in records],
        "rejections": steps or tokens,  # where its buttons jump to
        # token-level rounds in full
        "speculates": any(_fates(record) for record in records),
        "standings": {s.name: (s.sign, s.label, s.means) for s in Standing},
        "clock": asdict(timeline_of(trace)),
        "states": states_of(trace),
        "tour": tour_of(trace),
        "race": race_of(trace),
    }


def _event(record: Record) -> list[Any]:
    """The time, the kind and the sentence of an event, and what decides its sign and
    colour besides the kind: a role, a verdict, the origin of a step."""
    detail = None
    match record.event:
        case Emit(emitted):
            detail = emitted.origin.value
        case Judged(_, Verdict(aligned)):
            detail = "aligned" if aligned else "rejected"
        case (
            ForwardPass(role)
            | TokenWritten(role)
            | TokenRound(role)
            | StepWritten(role)
        ):
            detail = role.value
    sentence = say(record)
    return [record.time, record.kind, sentence[0].upper() + sentence[1:], detail]


def _fates(record: Record) -> list[bool | None]:
    """Which draft tokens of a round were kept; none for all other events."""
    match record.event:
        case TokenRound(detail=RoundDetail(draft_tokens=tokens)):
            return [token.kept for token in tokens]
    return []


def states_of(trace: TraceFile) -> dict[str, Any]:
    """The states of a trace (`trace/state.py`) as histories: [[n, value], ...] says that
    the value holds from the n-th event on.

    Example: a step that is written by events 3 and 5, and complete with the latter, has
    the tokens of its end and the history [[3, [1, False]], [5, [2, True]]]."""
    state = State.begin(trace.header)
    roots: list[Any] = [[0, state.root]]  # from event 0 on
    nodes: dict[str, dict[str, Any]] = {}
    emitted: list[dict[str, Any]] = []
    caches: dict[str, dict[str, Any]] = {}
    for name, cache in state.caches.items():
        size = {"total": cache.total, "size": cache.block_size}
        caches[name] = size | {"branches": {}, "copies": []}
    _look_at_node(state, nodes, state.root)
    for record in trace.records:
        apply_event(state, record)
        event = record.event
        if isinstance(event, CacheEvent):
            _look_at_cache(state, caches[event.cache], event)
            continue
        # whose cards show the child
        parents = {state.nodes[name].parent or name for name in state.touched}
        for name in sorted(state.touched | parents):
            _look_at_node(state, nodes, name)
        root = state.nodes.get(state.root)
        is_over = state.done or root is None or root.gone is not None
        _note(state, roots, None if is_over else state.root)
        for step in state.emitted[len(emitted) :]:  # new ones
            emitted.append(_emitted(step, state.number))
    # What a node came to.
    for name, life in nodes.items():
        node = state.nodes[name]
        life["kept"] = node.accepted  # its draft step joined the answer
        life["why"] = node.verdict and node.verdict.why
        life["draft"]["tokens"] = _tokens(node.draft)
        life["target"]["tokens"] = _tokens(node.target)
    return {"roots": roots, "nodes": nodes, "emitted": emitted, "caches": caches}


def _note(state: State, history: list[Any], value: Any) -> None:
    """The value from this event on, if it is another one."""
    if not history or history[-1][1] != value:  # equal values are not repeated
        history.append([state.number, value])


def _look_at_node(state: State, nodes: dict[str, dict[str, Any]], name: str) -> None:
    node = state.nodes[name]
    life: dict[str, Any] = nodes.setdefault(
        name,
        {
            "index": node.index,
            "born": state.number,
            "cards": [],
            "draft": {"written": []},
            "target": {"written": []},
        },
    )
    cards = [
        [card.by, (card.child or node).name, card.standing.name]
        for card in cards_of(state, node)
    ]
    _note(state, life["cards"], cards)
    for by, step in (("draft", node.draft), ("target", node.target)):
        if step is not None:
            # so far, and whether complete
            length = [len(step.tokens), step.finish != ""]
            _note(state, life[by]["written"], length)
    if node.gone is not None:
        life.setdefault("gone", [state.number, node.gone])


def _look_at_cache(state: State, life: dict[str, Any], event: CacheEvent) -> None:
    branches = state.caches[event.cache].branches
    rows: dict[int, dict[str, Any]] = life["branches"]
    source = event.source if isinstance(event, BranchForked) else None
    for branch in branches.values():
        born = {"born": state.number, "source": source}  # used if the branch is new
        row = rows.setdefault(branch.number, born | {"facts": [], "blocks": []})
        _note(state, row["facts"], [branch.length, branch.node])
        _note(state, row["blocks"], list(branch.blocks))
    for number, row in rows.items():
        if number not in branches:
            row.setdefault("gone", state.number)  # the first event without it
    if isinstance(event, BranchesGrew) and event.copies:
        life["copies"].append([state.number, event.copies])


def _emitted(step: EmittedState, number: int) -> dict[str, Any]:
    origin = ORIGINS[step.origin]
    return {
        "at": number,
        "index": step.index,
        "origin": step.origin,
        "why": step.verdict.why if step.verdict else None,
        "colour": origin.role,
        "mark": origin.mark,
        "by": "draft" if step.origin == "accepted" else "target",
        "tokens": _tokens(step.step),
        "rejected": step.rejected and step.rejected.text.strip(),
    }


def _tokens(step: StepState | None) -> list[Any]:
    """The tokens as in the trace, a rejected draft token where it was tried."""
    return [
        [token.token, token.piece, token.source, token.p, token.q, token.accept]
        for token in (step or StepState()).tokens
    ]


def as_script_data(data: Any) -> str:
    """JSON that is safe inside a <script> element: it contains no "<", so no text can
    end or begin an element. Example: {"a": "</script>"} becomes
    {"a":"\\u003c/script>"}."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace(
        "<", "\\u003c"
    )


def _part(name: str) -> str:
    return (files("lr.watch.player") / name).read_text(encoding="utf-8")
