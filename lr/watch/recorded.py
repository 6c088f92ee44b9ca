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

from lr.spec.protocol import Judge, Judged
from lr.types import Step, Verdict
from lr.watch.trace.file import TraceFile

RECORDED = ("eggs", "coat", "train")


def recorded_path(name: str) -> Path:
    """The trace of one of `RECORDED`."""
    assert name in RECORDED
    return Path(str(files("lr.watch"))) / "answers" / f"{name}.jsonl"


def judged_pairs(trace: TraceFile) -> list[tuple[float | None, str, str]]:
    """The pairs that the judge saw: its probability, the target's step, the draft's."""
    pairs = {}
    judged = []
    for record in trace.records:
        match record.event:
            case Judge(node, _, draft, Step() as target):
                texts = (record.text_of(step.tokens) for step in (target, draft))
                pairs[node] = [" ".join(text.split()) for text in texts]  # on one line
            case Judged(node, Verdict(score=score)):
                target_text, draft_text = pairs[node]
                judged.append((score, target_text, draft_text))
    return judged
