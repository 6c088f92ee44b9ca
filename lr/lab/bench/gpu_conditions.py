"""The machine that a figure of `lr bench gpu` belongs to: the card, its driver and the libraries,
or the processor.
"""

from __future__ import annotations

from typing import Any

import torch

from lr.engine.placement import Layout
from lr.lab.bench.report import conditions


def conditions_of(layout: Layout) -> dict[str, Any]:
    """As `conditions`, and the devices."""
    devices = list(dict.fromkeys((*layout.target, layout.draft, layout.judge)))
    return {
        **conditions(),
        **card_facts(),
        "devices": ", ".join(map(str, devices)),
        "draft's worker": layout.worker.value,
    }


def card_facts() -> dict[str, Any]:
    """What torch says of the first card; nothing where there is none."""
    if not torch.cuda.is_available():
        return {}
    properties = torch.cuda.get_device_properties(0)
    return {
        "card": properties.name,
        "cards": torch.cuda.device_count(),
        "memory": f"{properties.total_memory / 2**30:.0f} GiB",
        "capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
    }
