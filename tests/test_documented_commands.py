"""Every command line in the README, the documents and the notebooks is one that `lr`
understands; the small ones run."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lr.commands.cli import COMMANDS, command_class, main

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "GLOSSARY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
PAGES += sorted((ROOT / "notebooks").glob("*.ipynb"))
SMALL = ("lr theory", "lr info", "lr generate")
NOT_HERE = re.compile(r"Qwen/|\bDIR\b|tensor_parallel|theory( figures| validation|$)")
"""What needs a checkpoint, a second machine or minutes."""


def text_of(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    if page.suffix != ".ipynb":
        return text
    cells = json.loads(text)["cells"]
    return "\n".join(
        "".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"
    )


def commands_in_blocks() -> list[str]:
    """Commands in code blocks, as one would type them."""
    found = set()
    for page in PAGES:
        for block in re.findall(
            r"^```\w*\n(.*?)^```", text_of(page), re.DOTALL | re.MULTILINE
        ):
            for line in block.replace("\\\n", " ").splitlines():
                command = re.sub(r"\s+#\s.*", "", line.removeprefix("$ ")).strip()
                if re.match(r"lr [a-z]", command):
                    found.add(command)
    return sorted(found)


def commands_in_text(page: Path) -> Iterator[str]:
    """Commands in running text: often without their arguments."""
    prose = re.sub(r"```.*?```", "", text_of(page), flags=re.DOTALL)
    yield from re.findall(r"`(lr [a-z][^`\n]*)`", prose)


def name_of(command: str) -> tuple[str, ...]:
    """The command that a line names, the first of its group where it names only
    that."""
    words = shlex.split(command)[1:]
    found = next((name for name in COMMANDS if tuple(words[: len(name)]) == name), None)
    group = [name for name in COMMANDS if name[0] == words[0]]
    assert found or (group and len(words) == 1), f"there is no command for {command!r}"
    return found or group[0]


def test_every_documented_command_takes_its_flags(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each line is read as it would be, and stops short of running."""
    monkeypatch.chdir(tmp_path)
    lines = commands_in_blocks()
    assert len(lines) > 15
    seen: list[object] = []
    for line in lines:
        seen.clear()
        command = command_class(name_of(line))
        monkeypatch.setattr(command, "run", lambda made: seen.append(made))
        try:
            assert main(shlex.split(line)[1:]) == 0 and len(seen) == 1, line
        except SystemExit as refused:
            raise AssertionError(f"{line!r} is refused") from refused


def test_mentioned_commands_and_flags_exist(capsys: pytest.CaptureFixture[str]) -> None:
    helps: dict[tuple[str, ...], str] = {}
    for page in PAGES:
        for command in commands_in_text(page):
            flags, name = re.findall(r"(?<!\S)(--\w+)", command), name_of(command)
            if flags and name not in helps:
                with pytest.raises(SystemExit):
                    main([*name, "--help"])
                helps[name] = capsys.readouterr().out
            assert all(flag in helps[name] for flag in flags), (
                f"{page.name}: {command!r}"
            )


@pytest.mark.usefixtures("short_answers", "coarse_predictions")
def test_small_documented_commands_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copy(
        ROOT / "docs" / "results" / "tiny_calibration.json", tmp_path / "my.json"
    )
    monkeypatch.chdir(tmp_path)
    here = [
        c
        for c in commands_in_blocks()
        if c.startswith(SMALL) and not NOT_HERE.search(c)
    ]
    assert len(here) > 3
    for command in here:
        fewer_steps = ["--steps", "400"] if command.startswith("lr theory") else []
        assert main([*shlex.split(command)[1:], *fewer_steps]) == 0, command


RUN = {
    "demo": ["DEMO=--problems 1 --dataset tiny"],
    "grade": ["EX=residual"],
    "slides": [],
    "test": ["PYTEST=--version"],
}
"""How make's targets in README are run here; `.ci/run` runs all of them whole."""


def readme_lines() -> list[str]:
    """The lines of README's code blocks, comments cut."""
    readme = (ROOT / "README.md").read_text("utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    lines = [
        line
        for language, block in blocks
        if not language
        for line in block.splitlines()
    ]
    return [re.sub(r"\s+#\s.*", "", line) for line in lines]


def readme_targets() -> set[str]:
    """What README makes."""
    readme = (ROOT / "README.md").read_text("utf-8")
    lines = [line.split()[1] for line in readme_lines() if line.startswith("make ")]
    return {*lines, *re.findall(r"`make (\w+)", readme)}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A copy of the sources (compiled ones too), and an environment that is installed
    already."""
    folder = tmp_path_factory.mktemp("fresh")
    clone, venv = folder / "clone", folder / "venv"
    left = (".*", "*.egg-info", "build", "dist", "site", "slides", "runs")
    shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns(*left))
    venv.mkdir()
    for name in ("bin", "lib", "pyvenv.cfg"):
        (venv / name).symlink_to(Path(sys.prefix) / name)
    for stamp in ("made", "package", "dev", "learn"):
        (venv / f"{stamp}.stamp").touch()
    return clone, venv


@pytest.mark.parametrize("target", sorted(readme_targets()))
def test_what_readme_makes_is_made_in_a_fresh_copy(
    target: str, fresh: tuple[Path, Path]
) -> None:
    """What needs more than this environment says what it would do; `.ci/run` does
    it."""
    clone, venv = fresh
    how = RUN.get(target, ["-n"])
    assert target in RUN or f"make {target}" in (ROOT / ".ci" / "run").read_text(
        "utf-8"
    )
    done = subprocess.run(
        ["make", target, f"VENV={venv}", *how],
        cwd=clone, env={**os.environ, "PYTHONPATH": str(clone)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    shown = {
        "demo": "speedup",
        "grade": "residual.py",
        "slides": "first.html",
        "test": "pytest",
    }
    assert shown.get(target, "") in done.stdout


def test_the_readmes_first_screen() -> None:
    """The page of the method runs, and there are three doors."""
    readme, lines = (ROOT / "README.md").read_text("utf-8"), readme_lines()
    assert {"demo", "test", "notebooks", "grade", "slides", "site"} <= readme_targets()
    assert "source .venv/bin/activate" in lines
    [page] = [line for line in lines if line.startswith("python -m ")]
    done = subprocess.run(
        [sys.executable, *page.split()[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "accepted" in done.stdout, done.stderr
    assert [
        readme.count(f"| **{door}**") for door in ("learn", "check", "prototype")
    ] == [1, 1, 1]
    shell = [
        line for line in lines if line and not line.startswith((" ", "lr/", "scripts/"))
    ]
    known = ("make ", "source ", "python -m ")
    assert all(line.startswith(known) for line in shell), (
        "a command that nothing here runs"
    )
