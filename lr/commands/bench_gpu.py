"""`lr bench gpu`: what plain decoding and the four modes cost at real shapes, without a checkpoint,
beside the roofline.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from lr.commands.info import memory_table
from lr.commands.options import Device, DtypeName, torch_dtype
from lr.commands.show import console, progress, require_folders
from lr.options import LOOKAHEAD, Driver, GenerateOptions, Mode
from lr.types import require

if TYPE_CHECKING:
    import torch

    from lr.lab.bench.synthetic import Synthetic
    from lr.lab.memory import MemoryPlan
    from lr.model.device import DeviceMap

LARGE = ("Qwen3-32B", "Qwen3-1.7B", "Qwen2.5-7B")
TINY = ("tiny-target", "tiny-draft", "tiny-judge")
NOTES = """limit: what a pass would take if it only moved its bytes, or only did its operations, at
the rates measured above. share: limit / time. Weights are random and what is kept is drawn: answers
mean nothing, rates do."""


@dataclass(frozen=True)
class BenchGpu:
    """Time decoding and the four modes on models of real shapes with random weights; what is
    accepted is drawn."""

    target: str | None = None
    """A shape (Qwen3-32B, Qwen3-1.7B, Qwen3-0.6B, Qwen2.5-7B, tiny-target) or a directory with a
    config.json. None: Qwen3-32B on CUDA, tiny-target elsewhere."""
    draft: str | None = None
    """None: Qwen3-1.7B, or tiny-draft."""
    judge: str | None = None
    """None: Qwen2.5-7B, or tiny-judge; none: verdicts cost nothing."""
    device: str = "auto"
    """Where the target runs, and all others that are not placed elsewhere."""
    draft_device: str | None = None
    """Where the draft runs. None: with the target."""
    judge_device: str | None = None
    """Where the judge runs. None: with the target."""
    dtype: DtypeName | None = None
    """None: bfloat16 on a GPU, float32 on the CPU."""
    threads: int | None = None
    """CPU threads; None: one for the tiny shapes, torch's default for others."""
    modes: tuple[Mode, ...] = ("ar", "sd", "lr", "lr+sd")
    """The modes to time; ar always comes along."""
    drivers: tuple[Driver, ...] = ("lockstep", "overlapped")
    """How the modes that look ahead are driven."""
    batches: tuple[int, ...] = (1, 2, 4, 8)
    """Batch sizes of plain decoding."""
    prompt: int = 512
    """Tokens before the answer."""
    tokens: int = 256
    """Tokens of an answer."""
    repeats: int = 3
    """How often everything is timed; once more does not count."""
    depth: int = 4
    """How many draft steps ahead."""
    k: int = 8
    """Tokens guessed ahead in sd and lr+sd."""
    drafter: Literal["ngram", "draft"] = "ngram"
    """Who guesses tokens: prompt lookup that always finds something, or the draft model."""
    pair: Literal["r1", "qwen3"] = "qwen3"
    """Acceptance as in the paper: which pair of models of Table 1 ..."""
    dataset: str = "GSM8K"
    """... on which data set. alpha1 is printed there, alpha2 fitted."""
    calibration: Path | None = None
    """Acceptance and lengths of steps from a file that lr calibrate --output wrote, instead."""
    alpha1: float | None = None
    """Acceptance of draft steps, instead of that."""
    alpha2: float | None = None
    """Acceptance of draft tokens, instead of that."""
    step_tokens: float = 32.0
    """Mean length of a step where no calibration says it. An assumption: the paper prints no
    lengths."""
    json: Path | None = None
    """Also write every figure to this file."""

    def run(self) -> None:
        from lr.lab.bench.report import write_json

        self._check()
        out = console()
        found = self.measure(out)
        if self.json is not None:
            write_json(found, self.json)

    def measure(self, out: Console) -> dict[str, Any]:
        """Do it, print it, and return it as one document. Raises `MemoryShortError` before anything
        is loaded if it cannot fit."""
        from lr.lab.bench.gpu import Plan, bench, report, ways

        layout, names = self.layout(), self._names()
        Device(threads=self.threads).set_threads(*names.values())
        memory = self.memory(layout, names)
        out.print(memory_table(memory))
        memory.check()
        chosen = ways(list(dict.fromkeys(("ar", *self.modes))), self.drivers)
        steps = min(self.tokens, 64)
        plan = Plan(self.options(), self.batches, self.prompt, steps, self.repeats)
        devices = {"target": layout.target[0], "draft": layout.draft, "judge": layout.judge}
        runs = 2 * plan.runs_per_model + len(chosen) * (self.repeats + 1)
        with progress("timing", runs) as advance:
            found = bench(
                (str(names["target"]), str(names["draft"]), names["judge"]),
                devices,
                self._dtype(layout),
                self.synthetic(),
                plan,
                chosen,
                advance,
            )
        out.print(report(found), markup=False, highlight=False)
        out.print(NOTES, style="dim")
        own = {name: value for name, value in asdict(self).items() if name != "json"}
        settings = {n: str(v) if isinstance(v, Path) else v for n, v in own.items()}
        kept = [asdict(device) | {"needed": device.needed} for device in memory.devices]
        return found | {"settings": settings, "memory": kept}

    def layout(self) -> DeviceMap:
        """The devices. Raises `SettingError` for one that is not there."""
        from lr.model.device import DeviceMap

        given = {"target": self.device, "draft": self.draft_device, "judge": self.judge_device}
        return DeviceMap.of({role: one for role, one in given.items() if one is not None})

    def synthetic(self) -> Synthetic:
        """What decides: given numbers first, then a calibration, then the paper's tables."""
        from lr.lab.bench.synthetic import Synthetic
        from lr.theory.calibration import Calibration
        from lr.theory.distributions import Lognormal
        from lr.theory.paper import paper_calibration

        lengths = Lognormal(self.step_tokens, 0.5)
        known = (
            paper_calibration(self.pair, self.dataset)
            if self.calibration is None
            else Calibration.load(self.calibration)
        )
        found = Synthetic.of_calibration(known, lengths)
        if self.alpha1 is not None:
            found = replace(found, alpha1=self.alpha1)
        if self.alpha2 is not None:
            found = replace(found, alpha2=self.alpha2)
        given = self.alpha1 is not None or self.alpha2 is not None
        return replace(found, source=f"{found.source} but as given") if given else found

    def options(self) -> GenerateOptions:
        """The engine's settings, but for mode and driver. Tokens are drawn as Qwen3 recommends."""
        return GenerateOptions(
            mode="lr+sd",
            driver="overlapped" if "overlapped" in self.drivers else "lockstep",
            drafter=self.drafter,
            num_speculative_tokens=self.k,
            depth=self.depth,
            max_tokens=self.tokens,
            temperature=0.6,
            top_p=0.95,
            top_k=20,
        )

    def memory(self, layout: DeviceMap, names: dict[str, str | None]) -> MemoryPlan:
        """What will be taken, by the shapes alone."""
        from lr.lab.memory import Cast, place, plan_run

        dtype = self._dtype(layout)
        places = {"target": layout.target[0], "draft": layout.draft, "judge": layout.judge}
        placed = {
            role: place(f"dummy:{name}", (str(places[role]),), dtype)
            for role, name in names.items()
            if name is not None
        }
        apart = not layout.shares_gpu
        cast = Cast(placed["target"], placed["draft"], placed.get("judge"), apart=apart)
        at_once = len(self.modes) * len(self.drivers)  # each way keeps its caches
        return plan_run(cast, self.options(), self.prompt + self.tokens, share=at_once)

    def _names(self) -> dict[str, str | None]:
        import torch

        on_cuda = torch.device(self.layout().target[0]).type == "cuda"
        usual = LARGE if on_cuda else TINY
        target, draft, judge = (
            mine or theirs
            for mine, theirs in zip((self.target, self.draft, self.judge), usual, strict=True)
        )
        return {"target": target, "draft": draft, "judge": None if judge == "none" else judge}

    def _dtype(self, layout: DeviceMap) -> torch.dtype:
        import torch

        return torch_dtype(self.dtype, layout.target[0].type) or torch.bfloat16

    def _check(self) -> None:
        for name in ("prompt", "tokens"):
            require(getattr(self, name) >= 2, name, getattr(self, name), "a whole number >= 2")
        least = "at least 2, for a spread; 5 for a figure to publish"
        require(self.repeats >= 2, "repeats", self.repeats, least)
        batches = bool(self.batches) and all(batch > 0 for batch in self.batches)
        require(batches, "batches", self.batches, "whole numbers > 0")
        driven = bool(self.drivers) or not any(mode in LOOKAHEAD for mode in self.modes)
        require(driven, "drivers", self.drivers, "at least one for the modes lr and lr+sd")
        require(self.step_tokens >= 1, "step_tokens", self.step_tokens, "a number >= 1")
        require_folders(json=self.json)
