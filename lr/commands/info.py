"""`lr info`: what this machine has, how much memory models need."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from rich.table import Table

from lr import __version__
from lr.commands.options import DeviceOptions, DtypeName, torch_dtype
from lr.commands.show import at_least, console, table
from lr.model.files import resolve
from lr.options import GenerateOptions, Mode
from lr.tiny import CHECKPOINTS

if TYPE_CHECKING:
    import torch

    from lr.measure.memory import MemoryPlan

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "huggingface_hub",
    "tyro",
    "rich",
)


@dataclass(frozen=True)
class MemoryOf:
    """Models whose memory to plan, with the flags of `lr run`. Devices have names,
    since this machine may lack them."""

    model: str | None = (
        None  # Print the memory that models need instead: this target, ...
    )
    draft_model: str | None = None  # ... this draft ...
    judge_model: str | None = (
        None  # ... and this judge: shapes (Qwen3-32B), directories, hub ids.
    )
    mode: Mode = "lr+sd"  # The mode to plan for.
    max_tokens_len: int = 37000  # Longest prompt and answer together, in tokens.
    max_depth: int = 4  # How many draft steps to write ahead.
    concurrency: int = 1  # Problems answered at the same time.
    dtype: DtypeName | None = (
        None  # None: float32 on the CPU, the checkpoint's own elsewhere.
    )
    target_device: str = (
        "auto"  # Device of the target; cuda:0,cuda:1 for tensor parallelism.
    )
    draft_device: str | None = None  # None: as the target.
    judge_device: str | None = None  # None: as the target.
    free_gib: float | None = (
        None  # Plan with this much free on every device. None: what is free.
    )

    def plan(self) -> MemoryPlan:
        """The plan. Raises `CheckpointError`, `SettingError`."""
        import torch

        from lr.measure.memory import plan_memory
        from lr.model.device import DeviceMap, find_device

        at_least(self, max_tokens_len=1, concurrency=1, free_gib=0)
        known = find_device if self.free_gib is None else torch.device
        named = self.target_device
        if named == "auto":
            named = str(find_device("auto"))
        target = tuple(known(part.strip()) for part in named.split(","))
        draft = known(self.draft_device or target[0])
        judge = known(self.judge_device or target[0])
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
    fits = "" if plan.longest >= plan.tokens else f"; {plan.longest} would fit"
    title = f"memory for chains of {plan.tokens} tokens{fits}"
    columns = ("device", "model", "weights", "cache", "needed", "free")
    shown = table(columns, text=2, title=title)
    for row in plan.rows():
        shown.add_row(*row, style="bold" if row[1] == "together" else None)
    return shown


@dataclass(frozen=True)
class Info:
    """Print versions, devices and the checkpoints of this package, or the memory that
    models need."""

    memory: MemoryOf = field(default_factory=MemoryOf)

    def run(self) -> None:
        out = console()
        if self.memory.model is not None:
            plan = self.memory.plan()
            out.print(memory_table(plan))
            plan.check()
        else:
            for line in self._here():
                out.print(line)

    def _here(self) -> Iterator[str]:
        import torch

        machine = f"{platform.system()} {platform.machine()}"
        yield f"lr {__version__}, Python {platform.python_version()}, {machine}"
        for package in PACKAGES:
            try:
                yield f"  {package} {version(package)}"
            except PackageNotFoundError:
                yield f"  {package} is not installed"
        device = DeviceOptions().torch_device()
        yield f"device: {device}, {torch.get_num_threads()} CPU threads"
        for index in range(torch.cuda.device_count()):
            gpu = torch.cuda.get_device_properties(index)
            yield f"  cuda:{index} {gpu.name}, {gpu.total_memory / 2**30:.0f} GiB"
        yield from attention_lines(device)
        for name in CHECKPOINTS:
            files = [path for path in resolve(name).rglob("*") if path.is_file()]
            yield f"checkpoint {name}: {sum(p.stat().st_size for p in files) / 2**20:.1f} MiB"


def attention_lines(device: torch.device) -> list[str]:
    """The kind of attention that models get on a device, after trying each kind, and
    why. The trial of the first two records CUDA graphs."""
    import torch

    from lr.model.attention_choice import AttentionNeeds, candidates

    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    shape = f"{str(dtype).removeprefix('torch.')}, 32 heads of 128, 8 of them KV heads"
    lines, taken = [f"attention on {device}, {shape}:"], False
    for name, kind in candidates(AttentionNeeds(device, dtype, 32, 8, 128)):
        if isinstance(kind, str):
            lines.append(f"  {name:<6} no: {kind}")
            continue
        verdict = "works, but another comes first" if taken else "taken"
        graphs = ", with CUDA graphs and fused layers" if kind.tiles else ""
        lines.append(f"  {name:<6} {verdict}{graphs}")
        taken = True
    return lines
