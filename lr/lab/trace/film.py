"""From events to states: what each kind of event does to the tree, the output and the caches; and
going back and forth in a trace.

    film = Film(read_trace("trace.jsonl"))
    state = film.at(120)                      # after the first 120 events
    state.root, state.nodes["0:1"].draft.text, state.work, state.caches["target"].holders(3)

Read first: `state.py`.
"""

from __future__ import annotations

import copy
from typing import Any

from lr.lab.trace.caches import CACHE_EVENTS, CacheState
from lr.lab.trace.file import Record, TraceError, TraceFile
from lr.lab.trace.state import EmittedState, State, StepState, TokenState


def fold(state: State, record: Record) -> None:
    """Let `state` take in the next event. Kinds that change nothing that is shown, or that are not
    known, only move the time.

    Raises `TraceError` where an event is about a branch or block that is not there: lines are
    missing before it.
    """
    data = record.data
    state.number, state.time = record.number + 1, record.time
    if record.kind in CACHE_EVENTS:
        name = data["cache"]
        try:
            state.caches.setdefault(name, CacheState(name)).take(data)
        except (KeyError, ValueError) as error:
            raise TraceError(
                f"line {record.number + 2} (event {record.number}, {record.kind}) is about a branch or block of the {name} cache that "
                f"is not there then: {error}. Lines before it are missing; make the trace anew."
            ) from error
    elif (change := _CHANGES.get(record.kind)) is not None:
        change(state, data)


def state_at(trace: TraceFile, number: int) -> State:
    """The state after the first `number` events."""
    state = State.begin(trace.header)
    for record in trace.records[:number]:
        fold(state, record)
    return state


class Film:
    """A trace to go back and forth in: `at(n)` folds on from the nearest state kept. A state handed
    out must not be changed.
    """

    def __init__(self, trace: TraceFile, every: int = 200) -> None:
        self.trace, self.every = trace, every
        self._kept = {0: State.begin(trace.header)}

    def __len__(self) -> int:
        return len(self.trace.records)

    def at(self, number: int) -> State:
        """The state after the first `number` events (0: none)."""
        number = max(0, min(number, len(self)))
        start = max(kept for kept in self._kept if kept <= number)
        state = copy.deepcopy(self._kept[start])
        for record in self.trace.records[start:number]:
            fold(state, record)
            if state.number % self.every == 0 and state.number not in self._kept:
                self._kept[state.number] = copy.deepcopy(state)
        return state


# What each kind of event does to the state


def _draft(state: State, data: dict[str, Any]) -> None:
    parent = state.node(data["node"])
    for sibling, name in enumerate(data["children"]):
        child = state.node(name)
        child.parent, child.sibling = parent.name, sibling
        if name not in parent.children:
            parent.children.append(name)
        state.work[("draft", name)] = state.time


def _target(state: State, data: dict[str, Any]) -> None:
    state.node(data["node"])
    state.work[("target", data["node"])] = state.time


def _judge(state: State, data: dict[str, Any]) -> None:
    state.work[("judge", data["node"])] = state.time


def _score(state: State, data: dict[str, Any]) -> None:
    state.work[("judge", data["node"])] = state.time


def _drafted(state: State, data: dict[str, Any]) -> None:
    if (
        state.work.pop(("draft", data["node"]), None) is not None
    ):  # else it comes too late and is ignored
        node = state.node(data["node"])
        node.draft = node.draft or StepState()
        node.draft.complete(data["step"])


def _undrafted(state: State, data: dict[str, Any]) -> None:
    if state.work.pop(("draft", data["node"]), None) is not None:
        state.node(data["node"]).failed = data["why"]


def _targeted(state: State, data: dict[str, Any]) -> None:
    if state.work.pop(("target", data["node"]), None) is not None:
        node = state.node(data["node"])
        node.target = node.target or StepState()
        node.target.complete(data["step"])


def _judged(state: State, data: dict[str, Any]) -> None:
    if state.work.pop(("judge", data["node"]), None) is not None:
        state.node(data["node"]).verdict = data["verdict"]


def _unsure(state: State, data: dict[str, Any]) -> None:
    if state.work.pop(("judge", data["node"]), None) is not None:
        state.node(data["node"]).unsure = True


def _cancel(state: State, data: dict[str, Any]) -> None:
    state.work.pop((data["work"], data["node"]), None)


def _token(state: State, data: dict[str, Any]) -> None:
    tokens = state.writing(data).tokens
    if len(tokens) == data["offset"]:
        tokens.append(TokenState(data["token"], data["piece"], "drawn", data["p"]))


def _round(state: State, data: dict[str, Any]) -> None:
    detail = data["detail"]
    if detail is None:
        return
    tokens = state.writing(data).tokens
    if len(tokens) != detail["offset"]:
        return
    new = [
        TokenState(one["token"], one["piece"], "guessed", one["p"])
        for one in detail["guesses"]
        if one["kept"]
    ]
    source = "residual" if detail["residual"] or _refused(detail["guesses"]) else "after"
    new.append(TokenState(detail["token"], detail["piece"], source, detail["p"]))
    tokens += new[: data["emitted"]]


def _refused(guesses: list[dict[str, Any]]) -> bool:
    """Whether a guess was tried in the last token's place."""
    return any(one["kept"] is False for one in guesses)


def _written(state: State, data: dict[str, Any]) -> None:
    state.writing(data).complete(data["step"])


def _emit(state: State, data: dict[str, Any]) -> None:
    index, accepted = data["index"], data["origin"] == "accepted"
    name = data["node"] or f"{index}:{index}"
    node = state.node(name)
    known = node.draft if accepted else node.target
    step = copy.deepcopy(known) if known is not None else StepState()
    step.complete(data["step"])
    rejected = None
    if data["rejected"] is not None:
        rejected = StepState()
        rejected.complete(data["rejected"])
    node.accepted = node.accepted or accepted
    emitted = EmittedState(index, data["origin"], step, name, state.time, data["verdict"], rejected)
    state.emitted.append(emitted)
    if data["node"] is None:
        state.root = f"{index + 1}:{index + 1}"
        node.gone = state.time


def _survive(state: State, data: dict[str, Any]) -> None:
    state.root = state.node(data["root"]).name
    if data["node"] != data["root"]:
        state.node(data["node"]).gone = state.time


def _release(state: State, data: dict[str, Any]) -> None:
    node = state.node(data["node"])
    node.gone = state.time


def _forward(state: State, data: dict[str, Any]) -> None:
    state.forwards[data["role"]] = state.forwards.get(data["role"], 0) + 1


def _end(state: State, data: dict[str, Any]) -> None:
    state.done = data["done"]


_CHANGES = {
    "draft": _draft,
    "target": _target,
    "judge": _judge,
    "score": _score,
    "drafted": _drafted,
    "undrafted": _undrafted,
    "targeted": _targeted,
    "judged": _judged,
    "unsure": _unsure,
    "cancel": _cancel,
    "token": _token,
    "round": _round,
    "written": _written,
    "emit": _emit,
    "survive": _survive,
    "release": _release,
    "forward": _forward,
    "end": _end,
}
