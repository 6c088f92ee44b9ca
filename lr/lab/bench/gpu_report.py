"""The tables and the document of `lr bench gpu`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table

from lr.lab.bench.gpu_modes import ModeRow
from lr.lab.bench.gpu_passes import PassRow
from lr.lab.bench.process import Process, described
from lr.lab.bench.roofline import Peaks
from lr.model.memory import MemoryPlan

GOAL = 0.75
"""Of the bandwidth limit, that plain decoding at batch 1 is to reach on a GPU."""


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(
            column,
            justify="left" if column in ("model", "device", "what", "way", "bound") else "right",
        )
    return table


def peaks_line(peaks: tuple[Peaks, Peaks], dtype: torch.dtype) -> str:
    """The two rates of each device."""
    shown = [
        f"{one.bytes_per_second / 1e9:.1f} GB/s copied, {one.flops_per_second / 1e12:.2f} TFLOP/s multiplied in {dtype}"
        for one in dict.fromkeys(peaks)
    ]
    return "measured here: " + "; the draft's device: ".join(shown)


def process_line(process: Process) -> str:
    """What decides."""
    facts = described(process)
    return (
        f"steps accepted with {process.alpha1:.2f}, tokens with {process.alpha2:.3f} ({facts['source']}); "
        f"lengths of steps: {facts['target_lengths']}"
    )


def pass_table(rows: Sequence[PassRow], peaks: Peaks) -> Table:
    """One model by itself."""
    table = _table(
        "one model by itself",
        "model",
        "what",
        "ms",
        "quartiles",
        "tok/s",
        "limit ms",
        "bound",
        "share",
    )
    for row in rows:
        spread, limit = row.spread, row.cost.seconds(peaks)
        table.add_row(
            *(
                row.model,
                row.what,
                f"{1e3 * spread.median:.3f}",
                f"{1e3 * spread.low:.3f}-{1e3 * spread.high:.3f}",
            ),
            *(
                f"{row.tokens_per_step / spread.median:.0f}",
                f"{1e3 * limit:.3f}",
                row.cost.bound(peaks),
            ),
            f"{limit / spread.median:.2f}",
        )
    return table


def mode_table(rows: Sequence[ModeRow]) -> Table:
    """The modes beside each other."""
    table = _table("the modes", "way", "tok/s", "/ ar", "steps", "tokens", "tok/pass", "share")
    for row in rows:
        stats, speedup = row.stats, row.speedup(rows[0])
        shares = (_share(stats.step_acceptance), _share(stats.rounds.conditional_acceptance))
        table.add_row(
            *(row.way.name, f"{row.spread.median:.1f}"),
            f"{speedup.median:.2f} [{speedup.low:.2f}-{speedup.high:.2f}]",
            *shares,
            *(f"{stats.tokens_per_target_pass or 0:.2f}", f"{row.share:.2f}"),
        )
    return table


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def document(
    facts: dict[str, Any],
    settings: dict[str, Any],
    names: dict[str, str | None],
    plan: MemoryPlan,
    process: Process,
    peaks: tuple[Peaks, Peaks],
    passes: Sequence[PassRow],
    modes: Sequence[ModeRow],
) -> dict[str, Any]:
    """Every figure of a run."""
    return {
        "conditions": facts,
        "settings": settings,
        "models": names,
        "memory": [asdict(device) | {"needed": device.needed} for device in plan.devices],
        "process": dict(described(process)),
        "peaks": {"target": asdict(peaks[0]), "draft": asdict(peaks[1])},
        "passes": [row.figures(peaks[0]) for row in passes],
        "modes": [row.figures() for row in modes],
    }
