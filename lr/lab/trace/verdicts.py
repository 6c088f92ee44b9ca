"""The verdicts that a trace has, as a verifier: to replay a run whose judge does not say the same
twice, or is not there any more.

A verdict belongs to (prefix, draft step, target step); the prefix of a node is put together from
the steps that lead to it. A pair that is not in the trace gets a rejection that says so, which the
replay will find as its first difference. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lr.lab.trace.file import TraceFile
from lr.spec.verifiers.base import Verifier
from lr.types import Step, Verdict

Tokens = tuple[int, ...]
Key = tuple[Tokens, Tokens, Tokens | None]


class _Pair(Protocol):
    @property
    def prefix(self) -> Tokens: ...

    @property
    def draft(self) -> Step: ...

    @property
    def target(self) -> Step | None: ...


class RecordedVerdicts(Verifier):
    """Answers as the verifier of a trace did. `sure`: also where it judged without the target's
    step; None there means unsure.
    """

    def __init__(self, trace: TraceFile) -> None:
        self.name = trace.header.verifier or "recorded"
        self.verdicts = verdicts_of(trace)

    def judge(self, pairs: Sequence[_Pair]) -> list[Verdict]:
        """The verdicts on pairs."""
        return [
            self.verdicts.get(_key(pair)) or Verdict(False, "this pair is not in the trace")
            for pair in pairs
        ]

    def judge_early(self, pairs: Sequence[_Pair]) -> list[Verdict | None]:
        """The verdicts on draft steps alone, where there were any."""
        return [self.verdicts.get(_key(pair)) for pair in pairs]


def verdicts_of(trace: TraceFile) -> dict[Key, Verdict]:
    """All verdicts of a trace by what they are about."""
    prefixes: dict[str, Tokens] = {"0:0": tuple(trace.header.prompt["tokens"])}
    drafts: dict[str, Tokens] = {}
    targets: dict[str, Tokens] = {}
    parents: dict[str, str] = {}
    last: Tokens = ()
    found: dict[Key, Verdict] = {}
    for record in trace.records:
        data = record.data
        if record.kind == "draft":
            parents |= dict.fromkeys(data["children"], data["node"])
        elif record.kind == "drafted" and data["node"] in parents:
            drafts[data["node"]] = tuple(data["step"]["tokens"])
            prefixes[data["node"]] = prefixes[parents[data["node"]]] + drafts[data["node"]]
        elif record.kind == "targeted":
            targets[data["node"]] = tuple(data["step"]["tokens"])
        elif record.kind == "emit":
            last = tuple(data["step"]["tokens"])
        elif record.kind == "survive" and data["node"] != data["root"]:
            prefixes[data["root"]] = prefixes[data["node"]] + last
        elif record.kind == "judged":
            parent = parents[data["node"]]
            target = None if data["alone"] else targets[parent]
            verdict = data["verdict"]
            key = (prefixes[parent], drafts[data["node"]], target)
            found[key] = Verdict(verdict["aligned"], verdict["why"], verdict["score"])
    return found


def _key(pair: _Pair) -> Key:
    return pair.prefix, pair.draft.tokens, None if pair.target is None else pair.target.tokens
