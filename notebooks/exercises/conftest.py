"""Which answer is graded: yours, the reference solution, or the collection of mistakes. See
README.md.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option of the command line."""
    choices = ("yours", "solutions", "mistakes")
    parser.addoption(
        "--grade", choices=choices, default="yours", help="whose answers are graded (exercises)"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test that takes an `answer` gets the file that is to be graded, or each file of
    mistakes.
    """
    if "answer" not in metafunc.fixturenames:
        return
    name, whose = (
        metafunc.module.__name__.removeprefix("test_"),
        metafunc.config.getoption("--grade"),
    )
    if whose == "mistakes":
        files = sorted((HERE / "mistakes").glob(f"{name}_*.py"))
    else:
        files = [(HERE if whose == "yours" else HERE / "solutions") / f"{name}.py"]
    metafunc.parametrize("answer", files, ids=lambda path: path.stem, indirect=True)


@pytest.fixture
def answer(request: pytest.FixtureRequest) -> ModuleType:
    """The module to be graded, loaded anew for every test."""
    path: Path = request.param
    spec = importlib.util.spec_from_file_location(f"answer_{path.stem}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
