"""Experiment `budget`: at most M token positions per target pass, divided between steps in flight
(k1) and tokens per step (k2 <= M / k1).

The product law (arXiv 2506.19830, section 3.3) says that the speedup of both together is f(k1) *
g(k2), the product of what each gives alone. Here f, g and both together are measured, for M = 4, 8,
16, 32, in target passes saved as well as in time: passes are what the law is about, time is what
the machine makes of it.
"""

from __future__ import annotations

from typing import Any

from lr.lab.eval.experiments.lab import Arm, Lab, Outcome
from lr.lab.eval.experiments.show import Finding
from lr.lab.eval.figure import Points

BUDGETS = (4, 8, 16, 32)
COLUMNS = (
    "M",
    "k1",
    "k2",
    "tokens/pass",
    "f x g",
    "share of f x g",
    "speedup",
    "95 %",
    "steps kept",
    "tokens kept",
    "best of its M",
)


def splits() -> list[tuple[int, int]]:
    """Every (k1, k2) of powers of two within a budget, once."""
    return sorted(
        {(2**i, budget // 2**i) for budget in BUDGETS for i in range(budget.bit_length())}
    )


def arm_of(k1: int, k2: int) -> Arm:
    """k1 target steps in flight (depth k1 - 1, in schedule depth), k2 positions per step (k2 - 1
    guessed tokens).
    """
    options: dict[str, Any] = {"depth": max(1, k1 - 1), "max_target_rows": k1}
    if k2 > 1:
        options |= {"drafter": "draft", "num_speculative_tokens": k2 - 1}
    mode = {(True, True): "lr+sd", (True, False): "lr", (False, True): "sd", (False, False): "ar"}[
        k1 > 1, k2 > 1
    ]
    return Arm(f"k1_{k1}_k2_{k2}", mode, options if mode != "ar" else {}, concurrency=1)


def arms(lab: Lab) -> list[Arm]:
    """Every split, and each part alone."""
    alone = {(k1, 1) for k1, _ in splits()} | {(1, k2) for _, k2 in splits()}
    return [arm_of(*split) for split in sorted({*splits(), *alone})]


def find(lab: Lab, outcome: Outcome) -> Finding:
    """One row per split of every budget."""
    shown, series = [], []
    for budget in BUDGETS:
        rows = [(k1, k2) for k1, k2 in splits() if k1 * k2 == budget]
        best = max(rows, key=lambda split: _passes(outcome, *split))
        points = []
        for k1, k2 in rows:
            row = outcome.rows[f"k1_{k1}_k2_{k2}"]
            saved, product = (
                _passes(outcome, k1, k2),
                _passes(outcome, k1, 1) * _passes(outcome, 1, k2),
            )
            shown.append(
                (
                    budget,
                    k1,
                    k2,
                    saved,
                    product,
                    saved / product,
                    row.speedup,
                    row.speedup_interval,
                    row.step_acceptance,
                    row.token_acceptance,
                    "*" if (k1, k2) == best else "",
                )
            )
            points.append((float(k1), saved, ""))
        series.append((f"M = {budget}", points))
    return Finding(
        f"A budget of M positions per target pass, {next(iter(outcome.rows.values())).problems} problems",
        COLUMNS,
        shown,
        [
            Points(
                "k2 = M / k1 positions per step",
                "target steps in flight, k1",
                "tokens per target pass",
                series,
                joined=True,
            )
        ],
        [
            "f x g: tokens per pass with k1 steps alone, times those with k2 positions alone. share: how much of it both together reach."
        ],
    )


def _passes(outcome: Outcome, k1: int, k2: int) -> float:
    """Tokens per target pass, which plain decoding has 1 of."""
    return outcome.rows[f"k1_{k1}_k2_{k2}"].tokens_per_pass or 1.0
