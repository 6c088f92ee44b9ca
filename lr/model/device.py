"""Where tensors live: a device by name, found to work before anything is loaded."""

from __future__ import annotations

import torch

from lr.errors import SettingError

CHOICES = "auto, cpu, cuda, cuda:1 (the second GPU) or mps"


def find_device(name: str | torch.device) -> torch.device:
    """The device of that name; "auto": CUDA, else MPS, else the CPU. Raises SettingError for one that is unknown or not in this machine."""
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
        raise SettingError(f"device {str(name)!r} cannot be used here: {reason}. Expected {CHOICES}.") from error
    return device
