"""Measures what it costs to spread a model over several processes on the CPU:
milliseconds per decoding pass.

    python scripts/parallel_cost.py --ranks 2 --rows 4

For a model of l layers a pass over several ranks has 2l + 1 sums, one gathering and one
message. One thread per rank: with fewer cores than ranks they take turns. What the
ranks do: docs/parallel.md.
"""

from __future__ import annotations

import argparse

import torch

from lr.engine.runner import ModelRunner
from lr.measure.bench.report import timed
from lr.model.qwen import CausalLM
from lr.model.ranks import load_parallel, spread_over
from lr.model.weights import load_model

WARM_UP, PASSES = 20, 100


def decoding_ms(model: CausalLM, rows: int) -> float:
    """A pass of one new token for each of `rows` branches with some history."""
    runner = ModelRunner(model, num_blocks=rows * 16)
    branches = [runner.open([5] * 64) for _ in range(rows)]
    runner.forward(branches)

    def once() -> None:
        for branch in branches:
            branch.append(7)
        runner.forward(branches)

    return 1e3 * timed(once, torch.device("cpu"), PASSES, WARM_UP)


def main() -> None:
    """Measure one rank, then several."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny-target")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rows", type=int, default=4)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    alone = load_model(chosen.model, dtype=torch.float32)
    print(
        f"{chosen.model}, {chosen.rows} rows, float32, one thread per rank, median of {PASSES}"
    )
    print(f"  one rank          {decoding_ms(alone, chosen.rows):8.2f} ms per pass")
    spread = load_parallel(
        chosen.model, spread_over(chosen.ranks, "cpu"), torch.float32
    )
    try:
        took = decoding_ms(spread, chosen.rows)
    finally:
        spread.close()
    sums = 2 * spread.config.num_layers + 1
    print(f"  {chosen.ranks} ranks           {took:8.2f} ms per pass ({sums} sums)")


if __name__ == "__main__":
    main()
