"""`lr info`: what this machine offers and what models would take; `lr tiny eval`: how good the tiny
models are.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Literal

from lr.commands.options import DtypeName, Placement, ServerChoice
from lr.commands.show import console
from lr.tiny.evaluate import EvalSettings, evaluate
from lr.tiny.names import companion
from lr.types import SamplingParams, require

if TYPE_CHECKING:
    import torch
    from rich.table import Table

    from lr.commands.run import RunModels
    from lr.engine.needs import Placed
    from lr.model.memory import MemoryPlan
    from lr.options import GenerateOptions

SHOWN_FROM = 1 << 30
"""A plan of fewer bytes than this is checked, not shown."""


@dataclass(frozen=True)
class MemoryOf:
    """Which models are to be planned for. The same words as in `lr run`; devices by name, since
    they need not be here.
    """

    model: str | None = None
    """Also say what these models would take: the target ..."""
    draft_model: str | None = None
    """... the draft ..."""
    judge_model: str | None = None
    """... and the judge; a shape (Qwen3-32B), a directory or a hub id. Only config.json is read."""
    mode: Literal["ar", "sd", "lr", "lr+sd"] = "lr+sd"
    """The mode that is planned for."""
    max_tokens_len: int = 37000
    """Longest prompt and answer together, in tokens."""
    max_depth: int = 4
    """How many draft steps ahead."""
    concurrency: int = 1
    """Problems that are worked on together."""
    dtype: DtypeName | None = None
    """None: float32 on the CPU, the checkpoint's own elsewhere."""
    target_device: str = "auto"
    """Where the target runs; several for tensor parallelism: cuda:0,cuda:1."""
    draft_device: str | None = None
    """None: with the target."""
    judge_device: str | None = None
    """None: with the target."""
    free_gib: float | None = None
    """As if so much were free on every device. None: what is free now."""

    def plan(self) -> MemoryPlan:
        """The plan. Raises `CheckpointError`, `SettingError`."""
        import torch

        from lr.engine.launch import Where
        from lr.engine.needs import Cast, place, plan_run
        from lr.engine.placement import Layout
        from lr.model.device import find_device
        from lr.options import GenerateOptions

        for name in ("max_tokens_len", "concurrency"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "a whole number >= 1")
        auto = str(find_device("auto")) if self.target_device == "auto" else self.target_device
        known = find_device if self.free_gib is None else torch.device
        target = tuple(str(known(part.strip())) for part in auto.split(","))
        draft, judge = (
            str(known(other or target[0])) for other in (self.draft_device, self.judge_device)
        )
        dtype = torch_dtype(self.dtype, target[0])
        found: list[Placed | None] = [
            None if name is None else place(name, where, dtype)
            for name, where in (
                (self.model, target),
                (self.draft_model, (draft,)),
                (self.judge_model, (judge,)),
            )
        ]
        assert found[0] is not None, "asked for with a model only"
        layout = Layout(tuple(map(torch.device, target)), torch.device(draft), torch.device(judge))
        cast = Cast(found[0], found[1], found[2], "judge", layout.worker is Where.PROCESS)
        mode = self.mode if self.draft_model is not None else "ar"
        options = GenerateOptions(
            mode=mode, drafter="ngram", depth=self.max_depth, driver="overlapped"
        )
        given = None if self.free_gib is None else int(self.free_gib * 2**30)
        free = None if given is None else (lambda device: given)
        return plan_run(cast, options, self.max_tokens_len, share=self.concurrency, free=free)


def plan_of_run(
    models: RunModels,
    mode: str,
    options: GenerateOptions,
    tokens: int,
    share: int,
    *,
    needs_draft: bool,
    judges: bool,
) -> MemoryPlan | None:
    """The plan of `lr run` with these models (from settings that were `chosen`); None where the
    target is behind a server.
    """
    import torch

    from lr.engine.launch import Where
    from lr.engine.needs import Cast, place, plan_run
    from lr.engine.placement import Layout
    from lr.lab.endpoint.address import is_address
    from lr.model.parallel.start import Spread

    target = models.draft_model if mode == "draft" else models.model
    assert target is not None
    if is_address(target):
        return None
    where = models.target_device(mode)
    devices = where.devices if isinstance(where, Spread) else (where,)
    _, draft_device, judge_device = models.devices()
    dtype = torch_dtype(models.dtype, str(devices[0]))
    draft = judge = None
    if needs_draft and models.draft_model is not None and not is_address(models.draft_model):
        draft = place(models.draft_model, (draft_device,), dtype)
    kind = (models.verifier or "").partition(":")[0]
    if (
        judges
        and kind == "judge"
        and models.judge_model is not None
        and not is_address(models.judge_model)
    ):
        judge = place(models.judge_model, (judge_device,), dtype)
    layout = Layout(tuple(devices), torch.device(draft_device), torch.device(judge_device))
    apart = layout.worker is Where.PROCESS
    verifier = (models.verifier or "exact") if judges else "exact"
    cast = Cast(place(target, tuple(map(str, devices)), dtype), draft, judge, verifier, apart)
    return plan_run(cast, options, tokens, share=share, num_blocks=models.num_blocks)


def torch_dtype(name: DtypeName | None, device: str) -> torch.dtype | None:
    """The dtype that a flag means; without one float32 on the CPU, and None (the checkpoint's own)
    elsewhere.
    """
    import torch

    if name is not None:
        found: torch.dtype = getattr(torch, name)
        return found
    return torch.float32 if device == "cpu" else None


def memory_table(plan: MemoryPlan) -> Table:
    """What is to be where, before it is."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    title = f"memory, planned for chains of {plan.tokens} tokens"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in ("device", "model", "weights", "cache", "working", "total", "free"):
        table.add_column(
            column, justify="left" if column in ("device", "model") else "right", no_wrap=True
        )
    for row in plan.rows():
        table.add_row(*row, style="bold" if row[1] == "together" else None)
    return table


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
        from lr.commands.options import Placement
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

    from lr.model.attention_choice import AttentionNeeds, candidates

    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    lines, taken = (
        [
            f"attention on {device}, {str(dtype).removeprefix('torch.')}, 32 heads of 128, 8 of them KV heads:"
        ],
        False,
    )
    for found in candidates(AttentionNeeds(device, dtype, 32, 8, 128)):
        if found.kind is None:
            lines.append(f"  {found.name:<6} no: {found.why}")
        else:
            verdict = "works, but another comes first" if taken else "taken"
            lines.append(f"  {found.name:<6} {verdict}, blocks of {found.kind.block_size} tokens")
            taken = True
    return lines


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
