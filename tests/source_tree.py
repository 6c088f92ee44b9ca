"""The sources as data: which modules there are, and what each imports. Shared by `test_floors.py` and `test_house.py`.

Nothing is imported to find out: everything is read from the files and their syntax trees.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Module:
    """One Python file. `name` is dotted ("lr.kvcache.pool"); a package's `__init__.py` carries the package's name."""

    name: str
    path: Path

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))


def modules_below(folder: str) -> list[Module]:
    """Every module below a folder of the repository, sorted by name."""
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found.append(Module(".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return sorted(found, key=lambda module: module.name)


def imports_of(module: Module, known: set[str]) -> set[str]:
    """Dotted names of all modules that a module imports, wherever in the file the import stands.

    `from lr.kvcache import pool` is an import of `lr.kvcache.pool` where `known` has such a module, else of `lr.kvcache`.
    In an `__init__.py` only what runs on import counts: a package may hand out names lazily, from above its own floor.
    """
    found: set[str] = set()
    for node in _running(module.tree) if module.is_package else ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(module, node)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.add(inner if inner in known else base)
    return found


def _running(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when the module is imported: no function bodies, nothing below `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        for_types_only = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        if not for_types_only and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield node
            yield from _running(node)


def _base(module: Module, node: ast.ImportFrom) -> str:
    """What `from X import ...` names, relative dots resolved: in lr.kvcache.table `from .pool` is lr.kvcache.pool."""
    if node.level == 0:
        return node.module or ""
    parts = module.name.split(".")
    package = parts[: len(parts) - node.level + module.is_package]
    return ".".join([*package, node.module] if node.module else package)


def tracked_files() -> list[Path]:
    """The files that belong to the project: what git tracks; in an unpacked archive, all but hidden and built ones."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode == 0 and listing.stdout:
        files = [ROOT / name for name in listing.stdout.split("\0") if name]
    else:
        built = {"build", "dist", "runs", "training"}
        inside = (path.relative_to(ROOT) for path in ROOT.rglob("*"))
        files = [ROOT / p for p in inside if p.parts[0] not in built and not any(part[0] == "." for part in p.parts)]
    return sorted(path for path in files if path.is_file())
