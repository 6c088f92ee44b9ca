"""What a machine can check about the sources: the budgets of size, the imports of `lr`,
the documents' links.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = sorted((ROOT / "lr").rglob("*.py"))
CORE = ("model", "kvcache", "spec", "engine")
BELOW_THE_CLI = [
    path
    for path in PACKAGE
    if path.parent.name != "commands"
    and path.name not in ("__main__.py", "lookahead.py")
]


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def tracked_files() -> list[Path]:
    """The files that git tracks."""
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True
    )
    return sorted(
        p
        for name in listing.stdout.split("\0")
        if name and (p := ROOT / name).is_file()
    )


def found_in(paths: list[Path], pattern: str) -> list[str]:
    """Where a pattern occurs, as "file:line: text"."""
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in paths
        for number, line in enumerate(
            path.read_text("utf-8", "replace").splitlines(), 1
        )
        if re.search(pattern, line)
    ]


def test_nothing_reads_the_environment_or_the_terminal_below_the_command_line() -> None:
    """That nothing prints there is a rule of ruff (T20)."""
    forbidden = {"sys.stdout", "sys.stderr", "os.environ", "os.getenv", "os.putenv"}
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path in BELOW_THE_CLI
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in forbidden
    ]
    assert {one.partition(":")[0] for one in found} == {
        "lr/model/ranks.py"
    }  # what NCCL reads


def test_no_state_at_module_level() -> None:
    """Names at module level are CONSTANTS, Types, functions and classes; nothing
    rebinds them."""
    found = []
    for path in PACKAGE:
        tree = parsed(path)
        found += [
            f"{path}: global" for node in ast.walk(tree) if isinstance(node, ast.Global)
        ]
        for node in tree.body:
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            for target in (
                targets if isinstance(node, (ast.Assign, ast.AnnAssign)) else []
            ):
                names = [
                    name.id for name in ast.walk(target) if isinstance(name, ast.Name)
                ]
                found += [
                    f"{path}: {n}"
                    for n in names
                    if not re.match(r"_?[A-Z]|__\w+__$", n)
                ]
    assert not found


def test_a_class_name_means_one_thing() -> None:
    """But for the page's own Node, which stands for itself as the whole page does."""
    where: dict[str, list[str]] = {}
    for path in PACKAGE:
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and path.name != "lookahead.py":
                where.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert not {name: files for name, files in where.items() if len(files) > 1}


def test_nothing_is_left_for_later() -> None:
    assert not found_in(PACKAGE, r"\b(?:TODO|FIXME|XXX)\b")


def test_no_paths_of_one_machine() -> None:
    texts = [
        path for path in tracked_files() if path.suffix not in {".safetensors", ".png"}
    ]
    assert not found_in(
        texts, r"(?<![\w.:/])/(?:work|root|home|Users|opt|mnt|media)/\w"
    )


def test_documents_name_what_exists() -> None:
    """Every `lr.name` resolves, every file of ours that is named or linked is there."""
    for path in (path for path in tracked_files() if path.suffix == ".md"):
        text = path.read_text("utf-8")
        for dotted in sorted(
            set(re.findall(r"(?<![\w./-])lr(?:\.[A-Za-z_]\w*)+", text))
        ):
            assert resolves(dotted), f"{path}: {dotted} does not exist"
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
            assert (path.parent / link).exists(), (
                f"{path}: the link to {link} leads nowhere"
            )
        for name in re.findall(r"`((?:lr|tests|scripts|docs)/[\w./-]+)`", text):
            assert (ROOT / name).exists(), f"{path}: {name} does not exist"


def resolves(dotted: str) -> bool:
    """Whether a dotted name means a module, or something in one."""
    parts = dotted.split(".")
    value: object = importlib.import_module(parts[0])
    for i, part in enumerate(parts[1:], 2):
        if not hasattr(value, part):
            try:
                importlib.import_module(".".join(parts[:i]))
            except (
                ModuleNotFoundError
            ) as error:  # of ours; or of an extra that it needs
                return not str(error.name).startswith("lr")
        value = getattr(value, part)
    return True


def test_resolves() -> None:
    assert resolves("lr.errors.OutOfBlocks.__init__")
    assert not resolves("lr.errors.Nonesuch")


def test_what_is_found_by_name_exists() -> None:
    """The names that `lr.registry.find` is given."""
    names = [
        name
        for path in PACKAGE
        for name in re.findall(r'"(lr\.[\w.]+:\w+)"', path.read_text())
    ]
    assert len(names) > 0 and all(resolves(name.replace(":", ".")) for name in names)


def test_readme_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    [example] = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    exec(compile(example, "README.md", "exec"), {"__name__": "readme"})
    assert "answer: 10" in capsys.readouterr().out


def test_figures_are_what_their_script_draws() -> None:
    spec = importlib.util.spec_from_file_location(
        "draw", ROOT / "scripts" / "draw_overview.py"
    )
    assert spec and spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.FIGURE.read_text(encoding="utf-8") == script.picture()


def lines_of(paths: list[Path]) -> int:
    return sum(path.read_text("utf-8").count("\n") for path in paths)


def test_sizes() -> None:
    """The page stays a page."""
    assert lines_of([ROOT / "lr" / "lookahead.py"]) <= 400
