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
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.util import run_sync

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "notebooks"


def kernel() -> AsyncKernelManager:
    """A running kernel, in the folder of the notebooks."""
    inherited = os.environ.get("PYTHONPATH")
    # A kernel is a process of its own: it shall find this checkout, installed or not.
    places = [str(ROOT), inherited] if inherited else [str(ROOT)]
    # tqdm misses a widget that nobody needs, and would name a path of this machine.
    quiet = "ignore:IProgress not found"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places), "PYTHONWARNINGS": quiet}
    environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # the tensors are tiny
    client = NotebookClient(nbformat.v4.new_notebook(), kernel_name="python3")
    manager: AsyncKernelManager = client.create_kernel_manager()
    client.start_new_kernel(cwd=str(FOLDER), env=environment)
    return manager


def executed(path: Path, manager: AsyncKernelManager) -> nbformat.NotebookNode:
    """A copy of the notebook as the kernel leaves it, without times; the kernel forgets all names
    of the notebook before. Raises `CellExecutionError` where a cell fails.
    """
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell("%reset -f"))
    client = NotebookClient(
        notebook, manager, timeout=400, record_timing=False, coalesce_streams=True
    )
    client.execute()
    del notebook.cells[0]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for number, cell in enumerate(code, 1):  # as in a kernel of its own
        for place in (cell, *cell.outputs):
            place.update({"execution_count": number} if "execution_count" in place else {})
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}
    }
    return notebook


def stop(manager: AsyncKernelManager) -> None:
    """End a kernel."""
    run_sync(manager.shutdown_kernel)(now=True)


def main() -> None:
    """Run the chosen notebooks in place."""
    chosen = tuple(sys.argv[1:]) or ("",)
    for path in sorted(FOLDER.glob("*.ipynb")):
        if path.name.startswith(chosen):
            began = time.monotonic()
            manager = kernel()
            nbformat.write(executed(path, manager), path)
            stop(manager)
            print(f"ran {path.relative_to(ROOT)} in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
