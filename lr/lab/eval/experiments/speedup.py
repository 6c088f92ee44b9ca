"""Experiment `speedup`: the modes side by side, the paper's first experiment and Table 1 (arXiv
2506.19830): accuracy and speed of the target alone, token-level speculation, Lookahead Reasoning,
both, the draft alone, and SpecReason."""

from __future__ import annotations

import math

from lr.lab.eval.experiments.lab import Arm, Lab, Outcome
from lr.lab.eval.experiments.show import Finding
from lr.lab.eval.figure import Bars
from lr.lab.eval.tables import notes

COLUMNS = (
    "mode",
    "right",
    "95 %",
    "tokens/s",
    "speedup",
    "95 %",
    "steps kept",
    "tokens kept",
    "tokens/pass",
    "length",
    "wasted",
)


def arms(lab: Lab) -> list[Arm]:
    """The four modes of the official tool, and two more rows of Table 1. Tokens are guessed by the
    draft model.
    """
    guessed = {"drafter": "draft"}
    return [
        Arm("ar", "ar", concurrency=1),
        Arm("sd", "sd", guessed, concurrency=1),
        Arm("lr", "lr", concurrency=1),
        Arm("lr+sd", "lr+sd", guessed, concurrency=1),
        Arm("draft", "draft", concurrency=1),
        Arm("specreason", "specreason", concurrency=1),
    ]


def find(lab: Lab, outcome: Outcome) -> Finding:
    """One row per mode."""
    rows = list(outcome.rows.values())
    shown = [
        (
            row.mode,
            row.accuracy,
            row.accuracy_interval,
            row.speed,
            row.speedup if row.mode != "ar" else 1.0,
            row.speedup_interval,
            row.step_acceptance,
            row.token_acceptance,
            row.tokens_per_pass,
            row.length_ratio,
            row.wasted_share,
        )
        for row in rows
    ]
    modes = [row.mode for row in rows]
    return Finding(
        f"Modes side by side, {rows[0].problems} problems",
        COLUMNS,
        shown,
        [
            Bars(
                "right (95 % interval)",
                modes,
                [row.accuracy or 0.0 for row in rows],
                [row.accuracy_interval for row in rows],
                percent=True,
            ),
            Bars(
                "speedup in tokens/s (95 % interval)",
                modes,
                [row.speedup or (1.0 if row.mode == "ar" else math.nan) for row in rows],
                [row.speedup_interval for row in rows],
                line=1.0,
            ),
        ],
        [*notes(rows), "The arms take turns, twelve problems at a time. SpecReason asks the target for a score: see its acceptance."],
    )  # fmt: skip
