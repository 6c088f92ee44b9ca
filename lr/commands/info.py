"""`lr info`: what this machine has, how much memory models need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.table import Table

from lr.commands.options import DtypeName, torch_dtype
from lr.commands.show import console, require_at_least, table
from lr.measure.machine import conditions
from lr.options import GenerateOptions, Mode

if TYPE_CHECKING:
    from lr.measure.memory import MemoryPlan


@dataclass(frozen=True)
class MemoryOf:
    """Models whose memory to plan, with the flags of `lr run`. Devices have names,
    since this machine may lack them."""

    model: str | None = None
    """Print the memory that models need instead: this target (a shape such as
    Qwen3-32B, a directory, a hub id), ..."""
    draft_model: str | None = None  # ... this draft ...
    judge_model: str | None = None  # ... and this judge.
    mode: Mode = "lr+sd"  # The mode to plan for.
    max_tokens_len: int = 37000  # Longest prompt and answer together, in tokens.
    max_depth: int = 4  # How many draft steps to write ahead.
    concurrency: int = 1  # Problems answered at the same time.
    dtype: DtypeName | None = None
    """None: the checkpoint's own; on a CPU what lr info says."""
    target_device: str | None = None
    """Device of the target; cuda:0,cuda:1 for tensor parallelism. None: CUDA, else MPS,
    else the CPU."""
    draft_device: str | None = None  # None: as the target.
    judge_device: str | None = None  # None: as the target.
    free_gib: float | None = None
    """Plan with this much free on every device. None: what is free."""

    def plan(self) -> MemoryPlan:
        """The plan. Raises `CheckpointError`, `SettingError`."""
        import torch

        from lr.measure.memory import plan_memory
        from lr.model.device import DeviceMap, find_device

        require_at_least(self, max_tokens_len=1, concurrency=1, free_gib=0)
        device_of = find_device if self.free_gib is None else torch.device
        named = self.target_device or str(find_device("auto"))
        target = tuple(device_of(part.strip()) for part in named.split(","))
        draft = device_of(self.draft_device or target[0])
        judge = device_of(self.judge_device or target[0])
        options = GenerateOptions(
            mode="ar" if self.draft_model is None else self.mode,
            drafter="ngram",
            depth=self.max_depth,
            driver="overlapped",
        )
        return plan_memory(
            (self.model, self.draft_model, self.judge_model),
            DeviceMap(target, draft, judge),
            torch_dtype(self.dtype),
            options,
            self.max_tokens_len,
            share=self.concurrency,
            free_gib=self.free_gib,
        )


def memory_table(plan: MemoryPlan) -> Table:
    """What each device will hold."""
    from lr.measure.memory import gib

    columns = ("device", "model", "weights", "cache", "needed", "free")
    shown = table(columns, text=2)
    for device, free in plan.free.items():
        for place, model, weights, cache in plan.models:
            if place == device:
                shown.add_row(device, model, gib(weights), gib(cache))
        needed = gib(plan.needed(device))
        left = "not known" if free is None else gib(free)
        shown.add_row(device, "together", "", "", needed, left, style="bold")
    return shown


@dataclass(frozen=True)
class Info:
    """Print versions, devices and how models are computed on them, or the memory that
    models need."""

    memory: MemoryOf = field(default_factory=MemoryOf)

    def run(self) -> None:
        out = console()
        if self.memory.model is not None:
            plan = self.memory.plan()
            out.print(memory_table(plan))
            plan.check()
        else:
            for line in machine_lines():
                out.print(line)


def machine_lines() -> Iterator[str]:
    """What this machine has, and what models get on it."""
    import torch

    from lr.model.attention_choice import AttentionNeeds, candidates
    from lr.model.device import find_device
    from lr.model.layers import bfloat16_unit

    for name, value in conditions().items():
        yield f"{name}: {value}"
    device = find_device("auto")
    yield f"device where none is named: {device}"
    unit = bfloat16_unit()
    large = f"bfloat16 (it has {unit})" if unit else "float32 (no bfloat16 unit)"
    yield f"dtype of large models on the CPU, where none is asked for: {large}"
    # The kind of attention that models get there, after trying each kind, and why;
    # `flash` is one line for each package. A trial records CUDA graphs.
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    name = str(dtype).removeprefix("torch.")
    yield f"attention on {device}, {name}, 32 heads of 128, 8 of them KV heads:"
    verdict = "taken"
    for name, kind in candidates(AttentionNeeds(device, dtype, (32, 8, 128))):
        if isinstance(kind, str):
            yield f"  {name:<12} no: {kind}"
        else:
            graphs = ", with CUDA graphs and fused layers" if kind.tiles else ""
            yield f"  {name:<12} {verdict}{graphs}"
            verdict = "works, but another comes first"
