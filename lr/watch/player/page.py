"""The player's page: template, style, program and trace in one file that needs no
network.

    write_text("page.html", player_page(read_trace("trace.jsonl")))

Everything is computed here, and the page only shows it: the states of the trace
(`states_of`) as histories of what changed at which event, a sentence for every event,
the clock, the statistics. The program looks states up and never computes one, so
seeking is fast in a long trace. Texts of a trace reach the page as JSON and are shown
as text, never as markup. Read next: `states.js`, which looks states up; `figures/tree.py`,
which decides what a box says."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from importlib.resources import files
from typing import Any

from lr.kvcache.branch import common_length
from lr.watch.figures.clock import LANE_OF, timeline_of
from lr.watch.figures.style import ORIGINS
from lr.watch.figures.tree import Standing, cards_of
from lr.watch.player.story import race_of, tour_of
from lr.watch.stepper.words import quoted, say, says_aligned
from lr.watch.trace.file import Header, Record, TraceFile
from lr.watch.trace.state import (
    CACHE_EVENTS,
    EmittedState,
    State,
    StepState,
    apply_event,
)

SCRIPTS = "states page tree answer clock cache story player controls".split()
MODES = {
    "ar": "Plain decoding",
    "sd": "Token-level speculation",
    "lr": "Lookahead Reasoning",
    "lr+sd": "Lookahead Reasoning with token-level speculation",
}
EVERY, TOKENS, STEPS = range(3)
"""The coarsest setting of "stops" that still stops at an event."""
KINDS = {
    "draft": ("draft", "►", STEPS, "The draft writes from the same prefix as the target."),
    "target": ("target", "►", STEPS, "One more row in the target's batch, from the same prefix."),
    "judge": ("verifier", "►", STEPS, "Does the draft's step mean the same as the target's?"),
    "drafted": ("draft", "■", STEPS, "The draft goes on from it without waiting for a verdict."),
    "targeted": ("target", "■", STEPS, "It is compared with every draft step from this prefix."),
    "judged": ("verifier", "?", STEPS, "It counts once everything before it is decided."),
    "emit": ("accepted", "→", STEPS, "The root moves on; nothing is computed or copied for it."),
    "cancel": ("rejected", "×", STEPS, "After a rejected step, or beside an accepted one."),
    "release": ("rejected", "○", TOKENS, "Blocks that no other branch holds are free again."),
    "token": ("", "·", TOKENS, "One token from one pass."),
    "round": ("", "≡", TOKENS, "Draft tokens are checked together in one pass."),
    "written": ("", "■", TOKENS, "A step ends at a blank line, at the end, or at its limit."),
    "forward": ("", "▪", EVERY, "All rows pass through the model together."),
    "verifier": ("verifier", "▪", EVERY, "One call for all pairs that wait."),
    "note": ("verifier", "*", TOKENS, "A part of the variant reports what it saw or decided."),
    "end": ("accepted", "■", STEPS, ""),
}  # fmt: skip
"""By kind of event: whose colour ("": its role's), its sign, where the arrows stop, the
idea."""
WASTED = "It was judged aligned and is dropped all the same, because it follows a rejected step."
SHARING = (
    "Blocks are shared until a branch writes into one; then that one is copied first."
)


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
    return re.sub(r"{{(\w+)}}", lambda slot: parts[slot[1]], _part("page.html"))


def page_data(trace: TraceFile) -> dict[str, Any]:
    """Everything that the page's program reads."""
    header = trace.header
    records = trace.records
    has_drafts = any(record.kind == "draft" for record in records)
    ideas = {kind: idea for kind, (_, _, _, idea) in KINDS.items()}
    ideas |= dict.fromkeys(sorted(CACHE_EVENTS), SHARING)
    return {
        "title": title_of(header),
        "setting": " · ".join([setting_of(header), *trace.notes]),
        "headline": headline_of(trace),
        "question": header.question,
        "unit": header.unit,
        "depth": header.depth,
        "plain": not has_drafts,
        "events": [_event(record) for record in records],
        "stops": {kind: grain for kind, (_, _, grain, _) in KINDS.items()},
        "ideas": ideas,
        "decisions": [r.number + 1 for r in records if r.kind == "emit"],
        "rejections": [r.number + 1 for r in _rejections(records)],
        "speculates": any(_draft_tokens(record) for record in records),
        "standings": {s.name: (s.sign, s.label, s.means) for s in Standing},
        "clock": asdict(timeline_of(trace)),
        "states": states_of(trace),
        "tour": tour_of(trace),
        "race": race_of(trace),
    }


def _draft_tokens(record: Record) -> list[dict[str, Any]]:
    """The draft tokens of a round; none for all other events."""
    detail = record.data["detail"] if record.kind == "round" else None
    return [] if detail is None else list(detail["draft_tokens"])


def _rejections(records: Sequence[Record]) -> list[Record]:
    """The events that reject a draft step; without draft steps, those that reject a
    draft token."""
    steps = [record for record in records if says_aligned(record) is False]
    tokens = [
        record
        for record in records
        if any(token["kept"] is False for token in _draft_tokens(record))
    ]
    return steps or tokens


def title_of(header: Header) -> str:
    """What was run, in words."""
    driver = ", scripted" if header.driver == "scripted" else ""
    return MODES.get(header.mode, header.mode) + driver


def setting_of(header: Header) -> str:
    """Models and settings on one line."""
    models = header.models.get
    options = header.options.get
    ahead = header.mode in ("lr", "lr+sd")
    speculates = header.mode in ("sd", "lr+sd")
    count = options("num_speculative_tokens")
    # What the variant replaced was not used: its name says what was.
    drafter = "the variant" if "drafter" in header.replaced else options("drafter")
    rule = "the variant's" if "rule" in header.replaced else options("acceptance")
    verifier = "the variant's" if "verifier" in header.replaced else header.verifier
    draft = "the variant's" if "draft" in header.replaced else models("draft")
    parts = {
        f"target {models('target')}": models("target"),
        f"draft {draft}": header.mode != "ar" and draft,
        f"{models('device')} {models('dtype') or ''}".strip(): models("device"),
        f"schedule {header.schedule} · depth {header.depth} · width {header.width}": ahead,
        f"verifier {verifier}": ahead and verifier,
        f"{count} draft tokens a round by {drafter}": speculates and count,
        f"rule {rule}": speculates and rule,
        f"driver {header.driver}": True,
        f"variant: {header.variant}": header.variant,
    }
    return " · ".join(words for words, applies in parts.items() if applies)


def headline_of(trace: TraceFile) -> list[tuple[str, str, str]]:
    """The measured statistics at the head of the page, as in reports: name, number,
    meaning."""
    stats = trace.stats
    header = trace.header
    wall = header.unit == "second"
    time = f"{stats.seconds:.2f} s" if wall else f"{stats.seconds:.4g} {header.unit}s"
    decided = f"{stats.accepted} of {stats.judged} draft steps decided on"
    rounds = f"{stats.rounds.accepted} of {stats.rounds.drafted} draft tokens"
    rows: list[tuple[str, Any, str, str]] = [
        ("steps", stats.steps, "", "steps of the answer"),
        ("tokens", stats.tokens or None, "", "tokens of the answer"),
        ("time", time, "", f"from the start to the last event, in {header.unit}s"),
        ("target passes", stats.target_passes or None, "", "passes of the target"),
        ("α₁", stats.step_acceptance, ".2f", f"step acceptance: {decided}"),
        ("α₂", stats.token_acceptance, ".2f", f"token acceptance: {rounds}"),
    ]
    if wall:
        per_second = stats.tokens_per_second
        rows.append(("tokens/s", per_second, ".1f", "tokens of the answer per second"))
    return [
        (name, format(number, form), meaning)
        for name, number, form, meaning in rows
        if number is not None
    ]


def states_of(trace: TraceFile) -> dict[str, Any]:
    """The states of a trace (`trace/state.py`) as histories. The history of a value is
    [[n, value], ...]: the value from the n-th event on. The history of a list is [[n,
    place, items], ...]: from the n-th event on, `items` replaces everything from `place`
    on.

    Example: a list that is ["a"] after event 3 and ["a", "b"] after event 5: [[3, 0,
    ["a"]], [5, 1, ["b"]]]."""
    histories = Histories(State.begin(trace.header))
    for record in trace.records:
        histories.add(record)
    return {
        "roots": histories.roots,
        "nodes": histories.nodes,
        "emitted": histories.emitted,
        "caches": histories.caches,
        "notes": histories.notes,
    }


class Histories:
    """What changed at which event, in the form that states.js reads."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.roots: list[Any] = []
        self.nodes: dict[str, dict[str, Any]] = {}
        self.emitted: list[dict[str, Any]] = []
        self.caches: dict[str, dict[str, Any]] = {}
        for name, cache in state.caches.items():
            size = {"total": cache.total, "size": cache.block_size}
            self.caches[name] = size | {"branches": {}, "copies": []}
        self.notes: dict[int, str] = {}
        self._latest: dict[int, list[Any]] = {}  # by the id of a list's history
        self._look_at_node(state.root)
        self._note(self.roots, state.root)

    def add(self, record: Record) -> None:
        state = self.state
        apply_event(state, record)
        data = record.data
        if record.kind in CACHE_EVENTS:
            self._look_at_cache(data["cache"], data)
            return
        if record.kind == "release":
            node = state.nodes[data["node"]]
            if node.verdict and node.verdict.aligned and not node.accepted:
                self.notes[state.number] = WASTED
        names = {
            name for name in (*state.touched, data.get("node")) if name in state.nodes
        }
        parents = {state.nodes[name].parent or name for name in names}
        for name in sorted(names | parents):
            self._look_at_node(name)
        root = state.nodes.get(state.root)
        is_over = state.done or root is None or root.gone is not None
        self._note(self.roots, None if is_over else state.root)
        for step in state.emitted[len(self.emitted) :]:
            self.emitted.append(self._emitted(step))

    def _note(self, history: list[Any], value: Any) -> None:
        if not history or history[-1][1] != value:
            history.append([self.state.number, value])

    def _note_list(self, history: list[Any], items: list[Any]) -> None:
        before = self._latest.get(id(history), [])
        if before != items:
            same = common_length(before, items)
            history.append([self.state.number, same, items[same:]])
            self._latest[id(history)] = items

    def _look_at_node(self, name: str) -> None:
        state = self.state
        node = state.nodes[name]
        new = {"index": node.index, "born": [state.number, state.time], "cards": []}
        life: dict[str, Any] = self.nodes.setdefault(name, new)
        life["parent"] = node.parent
        life["kept"] = node.accepted
        cards = [
            [card.by, (card.child or node).name, card.standing.name]
            for card in cards_of(state, node)
        ]
        self._note(life["cards"], cards)
        for by, step in (("draft", node.draft), ("target", node.target)):
            if step is not None:
                written = life.setdefault(by, {"tokens": [], "done": []})
                self._note_list(written["tokens"], _tokens(step))
                self._note(written["done"], step.finish != "")
        if node.verdict is not None:
            life["why"] = node.verdict.why
        if node.gone is not None:
            life.setdefault("gone", [state.number, node.gone])

    def _look_at_cache(self, name: str, data: dict[str, Any]) -> None:
        cache = self.state.caches[name]
        number = self.state.number
        life: dict[str, Any] = self.caches[name]
        rows: dict[int, dict[str, Any]] = life["branches"]
        for branch in cache.branches.values():
            born = {"born": number, "source": data.get("source")}
            row = rows.setdefault(branch.number, born | {"facts": [], "blocks": []})
            self._note(row["facts"], [branch.length, branch.node])
            self._note_list(row["blocks"], list(branch.blocks))
        for branch_number, row in rows.items():
            if branch_number not in cache.branches:
                row.setdefault("gone", number)
        if data.get("copies"):
            life["copies"].append([number, data["copies"]])

    def _emitted(self, step: EmittedState) -> dict[str, Any]:
        origin = ORIGINS[step.origin]
        return {
            "at": self.state.number,
            "index": step.index,
            "origin": step.origin,
            "why": step.verdict.why if step.verdict else None,
            "colour": origin.role,
            "mark": origin.mark,
            "by": "draft" if step.origin == "accepted" else "target",
            "tokens": _tokens(step.step),
            "rejected": step.rejected and step.rejected.text.strip(),
        }


def _tokens(step: StepState) -> list[Any]:
    """Every token as in the trace, with the draft tokens that were rejected before
    it."""
    tokens = []
    for token in step.tokens:
        refused = [
            [quoted(draft.piece), draft.p, draft.q, draft.accept]
            for draft in token.refused
        ]
        tokens.append([token.token, token.piece, token.source, token.p, refused])
    return tokens


def _event(record: Record) -> list[Any]:
    """The time, kind, role (for the colour), sign and sentence of an event."""
    kind = record.kind
    data = record.data
    role, mark, *_ = KINDS.get(kind, ("cache", "▫"))
    aligned = says_aligned(record)
    if aligned is not None:
        mark = "✓" if aligned else "✗"
    if kind == "emit":
        mark, role, *_ = ORIGINS[data["origin"]]
    who = role or data.get("role") or LANE_OF.get(data.get("work", ""))
    sentence = say(record)
    return [record.time, kind, who, mark, sentence[0].upper() + sentence[1:]]


def as_script_data(data: Any) -> str:
    """JSON that is safe inside a <script> element: it contains no "<", so no text can
    end or begin an element. Example: {"a": "</script>"} becomes
    {"a":"\\u003c/script>"}."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace(
        "<", "\\u003c"
    )


def _part(name: str) -> str:
    return (files("lr.watch.player") / name).read_text(encoding="utf-8")
