"""Run the notebooks from top to bottom and keep what they print and draw. `tests/test_notebooks.py`
runs them by the same function.

python scripts/run_notebooks.py          # all of them
python scripts/run_notebooks.py 01 05    # those whose names begin so
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "notebooks"


def executed(path: Path) -> nbformat.NotebookNode:
    """A copy of the notebook as a fresh kernel leaves it, without times. Raises
    `CellExecutionError` where a cell fails.
    """
    notebook = nbformat.read(path, as_version=4)
    inherited = os.environ.get("PYTHONPATH")
    # A kernel is a process of its own: it shall find this checkout, installed or not.
    places = [str(ROOT), inherited] if inherited else [str(ROOT)]
    # tqdm misses a widget that nobody needs, and would name a path of this machine.
    quiet = "ignore:IProgress not found"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places), "PYTHONWARNINGS": quiet}
    environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # the tensors are tiny
    client = NotebookClient(
        notebook, timeout=400, kernel_name="python3", record_timing=False, coalesce_streams=True
    )
    # Pictures are kept, not sliders, which only a running kernel can draw.
    client.extra_arguments = ["--IPKernelApp.exec_lines=import sys; sys.modules['ipywidgets']=None"]
    client.execute(cwd=str(path.parent), env=environment)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}
    }
    return notebook


def main() -> None:
    """Run the chosen notebooks in place."""
    chosen = tuple(sys.argv[1:]) or ("",)
    for path in sorted(FOLDER.glob("*.ipynb")):
        if path.name.startswith(chosen):
            began = time.monotonic()
            nbformat.write(executed(path), path)
            print(f"ran {path.relative_to(ROOT)} in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
