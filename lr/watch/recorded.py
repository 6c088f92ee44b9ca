"""Answers of real models that come with the package, for `lr play` and `lr step`.

Qwen2.5-Coder-1.5B-Instruct is the target, 0.5B-Instruct the draft (the public weights
after 4-bit rounding), on a CPU, at temperature 0.7. In the first no judge is asked: the
verifier is `fitted:docs/results/real/fitted.json`. In the others the target is the judge.

    board    right; four of six draft steps kept, two rejected. Problem 113 of GSM8K:
             lr generate "QUESTION" --depth 2 --trace board.jsonl --model ... (times and
             probabilities are rounded)
    eggs     right; two draft steps kept, and two that mean the same rejected: a strict judge
    coat     right; the draft wanted to stop one calculation too early, and was corrected
    train    wrong; at threshold 0.05 the judge lets a draft step pass that contradicts the
             target's (which is wrong as well)"""

import re
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from lr.spec.protocol import Judge, Judged, NodeId
from lr.types import Step, Verdict
from lr.watch.trace.file import Record, TraceFile, read_trace

RECORDED = ("board", "eggs", "coat", "train")


def recorded_path(name: str) -> Path:
    """The trace of one of `RECORDED`."""
    assert name in RECORDED
    return Path(str(files("lr.watch"))) / "answers" / f"{name}.jsonl"


class JudgedPair(NamedTuple):
    """Two steps from the same prefix, their words on one line, and what the verifier said."""

    target: str
    draft: str
    aligned: bool
    score: float | None


def words_of(record: Record, step: Step) -> str:
    """The text of a step on one line, without the commonest marks of LaTeX.
    \\[ 3 \\times 4 \\] becomes 3 × 4."""
    text = record.text_of(step.tokens).replace(r"\times", "×")
    text = re.sub(r"\\text\{([^}]*)\}", r"\1", text)
    return " ".join(re.sub(r"\\[][()]", "", text).split())


def judged_pairs(trace: TraceFile) -> list[JudgedPair]:
    """The pairs of a trace that the verifier was asked about, in the order of verdicts."""
    words: dict[NodeId, tuple[str, str]] = {}
    judged = []
    for record in trace.records:
        match record.event:
            case Judge(node, _, draft, Step() as target):
                words[node] = (words_of(record, target), words_of(record, draft))
            case Judged(node, Verdict(aligned, score=score)) if node in words:
                judged.append(JudgedPair(*words[node], aligned, score))
    return judged


def kept_and_rejected(trace: TraceFile) -> list[JudgedPair]:
    """A draft step that was kept in its own words, and one that was rejected, if the trace
    has them."""
    pairs = judged_pairs(trace)
    pairs.sort(key=lambda pair: not re.search(r"\d", pair.target))  # numbers say more
    kept = [pair for pair in pairs if pair.aligned and pair.draft != pair.target]
    rejected = [pair for pair in pairs if not pair.aligned]
    return kept[:1] + rejected[:1]


def first_answer() -> TraceFile:
    """The recorded answer that is shown where nobody asks for another."""
    return read_trace(recorded_path(RECORDED[0]))
