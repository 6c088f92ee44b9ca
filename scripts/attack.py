"""Attacks on `lr`, to be run for as long as anyone likes: each makes up cases by seed and says what
it tried and what it found.

    python scripts/attack.py exact --count 500
    python scripts/attack.py cache --seconds 180 --seed 7
    python scripts/attack.py files --only 412        # case 412 again, alone

A case depends on the name, the seed and its number alone, so every finding can be had again with
`--only`. The exit code is 1 after a finding. What the attacks are, and what they have found so far:
`docs/trust.md`. The attacks themselves: `scripts/attacks/`; they need the tests beside them.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("spec", "engine", "kvcache", "model", "eval", "endpoint")
KITS = ("tests", *(f"tests/{part}" for part in PARTS))
SHOWN = 3
"""Findings that are shown whole; of further ones the number."""
ATTACKS = {
    "exact": ("models", 200, "exact verifier and sample matching against plain decoding"),
    "distribution": ("models", 60, "chi-square of drafters, rules, couplings and filters"),
    "orders": ("parts", 2000, "random orders of events against the scheduler's oracle"),
    "cache": ("parts", 300, "random programs of the cache against lists; one is 100 operations"),
    "parity": ("models", 40, "random configurations against transformers"),
    "files": ("outside", 300, "broken checkpoints, data sets, traces and flags"),
    "faults": ("outside", 10, "runs that are killed, stopped, hung up on, given bad servers"),
    "sandbox": ("outside", 30, "hostile programs"),
    "soak": ("models", 300, "mixed requests in one process: nothing grows, nothing runs out"),
}
"""By name: its module in `scripts/attacks`, the cases of a run without flags, what it does."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one attack; the return value is the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    listed = "\n".join(f"{name}: {what}" for name, (_, _, what) in ATTACKS.items())
    parser.add_argument("name", choices=ATTACKS, metavar="NAME", help=listed)
    parser.add_argument("--count", type=int, help="cases; without --seconds, some by default")
    parser.add_argument("--seconds", type=float, help="begin no case after so many seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of the one case to run")
    asked = parser.parse_args(arguments)
    sys.path[:0] = [str(ROOT), str(ROOT / "scripts"), *(str(ROOT / kit) for kit in KITS)]
    module, usual, _ = ATTACKS[asked.name]
    count = asked.count or (usual if asked.seconds is None else sys.maxsize)
    numbers = range(count) if asked.only is None else [asked.only]
    import torch

    torch.set_num_threads(1)  # the tensors are tiny: threads only get in each other's way
    tried, findings = Counter[str](), 0
    with tempfile.TemporaryDirectory(prefix="lr-attack-") as folder:
        attack = getattr(import_module(f"attacks.{module}"), asked.name)(Path(folder))
        began = time.monotonic()
        for number in numbers:
            if asked.seconds is not None and time.monotonic() - began > asked.seconds:
                break
            try:
                tried[attack(random.Random(f"{asked.name} {asked.seed} {number}"))] += 1
            except Exception as error:
                findings += 1
                tried["finding"] += 1
                said = f"{type(error).__name__}: {str(error)[:300]!r}"
                print(f"FINDING in case {number} of seed {asked.seed}: {said}")
                if findings <= SHOWN:
                    print(traceback.format_exc())
        attack.close()
    seconds = time.monotonic() - began
    said = ", ".join(f"{n} {what}" for what, n in tried.most_common())
    print(f"{asked.name}: {tried.total()} cases in {seconds:.0f} s ({said}); {findings} findings")
    return 1 if findings or not tried else 0


if __name__ == "__main__":
    sys.exit(main())
