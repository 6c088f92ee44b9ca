"""Every notebook runs from top to bottom, and what is kept in it is what it prints now.

After a change of a notebook, or of what it shows, `python scripts/run_notebooks.py` runs it and keeps the new outputs; read it then.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from source_tree import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MOST_LINES = 5  # of code in a cell, imports and line breaks inside brackets not counted
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def executed(path: Path) -> Any:
    """The notebook as a fresh kernel leaves it."""
    spec = importlib.util.spec_from_file_location("run_notebooks", ROOT / "scripts" / "run_notebooks.py")
    assert spec and spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script.executed(path)


def cells(path: Path, kind: str) -> list[Any]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == kind]


def said(cell: Any) -> list[str]:
    """What a cell shows, pictures as the word for them: their bytes differ between versions of matplotlib."""
    shown = []
    for output in cell.outputs:
        data = output.get("data", {})
        shown.append("a picture" if "image/png" in data else output.get("text") or data.get("text/plain", ""))
    return shown


def statements(cell: Any) -> list[ast.stmt]:
    """The statements of a code cell, imports left out."""
    return [node for node in ast.parse(cell.source).body if not isinstance(node, (ast.Import, ast.ImportFrom))]


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@each_notebook
def test_it_runs_and_its_outputs_are_what_it_shows(path: Path) -> None:
    fresh = [cell for cell in executed(path).cells if cell.cell_type == "code"]
    for kept, new in zip(cells(path, "code"), fresh, strict=True):
        assert said(kept) == said(new), (
            f"run scripts/run_notebooks.py: this cell shows something else now\n{kept.source}"
        )
    assert [cell.execution_count for cell in cells(path, "code")] == list(range(1, len(fresh) + 1))


@each_notebook
def test_cells_are_short_and_define_nothing(path: Path) -> None:
    for cell in cells(path, "code"):
        tree = statements(cell)
        lines = {node.lineno for outer in tree for node in ast.walk(outer) if isinstance(node, ast.stmt)}
        assert len(lines) <= MOST_LINES, f"two ideas in one cell:\n{cell.source}"
        defined = [
            node for outer in tree for node in ast.walk(outer) if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        ]
        assert not defined, f"a notebook uses the package and defines nothing itself:\n{cell.source}"


@each_notebook
def test_prose_leads_and_its_links_lead_somewhere(path: Path) -> None:
    prose = [cell.source for cell in cells(path, "markdown")]
    assert prose[0].startswith("# ")
    assert len(prose) >= len(cells(path, "code")) / 2, (
        "a cell of code is introduced by a sentence or belongs to the cell above"
    )
    for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", "\n".join(prose)):
        assert (path.parent / link).exists(), f"the link to {link} leads nowhere"
