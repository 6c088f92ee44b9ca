"""The three things that ranks do together: add up, gather on rank 0, copy from rank 0. NCCL on
CUDA, gloo elsewhere.

Every call is one collective of `torch.distributed` on its default group; all ranks make the same
calls in the same order. A tensor stays in its own dtype and on its device. What a collective raises
when another rank is gone becomes `RankLost`: the cause is known elsewhere (`watch.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lr.errors import LRError, SettingError


class RankLost(LRError):
    """A collective failed: another rank is gone, or did not come in time."""


@dataclass(frozen=True)
class Ranks:
    """This process among those that share a model: number `rank` of `size`."""

    rank: int
    size: int

    def sum(self, x: Tensor) -> Tensor:
        """Add up x of all ranks, in place. Raises `RankLost`, as all of these."""
        self._together(dist.all_reduce, x)
        return x

    def gather(self, x: Tensor) -> list[Tensor]:
        """On rank 0 the x of all ranks (equal shapes), elsewhere nothing."""
        parts = [torch.empty_like(x) for _ in range(self.size)] if self.rank == 0 else None
        self._together(dist.gather, x.contiguous(), parts, dst=0)
        return [] if parts is None else parts

    def copy(self, x: Tensor) -> Tensor:
        """Make x what it is on rank 0, in place."""
        self._together(dist.broadcast, x, src=0)
        return x

    def _together(self, collective: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        try:
            collective(*arguments, **named)
        except RuntimeError as error:
            raise RankLost(f"rank {self.rank} has lost the others: {error}") from error


def require_no_group() -> None:
    """Raises `SettingError` if this process belongs to a group already: torch has one default group
    per process.
    """
    if dist.is_initialized():
        raise SettingError(
            "this process belongs to a group of torch.distributed already, so that no tensor-parallel model can be started here. "
            "Close the other one first (Reasoner.close), or load this model on its team."
        )


def join_group(ranks: Ranks, store: dist.Store, device: torch.device, seconds: float) -> None:
    """Belong to the process group; a collective that takes longer than `seconds` will fail. All
    ranks call it at the same time.

    Raises as `require_no_group` does, and `RankLost`.
    """
    require_no_group()
    cuda = device.type == "cuda"
    try:
        dist.init_process_group(
            "nccl" if cuda else "gloo",
            store=store,
            rank=ranks.rank,
            world_size=ranks.size,
            timeout=timedelta(seconds=seconds),
            device_id=device if cuda else None,
        )
    except RuntimeError as error:
        raise RankLost(f"rank {ranks.rank} could not join the others: {error}") from error


def set_free() -> None:
    """End what waits for a rank that is lost. With gloo that happens by itself, as soon as the
    process is gone; NCCL would wait on.
    """
    if dist.is_initialized() and dist.get_backend() == "nccl" and dist.group.WORLD is not None:
        dist.group.WORLD.abort()


def leave_group() -> None:
    """Belong to no process group any more."""
    if dist.is_initialized():
        dist.destroy_process_group()
