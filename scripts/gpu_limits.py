"""How fast a device is, and the least time that a pass of a model can take on it.

No pass is faster than the larger of bytes / bandwidth and operations / arithmetic rate,
both rates measured on the spot. Example: 61 GiB of weights at 4 TB/s are 16.4 ms a
token, whatever the batch, until n rows of 2 * 32.8e9 operations take longer: at 700
TFLOP/s from about 175 rows on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from lr.model.config import ModelConfig
from lr.model.weights import num_weights


def timed(
    work: Callable[[], object], device: torch.device, repeats: int = 7, warm_up: int = 2
) -> float:
    """Median seconds of `work`, the device's part included, after `warm_up` untimed
    calls."""
    seconds = []
    with torch.inference_mode():
        for _ in range(repeats + warm_up):
            wait_for(device)
            started = time.perf_counter()
            work()
            wait_for(device)
            seconds.append(time.perf_counter() - started)
    return median(seconds[warm_up:])


def wait_for(device: torch.device) -> None:
    """Wait until the device has finished what this thread started. Waiting for the
    whole device would break a CUDA graph that another thread records."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    elif device.type == "mps":
        torch.mps.synchronize()


@dataclass(frozen=True)
class Rates:
    """What a device did with large tensors: bytes and operations per second."""

    copied: float
    read: float
    flops: float


def measure_rates(
    device: torch.device, dtype: torch.dtype, *, small: bool = False
) -> Rates:
    """Copy, read and multiply on `device`; about a second. `small`: sizes for a test."""
    size, edge = (1 << 24, 256) if small else (1 << 28, 1024)
    if device.type == "cuda" and not small:
        size = min(1 << 32, int(torch.cuda.mem_get_info(device)[0]) // 4)
        edge = 8192
    source = torch.ones(size // 4, dtype=torch.int32, device=device)
    goal = torch.empty_like(source)
    copied = 2 * size / timed(lambda: goal.copy_(source), device)  # read and written
    read = size / timed(source.amax, device)
    left, right = torch.randn(2, edge, edge, device=device).to(dtype)
    return Rates(copied, read, 2 * edge**3 / timed(lambda: left @ right, device))


def least_seconds(
    config: ModelConfig, dtype: torch.dtype, rates: Rates, rows: int, length: int
) -> float:
    """The least time of a pass over `rows` sequences of `length` tokens, one new in
    each: all weights and keys are read once, and every row meets every weight."""
    weights = num_weights(config)
    if not config.tie_word_embeddings:  # of the embedding only some rows are read
        weights -= config.vocab_size * config.hidden_size
    cached = config.cached_per_token * length * rows
    moved = (weights + cached) * dtype.itemsize
    return max(moved / max(rates.copied, rates.read), 2 * weights * rows / rates.flops)
