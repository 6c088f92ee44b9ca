"""Devices: finding one by name, and `DeviceMap`, the devices of target, draft and
judge. In the paper the target is on GPUs 0 and 1, the draft on 2 and the judge on 3.
"""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from lr.errors import SettingError
from lr.types import require

Device = str | torch.device | Sequence[str | torch.device]
"""A device by name or, for the target, several devices, one per rank (`ranks.py`)."""


@dataclass(frozen=True)
class DeviceMap:
    """The devices of the three models. A target that is split over ranks has several;
    this process is rank 0, on the first. Raises `SettingError` for a draft or judge on
    a GPU that belongs to another rank of the target.
    """

    target: tuple[torch.device, ...]
    draft: torch.device
    judge: torch.device

    def __post_init__(self) -> None:
        others = {*self.target[1:]} - {self.target[0]}  # ranks beside this process
        for role, device in (("draft", self.draft), ("judge", self.judge)):
            if device.type == "cuda" and device in others:
                raise SettingError(
                    f"the {role} is to be on {device}, where another process runs a rank of the "
                    "target; two processes take turns on a GPU. Give another GPU, or "
                    f"{self.target[0]}, which this process uses."
                )

    @classmethod
    def of(cls, device: Device | Mapping[str, Device] | DeviceMap = "cpu") -> DeviceMap:
        """From one device for all models, or from a mapping of roles. Roles that are
        left out are on the target's first device: `{"target": ["cuda:0", "cuda:1"],
        "draft": "cuda:2"}` puts the judge on cuda:0. Raises `SettingError` for a role
        or a device that does not exist.
        """
        if isinstance(device, DeviceMap):
            return device
        named = dict(device) if isinstance(device, Mapping) else {"target": device}
        target = _found(named.pop("target", "cpu"))
        require(len(target) > 0, "device of the target", target, "one or more")
        others = {}
        for role in ("draft", "judge"):  # only a target can be spread over ranks
            devices = _found(named.pop(role, target[0]))
            require(len(devices) == 1, f"device of the {role}", devices, "one")
            others[role] = devices[0]
        require(not named, "device", named, "the roles target, draft, judge")
        return cls(target, **others)


def is_one_gpu(draft: torch.device, target: torch.device) -> bool:
    """Whether both are one GPU. Then the draft's worker is a thread with the same
    weights and its own CUDA stream, else a process: without NVIDIA's MPS service,
    kernels of two processes take turns on a GPU; those of two streams do not."""
    return draft.type == "cuda" and draft == target


def _found(device: Device) -> tuple[torch.device, ...]:
    names = [device] if isinstance(device, (str, torch.device)) else device
    return tuple(map(find_device, names))


@contextmanager
def own_stream(
    device: torch.device,
) -> Iterator[Callable[[], AbstractContextManager[Any]]]:
    """Yields a function. In the contexts that it returns, this thread's work on a CUDA
    device runs on a separate stream: after the thread's work before the `with`, and
    before that after it.

    The default stream blocks all others. With the target on it, a draft took 18 ms per
    token; with the target on a separate stream, 6 ms (32B and 1.7B on one H200).
    """
    if device.type != "cuda":
        yield nullcontext
        return
    stream = _stream(device, threading.get_ident())
    usual = torch.cuda.current_stream(device)
    stream.wait_stream(usual)  # after what is queued already
    try:
        yield partial(torch.cuda.stream, stream)
    finally:
        usual.wait_stream(stream)  # and the caller after us


@cache
def recording_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream on which CUDA graphs are recorded, and no thread works: a recording would
    contain its work. A recorded kernel keeps this stream's priority, the usual one.
    """
    return torch.cuda.Stream(device)


@cache
def _stream(device: torch.device, thread: int) -> torch.cuda.Stream:
    stream = torch.cuda.Stream(device)
    if stream == recording_stream(device):  # PyTorch reuses 32 streams
        stream = torch.cuda.Stream(device)
    return stream


def find_device(name: str | torch.device) -> torch.device:
    """The device `name`, tested; "auto": CUDA, else MPS, else the CPU. A GPU has an
    index. Raises SettingError."""
    if name == "auto":
        mps = "mps" if torch.backends.mps.is_available() else "cpu"
        name = "cuda" if torch.cuda.is_available() else mps
    try:
        device = torch.device(name)
        if device.type == "cuda":  # a tensor there would occupy half a GiB for good
            device = torch.device("cuda", device.index or 0)  # "cuda" is "cuda:0"
            torch.cuda.get_device_properties(device)
        else:
            torch.empty(1, device=device)
    except (RuntimeError, TypeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise SettingError(
            f"device {str(name)!r} cannot be used here: {reason}. Expected auto, cpu, "
            "cuda, cuda:1 (the second GPU) or mps."
        ) from error
    return device


def can_share_weights(device: torch.device, size: int) -> bool:
    """Whether processes can read the same weights of so many bytes: on a CPU, if there
    is room in shared memory, of which a container may have little."""
    shared = Path("/dev/shm")
    has_room = shared.is_dir() and shutil.disk_usage(shared).free > size
    return device.type == "cpu" and has_room


def start_process(
    work: Callable[..., object], *arguments: object, name: str
) -> tuple[SpawnProcess, Connection]:
    """Start a process that runs `work` with one end of a pipe, then the arguments: the
    process, and the other end. Each end notices when the other is gone. It is spawned,
    since a fork of a threaded torch may hang. It does not import the user's script,
    which would run again without the guard `if __name__ == "__main__"`. Ctrl-C is
    blocked until the process can ignore it.
    """
    context = multiprocessing.get_context("spawn")
    connection, far_end = context.Pipe()
    process = context.Process(
        target=work, args=(far_end, *arguments), name=name, daemon=True
    )
    main = sys.modules["__main__"]
    # what the new process would import
    sys.modules["__main__"] = ModuleType("__main__")
    blocked = None if sys.platform == "win32" else {signal.SIGINT}
    try:
        if blocked is not None:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        process.start()
    finally:
        sys.modules["__main__"] = main
        if blocked is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    far_end.close()
    return process, connection
