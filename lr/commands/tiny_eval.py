"""`lr tiny eval`: measure the tiny models on held-out problems. What `docs/tiny.md` says comes from
here.
"""

from __future__ import annotations

from dataclasses import dataclass

from lr.commands.models import Placement
from lr.commands.show import console
from lr.tiny.evaluate import EvalSettings, evaluate
from lr.tiny.names import companion
from lr.types import SamplingParams, require


@dataclass(frozen=True)
class TinyEval:
    """Measure accuracy, step acceptance by the oracle, exact-text and token acceptance on held-out
    problems, by kind of step.

    Prints a Markdown table. 64 problems take about 20 seconds on two cores, the ablation about as
    long per layer as the rest.
    """

    target: str = "tiny-target"
    """The target: a tiny model's name (plans-target for the language of plans) or a directory."""
    draft: str | None = None
    """The draft, likewise. None: the one that belongs to the target."""
    problems: int = 64
    """How many held-out problems."""
    seed: int = 0
    """Which problems and which draws."""
    temperature: float = 0.6
    """0 is greedy."""
    far: float = 0.0
    """Share of operations that refer to any earlier person; the published models have not been
    trained on them.
    """
    ablation_problems: int = 0
    """Solve this many problems once more for each layer of the target left out; 0: no ablation."""
    threads: int = 1
    """CPU threads."""

    def run(self) -> None:
        require(self.problems > 0, "problems", self.problems, "a whole number > 0")
        require(
            self.ablation_problems >= 0,
            "ablation_problems",
            self.ablation_problems,
            "a whole number >= 0",
        )
        require(0 <= self.far <= 1, "far", self.far, "a share from 0 to 1")
        SamplingParams(self.temperature)  # refuses an impossible one before the models are loaded
        threads = Placement(threads=self.threads).set_threads()
        with console(stderr=True).status("measuring ..."):
            report = evaluate(
                self.target,
                self.draft or companion(self.target, "draft") or "tiny-draft",
                EvalSettings(
                    problems=self.problems,
                    seed=self.seed,
                    temperature=self.temperature,
                    far=self.far,
                    ablation_problems=self.ablation_problems,
                ),
            )
        console().print(report.table(), markup=False)
        console().print(f"Threads: {threads}. float32.")
