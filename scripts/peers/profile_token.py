"""Where the time of a pass goes on a CPU: reading the weights, attention, the rest.

    python scripts/peers/profile_token.py MODEL [--rows 1 4 8 16] [--repeats 7]

A pass of few rows cannot be quicker than reading all weights once. The script measures
how fast this machine reads them, and each way of multiplying in turn: `F.linear`, and
what `lr` does (from the left with AMX, else packed). It needs idle cores.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # before torch is imported

import torch
from torch import Tensor
from torch.nn import functional as F

from lr.engine.runner import ModelRunner
from lr.model import layers, qwen
from lr.model.pack import PackedLinear, can_pack, pack
from lr.model.qwen import CausalLM
from lr.model.weights import load_model

CACHED = 150  # tokens that each pass finds in the cache


def plain_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """What PyTorch does by itself."""
    return F.linear(x, weight, bias)


class Clock:
    """Adds up the seconds spent in calls."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = call(*arguments)
            self.seconds += time.perf_counter() - start
            return result

        return timed


@contextmanager
def multiplying_by(product: Callable[..., Tensor], clock: Clock) -> Any:
    """Let all matrices be multiplied by this function, or packed, on this clock."""
    usual, usual_packed = layers.product, PackedLinear.forward
    layers.product = qwen.product = product
    PackedLinear.forward = clock.around(usual_packed)  # type: ignore[method-assign]
    try:
        yield
    finally:
        layers.product = qwen.product = usual
        PackedLinear.forward = usual_packed  # type: ignore[method-assign]


def seconds_to_read(weights: Sequence[Tensor]) -> float:
    """The quickest of five readings of all weights, by all threads."""
    numbers = [
        weight.detach().t() if weight.stride(0) == 1 else weight.detach()
        for weight in weights
    ]
    flat = [matrix.reshape(-1).view(torch.int64) for matrix in numbers]
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for matrix in flat:
            matrix.sum()
        times.append(time.perf_counter() - start)
    return min(times)


def pass_times(
    model: CausalLM, rows: int, product: Callable[..., Tensor]
) -> tuple[float, float]:
    """Seconds of one pass of so many rows, and of these in matrices."""
    runner = ModelRunner(model, num_blocks=64)
    branch = runner.open(list(range(1000, 1000 + CACHED)))
    runner.forward([branch])
    branch.tokens += range(2000, 2000 + rows)
    clock = Clock()
    with multiplying_by(clock.around(product), clock):
        start = time.perf_counter()
        runner.forward([branch], "all")
        seconds = time.perf_counter() - start
    return seconds, clock.seconds


@torch.inference_mode()
def main() -> None:
    """Print a line for each number of rows and each way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--repeats", type=int, default=7)
    settings = parser.parse_args()
    model = load_model(settings.model, dtype=torch.bfloat16)
    weights = [weight for weight in model.parameters() if weight.dim() == 2]
    if model.head is not None:  # then a pass reads only some rows of the embedding
        weights = [weight for weight in weights if weight is not model.embedding.weight]
    size = sum(weight.nbytes for weight in weights)
    reading = seconds_to_read(weights)
    print(
        f"{size / 1e9:.2f} GB of weights, read in {reading * 1e3:.0f} ms: {size / reading / 1e9:.1f} GB/s"
    )
    packed = None
    if can_pack(model):
        packed = load_model(settings.model, dtype=torch.bfloat16)
        pack(packed)
    ways = {
        "F.linear": (model, plain_product),
        "lr": (packed or model, layers.product),
    }
    for rows in settings.rows:
        times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for _ in range(settings.repeats + 1):
            for way, (network, product) in ways.items():
                times[way].append(pass_times(network, rows, product))
        for way, measured in times.items():
            wall = [seconds for seconds, _ in measured[1:]]  # the first warms up
            matrices = statistics.median(inside for _, inside in measured[1:])
            median = statistics.median(wall)
            print(
                f"{rows:3} rows, {way:8}: {median * 1e3:4.0f} ms "
                f"({min(wall) * 1e3:.0f} to {max(wall) * 1e3:.0f}), in matrices "
                f"{matrices * 1e3:4.0f} ms, {reading / median:.0%} of the speed of reading"
            )


if __name__ == "__main__":
    main()
