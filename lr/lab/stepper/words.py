"""Every event of a trace as one sentence, for the line that says what has just happened.

    say(record)       # 'the draft wrote "So 4 + 3 = 7." (step 2, to node 0:3)'

Knows no state and no terminal. Read next: `view.py`.
"""

from __future__ import annotations

from typing import Any

from lr.lab.trace.file import Record

ORIGINS = {
    "accepted": "the draft's step is accepted",
    "correction": "the target's step replaces the draft's",
    "bonus": "the target's step behind a fully accepted cycle",
    "target": "the target's step, there being no draft step",
}
"""How a step comes into the answer."""


def say(record: Record) -> str:
    """One event in words."""
    made = _SAID.get(record.kind)
    return record.kind if made is None else made(record.data)


def text_of(step: dict[str, Any]) -> str:
    """A step's words in quotes, on one line."""
    return quoted("".join(step["pieces"])) + ("" if step["finish"] != "length" else " (cut)")


def quoted(text: str) -> str:
    """Words in quotes, white space made plain."""
    return f'"{" ".join(text.split())}"'


def visible(piece: str) -> str:
    """A token's text with its line ends to be seen: a blank line is \\n\\n."""
    return piece.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r") or "(no text)"


def _count(number: int, word: str, more: str = "s") -> str:
    return f"{number} {word}{more if number != 1 else ''}"


def _draft(data: dict[str, Any]) -> str:
    count = len(data["children"])
    steps = "a step" if count == 1 else f"{count} alternatives"
    return f"the draft begins {steps} behind {data['node']} (to {', '.join(data['children'])})"


def _judge(data: dict[str, Any]) -> str:
    against = f"against the target's after {data['parent']}" if data["target"] else "alone"
    return f"the verifier is asked about {data['node']}: the draft's step {against}"


def _judged(data: dict[str, Any]) -> str:
    verdict = data["verdict"]
    if verdict is None:
        return f"the verifier is not sure about {data['node']} without the target's step"
    return f"verdict on {data['node']}: {'aligned' if verdict['aligned'] else 'not aligned'} ({verdict['why']})"


def _emit(data: dict[str, Any]) -> str:
    return f"step {data['index']} of the answer: {ORIGINS[data['origin']]}: {text_of(data['step'])}"


def _drafted(data: dict[str, Any]) -> str:
    if data["step"] is None:
        return f"there will be no draft step to {data['node']}"
    index = int(data["node"].split(":")[1].split(".")[0]) - 1
    return f"the draft wrote {text_of(data['step'])} (step {index}, to node {data['node']})"


def _round(data: dict[str, Any]) -> str:
    where = "" if data["node"] is None else f" for {data['node']}"
    return f"the {data['role']}{where}: {data['accepted']} of {data['proposed']} guessed tokens stay, {data['emitted']} are new"


def _token(data: dict[str, Any]) -> str:
    piece = visible(data["piece"])
    return (
        f'the {data["role"]} drew "{piece}" for step {data["index"]} (probability {data["p"]:.3f})'
    )


def _grow(data: dict[str, Any]) -> str:
    copies = [
        f"branch {branch} leaves shared block {old} for its copy {new}"
        for branch, old, new in data["copies"]
    ]
    fresh = [f"block {block} to branch {branch}" for branch, block in data["fresh"]]
    more = "; ".join([*copies, *fresh])
    return f"{data['cache']} cache: one forward for {_count(len(data['rows']), 'branch', 'es')}" + (
        f" ({more})" if more else ""
    )


def _end(data: dict[str, Any]) -> str:
    return "the end of the answer" if data["done"] else f"the run ended early: {data['why']}"


_SAID = {
    "draft": _draft,
    "target": lambda data: f"the target begins its own step behind {data['node']}",
    "judge": _judge,
    "cancel": lambda data: f"cancelled: {data['work']} {data['node']}",
    "emit": _emit,
    "release": lambda data: f"{data['node']} leaves the tree",
    "drafted": _drafted,
    "targeted": lambda data: (
        f"the target wrote {text_of(data['step'])} (its own step behind {data['node']})"
    ),
    "judged": _judged,
    "forward": lambda data: (
        f"one forward of the {data['role']}: {_count(data['branches'], 'branch', 'es')}, {_count(data['tokens'], 'token')}"
    ),
    "token": _token,
    "round": _round,
    "written": lambda data: (
        f"the {data['role']} finished step {data['index']}: {text_of(data['step'])}"
    ),
    "verifier": lambda data: f"the verifier answered about {_count(data['pairs'], 'pair')}",
    "open": lambda data: f"{data['cache']} cache: branch {data['branch']} is opened",
    "fork": lambda data: (
        f"{data['cache']} cache: branch {data['branch']} is forked from {data['source']}; all blocks are shared"
    ),
    "grow": _grow,
    "cut": lambda data: (
        f"{data['cache']} cache: branch {data['branch']} is cut back to {data['length']} tokens"
    ),
    "close": lambda data: f"{data['cache']} cache: branch {data['branch']} is closed",
    "hold": lambda data: (
        f"{data['cache']} cache: branch {data['branch']} belongs to {data['node']}"
    ),
    "replace": lambda data: (
        f"{data['cache']} cache: branch {data['heir']} goes on in place of {data['branch']}"
    ),
    "end": _end,
}
