"""The parts of an experiment: arms that answer problems, their outcome, and the
finding.

An arm is one way of answering. The arms alternate, a few problems at a time, so a
change in the machine's speed affects all of them. Each arm writes a run directory like
that of `lr run`, and resumes where it stopped. Read next: `experiments.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from lr.engine.verifiers import VerifierChoice
from lr.errors import SettingError
from lr.measure import report
from lr.measure.datasets import Item, fingerprint
from lr.measure.grading import Grader, grader_for
from lr.measure.running import Evaluation, engine_options, run_head, variant_of
from lr.measure.store import Store
from lr.measure.verifier_eval import SavedPair, load_pairs
from lr.options import LOOKAHEAD, GenerateOptions
from lr.reasoner import Reasoner
from lr.spec.variant import Variant
from lr.spec.verifiers.base import Verifier
from lr.tiny.names import speaks_tiny
from lr.watch.figures.plots import Panel, draw

TURN = 12  # Problems per turn of an arm; more with batches, which run empty at its end.


@dataclass(frozen=True)
class Arm:
    """One way of answering. `options` override the lab's; `verifier` None: the lab's.
    `shown`: table cells that identify the arm. `pairs`, `traces`: whether to keep
    them."""

    name: str
    mode: str = "lr"
    options: Mapping[str, Any] = field(default_factory=dict)
    verifier: str | None = None
    shown: Mapping[str, Any] = field(default_factory=dict)
    pairs: bool = False
    traces: bool = False
    concurrency: int | None = 1  # None: the lab's, where speed is not measured.
    variant: str | None = None  # The name of a variant of the method.


@dataclass(frozen=True)
class ArmAnswers:
    """The answers of an arm in a lab, and its row, compared with the first arm in mode
    ar."""

    lab: Lab
    arm: Arm
    run: report.RunResults
    row: report.ReportRow

    @property
    def steps(self) -> list[tuple[str, int]]:
        """(origin, tokens) of every step."""
        records = self.run.records.values()
        return [(step[0], step[1]) for one in records for step in one.get("steps", [])]

    @property
    def step_tokens(self) -> float | None:
        """The mean length of a step."""
        return (
            fmean(lengths)
            if (lengths := [length for _, length in self.steps])
            else None
        )

    def pairs(self) -> list[SavedPair]:
        """The judged pairs that have both steps."""
        saved = load_pairs(self.run.path, self.run.records)
        return [one for one in saved if one.pair.target is not None]


Outcome = dict[str, ArmAnswers]  # By arm name, in order.


@dataclass
class Lab:
    """Runs arms on problems with these models; without `encoder`, leaves out embedding
    verifiers. `work` holds the run directories. `concurrency`: problems answered
    together where speed is not measured."""

    items: Sequence[Item]
    work: Path
    target: str = "tiny-target"
    draft: str | None = "tiny-draft"
    judge: str | None = "tiny-judge"
    encoder: str | None = None
    device: str = "cpu"
    dtype: torch.dtype | None = None
    options: GenerateOptions = field(default_factory=GenerateOptions)
    verifier: str = "judge"
    concurrency: int = 1
    _reasoners: dict[tuple[str | None, ...], Reasoner] = field(
        default_factory=dict, init=False
    )
    _verifiers: dict[str, Verifier] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.dtype is None and self.device == "cpu":
            self.dtype = torch.float32

    def run(
        self, arms: Sequence[Arm], heard: Callable[[str], None] = lambda name: None
    ) -> Outcome:
        """Answer every problem in every arm and compare; calls `heard` with each
        answer's arm."""
        together = any(arm.concurrency is None for arm in arms)
        turn = TURN * max(1, self.concurrency // 2) if together else TURN
        with grader_for(self.items) as grader:
            stores = {
                arm.name: Store.open(self.work / arm.name, self._head(arm))
                for arm in arms
            }
            for first in range(0, len(self.items), turn):
                for arm in arms:
                    some = self.items[first : first + turn]
                    evaluation = self._evaluation(arm, some, stores[arm.name], grader)
                    there = len(some) - len(evaluation.missing)
                    for _ in chain(
                        range(there), evaluation.run() if evaluation.missing else ()
                    ):
                        heard(arm.name)
            runs = [report.read_run(self.work / arm.name, grader) for arm in arms]
        wanted = {item.number for item in self.items}
        for run in runs:  # another --problems may have left more
            for key in [key for key in run.records if key.number not in wanted]:
                del run.records[key]
        baseline = report.choose_baseline(runs)
        found = Outcome()
        for arm, run in zip(arms, runs, strict=True):
            row = report.make_row(run, baseline)
            row = replace(row, speedup=1.0) if run is baseline else row
            found[arm.name] = ArmAnswers(self, arm, run, row)
        return found

    def reasoner(self, mode: str = "lr") -> Reasoner:
        """The models for a mode: target and draft, or the draft alone."""
        target, draft = (
            (self.draft, None) if mode == "draft" else (self.target, self.draft)
        )
        if target is None:
            raise SettingError("mode 'draft' needs a draft model, and none was given.")
        if (target, draft) not in self._reasoners:
            made = Reasoner(
                target, draft, "exact", device=self.device, dtype=self.dtype
            )
            self._reasoners[target, draft] = made
        return self._reasoners[target, draft]

    def verifier_named(self, name: str) -> Verifier:
        """A verifier by name, loaded once. Raises `SettingError` if its checkpoint is
        missing."""
        if name not in self._verifiers:
            kind = name.partition(":")[0]
            extra = {"judge": self.judge, "embedding": self.encoder}
            if kind in extra and extra[kind] is None:
                raise SettingError(
                    f"verifier {name!r} needs --judge_model or --encoder."
                )
            reasoner, where = self.reasoner(), (self.device, self.dtype)
            choice = VerifierChoice(name, reasoner.codec, extra.get(kind), *where)
            self._verifiers[name] = choice.build(reasoner.engine.target)
        return self._verifiers[name]

    def decode(self, tokens: Sequence[int]) -> str:
        return self.reasoner().codec.decode(tokens)

    @property
    def has_oracle(self) -> bool:
        """Whether the target speaks the tiny language."""
        return speaks_tiny(self.reasoner().codec)

    def close(self) -> None:
        for reasoner in self._reasoners.values():
            reasoner.close()

    def _evaluation(
        self, arm: Arm, items: Sequence[Item], store: Store, grader: Grader
    ) -> Evaluation:
        options = engine_options(
            arm.mode, "generate", replace(self.options, **arm.options)
        )
        reasoner = self.reasoner(arm.mode)
        variant = variant_of(arm.mode, reasoner, arm.variant) or Variant()
        if arm.mode in LOOKAHEAD and variant.verifier is None:
            variant = replace(
                variant, verifier=self.verifier_named(arm.verifier or self.verifier)
            )
        return Evaluation(
            reasoner, store, grader, items, arm.mode, options,
            concurrency=arm.concurrency or self.concurrency,
            variant=variant, pairs=arm.pairs, traces=arm.traces, details=False,
        )  # fmt: skip

    def _head(self, arm: Arm) -> dict[str, Any]:
        """The content of the arm's run.json."""
        own = {
            "data": fingerprint(self.items),
            "mode": arm.mode,
            "model": self.draft if arm.mode == "draft" else self.target,
            "draft_model": self.draft,
            "verifier": (arm.verifier or self.verifier)
            if arm.mode in LOOKAHEAD
            else None,
            "concurrency": arm.concurrency or self.concurrency,
            "branching": list(self.options.branching),
        }
        own |= {} if arm.variant is None else {"mode": arm.name, "variant": arm.variant}
        settings = asdict(replace(self.options, **arm.options)) | own
        return run_head("lr experiment", settings, [self.device])


@dataclass(frozen=True)
class Finding:
    """The result of an experiment. `rows`: the table, as {head: value} with equal
    heads."""

    title: str
    rows: Sequence[Mapping[str, object]]
    panels: Sequence[Panel] = ()
    remarks: Sequence[str] = ()


def write_finding(
    name: str, finding: Finding, folder: Path, command: str, facts: dict[str, Any]
) -> list[Path]:
    """Write NAME.md, NAME.json and, with matplotlib, NAME.png and NAME.svg; return the
    paths."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn: list[Path] = []
    if finding.panels and find_spec("matplotlib"):
        drawn = draw(finding.panels, folder / name, finding.title)
    columns, rows = list(finding.rows[0]), [list(row.values()) for row in finding.rows]
    lines = [f"# {finding.title}", "", "```", command, "```", ""]
    lines += report.table(
        [columns, *([report.cell(value) for value in row] for row in rows)]
    )
    lines += ["", *(f"- {remark}" for remark in finding.remarks)]
    if drawn:
        lines += ["", f"![{finding.title}]({name}.png)"]
    conditions = ", ".join(f"{key} {value}" for key, value in facts.items())
    lines += ["", f"Conditions: {conditions}.", ""]
    markdown, data = folder / f"{name}.md", folder / f"{name}.json"
    markdown.write_text("\n".join(lines), encoding="utf-8")
    content = {
        "title": finding.title, "command": command, "conditions": facts, "columns": columns,
        "rows": report.plain(rows), "remarks": list(finding.remarks),
    }  # fmt: skip
    Store(folder).write(data.name, content)
    return [markdown, data, *drawn]
