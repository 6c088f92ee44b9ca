"""The player's page: template, style, program and trace in one file that needs no
network.

    write_lines("page.html", [player_page(read_trace("trace.jsonl"))])

Everything is computed here, and the page only shows it: the states of the trace
(`states_of`) as histories of what changed at which event, a sentence for every event,
the clock, the statistics. The program looks states up and never computes one, so
seeking is fast in a long trace. Texts of a trace reach the page as JSON and are shown
as text, never as markup. Read next: `states.js`, which looks states up; `viz/tree.py`,
which decides what a box says."""

from __future__ import annotations

import json
import re
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
from lr.watch.trace.state import CACHE_EVENTS, State, StepState, apply_event

SCRIPTS = "states page tree answer clock cache story player controls".split()
MODES = {
    "ar": "Plain decoding",
    "sd": "Token-level speculation",
    "lr": "Lookahead Reasoning",
    "lr+sd": "Lookahead Reasoning with token-level speculation",
}
EVERY, TOKENS, STEPS = (
    0,
    1,
    2,
)  # The coarsest setting of "stops" that still stops at an event.
KINDS = {
    "draft": (
        "draft",
        "►",
        STEPS,
        "The draft writes from the same prefix as the target.",
    ),
    "target": (
        "target",
        "►",
        STEPS,
        "One more row in the target's batch, from the same prefix.",
    ),
    "judge": (
        "verifier",
        "►",
        STEPS,
        "Does the draft's step mean the same as the target's?",
    ),
    "drafted": (
        "draft",
        "■",
        STEPS,
        "The draft goes on from it without waiting for a verdict.",
    ),
    "targeted": (
        "target",
        "■",
        STEPS,
        "It is compared with every draft step from this prefix.",
    ),
    "judged": (
        "verifier",
        "?",
        STEPS,
        "It counts once everything before it is decided.",
    ),
    "emit": (
        "accepted",
        "→",
        STEPS,
        "The root moves on; nothing is computed or copied for it.",
    ),
    "cancel": (
        "rejected",
        "×",
        STEPS,
        "After a rejected step, or beside an accepted one.",
    ),
    "release": (
        "rejected",
        "○",
        TOKENS,
        "Blocks that no other branch holds are free again.",
    ),
    "token": ("", "·", TOKENS, "One token from one pass."),
    "round": ("", "≡", TOKENS, "Draft tokens are checked together in one pass."),
    "written": (
        "",
        "■",
        TOKENS,
        "A step ends at a blank line, at the end, or at its limit.",
    ),
    "forward": ("", "▪", EVERY, "All rows pass through the model together."),
    "verifier": ("verifier", "▪", EVERY, "One call for all pairs that wait."),
    "span": ("", "▪", EVERY, "A simulated worker is free again."),
    "draw": (
        "rejected",
        "#",
        EVERY,
        "Drawn by a key, so the order of work does not matter.",
    ),
    "note": (
        "verifier",
        "*",
        TOKENS,
        "A part of the variant reports what it saw or decided.",
    ),
    "warn": (
        "rejected",
        "!",
        STEPS,
        "The answer is right, and slower than it should be.",
    ),
    "end": ("accepted", "■", STEPS, ""),
}
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
    return re.sub(r"{{(\w+)}}", lambda place: parts[place[1]], _part("page.html"))


def page_data(trace: TraceFile) -> dict[str, Any]:
    """Everything that the page's program reads."""
    header, records = trace.header, trace.records
    rounds = [one for one in records if one.kind == "round" and one.data["detail"]]
    refused = [one for one in records if says_aligned(one) is False]
    if not refused:  # without draft steps, stop at rejected draft tokens
        kept = [
            [token["kept"] for token in one.data["detail"]["draft_tokens"]]
            for one in rounds
        ]
        refused = [one for one, each in zip(rounds, kept, strict=True) if False in each]
    prompt = "".join(header.prompt["pieces"]).strip()
    return {
        "title": title_of(header),
        "setting": " · ".join([setting_of(header), *trace.notes]),
        "headline": headline_of(trace),
        "question": header.question or prompt,
        "unit": header.unit,
        "depth": header.depth,
        "plain": header.driver == "plain"
        or not any(one.kind == "draft" for one in records),
        "events": [_event(one) for one in records],
        "stops": {kind: grain for kind, (_, _, grain, _) in KINDS.items()},
        "ideas": {kind: idea for kind, (_, _, _, idea) in KINDS.items()}
        | dict.fromkeys(sorted(CACHE_EVENTS), SHARING),
        "decisions": [one.number + 1 for one in records if one.kind == "emit"],
        "rejections": [one.number + 1 for one in refused],
        "speculates": bool(rounds),
        "standings": {one.name: (one.sign, one.label, one.means) for one in Standing},
        "clock": asdict(timeline_of(trace)),
        "states": states_of(trace),
        "tour": tour_of(trace),
        "race": race_of(trace),
    }


