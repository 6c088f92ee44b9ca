"""The run as a JSON document: conditions, every single figure, summaries, goals."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from lr.errors import SettingError
from lr.lab.bench.goals import GIVEN_MARKS, goals
from lr.lab.bench.timing import Timing


def conditions() -> dict[str, Any]:
    """The machine and the versions that a figure belongs to."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
    }


def cpu_name() -> str:
    """What the processor calls itself."""
    listing = Path("/proc/cpuinfo")
    if listing.is_file():
        for line in listing.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def document(timings: Sequence[Timing], facts: dict[str, Any]) -> dict[str, Any]:
    """Everything that was measured under the conditions `facts`."""
    rows = [
        asdict(t) | {"spread": asdict(t.spread), "tokens_per_second": t.tokens_per_second}
        for t in timings
    ]
    return {
        "conditions": facts,
        "timings": rows,
        "goals": [asdict(goal) for goal in goals(timings)],
        "given_marks_of_another_machine": GIVEN_MARKS,
    }


def write_json(content: dict[str, Any], path: Path) -> None:
    """Write it whole or not at all. Raises `SettingError` where the folder does not exist."""
    if not path.parent.is_dir():
        raise SettingError(
            f"json is {str(path)!r}, but there is no folder {path.parent}; create it or name another file."
        )
    text = json.dumps(content, indent=1) + "\n"
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as beside:
        fresh = Path(beside, path.name)
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
