"""pip with one line that moves instead of two hundred: how many packages, how many
megabytes, which one now. What pip printed is shown if it fails.

    python scripts/install.py -c constraints.txt -e .
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from importlib.metadata import distributions

SIZE = re.compile(r"\(([\d.]+) (kB|MB|GB)\)")
UNITS = {"kB": 0.001, "MB": 1.0, "GB": 1000.0}


def main() -> int:
    """Install; returns pip's exit status."""
    started = time.monotonic()
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    pip = subprocess.Popen(
        [*command, "--progress-bar=off", *sys.argv[1:]],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert pip.stdout is not None
    log = []
    packages = 0
    megabytes = 0.0
    for line in pip.stdout:
        log.append(line)
        words = line.split()
        packages += line.startswith("Collecting")
        size = SIZE.search(line)
        if size and "Downloading" in line and ".metadata" not in line:
            megabytes += float(size[1]) * UNITS[size[2]]
        if sys.stdout.isatty() and words:
            now = " ".join(words[:2])[:40]
            print(
                f"\r  {packages} packages, {megabytes:.0f} MB: {now:<40}",
                end="",
                flush=True,
            )
    status = pip.wait()
    if status:
        print("\n", *log, sep="")
        return status
    total = len({each.name for each in distributions()})
    seconds = time.monotonic() - started
    end = "\r" if sys.stdout.isatty() else ""
    summary = (
        f"  {total} packages are there, {megabytes:.0f} MB downloaded, {seconds:.0f} s"
    )
    print(f"{end}{summary:<76}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
