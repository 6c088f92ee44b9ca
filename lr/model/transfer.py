"""Whole numbers on their way from Python to the device, without making anybody wait.

A plain `.to("cuda")` ends with the host waiting until everything queued on the device is done. From
pinned memory the copy is queued like any kernel; PyTorch keeps the pinned memory until the copy has
happened. On other devices it is an ordinary tensor. Read next: `batch.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def integers(
    values: Sequence[Any], device: torch.device, dtype: torch.dtype = torch.int64
) -> Tensor:
    """A tensor of the (nested) whole numbers `values` on `device`; on CUDA the host does not wait
    for it to arrive.
    """
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype).to(device)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)
