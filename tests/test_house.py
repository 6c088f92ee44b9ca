"""House rules that a machine can check. CONTRIBUTING.md says what they are for."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest
from source_tree import ROOT, Module, modules_below, tracked_files
from test_floors import floor_of

PACKAGE = modules_below("lr")
WRITTEN = [*PACKAGE, *modules_below("scripts")]
BELOW_THE_CLI = [module for module in PACKAGE if floor_of(module.name) != 4]
DOCUMENTS = [path for path in tracked_files() if path.suffix == ".md"]
MAX_LINES, MAX_FUNCTION_LINES, MAX_PARAMETERS = 300, 60, 9


def places(module: Module, found: list[ast.AST]) -> list[str]:
    return [f"{module.path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)[:80]}" for node in found]


@pytest.mark.parametrize("module", [*WRITTEN, *modules_below("tests")], ids=lambda module: module.name)
def test_module_docstring(module: Module) -> None:
    tree = module.tree
    assert not tree.body or ast.get_docstring(tree), "a file begins with its idea, in a docstring"


@pytest.mark.parametrize("module", WRITTEN, ids=lambda module: module.name)
def test_one_idea_one_sitting(module: Module) -> None:
    """Limits well above the aim (250 lines, 40 lines, 6 parameters): what passes them holds more than one idea."""
    assert module.text.count("\n") <= MAX_LINES, "split the file by its ideas"
    for node in ast.walk(module.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            where = f"{module.name}.{node.name}"
            assert node.end_lineno - node.lineno + 1 <= MAX_FUNCTION_LINES, f"{where} is too long"
            parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            assert len(parameters) <= MAX_PARAMETERS, f"{where} takes too many parameters: bundle them in a dataclass"


@pytest.mark.parametrize("module", BELOW_THE_CLI, ids=lambda module: module.name)
def test_nothing_prints_below_the_command_line(module: Module) -> None:
    found = [
        node
        for node in ast.walk(module.tree)
        if (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print")
        or (isinstance(node, ast.Attribute) and ast.unparse(node) in {"sys.stdout", "sys.stderr"})
    ]
    assert not places(module, found)


@pytest.mark.parametrize("module", BELOW_THE_CLI, ids=lambda module: module.name)
def test_no_environment_variables_below_the_command_line(module: Module) -> None:
    found = [
        node
        for node in ast.walk(module.tree)
        if (isinstance(node, ast.Attribute) and ast.unparse(node) in {"os.environ", "os.getenv", "os.putenv"})
        or (
            isinstance(node, ast.ImportFrom)
            and node.module == "os"
            and {"environ", "getenv"} & {a.name for a in node.names}
        )
    ]
    assert not places(module, found)


@pytest.mark.parametrize("module", PACKAGE, ids=lambda module: module.name)
def test_no_module_level_state(module: Module) -> None:
    """Names at module level are CONSTANTS, Types, functions and classes; nothing rebinds them."""
    found = [node for node in ast.walk(module.tree) if isinstance(node, ast.Global)]
    for node in module.tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        if any(not re.fullmatch(r"_?[A-Z]\w*|__\w+__", name) for name in names):
            found.append(node)
    assert not places(module, found)


@pytest.mark.parametrize("module", WRITTEN, ids=lambda module: module.name)
def test_nothing_is_left_for_later(module: Module) -> None:
    assert not re.findall(r"\b(?:TODO|FIXME|XXX)\b", module.text)


def test_no_paths_of_one_machine() -> None:
    machine = re.compile(r"(?<![\w.:/])/(?:work|root|home|Users|opt|mnt|media)/\w")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in tracked_files()
        if path.suffix not in {".safetensors", ".png"}
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if machine.search(line)
    ]
    assert not found


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_name_what_exists(path: Path) -> None:
    """Every `lr.name` resolves, every file of ours that is named or linked is there."""
    text = path.read_text(encoding="utf-8")
    for dotted in sorted(set(re.findall(r"(?<![\w./-])lr(?:\.[A-Za-z_]\w*)+", text))):
        resolve(dotted)
    for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        assert (path.parent / link).exists(), f"the link to {link} leads nowhere"
    for name in re.findall(r"`((?:lr|tests|scripts|docs)/[\w./-]+)`", text):
        assert (ROOT / name).exists(), f"{name} does not exist"


def test_readme_shows_the_tree_as_it_is() -> None:
    """A line of the tree begins with a folder, or goes on with the one above. Every room is shown, and nothing that is not there."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    tree = re.search(r"```\n(lr/\n.*?)```", readme, re.DOTALL)
    assert tree, "the README ends with the file tree"
    folder, shown = Path("lr"), {Path("lr")}
    for line in tree[1].splitlines():
        if named := re.match(r"( *)([\w/]+)/(?= |$)", line):
            folder = Path("lr", named[2]) if named[1] else Path(named[2])
            shown.add(folder)
        elif not line.startswith("    "):
            folder = Path("lr")
        shown |= {folder / name for name in re.findall(r"\w+\.py", line)}
    assert not [str(path) for path in shown if not (ROOT / path).exists()], "the README shows what is gone"
    rooms = {module.path.parent.relative_to(ROOT) for module in PACKAGE}
    assert not [str(path) for path in rooms - shown], "the file tree of the README lacks these rooms"


def test_readme_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    [example] = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    exec(compile(example, "README.md", "exec"), {"__name__": "readme"})
    assert "answer: 10" in capsys.readouterr().out


def test_figures_are_what_their_script_draws() -> None:
    spec = importlib.util.spec_from_file_location("draw_overview", ROOT / "scripts" / "draw_overview.py")
    assert spec and spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.FIGURE.read_text(encoding="utf-8") == script.picture()


def resolve(dotted: str) -> object:
    """The object that a dotted name means; `AttributeError` where there is none."""
    parts = dotted.split(".")
    value: object = importlib.import_module(parts[0])
    for i, part in enumerate(parts[1:], 2):
        try:
            value = getattr(value, part)
        except AttributeError:
            try:
                value = importlib.import_module(".".join(parts[:i]))
            except ModuleNotFoundError:
                raise AttributeError(f"{dotted} is named in a document and does not exist") from None
    return value


def test_resolve() -> None:
    assert resolve("lr.errors.OutOfBlocks.__init__")
    with pytest.raises(AttributeError, match=r"lr\.errors\.Nonesuch is named"):
        resolve("lr.errors.Nonesuch")
