"""What a run keeps beyond its results, if asked: every pair of steps that was judged, and every event of the trace.

Pairs are the food of the verifier laboratory (`laboratory.py`) and of the drift ledger (`drift.py`): context, draft step and target step
as token ids, and what the run's own verifier said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from lr.eval.items import Item
from lr.spec.verifiers.base import Pair, Verifier, judge_safely, need_of
from lr.trace import Trace
from lr.types import Finish, Step, Verdict


@dataclass(frozen=True)
class Keeping:
    """What to keep: pairs in pairs/, traces in traces/."""

    pairs: bool = False
    traces: bool = False


class Recorder:
    """Judges as `verifier` does and writes every pair down. `take` hands out those of one problem."""

    def __init__(self, verifier: Verifier) -> None:
        self.verifier = verifier
        self.name, self.need = verifier.name, need_of(verifier)
        self.seen: list[tuple[Pair, Verdict]] = []

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        verdicts = judge_safely(self.verifier, pairs)
        self.seen += zip(pairs, verdicts, strict=True)
        return verdicts

    def take(self, prompt: Sequence[int], item: Item) -> dict[str, Any]:
        """The pairs behind this prompt, as JSON, and forget them."""
        begin = tuple(prompt)
        mine = [(pair, verdict) for pair, verdict in self.seen if pair.prefix[: len(begin)] == begin]
        self.seen = [(pair, verdict) for pair, verdict in self.seen if pair.prefix[: len(begin)] != begin]
        pairs = [pair_to_json(pair, len(begin)) | {"verdict": asdict(verdict)} for pair, verdict in mine]
        return {"question_id": item.number, "verifier": self.name, "prompt": list(begin), "pairs": pairs}


def pair_to_json(pair: Pair, prompt: int) -> dict[str, Any]:
    """A pair without the first `prompt` tokens of its prefix."""
    return {
        "context": list(pair.prefix[prompt:]),
        "draft": _step(pair.draft),
        "target": None if pair.target is None else _step(pair.target),
    }


def pair_from_json(content: dict[str, Any], prompt: Sequence[int]) -> Pair:
    """The inverse of `pair_to_json`."""
    target = content["target"]
    return Pair(
        (*prompt, *content["context"]), _read(content["draft"]), None if target is None else _read(target)
    )  # fmt: skip


def _step(step: Step) -> dict[str, Any]:
    return {"tokens": list(step.tokens), "finish": step.finish.value}


def _read(content: dict[str, Any]) -> Step:
    return Step(tuple(content["tokens"]), Finish(content["finish"]))


def readable_trace(trace: Trace) -> list[Any]:
    """The events of a trace as JSON, each with its time in seconds and its kind."""
    return [
        {"time": round(when, 6), "event": type(event).__name__, **_plain(asdict(event))} for when, event in trace.events
    ]


def _plain(value: Any) -> Any:
    """Enums by their values, tuples as lists."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value
