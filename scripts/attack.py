"""Attacks on `lr`, to be run for as long as anyone likes: each makes up cases by seed
and says what it tried and what it found.

    python scripts/attack.py exact --count 500
    python scripts/attack.py cache --seconds 180 --seed 7
    python scripts/attack.py files --only 412        # case 412 again, alone

A case depends on the name, the seed and its number alone, so every finding can be had
again with `--only`. The exit code is 1 after a finding. Ctrl-C ends an attack with what
was tried and found so far and exit code 130; once a minute standard error says as much.
What the attacks are: `docs/trust.md`. The attacks themselves: `scripts/attacks/`; they
need the tests beside them.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("spec", "engine", "kvcache", "model", "eval", "endpoint")
KITS = ("tests", *(f"tests/{part}" for part in PARTS))
SHOWN = 3
"""Findings that are shown whole; of further ones the number."""
EVERY = 60.0
"""Seconds between two lines, on standard error, of what was tried and found so far."""
ATTACKS = {
    "exact": (
        "models",
        200,
        "exact verifier and sample matching against plain decoding",
    ),
    "distribution": (
        "models",
        60,
        "chi-square of drafters, rules, couplings and filters",
    ),
    "orders": ("parts", 2000, "random orders of events against the scheduler's oracle"),
    "cache": (
        "parts",
        300,
        "random programs of the cache against lists; one is 100 operations",
    ),
    "parity": ("models", 40, "random configurations against transformers"),
    "files": ("outside", 300, "broken checkpoints, data sets, traces and flags"),
    "faults": (
        "outside",
        10,
        "runs that are killed, stopped, hung up on, given bad servers",
    ),
    "sandbox": ("outside", 30, "hostile programs"),
    "soak": (
        "models",
        300,
        "mixed requests in one process: nothing grows, nothing runs out",
    ),
}
"""By name: its module in `scripts/attacks`, the cases of a run without flags, what it
does."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one attack; the return value is the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    listed = "\n".join(f"{name}: {what}" for name, (_, _, what) in ATTACKS.items())
    parser.add_argument("name", choices=ATTACKS, metavar="NAME", help=listed)
    parser.add_argument(
        "--count", type=int, help="cases; without --seconds, some by default"
    )
    parser.add_argument(
        "--seconds", type=float, help="begin no case after so many seconds"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of the one case to run")
    asked = parser.parse_args(arguments)
    sys.path[:0] = [
        str(ROOT),
        str(ROOT / "scripts"),
        *(str(ROOT / kit) for kit in KITS),
    ]
    _, usual, _ = ATTACKS[asked.name]
    count = asked.count or (usual if asked.seconds is None else sys.maxsize)
    numbers = range(count) if asked.only is None else [asked.only]
    attempt, interrupts = Attempt(asked.name, asked.seed), list[int]()

    def interrupt(number: int, _: object) -> None:
        interrupts.append(number)  # a case may take the exception for its own
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with suppress(KeyboardInterrupt):
            attempt.run(numbers, asked.seconds, interrupts)
    finally:
        signal.signal(signal.SIGINT, before)
    print(attempt.summary, flush=True)
    return 130 if interrupts else 1 if attempt.findings or not attempt.tried else 0


class Attempt:
    """An attack under way: what it has tried and found so far."""

    def __init__(self, name: str, seed: int) -> None:
        self.name, self.seed = name, seed
        self.tried, self.findings, self.began = Counter[str](), 0, time.monotonic()

    @property
    def summary(self) -> str:
        seconds, total = time.monotonic() - self.began, self.tried.total()
        said = ", ".join(f"{n} {what}" for what, n in self.tried.most_common())
        cases = f"{self.name}: {total} cases in {seconds:.0f} s ({said})"
        return f"{cases}; {self.findings} findings"

    def run(
        self, numbers: Iterable[int], seconds: float | None, interrupts: list[int]
    ) -> None:
        """Try these cases, until so many seconds are over or an interrupt has come."""
        import torch

        torch.set_num_threads(
            1
        )  # the tensors are tiny: threads only get in each other's way
        with ExitStack() as stack:
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="lr-attack-")
            )
            module = import_module(f"attacks.{ATTACKS[self.name][0]}")
            attack = getattr(module, self.name)(Path(folder))
            stack.callback(attack.close)
            self.began = told = time.monotonic()
            for number in numbers:
                now = time.monotonic()
                if interrupts or (seconds is not None and now - self.began > seconds):
                    break
                if now - told >= EVERY:
                    print(self.summary, file=sys.stderr, flush=True)
                    told = now
                try:
                    self.tried[
                        attack(random.Random(f"{self.name} {self.seed} {number}"))
                    ] += 1
                except Exception as error:
                    if not interrupts:
                        self.found(number, error)

    def found(self, number: int, error: Exception) -> None:
        self.findings += 1
        self.tried["finding"] += 1
        said = f"{type(error).__name__}: {str(error)[:300]!r}"
        print(f"FINDING in case {number} of seed {self.seed}: {said}", flush=True)
        if self.findings <= SHOWN:
            print(traceback.format_exc(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
