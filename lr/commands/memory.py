"""What a run will take of every device, said before anything is loaded: for `lr run`, and for `lr
info --model`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lr.commands.models import DtypeName
from lr.types import require

if TYPE_CHECKING:
    import torch
    from rich.table import Table

    from lr.commands.run_models import RunModels
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
