"""A network without storage, materialised once in its final dtype on its final device. Who fills it: `weights.py`, `dummy.py`."""

from __future__ import annotations

import torch

from lr.model.config import ModelConfig
from lr.model.qwen import CausalLM


def empty_model(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> CausalLM:
    """A frozen model in eval mode whose weights have storage but no values yet."""
    with torch.device("meta"):
        model = CausalLM(config)
    model = model.to(dtype).to_empty(device=device)
    model.set_rotation()  # made on "meta" above; no part of a checkpoint
    return model.requires_grad_(False).eval()
