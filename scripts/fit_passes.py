"""Whether a pass costs a straight line, or a step at the second row and a line.

    python scripts/fit_passes.py tiny-target --dtype float32 --rounds 100
    python scripts/fit_passes.py CHECKPOINT --dtype bfloat16

Times passes of many shapes in turn (rows, tokens beyond one per row), takes the fastest
of each, and fits `lr/theory/cost.py`'s line to them, without and with a fourth part: the
seconds of every pass of more than one token. For each fit: its mean and largest error,
its error for the single row, and its mean error for shapes that were left out."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np
import torch
from scipy.optimize import nnls

from lr.engine.loading import Loader
from lr.engine.runner import ModelRunner
from lr.model.codec import Codec

SHAPES = [
    *((1, extra) for extra in (0, 1, 2, 3, 4, 7, 15, 19)),
    *((rows, 0) for rows in (2, 3, 4, 6, 8)),
    *((2, 2), (2, 6), (2, 19), (3, 6), (3, 9), (4, 12)),
]
CONTEXT = 200  # tokens that each row has behind it


def fastest_passes(runner: ModelRunner, rounds: int) -> list[float]:
    """Seconds of the fastest pass of each shape, after one round that does not count."""
    context = runner.open(range(5, 5 + CONTEXT))
    runner.forward([context])
    fastest = [float("inf")] * len(SHAPES)
    for number in range(rounds + 1):
        for index, (rows, extra) in enumerate(SHAPES):
            branches = [runner.fork(context) for _ in range(rows)]
            for row, branch in enumerate(branches):
                branch.extend(range(7, 8 + extra // rows + (row < extra % rows)))
            started = time.perf_counter()
            runner.forward(branches, "all")
            seconds = time.perf_counter() - started
            if number:
                fastest[index] = min(fastest[index], seconds)
            for branch in branches:
                runner.close(branch)
    return fastest


def fit(columns: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """The parts with the least relative error, none negative."""
    parts, _ = nnls(columns / seconds[:, None], np.ones_like(seconds))
    return parts


def describe(name: str, columns: np.ndarray, seconds: np.ndarray) -> str:
    """A fit and its errors, in words."""
    parts = fit(columns, seconds)
    errors = columns @ parts / seconds - 1
    left_out = []
    for index in range(len(seconds)):
        others = np.arange(len(seconds)) != index
        without = fit(columns[others], seconds[others])
        left_out.append(abs(columns[index] @ without / seconds[index] - 1))
    shown = ", ".join(f"{1000 * part:.3f}" for part in parts)
    return (
        f"{name}: {shown} ms; error {abs(errors).mean():.1%}, at most "
        f"{abs(errors).max():.1%}, single row {errors[0]:+.1%}, "
        f"left out {np.mean(left_out):.1%}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Time the passes, print both fits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int)
    settings = parser.parse_args(arguments)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    dtype = getattr(torch, settings.dtype)
    model = Loader(dtype).load(settings.checkpoint, "cpu")
    codec = Codec.load(settings.checkpoint)
    runner = ModelRunner(model, num_blocks=200, vocab_size=codec.vocab_size)
    seconds = np.array(fastest_passes(runner, settings.rounds))
    rows, extra = np.array(SHAPES, dtype=float).T
    for shape, value in zip(SHAPES, seconds, strict=True):
        print(f"rows {shape[0]}, further tokens {shape[1]:2}: {1000 * value:.3f} ms")
    line = np.stack([np.ones_like(rows), rows - 1, extra], axis=1)
    step = np.column_stack([line, (rows + extra > 1).astype(float)])
    print(describe("line (first, row, token)", line, seconds))
    print(describe("with a step at the second row", step, seconds))


if __name__ == "__main__":
    main()
