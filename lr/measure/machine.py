"""The machine and the versions that a measurement belongs to."""

import os
import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lr import __version__


def conditions() -> dict[str, Any]:
    """The machine, its first CUDA device and the versions that a measurement belongs
    to."""
    import torch

    processor = platform.processor() or platform.machine()
    listing = Path("/proc/cpuinfo")
    if listing.is_file():
        text = listing.read_text(encoding="utf-8", errors="replace")
        if model_name := re.search(r"^model name\s*:\s*(.*)", text, re.MULTILINE):
            processor = model_name[1].strip()
    has_load = hasattr(os, "getloadavg")
    facts: dict[str, Any] = {
        "cpu": processor,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": [round(load, 2) for load in os.getloadavg()] if has_load else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "transformers": version("transformers"),
        "math-verify": version("math-verify"),
        "lr": __version__,
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        facts |= {
            "card": properties.name,
            "cards": torch.cuda.device_count(),
            "memory": f"{properties.total_memory / 2**30:.0f} GiB",
            "capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
        }
    return facts
