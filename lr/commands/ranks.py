"""Tensor parallelism on the command line: `--tensor_parallel`, several GPUs of one target, and what
torchrun says in the environment.

Under torchrun every process is started with the same words. Rank 0 runs the command; the others
follow it, whatever their words say.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lr.errors import SettingError
from lr.types import require

if TYPE_CHECKING:
    import torch

    from lr.model.parallel.start import Place, Spread

TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def torchrun_place(environment: Mapping[str, str] = os.environ) -> Place | None:
    """This process's place among those that torchrun has started; None if it has not, or only this
    one.
    """
    if not all(name in environment for name in TORCHRUN) or environment["WORLD_SIZE"] == "1":
        return None
    from lr.model.parallel.start import Place

    try:
        rank, size, port = (
            int(environment[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")
        )
        local_rank = int(environment.get("LOCAL_RANK", rank))
    except ValueError as error:
        said = ", ".join(f"{name}={environment[name]!r}" for name in TORCHRUN)
        raise SettingError(
            f"the environment says {said}, expected numbers as torchrun sets them ({error})."
        ) from error
    theirs = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return Place(rank, size, local_rank, environment["MASTER_ADDR"], port, rank == 0 and not theirs)


def follow_if_told(place: Place | None) -> int | None:
    """The exit code of a process whose rank is not 0, after it has followed rank 0 to the end. None
    for all others.
    """
    if place is None or place.rank == 0:
        return None
    from lr.model.parallel.start import follow_torchrun

    return 0 if follow_torchrun(place) else 1


def require_spreadable(command: object, place: Place | None) -> None:
    """Raises `SettingError` for a command under torchrun that has no model to spread."""
    if place is not None and not hasattr(command, "models"):
        raise SettingError(
            f"lr {type(command).__name__.lower()} runs in one process; start it without torchrun."
        )


def spread(
    devices: Sequence[torch.device], ranks: int | None, threads: int | None = None
) -> torch.device | Spread:
    """Where the target goes: the first of `devices`, or over several ranks.

    `ranks` None: one for each of the devices. More ranks than devices: the GPUs that follow the
    first, or as many processes on the CPU. Each rank on the CPU gets its share of the threads,
    unless `threads` was said.
    """
    place = torchrun_place()
    if ranks is not None:
        require(ranks > 0, "tensor_parallel", ranks, "a whole number > 0")
    if place is not None and ranks not in (None, 1, place.size):
        raise SettingError(
            f"tensor_parallel is {ranks}, and torchrun has started {place.size} processes; leave tensor_parallel out."
        )
    size = place.size if place is not None else len(devices) if ranks is None else ranks
    if size == 1:
        return devices[0]
    from lr.model.parallel.start import Spread, spread_over

    if devices[0].type == "cpu" and threads is None:
        import torch

        here = size if place is None else 1  # torchrun has seen to it
        torch.set_num_threads(min(torch.get_num_threads(), max(1, (os.cpu_count() or 1) // here)))
    if place is not None:
        return Spread((devices[0],), place)
    return Spread(tuple(devices[:size])) if size <= len(devices) else spread_over(size, devices[0])
