"""The common parts of all benchmarks: timing, spreads over repeats, the machine, JSON
files.

Every repeat (or problem) runs all contenders, mostly each time in another order
(`in_turn`), and ratios are taken within a repeat. So a drift of the machine's speed
affects all contenders alike."""

from __future__ import annotations

import os
import platform
import re
import time
from ast import literal_eval
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, TypeVar

from lr import __version__
from lr.measure.store import Store

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least two values."""
        low, _, high = quantiles(values, n=4, method="inclusive")
        return cls(median(values), low, high)

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}-{self.high:.2f}]"

    @classmethod
    def of_ratios(cls, above: Sequence[float], below: Sequence[float]) -> Spread:
        """The spread of above / below, divided repeat by repeat so that machine drift
        cancels."""
        return cls.of([a / b for a, b in zip(above, below, strict=True)])


@dataclass(frozen=True)
class BenchWay:
    """A way to answer: `settings` of `Reasoner.generate`, and a `variant` as for
    --variant."""

    name: str
    mode: str
    settings: dict[str, Any] = field(default_factory=dict)
    variant: str | None = None

    @property
    def overlapped(self) -> bool:
        return self.settings.get("driver") == "overlapped"

    @classmethod
    def of(cls, words: str) -> BenchWay:
        """A way in words: a mode, then settings, such as "sd drafter=draft
        num_speculative_tokens=8" or "lr depth=3 driver=overlapped"."""
        mode, *changes = words.split() or [""]
        settings: dict[str, Any] = {}
        for change in changes:
            name, _, value = change.partition("=")
            try:
                settings[name] = literal_eval(value)  # a number, a tuple, True, None
            except (ValueError, SyntaxError):
                settings[name] = value
        return cls(words, mode, settings)


def in_turn(items: Sequence[T], number: int) -> list[T]:
    """Rotated left by `number`, so that each begins once. Example: a, b, c by 1 is b,
    c, a."""
    first = number % len(items)
    return [*items[first:], *items[:first]]


def timed(
    work: Callable[[], object], device: torch.device, repeats: int = 7, warm_up: int = 2
) -> float:
    """Median seconds of `work`, the device's part included, after `warm_up` untimed
    calls."""
    import torch

    seconds = []
    with torch.inference_mode():
        for _ in range(repeats + warm_up):
            wait_for(device)
            started = time.perf_counter()
            work()
            wait_for(device)
            seconds.append(time.perf_counter() - started)
    return median(seconds[warm_up:])


def wait_for(device: torch.device) -> None:
    """Wait until the device has finished what this thread started. Waiting for the
    whole device would break a CUDA graph that another thread records."""
    import torch

    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    elif device.type == "mps":
        torch.mps.synchronize()


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
        "torch": torch.__version__,
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


def write_json(content: dict[str, Any], path: Path | None) -> None:
    """Write the file completely or not at all; do nothing without a path."""
    if path is not None:
        Store(path.parent).write(path.name, content)
