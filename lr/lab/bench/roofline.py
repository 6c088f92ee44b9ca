"""The two limits of a forward pass, and what this device can do: bytes over bandwidth, operations
over arithmetic rate.

A pass reads every weight once, the cache of every branch once, and writes the new keys and values;
it multiplies every weight with every row. The larger of the two times is a floor that no program
gets below: with few rows it is the bandwidth, with many the arithmetic. Both rates are measured on
the spot, by a copy (bytes read and written) and by a matrix product, not taken from a data sheet.

Worked example: 61 GiB of weights at 4 TB/s are 16.4 ms a token, whatever the batch, until n rows of
2 * 32.8e9 operations take longer: at 700 TFLOP/s from about 175 rows on. Read next:
`gpu_passes.py`, `gpu_modes.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from statistics import median

import torch

from lr.model.config import ModelConfig
from lr.model.weights import EMBEDDING_KEY, HEAD_KEY, pieces

REPEATS = 7


@dataclass(frozen=True)
class Peaks:
    """What a device did: bytes per second of a large copy, operations per second of a large matrix
    product in the model's dtype.
    """

    bytes_per_second: float
    flops_per_second: float


@dataclass(frozen=True)
class Cost:
    """What a pass must do at least."""

    bytes: float
    flops: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.bytes + other.bytes, self.flops + other.flops)

    def seconds(self, peaks: Peaks) -> float:
        """The floor under its time."""
        return max(self.bytes / peaks.bytes_per_second, self.flops / peaks.flops_per_second)

    def bound(self, peaks: Peaks) -> str:
        """Which of the two limits it is."""
        memory = self.bytes / peaks.bytes_per_second >= self.flops / peaks.flops_per_second
        return "bandwidth" if memory else "arithmetic"


def pass_cost(
    config: ModelConfig,
    dtype: torch.dtype,
    counts: Sequence[float],
    lengths: Sequence[float],
    logit_rows: float,
) -> Cost:
    """The cost of a forward that brings `counts[i]` new tokens to a branch that is `lengths[i]`
    tokens long with them; logits are made for `logit_rows` rows. Averages are as good as counts."""
    matrices = sum(
        prod(p.shape)
        for p in pieces(config)
        if len(p.shape) == 2 and p.key not in (EMBEDDING_KEY, HEAD_KEY)
    )
    head = config.vocab_size * config.hidden_size
    rows = sum(counts)
    seen = sum(
        count * (length - (count - 1) / 2) for count, length in zip(counts, lengths, strict=True)
    )
    per_token = (
        2 * config.num_layers * config.num_kv_heads * config.head_dim
    )  # numbers in the cache
    numbers = matrices + head + rows * config.hidden_size + per_token * sum(lengths)
    attention = (
        4 * config.num_layers * config.num_heads * config.head_dim * seen
    )  # q k^T and weights times v
    return Cost(numbers * dtype.itemsize, 2 * matrices * rows + 2 * head * logit_rows + attention)


def measure_peaks(device: torch.device, dtype: torch.dtype, *, small: bool = False) -> Peaks:
    """Copy and multiply on `device`; about a second. `small`: sizes for a test."""
    cuda = device.type == "cuda"
    size, edge = (1 << 32, 8192) if cuda else (1 << 28, 1024)
    if cuda:
        size = min(size, int(torch.cuda.mem_get_info(device)[0]) // 4)
    if small:
        size, edge = 1 << 24, 256
    return Peaks(
        2 * size / _copy_seconds(device, size), 2 * edge**3 / _product_seconds(device, dtype, edge)
    )


def _copy_seconds(device: torch.device, size: int) -> float:
    source = torch.randint(0, 127, (size,), dtype=torch.int8, device=device)
    goal = torch.empty_like(source)
    return timed(lambda: goal.copy_(source), device)


def _product_seconds(device: torch.device, dtype: torch.dtype, edge: int) -> float:
    left, right = (torch.randn(edge, edge, device=device).to(dtype) for _ in range(2))
    return timed(lambda: left @ right, device)


@torch.inference_mode()
def timed(work: Callable[[], object], device: torch.device, repeats: int = REPEATS) -> float:
    """Median seconds of `work`, waited for to its end, after two that do not count."""
    seconds = []
    for _ in range(repeats + 2):
        wait_for(device)
        started = time.perf_counter()
        work()
        wait_for(device)
        seconds.append(time.perf_counter() - started)
    return median(seconds[2:])


def wait_for(device: torch.device) -> None:
    """Until everything that was set going on a device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
