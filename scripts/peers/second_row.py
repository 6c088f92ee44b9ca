"""What a further row of a float32 product costs: weights by rows, by columns (as `lr`
keeps them) and in oneDNN's own order. Microseconds, the best of seven; one thread.

python scripts/peers/second_row.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional as F

SHAPES = ((256, 128), (1536, 1536))  # A tiny model's matrix, and one of a 1.5B model
WORK = 60_000_000  # numbers that are read in a timing


def best(multiply: Callable[[], object], times: int) -> float:
    """Microseconds of a call."""
    seconds = []
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(times):
            multiply()
        seconds.append(time.perf_counter() - start)
    return 1e6 * min(seconds) / times


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    for rows, columns in SHAPES:
        weight = torch.randn(rows, columns)
        by_columns = weight.t().contiguous().t()
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        multiply = torch.ops.mkldnn._linear_pointwise
        for n in (1, 2, 4, 8, 16):
            x = torch.randn(n, columns)
            ways = {
                "rows": partial(F.linear, x, weight),
                "columns": partial(F.linear, x, by_columns),
                "packed": partial(multiply, x, packed, None, "none", [], ""),
            }
            times = WORK // (rows * columns)
            spent = (f"{name} {best(way, times):.1f}" for name, way in ways.items())
            print(f"{rows} x {columns}, {n} rows at once: {', '.join(spent)}")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
