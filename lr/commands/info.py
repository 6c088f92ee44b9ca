"""`lr info`: what this machine offers."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from lr.commands.memory import MemoryOf, memory_table
from lr.commands.servers import ServerChoice
from lr.commands.show import console

if TYPE_CHECKING:
    import torch

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "tyro", "rich")


@dataclass(frozen=True)
class Info:
    """Print versions, devices and the checkpoints that come with the package; or what a server can
    do; or what models would take.
    """

    endpoint: str | None = None
    """The address of a served model, openai:http://host:port/name: ask it what it can do, and say
    what that allows.
    """
    server: ServerChoice = field(default_factory=ServerChoice)
    memory: MemoryOf = field(default_factory=MemoryOf)

    def run(self) -> None:
        import torch

        if self.endpoint is not None:
            self._probe(self.endpoint)
            return
        if self.memory.model is not None:
            plan = self.memory.plan()
            console().print(memory_table(plan))
            plan.check()
            return

        from lr import __version__
        from lr.commands.models import Placement
        from lr.tiny.names import CHECKPOINTS, checkpoint_path

        out = console()
        out.print(
            f"lr {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
        )
        for package in PACKAGES:
            try:
                out.print(f"  {package} {version(package)}")
            except PackageNotFoundError:
                out.print(f"  {package} is not installed")
        out.print(f"device: {Placement().torch_device()}, {torch.get_num_threads()} CPU threads")
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            out.print(
                f"  cuda:{index} {properties.name}, {properties.total_memory / 2**30:.0f} GiB"
            )
        for line in attention_lines(Placement().torch_device()):
            out.print(line, markup=False)
        for name in CHECKPOINTS:
            size = sum(
                file.stat().st_size for file in checkpoint_path(name).rglob("*") if file.is_file()
            )
            out.print(f"checkpoint {name}: {size / 2**20:.1f} MiB")

    def _probe(self, address: str) -> None:
        """What an endpoint was found to do, and how steps would go over it."""
        from lr.lab.endpoint.address import Address
        from lr.lab.endpoint.models import ServedModel

        model = ServedModel.open(str(Address.parse(address)), self.server.servers())
        out = console()
        out.print(f"{model}, context {model.context} tokens, tokenizer of {model.codec.name}")
        for name, found in model.can.lines():
            out.print(f"  {name:<18} {found}", markup=False)
        mode = "token ids" if model.ids else "text"
        out.print(f"steps go over as {mode}; docs/engines.md says what needs what")


def attention_lines(device: torch.device) -> list[str]:
    """Which kind of attention models get on a device, and why not another: one line per kind, each
    tried.
    """
    import torch

    from lr.model.attention_choice import candidates
    from lr.model.attention_probe import AttentionNeeds

    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    lines, taken = (
        [
            f"attention on {device}, {str(dtype).removeprefix('torch.')}, 32 heads of 128, 8 of them KV heads:"
        ],
        False,
    )
    for found in candidates(AttentionNeeds(device, dtype, 32, 8, 128)):
        if found.kind is None:
            lines.append(f"  {found.name:<7} no: {found.why}")
        else:
            verdict = "works, but another comes first" if taken else "taken"
            lines.append(f"  {found.name:<7} {verdict}, blocks of {found.kind.block_size} tokens")
            taken = True
    return lines
