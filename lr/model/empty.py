"""A network without storage, materialised once in its final dtype on its final device. Who fills
it: `weights.py`, `dummy.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch

from lr.model.config import ModelConfig
from lr.model.qwen import CausalLM

Network = TypeVar("Network", bound=CausalLM)


def empty_model(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> CausalLM:
    """A frozen model in eval mode whose weights have storage but no values yet."""
    return materialised(partial(CausalLM, config), dtype, device)


def materialised(make: Callable[[], Network], dtype: torch.dtype, device: torch.device) -> Network:
    """As `empty_model`, for whatever network `make` makes."""
    with torch.device("meta"):
        model = make()
    model = model.to(dtype).to_empty(device=device)
    model.set_rotation()  # made on "meta" above; no part of a checkpoint
    return model.requires_grad_(False).eval()
