"""What a run keeps beyond its results, if asked: every pair of steps that was judged, and the trace
of every answer.

Pairs are the food of the verifier laboratory (`laboratory.py`) and of the drift ledger
(`drift.py`): context, draft step and target step as token ids, and what the run's own verifier
said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lr.lab.eval.items import Item
from lr.spec.verifiers.base import Pair, Verifier, verdicts_of
from lr.types import Finish, Step, Verdict


@dataclass(frozen=True)
class Keeping:
    """What to keep: pairs in pairs/, traces in traces/, with everything that happened or (`details`
    False) what statistics need.
    """

    pairs: bool = False
    traces: bool = False
    details: bool = True

    @property
    def detailed(self) -> bool:
        """Whether answers are to record everything."""
        return self.traces and self.details


class Recorder(Verifier):
    """Judges as `verifier` does and writes every pair down. `take` hands out those of one
    problem.
    """

    def __init__(self, verifier: Verifier) -> None:
        self.verifier = verifier
        self.name, self.requires = verifier.name, verifier.requires
        self.seen: list[tuple[Pair, Verdict]] = []

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        verdicts = verdicts_of(self.verifier, pairs)
        self.seen += zip(pairs, verdicts, strict=True)
        return verdicts

    def take(self, prompt: Sequence[int], item: Item) -> dict[str, Any]:
        """The pairs behind this prompt, as JSON, and forget them."""
        begin = tuple(prompt)
        mine = [
            (pair, verdict) for pair, verdict in self.seen if pair.prefix[: len(begin)] == begin
        ]
        self.seen = [
            (pair, verdict) for pair, verdict in self.seen if pair.prefix[: len(begin)] != begin
        ]
        pairs = [
            pair_to_json(pair, len(begin)) | {"verdict": asdict(verdict)} for pair, verdict in mine
        ]
        return {
            "question_id": item.number,
            "verifier": self.name,
            "prompt": list(begin),
            "pairs": pairs,
        }


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
