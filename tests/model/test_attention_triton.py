"""Our own kernel against the reference, in Triton's interpreter, on the CPU.

The interpreter is chosen when a kernel is defined, so this runs in a process of its
own.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

MISSING = importlib.util.find_spec("triton") is None


@pytest.mark.skipif(MISSING, reason="the package triton is not installed")
def test_the_kernel_agrees_with_the_reference() -> None:
    script = Path(__file__).with_name("triton_kit.py")
    found = subprocess.run(
        [sys.executable, str(script)],
        env={
            **os.environ,
            "TRITON_INTERPRET": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert found.returncode == 0, found.stdout + found.stderr