def title_of(header: Header) -> str:
    """What was run, in words."""
    how = f", {header.driver}" if header.driver in ("simulated", "scripted") else ""
    return MODES.get(header.mode, header.mode) + how


def setting_of(header: Header) -> str:
    """Models and settings on one line."""
    models, options = header.models.get, header.options.get
    ahead, most = header.mode in ("lr", "lr+sd"), options("num_speculative_tokens")
    speculates = header.mode in ("sd", "lr+sd")
    parts = {
        f"target {models('target')}": models("target"),
        f"draft {models('draft')}": header.mode != "ar" and models("draft"),
        f"{models('device')} {models('dtype') or ''}".strip(): models("device"),
        f"schedule {header.schedule} · depth {header.depth} · width {header.width}": ahead,
        f"verifier {header.verifier}": ahead and header.verifier,
        f"{most} draft tokens a round by {options('drafter')}": speculates and most,
        f"rule {options('acceptance')}": speculates and options("acceptance"),
        f"driver {header.driver}": True,
        f"variant: {header.variant}": header.variant,
    }
    return " · ".join(words for words, known in parts.items() if known)


def headline_of(trace: TraceFile) -> list[tuple[str, str, str]]:
    """The measured statistics at the head of the page, as in reports: name, number,
    meaning."""
    stats, header = trace.stats, trace.header
    wall, per_pass = header.unit == "second", stats.tokens_per_target_pass
    time = f"{stats.seconds:.2f} s" if wall else f"{stats.seconds:.4g} {header.unit}s"
    tokens = None if header.driver == "simulated" else stats.tokens
    decided = f"{stats.accepted} of {stats.judged} draft steps decided on"
    kept = f"{stats.rounds.accepted} of {stats.rounds.drafted} draft tokens"
    found: list[tuple[str, Any, str, str]] = [
        ("steps", stats.steps, "", "steps of the answer"),
        ("tokens", tokens, "", "tokens of the answer"),
        ("time", time, "", f"from the start to the last event, in {header.unit}s"),
        ("tokens/s", stats.tokens_per_second if wall else None, ".1f",
         "tokens of the answer per second"),
        ("target passes", stats.target_passes or None, "", "forward passes of the target"),
        ("tokens/pass", per_pass, ".2f", "tokens of the answer per forward pass of the target"),
        ("α₁", stats.step_acceptance, ".2f", f"step acceptance: {decided}"),
        ("accepted draft tokens", stats.token_acceptance, ".2f", f"token acceptance: {kept}"),
    ]  # fmt: skip
    return [
        (name, format(n, form), means)
        for name, n, form, means in found
        if n is not None
    ]


