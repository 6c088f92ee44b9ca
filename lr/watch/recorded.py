"""Answers of real models that come with the package, for `lr play` and `lr step`.

Qwen2.5-Coder-1.5B-Instruct is target and judge, 0.5B-Instruct the draft (the public
weights after 4-bit rounding), on a CPU, at temperature 0.7:

    eggs     right; two draft steps kept, and two that mean the same rejected: a strict judge
    coat     right; the draft wanted to stop one calculation too early, and was corrected
    train    wrong; at threshold 0.05 the judge lets a draft step pass that contradicts the
             target's (which is wrong as well)"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from lr.watch.trace.file import TraceFile

RECORDED = ("eggs", "coat", "train")


def recorded_path(name: str) -> Path:
    """The trace of one of `RECORDED`."""
    assert name in RECORDED
    return Path(str(files("lr.watch"))) / "answers" / f"{name}.jsonl"


def judged_pairs(trace: TraceFile) -> list[tuple[float, str, str]]:
    """The pairs that the judge saw: its probability, the target's step, the draft's."""
    pairs: dict[str, tuple[str, str]] = {}
    judged = []
    for record in trace.records:
        data = record.data
        if record.kind == "judge":
            pairs[data["node"]] = _text(data["target"]), _text(data["draft"])
        elif record.kind == "judged" and data["node"] in pairs:
            judged.append((data["verdict"]["score"], *pairs[data["node"]]))
    return judged


def _text(step: dict[str, Any]) -> str:
    """The text of a step on one line."""
    return " ".join("".join(step["pieces"]).split())
