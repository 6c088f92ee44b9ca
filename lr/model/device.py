"""Devices: finding one by name, and `DeviceMap`, the devices of target, draft and
judge. In the paper the target is on GPUs 0 and 1, the draft on 2 and the judge on 3.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing.context import SpawnProcess
from types import ModuleType
from typing import Any

import torch

from lr.errors import SettingError

CHOICES = "auto, cpu, cuda, cuda:1 (the second GPU) or mps"


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
        others = {_number(rank) for rank in self.target[1:]} - {_number(self.target[0])}
        for role, device in (("draft", self.draft), ("judge", self.judge)):
            if device.type == "cuda" and _number(device) in others:
                raise SettingError(
                    f"the {role} is to be on {device}, where another process runs a rank of the "
                    "target; two processes take turns on a GPU. Give another GPU, or "
                    f"{self.target[0]}, which this process uses."
                )

    @property
    def ranks(self) -> int:
        """The number of processes that the target is spread over."""
        return len(self.target)

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
        if unknown := sorted(set(named) - {"target", "draft", "judge"}):
            raise SettingError(
                f"device has {', '.join(unknown)}, expected target, draft, judge."
            )
        target = tuple(map(find_device, _several(named.get("target", "cpu"))))
        if not target:
            raise SettingError("the target has no device; give at least one.")
        others = {}
        for role in ("draft", "judge"):
            devices = _several(named.get(role, target[0]))
            if len(devices) != 1:  # only a target can be spread over ranks
                raise SettingError(
                    f"the {role} is to be on {len(devices)} devices, expected one."
                )
            others[role] = find_device(devices[0])
        return cls(target, **others)

    @property
    def shares_gpu(self) -> bool:
        """Whether the draft is on the GPU that this process uses for the target. Then
        its worker is a thread with the same weights and its own CUDA stream, else a
        process: without NVIDIA's MPS service, kernels of two processes take turns on a
        GPU; those of two streams do not.
        """
        return self.draft.type == "cuda" and _number(self.draft) == _number(
            self.target[0]
        )


def _several(device: Device) -> Sequence[str | torch.device]:
    return [device] if isinstance(device, (str, torch.device)) else device


def _number(device: torch.device) -> tuple[str, int]:
    """Type and index of a device; `cuda` means the first GPU."""
    return device.type, device.index or 0


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
    stream.wait_stream(usual)
    try:
        yield partial(torch.cuda.stream, stream)
    finally:
        usual.wait_stream(stream)


@cache
def recording_stream(index: int) -> torch.cuda.Stream:
    """A stream of GPU number `index` on which CUDA graphs are recorded, and no thread
    works: a recording would contain its work. A recorded kernel keeps this stream's
    priority, the usual one.
    """
    return torch.cuda.Stream(index)


@cache
def _stream(device: torch.device, thread: int) -> torch.cuda.Stream:
    stream = torch.cuda.Stream(device)
    if stream == recording_stream(_number(device)[1]):  # PyTorch reuses 32 streams
        stream = torch.cuda.Stream(device)
    return stream


def find_device(name: str | torch.device) -> torch.device:
    """The device `name`, tested; "auto": CUDA, else MPS, else the CPU. Raises
    SettingError."""
    if name == "auto":
        mps = torch.backends.mps.is_available()
        return torch.device(
            "cuda" if torch.cuda.is_available() else "mps" if mps else "cpu"
        )
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise SettingError(f"device is {str(name)!r}, expected {CHOICES}.") from error
    try:
        if device.type == "cuda":  # a tensor there would occupy half a GiB for good
            torch.cuda.get_device_properties(device)
        else:
            torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise SettingError(
            f"device {str(name)!r} cannot be used here: {reason}. Expected {CHOICES}."
        ) from error
    return device


def start_process(
    work: Callable[..., object], *arguments: object, name: str
) -> SpawnProcess:
    """Start a process that runs `work`. It is spawned, since a fork of a threaded torch
    may hang. It does not import the user's script, which would run again without the
    guard `if __name__ == "__main__"`. Ctrl-C is blocked until the process can ignore
    it.
    """
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=work, args=arguments, name=name, daemon=True)
    main = sys.modules["__main__"]
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
    return process
