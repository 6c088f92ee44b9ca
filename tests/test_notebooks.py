"""Every notebook runs from top to bottom, and what is kept in it is what it prints now.

After a change of a notebook, or of what it shows, `python scripts/run_notebooks.py 04`
runs number 04 with its answers and keeps the new outputs; read them then. The exercises
have tests of their own (`test_exercises.py`).
"""

import ast
import re

import nbformat
import pytest
import run_notebooks
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook
from run_notebooks import ANSWER, answers_to
from tests_root import ROOT

FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MOST_LINES = 5  # of code in a cell, imports and line breaks inside brackets not counted
DEFINES = {  # where writing code is the subject: the most lines of all definitions of a cell
    "00_lookahead_from_scratch": 30,
    "07_prototype_a_variant": 20,
}
IMPORTED = """
import gc
import matplotlib.pyplot, torch, transformers
import lr.reasoner
gc.freeze()
"""
"""A notebook begins by forgetting the names of the one before, which looks at all that
is alive: what they all import need not be looked at again.
"""
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def kernel():
    """One for all notebooks, which import the same: that takes longer than most of them
    run."""
    manager = run_notebooks.kernel()
    NotebookClient(new_notebook(cells=[new_code_cell(IMPORTED)]), manager).execute()
    yield manager
    run_notebooks.stop(manager)


def cells(path, kind):
    return [
        cell
        for cell in nbformat.read(path, as_version=4).cells
        if cell.cell_type == kind
    ]


def shown(cell):
    """What a cell shows, pictures as the word for them: their bytes differ between
    versions of matplotlib."""
    texts = []
    for output in cell.outputs:
        data = output.get("data", {})
        drawn = "image/png" in data
        texts.append(
            "a picture" if drawn else output.get("text") or data.get("text/plain", "")
        )
    return texts


def statements(cell):
    """The statements of a code cell, imports left out."""
    return [
        node
        for node in ast.parse(cell.source).body
        if not isinstance(node, (ast.Import, ast.ImportFrom))
    ]


@pytest.mark.ci
@each_notebook
def test_it_runs_and_its_outputs_are_what_it_shows(path, kernel):
    notebook, answers = run_notebooks.executed(path, kernel)
    fresh = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for saved, new in zip(cells(path, "code"), fresh, strict=True):
        assert saved.execution_count == new.execution_count
        assert shown(saved) == shown(new), (
            f"run scripts/run_notebooks.py {path.name[:2]}: this cell shows something "
            f"else now\n{saved.source}"
        )
    assert answers_to(path).read_text("utf-8") == answers, (
        f"run scripts/run_notebooks.py {path.name[:2]}: an answer prints something else now"
    )


@each_notebook
def test_every_question_has_its_answer(path):
    questions = cells(path, "markdown")[-1].source.split("to try")[1].split("[Answers]")
    assert len(questions) == 2 and questions[1].startswith(
        f"(answers/{path.name[:2]}.md)"
    )
    numbered = r"^(\d)\. "
    numbers = re.findall(numbered, questions[0], re.MULTILINE)
    page = answers_to(path).read_text("utf-8")
    assert re.findall(numbered, page, re.MULTILINE) == numbers and len(numbers) >= 3
    assert ANSWER.search(page), "an answer that can be computed is computed"


@each_notebook
def test_cells_are_short_and_define_nothing(path):
    for cell in cells(path, "code"):
        tree = statements(cell)
        defined = [
            node for node in tree if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        ]
        lines = {
            node.lineno
            for outer in tree
            for node in ast.walk(outer)
            if isinstance(node, ast.stmt)
        }
        assert len(lines) <= (DEFINES.get(path.stem, 0) if defined else MOST_LINES), (
            f"two ideas in one cell, or a definition: a notebook uses the package and "
            f"defines nothing itself\n{cell.source}"
        )


@each_notebook
def test_links_lead_somewhere(path):
    prose = "\n".join(cell.source for cell in cells(path, "markdown"))
    for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", prose):
        assert (path.parent / link).exists(), f"the link to {link} leads nowhere"
