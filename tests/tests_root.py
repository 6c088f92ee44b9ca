"""Where the project is, what files of it hold, a new interpreter, and how many random
cases a test makes: few in `make test`, many with LR_LONG=1.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def cases(count):
    return count * (100 if os.environ.get("LR_LONG") else 1)


def blocks(page, language="python"):
    """The code blocks of a document in a language."""
    text = (ROOT / page).read_text("utf-8")
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```", text)


def rows(name):
    """What a file of JSON lines beside the tests of `lr.measure` holds."""
    lines = (ROOT / "tests" / "measure" / name).read_text("utf-8").split("\n")
    return [json.loads(line) for line in lines if line]


def python(*words, **options):
    """What a new interpreter made of these words, with the package and the kits."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, *map(str, words)],
        env=os.environ | {"PYTHONPATH": path, **options.pop("env", {})},
        capture_output=True,
        text=True,
        timeout=600,
        **options,
    )
