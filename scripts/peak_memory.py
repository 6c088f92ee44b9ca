"""The most memory that a command and its children hold at a time: proportional set
size, so that what they share counts once. Linux only.

python scripts/peak_memory.py lr demo
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

INTERVAL = 0.1  # seconds


def family(pid: int) -> list[int]:
    """A process and all below it."""
    try:
        children = [
            int(c)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for c in (task / "children").read_text().split()
        ]
    except OSError:  # it has ended meanwhile
        return []
    return [pid, *(below for child in children for below in family(child))]


def held(pid: int) -> int:
    """KiB of a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def main() -> int:
    """Run the command and print its peak."""
    peak, processes = 0, 0
    with subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            members = family(process.pid)
            now = sum(map(held, members))
            if now > peak:
                peak, processes = now, len(members)
            time.sleep(INTERVAL)
    print(
        f"{peak / 1024:.0f} MiB in {processes} processes, exit code {process.returncode}"
    )
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
