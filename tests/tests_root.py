"""Where the project is, and how many random cases a test makes: few in `make test`, many
with LR_LONG=1.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]


def cases(count: int) -> int:
    return count * (100 if os.environ.get("LR_LONG") else 1)
