"""Where experiments happen: models loaded once, arms run in turns over the problems, results on
disk, resumed where they stopped.

An arm is one way of answering. The arms take turns, a few problems at a time, so that a machine
that gets slower or faster meanwhile does so for all of them. What comes out is a run directory per
arm, the same that `lr run` writes, and `Outcome` for what the tables are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from lr.engine.verification import choose_verifier
from lr.errors import SettingError
from lr.lab.eval.grading import grader_for
from lr.lab.eval.items import Item, fingerprint
from lr.lab.eval.keeping import Keeping
from lr.lab.eval.modes import engine_options, variant_of
from lr.lab.eval.report import Row, RunResults, make_row, read_run
from lr.lab.eval.running import Evaluation, Plan, versions
from lr.lab.eval.sandbox import Limits
from lr.lab.eval.store import Store
from lr.options import GenerateOptions
from lr.reasoner import Reasoner
from lr.registry import language_of
from lr.spec.seams import Variant
from lr.spec.verifiers.base import Verifier
from lr.tiny.languages import TinyLanguage

TURN = 12
"""Problems that an arm answers before the next has its turn; more where arms work on several at
once, whose last ones are a tail.
"""


@dataclass(frozen=True)
class LabModels:
    """What the experiments run on. `encoder` None: verifiers by embedding are left out."""

    target: str = "tiny-target"
    draft: str | None = "tiny-draft"
    judge: str | None = "tiny-judge"
    encoder: str | None = None
    device: str = "cpu"
    dtype: torch.dtype | None = None


@dataclass(frozen=True)
class Arm:
    """One way of answering. `options` change the lab's; `verifier` None: the lab's."""

    name: str
    mode: str = "lr"
    options: Mapping[str, Any] = field(default_factory=dict)
    verifier: str | None = None
    keeping: Keeping = field(default_factory=Keeping)
    concurrency: int | None = None


@dataclass(frozen=True)
class Outcome:
    """What the arms of an experiment gave, by name, and the rows of their comparison with the first
    arm in mode ar.
    """

    runs: dict[str, RunResults]
    rows: dict[str, Row]


class Lab:
    """Runs arms on problems. `work` holds the run directories; `concurrency` is each arm's unless
    it says otherwise.
    """

    def __init__(
        self,
        models: LabModels,
        items: Sequence[Item],
        work: Path,
        *,
        options: GenerateOptions | None = None,
        verifier: str = "judge",
        concurrency: int = 1,
    ) -> None:
        self.models, self.items, self.work = models, items, work
        self.options = GenerateOptions() if options is None else options
        self.verifier, self.concurrency = verifier, concurrency
        self._reasoners: dict[str, Reasoner] = {}
        self._verifiers: dict[str, Verifier] = {}

    def run(self, arms: Sequence[Arm], heard: Callable[[str], None] = lambda name: None) -> Outcome:
        """Answer every problem in every arm and compare. `heard` is called with the arm's name
        after each answer.
        """
        with grader_for(self.items, Limits()) as grader:
            stores = {arm.name: Store.open(self.work / arm.name, self._head(arm)) for arm in arms}
            turn = (
                TURN * max(1, self.concurrency // 2)
                if any(arm.concurrency is None for arm in arms)
                else TURN
            )
            for first in range(0, len(self.items), turn):
                for arm in arms:
                    plan = self._plan(arm, self.items[first : first + turn])
                    evaluation = Evaluation(self.reasoner(arm.mode), plan, stores[arm.name], grader)
                    for _ in range(len(plan.keys) - len(evaluation.missing)):
                        heard(arm.name)
                    if evaluation.missing:
                        for _ in evaluation.run():
                            heard(arm.name)
            runs = {arm.name: read_run(self.work / arm.name, grader) for arm in arms}
        wanted = {item.number for item in self.items}
        runs = {
            name: replace(
                run, records={key: one for key, one in run.records.items() if key.number in wanted}
            )
            for name, run in runs.items()
        }
        baseline = next((runs[arm.name] for arm in arms if arm.mode == "ar"), None)
        return Outcome(runs, {name: make_row(run, baseline) for name, run in runs.items()})

    def reasoner(self, mode: str = "lr") -> Reasoner:
        """The models for a mode: target and draft, or the draft alone."""
        which = "draft" if mode == "draft" else "both"
        if which not in self._reasoners:
            target, draft = self.models.target, self.models.draft
            if mode == "draft":
                if draft is None:
                    raise SettingError("mode 'draft' needs a draft model, and none was given.")
                target, draft = draft, None
            self._reasoners[which] = Reasoner(
                target, draft, "exact", device=self.models.device, dtype=self.models.dtype
            )
        return self._reasoners[which]

    def verifier_named(self, name: str) -> Verifier:
        """A verifier by name, loaded once. Raises `SettingError` where its checkpoint is
        missing.
        """
        if name not in self._verifiers:
            kind = name.partition(":")[0]
            extra = {"judge": self.models.judge, "embedding": self.models.encoder}.get(kind)
            if kind in ("judge", "embedding") and extra is None:
                raise SettingError(
                    f"verifier {name!r} needs a checkpoint (--judge_model, --encoder), and none was given."
                )
            reasoner = self.reasoner()
            choice = choose_verifier(
                name,
                reasoner.codec,
                extra,
                device=self.models.device,
                dtype=self._dtype(),
                num_blocks=None,
            )
            self._verifiers[name] = choice.build(reasoner.models.target)
        return self._verifiers[name]

    def decode(self, tokens: Sequence[int]) -> str:
        """Token ids to text."""
        return self.reasoner().codec.decode(tokens)

    @property
    def language(self) -> TinyLanguage | None:
        """The tiny language that the target speaks; None where it speaks none."""
        return language_of(self.reasoner().codec)

    @property
    def tiny(self) -> bool:
        """Whether the target speaks a tiny language, so that there is an oracle."""
        return self.language is not None

    def close(self) -> None:
        """End what runs beside."""
        for reasoner in self._reasoners.values():
            reasoner.close()

    def _dtype(self) -> torch.dtype | None:
        return (
            torch.float32
            if self.models.dtype is None and self.models.device == "cpu"
            else self.models.dtype
        )

    def _plan(self, arm: Arm, items: Sequence[Item]) -> Plan:
        options = engine_options(arm.mode, "generate", replace(self.options, **arm.options))
        reasoner = self.reasoner(arm.mode)
        variant = variant_of(arm.mode, reasoner.models)
        if arm.mode in ("lr", "lr+sd"):
            variant = Variant(verifier=self.verifier_named(arm.verifier or self.verifier))
        concurrency = self.concurrency if arm.concurrency is None else arm.concurrency
        return Plan(
            items, arm.mode, options, 1, concurrency, None, self.tiny, variant, arm.keeping
        )  # fmt: skip

    def _head(self, arm: Arm) -> dict[str, Any]:
        """The content of the arm's run.json."""
        options = asdict(replace(self.options, **arm.options))
        own = {
            "data": fingerprint(self.items),
            "mode": arm.mode,
            "model": self.models.draft if arm.mode == "draft" else self.models.target,
            "draft_model": self.models.draft,
            "verifier": (arm.verifier or self.verifier) if arm.mode in ("lr", "lr+sd") else None,
            "concurrency": self.concurrency if arm.concurrency is None else arm.concurrency,
        }
        return {
            "tool": "lr experiment",
            "settings": options | own | {"branching": list(self.options.branching)},
            "versions": versions(),
            "devices": [self.models.device],
        }


def every(arms: Sequence[Arm], items: Sequence[Item]) -> Iterator[str]:
    """The name of the arm of every answer that an experiment asks for."""
    for arm in arms:
        for _ in items:
            yield arm.name
