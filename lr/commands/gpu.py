"""`lr bench gpu`: real shapes without a checkpoint, beside the roofline."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lr.commands import show
from lr.commands.info import memory_plan, memory_table
from lr.commands.options import Device, DtypeName, torch_dtype
from lr.lab.bench.report import write_json
from lr.options import LOOKAHEAD, Driver, GenerateOptions, Mode
from lr.theory.calibration import Calibration
from lr.theory.distributions import Lognormal
from lr.theory.paper import paper_calibration
from lr.types import require

if TYPE_CHECKING:
    from lr.lab.bench.synthetic import Synthetic

LARGE = ("Qwen3-32B", "Qwen3-1.7B", "Qwen2.5-7B")
TINY = ("tiny-target", "tiny-draft", "tiny-judge")
GPU_NOTES = """\
limit: what a pass would take if it only moved its bytes, or only did its operations, at the rates
measured above. share: limit / time. Weights are random and what is kept is drawn: answers
mean nothing, rates do."""


@dataclass(frozen=True)
class BenchGpu:
    """Time decoding and the four modes on models of real shapes with random weights; what is
    accepted is drawn."""

    target: str | None = None
    """A shape (Qwen3-32B, Qwen3-1.7B, Qwen3-0.6B, Qwen2.5-7B, tiny-target) or a directory with a
    config.json. None: Qwen3-32B on CUDA, tiny-target elsewhere."""
    draft: str | None = None  # None: Qwen3-1.7B, or tiny-draft.
    judge: str | None = None  # None: Qwen2.5-7B, or tiny-judge; none: verdicts cost nothing.
    device: str = "auto"  # Where the target runs, and all others that are not placed elsewhere.
    draft_device: str | None = None  # Where the draft runs. None: with the target.
    judge_device: str | None = None  # Where the judge runs. None: with the target.
    dtype: DtypeName | None = None  # None: bfloat16 on a GPU, float32 on the CPU.
    threads: int | None = None  # CPU threads; None: one for tiny shapes, else torch's default.
    modes: tuple[Mode, ...] = ("ar", "sd", "lr", "lr+sd")  # The modes to time, and ar.
    drivers: tuple[Driver, ...] = ("lockstep", "overlapped")  # How lr and lr+sd are driven.
    batches: tuple[int, ...] = (1, 2, 4, 8)  # Batch sizes of plain decoding.
    prompt: int = 512  # Tokens before the answer.
    tokens: int = 256  # Tokens of an answer.
    repeats: int = 3  # How often everything is timed; once more does not count.
    depth: int = 4  # How many draft steps ahead.
    k: int = 8  # Tokens guessed ahead in sd and lr+sd.
    drafter: Literal["ngram", "draft"] = "ngram"
    """Who guesses tokens: prompt lookup that always finds something, or the draft model."""
    pair: Literal["r1", "qwen3"] = "qwen3"  # Acceptance as in the paper: pair of Table 1 ...
    dataset: str = "GSM8K"  # ... on which data set. alpha1 is printed there, alpha2 fitted.
    calibration: Path | None = None  # Acceptance, step lengths from lr calibrate, instead.
    alpha1: float | None = None  # Acceptance of draft steps, instead of that.
    alpha2: float | None = None  # Acceptance of draft tokens, instead of that.
    step_tokens: float = 32.0  # Mean length of a step without a calibration: an assumption.
    json: Path | None = None  # Also write every figure to this file.

    def run(self) -> None:
        import torch

        from lr.lab.bench import gpu
        from lr.model.device import DeviceMap

        show.at_least(self, prompt=2, tokens=2, repeats=2, step_tokens=1)
        batches = bool(self.batches) and all(0 < batch <= 10_000 for batch in self.batches)
        require(batches, "batches", self.batches, "whole numbers from 1 to 10000")
        driven = bool(self.drivers) or not any(mode in LOOKAHEAD for mode in self.modes)
        require(driven, "drivers", self.drivers, "at least one for the modes lr and lr+sd")
        show.require_files(json=self.json)
        given = {"target": self.device, "draft": self.draft_device, "judge": self.judge_device}
        layout = DeviceMap.of({role: one for role, one in given.items() if one is not None})
        first = layout.target[0]
        usual = LARGE if first.type == "cuda" else TINY
        target, draft = self.target or usual[0], self.draft or usual[1]
        judge = None if self.judge == "none" else self.judge or usual[2]
        Device(threads=self.threads).set_threads(target, draft, judge)
        options = GenerateOptions(
            mode="lr+sd",
            driver="overlapped" if "overlapped" in self.drivers else "lockstep",
            drafter=self.drafter,
            num_speculative_tokens=self.k,
            depth=self.depth,
            max_tokens=self.tokens,
            temperature=0.6,  # this and the next two as Qwen3 recommends
            top_p=0.95,
            top_k=20,
        )
        dummies = [None if name is None else f"dummy:{name}" for name in (target, draft, judge)]
        dtype = torch_dtype(self.dtype, first.type) or torch.bfloat16
        at_once = len(self.modes) * len(self.drivers)  # each way keeps its caches
        longest = self.prompt + self.tokens
        memory = memory_plan(dummies, layout, dtype, options, longest, share=at_once)
        out = show.console()
        out.print(memory_table(memory))
        memory.check()
        chosen = gpu.ways(list(dict.fromkeys(("ar", *self.modes))), self.drivers)
        steps = min(self.tokens, 64)
        plan = gpu.Plan(options, self.batches, self.prompt, steps, self.repeats)
        devices = {"target": first, "draft": layout.draft, "judge": layout.judge}
        runs = (2 * (len(self.batches) + 1) + len(chosen)) * (self.repeats + 1)
        with show.progress("timing", runs) as advance:
            names, decides = (target, draft, judge), self._synthetic()
            found = gpu.bench(names, devices, dtype, decides, plan, chosen, advance)
        out.print(gpu.report(found), highlight=False)
        out.print(GPU_NOTES, style="dim")
        kept = [asdict(device) | {"needed": device.needed} for device in memory.devices]
        write_json(found | {"settings": show.settings_of(self), "memory": kept}, self.json)

    def _synthetic(self) -> Synthetic:
        """What decides: given numbers first, then a calibration, then the paper's tables."""
        from lr.lab.bench.synthetic import Synthetic

        lengths = Lognormal(self.step_tokens, 0.5)
        if self.calibration is not None:
            known = Calibration.load(self.calibration)
        else:
            known = paper_calibration(self.pair, self.dataset)
        found = Synthetic.of_calibration(known, lengths)
        given = {"alpha1": self.alpha1, "alpha2": self.alpha2}
        said: dict[str, Any] = {name: one for name, one in given.items() if one is not None}
        return replace(found, **said, source=f"{found.source} but as given") if said else found
