"""Where tensors live: a device by name, found to work before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lr.errors import SettingError

CHOICES = "auto, cpu, cuda, cuda:1 (the second GPU) or mps"


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Inside, what this thread does on a CUDA device goes to a stream of its own, beside those of
    other threads. Elsewhere: nothing.
    """
    if device.type != "cuda":
        yield
        return
    torch.cuda.synchronize(device)  # whatever made the weights on another stream is done
    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)):
        yield


def find_device(name: str | torch.device) -> torch.device:
    """The device of that name; "auto": CUDA, else MPS, else the CPU. Raises SettingError for one
    that is unknown or not in this machine.
    """
    if name == "auto":
        mps = torch.backends.mps.is_available()
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if mps else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise SettingError(f"device is {str(name)!r}, expected {CHOICES}.") from error
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise SettingError(
            f"device {str(name)!r} cannot be used here: {reason}. Expected {CHOICES}."
        ) from error
    return device
