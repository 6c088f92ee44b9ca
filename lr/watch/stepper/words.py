"""A trace in words, for the terminal and for the player: every event as one sentence,
the settings and the statistics on one line each.

    say(record)       # 'the draft wrote "So 4 + 3 = 7." (step 2, to node 0:3)'

Knows no state and no terminal. Read next: `view.py`."""

from __future__ import annotations

from typing import Any

from lr.trace import Stats
from lr.watch.figures.style import ORIGINS
from lr.watch.trace.file import Header, Record, step_after

MODES = {
    "ar": "Plain decoding",
    "sd": "Token-level speculation",
    "lr": "Lookahead Reasoning",
    "lr+sd": "Lookahead Reasoning with token-level speculation",
}

SENTENCES = {
    "target": "the target begins its own step after {node}",
    "cancel": "cancelled: {work} {node}",
    "release": "{node} leaves the tree",
    "open": "{cache} cache: branch {branch} is opened",
    "fork": "{cache} cache: branch {branch} is forked from {source}; all blocks are shared",
    "cut": "{cache} cache: branch {branch} is cut back to {length} tokens",
    "close": "{cache} cache: branch {branch} is closed",
    "restore": "{cache} cache: branch {branch} is as it was before a failed forward",
    "hold": "{cache} cache: branch {branch} belongs to {node}",
    "replace": "{cache} cache: branch {successor} goes on in place of {branch}",
}
"""The kinds of event whose sentence needs nothing but their fields."""


def text_of(step: dict[str, Any]) -> str:
    """A step's words in quotes, on one line."""
    return quoted("".join(step["pieces"])) + (
        "" if step["finish"] != "length" else " (cut)"
    )


def quoted(text: str) -> str:
    """Words in quotes, with single spaces."""
    return f'"{" ".join(text.split())}"'


def visible(piece: str) -> str:
    """A token's text with visible line ends: a blank line is \\n\\n."""
    return (
        piece.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
        or "(no text)"
    )


def say(record: Record) -> str:
    """One event in words, or the name of its kind if this version has no words for
    it."""
    kind, data = record.kind, record.data
    if kind in SENTENCES:
        return SENTENCES[kind].format_map(data)
    node, role = data.get("node"), data.get("role")
    match kind:
        case "draft":
            count, children = len(data["children"]), ", ".join(data["children"])
            steps = "a step" if count == 1 else f"{count} alternatives"
            return f"the draft begins {steps} after {node} (to {children})"
        case "judge":
            against = (
                f"against the target's after {data['parent']}"
                if data["target"]
                else "alone"
            )
            return f"the verifier is asked about {node}: the draft's step {against}"
        case "emit":
            origin = ORIGINS[data["origin"]].says
            step = text_of(data["step"])
            return f"step {data['index']} of the answer: {origin}: {step}"
        case "drafted" if data["step"] is None:
            return f"there will be no draft step to {node}"
        case "drafted":
            wrote, index = text_of(data["step"]), step_after(data["node"]) - 1
            return f"the draft wrote {wrote} (step {index}, to node {node})"
        case "targeted":
            return (
                f"the target wrote {text_of(data['step'])} (its own step after {node})"
            )
        case "judged" if data["verdict"] is None:
            return f"the verifier is not sure about {node} without the target's step"
        case "judged":
            verdict = "aligned" if data["verdict"]["aligned"] else "not aligned"
            return f"verdict on {node}: {verdict} ({data['verdict']['why']})"
        case "forward":
            rows = counted(data["branches"], "branch", "es")
            tokens = counted(data["tokens"], "token")
            return f"one forward of the {role}: {rows}, {tokens}"
        case "token":
            piece, p = visible(data["piece"]), f"(probability {data['p']:.3f})"
            return f'the {role} drew "{piece}" for step {data["index"]} {p}'
        case "round":
            at = "" if node is None else f" for {node}"
            stay = f"{data['accepted']} of {data['proposed']} draft tokens stay"
            return f"the {role}{at}: {stay}, {data['emitted']} are new"
        case "written":
            return f"the {role} finished step {data['index']}: {text_of(data['step'])}"
        case "verifier":
            return f"the verifier answered about {counted(data['pairs'], 'pair')}"
        case "note":
            at = "" if node is None else f" at {node}"
            pairs = data["fields"].items()
            fields = ", ".join(f"{name} {value}" for name, value in pairs)
            end = f": {fields}" if fields else ""
            return f"the variant's {data['name']}{at}{end}"
        case "grow":
            changes = [
                f"branch {branch} leaves shared block {old} for its copy {new}"
                for branch, old, new in data["copies"]
            ]
            for branch, block in data["fresh"]:
                changes.append(f"block {block} to branch {branch}")
            rows = counted(len(data["rows"]), "branch", "es")
            end = f" ({'; '.join(changes)})" if changes else ""
            return f"{data['cache']} cache: one forward for {rows}{end}"
        case "end":
            early = f"the run ended early: {data['why']}"
            return "the end of the answer" if data["done"] else early
    return kind


def says_aligned(record: Record) -> bool | None:
    """What a verdict says; None: unsure, or not a verdict."""
    verdict = record.data["verdict"] if record.kind == "judged" else None
    return None if verdict is None else bool(verdict["aligned"])


def title_of(header: Header) -> str:
    """What was run, in words."""
    driver = ", scripted" if header.driver == "scripted" else ""
    return MODES.get(header.mode, header.mode) + driver


def setting_of(header: Header) -> str:
    """Models and settings on one line."""
    option = header.options.get
    facts: dict[str, object] = {**header.models, "driver": header.driver}
    if header.mode in ("lr", "lr+sd"):
        facts |= {"schedule": header.schedule, "depth": header.depth}
        facts |= {"width": header.width, "verifier": header.verifier}
    if header.mode in ("sd", "lr+sd"):
        facts |= {"draft tokens a round": option("num_speculative_tokens")}
        facts |= {"drafter": option("drafter"), "rule": option("acceptance")}
    # What a variant replaced was not used.
    facts |= dict.fromkeys(header.replaced, "of the variant")
    facts["variant"] = header.variant
    words = [f"{name} {value}" for name, value in facts.items() if value is not None]
    return " · ".join(words)


def summary(stats: Stats, unit: str = "second") -> str:
    """One line of statistics."""
    time = (
        f"{stats.seconds:.2f} s" if unit == "second" else f"{stats.seconds:g} {unit}s"
    )
    parts = [f"{stats.tokens} tokens", time]
    if stats.target_passes and stats.tokens_per_second:  # a script has no passes
        parts.append(f"{stats.tokens_per_second:.1f} tokens/s")
        parts.append(f"{stats.target_passes} target passes")
    if stats.step_acceptance is not None:
        counts = f"{stats.accepted} of {stats.judged}"
        parts.append(f"step acceptance {stats.step_acceptance:.2f} ({counts})")
    if stats.token_acceptance is not None:
        parts.append(f"token acceptance {stats.token_acceptance:.2f}")
    if stats.verifier_passes:
        parts.append(f"{stats.verifier_passes} verifier passes")
    if stats.unjudged:
        parts.append(f"{stats.unjudged} draft steps not judged")
    return ", ".join(parts)


def counted(number: int, word: str, plural: str = "s") -> str:
    """A number and its word: 1 pass, 2 passes."""
    return f"{number} {word}{plural if number != 1 else ''}"
