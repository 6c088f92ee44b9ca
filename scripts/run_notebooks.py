"""Run the notebooks from top to bottom and keep what they print and draw.
`tests/test_notebooks.py` runs them by the same function. The answers
(`notebooks/answers`) go on where their notebook ends: their code runs after its cells,
and what it prints is kept below it.

python scripts/run_notebooks.py          # all of them
python scripts/run_notebooks.py 01 05    # those whose names begin so
"""

from __future__ import annotations

import math
import os
import re
import sys
import time
from pathlib import Path

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.util import run_sync
from nbformat.v4 import new_code_cell, new_notebook

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "notebooks"
PLAN = FOLDER / "README.md"
ANSWER = re.compile(
    r"^```python\n(.*?)^```\n(?:\n```\n.*?^```\n)?", re.DOTALL | re.MULTILINE
)
"""A block of code, and what it prints."""


def answers_to(path: Path) -> Path:
    """The page with the answers to a notebook."""
    return path.parent / "answers" / f"{path.name[:2]}.md"


def kernel() -> AsyncKernelManager:
    """A running kernel, in the folder of the notebooks."""
    inherited = os.environ.get("PYTHONPATH")
    # A kernel is a process of its own: it shall find this checkout, installed or not.
    places = [str(ROOT), inherited] if inherited else [str(ROOT)]
    # tqdm misses a widget that nobody needs, and would name a path of this machine.
    quiet = "ignore:IProgress not found"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(places),
        "PYTHONWARNINGS": quiet,
    }
    environment |= {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }  # the tensors are tiny
    client = NotebookClient(new_notebook(), kernel_name="python3")
    manager: AsyncKernelManager = client.create_kernel_manager()
    client.start_new_kernel(cwd=str(FOLDER), env=environment)
    return manager


def executed(
    path: Path, manager: AsyncKernelManager
) -> tuple[nbformat.NotebookNode, str]:
    """The notebook as the kernel leaves it, without times, and the page with its
    answers; the kernel forgets all names of the notebook before. Raises
    `CellExecutionError` where a cell fails.
    """
    notebook = nbformat.read(path, as_version=4)
    answers = answers_to(path).read_text("utf-8")
    count = len(notebook.cells)
    notebook.cells.insert(0, new_code_cell("%reset -f"))
    notebook.cells += [new_code_cell(code) for code in ANSWER.findall(answers)]
    client = NotebookClient(
        notebook, manager, timeout=400, record_timing=False, coalesce_streams=True
    )
    client.execute()
    del notebook.cells[0]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for number, cell in enumerate(code, 1):  # as in a kernel of its own
        for numbered in (cell, *cell.outputs):
            numbered.update(
                {"execution_count": number} if "execution_count" in numbered else {}
            )
    notebook.metadata = {
        "kernelspec": {
            "display_name": "Python 3",
            "language": "python",
            "name": "python3",
        }
    }
    shown = (printed(cell) for cell in notebook.cells[count:])
    page = ANSWER.sub(
        lambda answer: f"```python\n{answer[1]}```\n{next(shown)}", answers
    )
    notebook.cells = notebook.cells[:count]
    return notebook, page


def words_in(notebook: nbformat.NotebookNode) -> int:
    """All words of text and code. A reader takes a minute for 200."""
    return sum(len(cell.source.split()) for cell in notebook.cells)


def state_time(path: Path, notebook: nbformat.NotebookNode, seconds: float) -> None:
    """Write into the first cell and the plan how long reading and running take
    together."""
    minutes = math.ceil(words_in(notebook) / 200 + seconds / 60)
    first = notebook.cells[0]
    first.source = re.sub(r"Time: \d+ ", f"Time: {minutes} ", first.source)
    row = rf"(?m)^(\| \[{path.name[:2]} .*\| )\d+ \|$"
    plan = PLAN.read_text("utf-8")
    PLAN.write_text(re.sub(row, rf"\g<1>{minutes} |", plan), encoding="utf-8")


def stop(manager: AsyncKernelManager) -> None:
    """End a kernel."""
    run_sync(manager.shutdown_kernel)(now=True)


def printed(cell: nbformat.NotebookNode) -> str:
    """What a cell of an answer printed, as a block of the page."""
    text = "".join(output.get("text", "") for output in cell.outputs)
    return f"\n```\n{text.rstrip()}\n```\n" if text else ""


def main() -> None:
    """Run the chosen notebooks in place."""
    chosen = tuple(sys.argv[1:]) or ("",)
    for path in sorted(FOLDER.glob("*.ipynb")):
        if path.name.startswith(chosen):
            began = time.monotonic()
            manager = kernel()
            notebook, page = executed(path, manager)
            stop(manager)
            seconds = time.monotonic() - began
            state_time(path, notebook, seconds)
            nbformat.write(notebook, path)
            answers_to(path).write_text(page, encoding="utf-8")
            words = f"{words_in(notebook)} words at 200 a minute"
            print(f"{path.name}: {words}, run in {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
