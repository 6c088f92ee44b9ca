"""Where the project is, and how many random cases a test makes: few in `make test`, many
with LR_LONG=1.
"""

import json
import os
from pathlib import Path

ROOT = Path(__file__).parents[1]


def cases(count: int) -> int:
    return count * (100 if os.environ.get("LR_LONG") else 1)


def rows(name: str) -> list[dict]:
    """What a file of JSON lines beside the tests of `lr.measure` holds."""
    lines = (ROOT / "tests" / "measure" / name).read_text("utf-8").split("\n")
    return [json.loads(line) for line in lines if line]
