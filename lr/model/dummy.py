"""A model of any shape with seeded random weights: what a run costs can be measured without a
checkpoint.

Weights are drawn on the device, each tensor from a seed of its own, so nothing is read, copied or
held twice. They are scaled so that nothing overflows in bf16 at any depth: every matrix keeps the
variance of what it reads (variance 1 / inputs), and the two matrices that write into the residual
stream are smaller by sqrt(2 l), so that all 2 l of them together add a variance of about 1.

`load_model("dummy:NAME")` comes here. Read next: `shapes.py`; `dummy_tokenizer.py`;
`lab/bench/process_run.py`, which decides where the steps of such a model end and what is accepted.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch

from lr.model.empty import empty_model
from lr.model.qwen import CausalLM
from lr.model.shapes import shape
from lr.rng import Stream

RESIDUAL = ("attention.out.weight", "mlp.down.weight")
"""The ends of the names of the matrices that write into the residual stream."""


def dummy_model(
    name: str | Path, device: torch.device, dtype: torch.dtype | None = None, seed: int = 0
) -> CausalLM:
    """A frozen model of the shape `name` (see `shape`), in `dtype` (None: bfloat16) on `device`;
    the same seed gives the same weights on the same kind of device. Raises `CheckpointError`."""
    model = empty_model(shape(name), dtype or torch.bfloat16, device)
    fill_dummy(model, seed)
    return model


@torch.no_grad()
def fill_dummy(model: torch.nn.Module, seed: int = 0) -> None:
    """Give every parameter of a model, or of a rank's slice of one, random values as described
    above; norms are 1.
    """
    parameters = list(model.named_parameters())
    layers = max(1, sum(name.endswith(RESIDUAL[0]) for name, _ in parameters))
    stream = Stream.root(seed).child("dummy weights")
    for number, (name, parameter) in enumerate(parameters):
        if "norm" in name:
            parameter.fill_(1)
            continue
        spread = math.sqrt(3 / parameter.shape[-1])  # uniform on [-a, a] has variance a^2 / 3
        if name.endswith(RESIDUAL):
            spread /= math.sqrt(2 * layers)
        noise = torch.Generator(parameter.device).manual_seed(stream.key(number) >> 1)
        parameter.uniform_(-spread, spread, generator=noise)