def states_of(trace: TraceFile) -> dict[str, Any]:
    """The states of a trace (`lab/trace/state.py`) as histories. The history of a value is [[n,
    value], ...]: the value from the n-th event on. The history of a list is [[n, place, items],
    ...]: from the n-th event on, `items` replaces everything from `place` on.

    Example: a list that is ["a"] after event 3 and ["a", "b"] after event 5: [[3, 0,
    ["a"]], [5, 1, ["b"]]]."""
    state = State.begin(trace.header)
    roots: list[Any] = []
    nodes: dict[str, dict[str, Any]] = {}
    emitted: list[dict[str, Any]] = []
    caches: dict[str, dict[str, Any]] = {}
    notes: dict[int, str] = {}
    now: dict[int, list[Any]] = {}  # by the id of a list's history, its latest content

    def change(history: list[Any], new: list[Any]) -> None:
        old = now.get(id(history), [])
        if old != new:
            same = common_length(old, new)
            history.append([state.number, same, new[same:]])
            now[id(history)] = new

    def note(history: list[Any], value: Any) -> None:
        if not history or history[-1][1] != value:
            history.append([state.number, value])

    def look(name: str) -> None:
        node = state.nodes[name]
        made = nodes.setdefault(
            name, {"index": node.index, "born": [state.number, state.time]}
        )
        made["parent"] = node.parent
        cards = cards_of(state, node)
        shown = [[one.by, (one.child or node).name, one.standing.name] for one in cards]
        note(made.setdefault("cards", []), shown)
        for by, step in (("draft", node.draft), ("target", node.target)):
            if step is not None:
                life = made.setdefault(by, {"tokens": [], "done": []})
                change(life["tokens"], _tokens(step))
                note(life["done"], step.finish != "")
        made["kept"] = node.accepted
        if node.verdict is not None:
            made["why"] = node.verdict["why"]
        if node.gone is not None and "gone" not in made:
            made["gone"] = [state.number, node.gone]

    def look_at_cache(name: str, data: dict[str, Any]) -> None:
        cache = state.caches[name]
        first: dict[str, Any] = {"total": cache.total, "size": cache.block_size}
        made = caches.setdefault(name, first | {"branches": {}, "copies": []})
        for number, branch in cache.branches.items():
            first = {
                "born": state.number,
                "source": data.get("source"),
                "facts": [],
                "blocks": [],
            }
            life = made["branches"].setdefault(str(number), first)
            note(life["facts"], [branch.length, branch.node])
            change(life["blocks"], list(branch.blocks))
        for number, life in made["branches"].items():
            if "gone" not in life and int(number) not in cache.branches:
                life["gone"] = state.number
        if data.get("copies"):
            made["copies"].append([state.number, data["copies"]])

    look(state.root)
    note(roots, state.root)
    for name in state.caches:
        look_at_cache(name, {})
    for record in trace.records:
        apply_event(state, record)
        data = record.data
        if record.kind in CACHE_EVENTS:
            look_at_cache(data["cache"], data)
            continue
        left = state.nodes.get(data["node"]) if record.kind == "release" else None
        if left and left.verdict and left.verdict["aligned"] and not left.accepted:
            notes[state.number] = WASTED
        names = {
            name for name in (*state.touched, data.get("node")) if name in state.nodes
        }
        for name in sorted(
            names | {state.nodes[name].parent or name for name in names}
        ):
            look(name)
        over = state.root not in state.nodes or state.nodes[state.root].gone is not None
        note(roots, None if over or state.done else state.root)
        for one in state.emitted[len(emitted) :]:
            by, how = (
                "draft" if one.origin == "accepted" else "target",
                ORIGINS[one.origin],
            )
            why = one.verdict["why"] if one.verdict else None
            told = {
                "at": state.number,
                "index": one.index,
                "origin": one.origin,
                "why": why,
            }
            told |= {"colour": how.role, "mark": how.mark, "by": by}
            told |= {"tokens": _tokens(one.step)}
            emitted.append(
                told | {"rejected": one.rejected and one.rejected.text.strip()}
            )
    return {
        "roots": roots,
        "nodes": nodes,
        "emitted": emitted,
        "caches": caches,
        "notes": notes,
    }


def _tokens(step: StepState) -> list[Any]:
    """Every token as in the trace, with the draft tokens that were rejected before
    it."""
    return [
        [t.token, t.piece, t.source, t.p,
         [[quoted(one["piece"]), one["p"], one["q"], one["accept"]] for one in t.refused]]
        for t in step.tokens
    ]  # fmt: skip


def _event(record: Record) -> list[Any]:
    """The time, kind, role (for the colour), sign and sentence of an event."""
    kind, data = record.kind, record.data
    who, mark, _, _ = KINDS.get(
        kind, ("cache" if kind in CACHE_EVENTS else "rejected", "▫", 0, "")
    )
    if (aligned := says_aligned(record)) is not None:
        mark = "✓" if aligned else "✗"
    if kind == "emit":
        mark, who, *_ = ORIGINS[data["origin"]]
    role, said = (
        who or data.get("role") or LANE_OF.get(data.get("work", "")),
        say(record),
    )
    return [record.time, kind, role, mark, said[0].upper() + said[1:]]


def as_script_data(data: Any) -> str:
    """JSON that is safe inside a <script> element: it contains no "<", so no text can
    end or begin an element. Example: {"a": "</script>"} becomes
    {"a":"\\u003c/script>"}."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace(
        "<", "\\u003c"
    )


def _part(name: str) -> str:
    return (files("lr.watch.player") / name).read_text(encoding="utf-8")
