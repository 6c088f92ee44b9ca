"""Every command line in the README, the documents and the notebooks is one that `lr`
understands; the small ones run."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lr.commands.cli import COMMANDS, class_of, main

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "GLOSSARY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
PAGES += sorted((ROOT / "notebooks").glob("*.ipynb"))
SMALL = ("lr theory", "lr info", "lr generate")
NOT_HERE = re.compile(
    r"Qwen/|my\.py|\bDIR\b|tensor_parallel|theory( --figures|$)|calibrate"
)
"""What needs a checkpoint, a second machine or minutes."""


def text_of(page):
    text = page.read_text(encoding="utf-8")
    if page.suffix != ".ipynb":
        return text
    cells = json.loads(text)["cells"]
    return "\n".join(
        "".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"
    )


def commands_in_blocks():
    """Commands in code blocks, as one would type them."""
    block = re.compile(r"^```\w*\n(.*?)^```", re.DOTALL | re.MULTILINE)
    text = "\n".join("\n".join(block.findall(text_of(page))) for page in PAGES)
    lines = text.replace("\\\n", " ").splitlines()
    typed = (re.sub(r"\s+#\s.*", "", line.removeprefix("$ ")).strip() for line in lines)
    return sorted({line for line in typed if re.match(r"lr [a-z]", line)})


def commands_in_text(page):
    """Commands in running text: often without their arguments."""
    prose = re.sub(r"```.*?```", "", text_of(page), flags=re.DOTALL)
    yield from re.findall(r"`(lr [a-z][^`\n]*)`", prose)


def name_of(command):
    """The command that a line names."""
    name = shlex.split(command)[1]
    assert name in COMMANDS, f"there is no command for {command!r}"
    return name


def test_every_documented_command_takes_its_flags(monkeypatch, tmp_path):
    """Each line is read as it would be, and stops short of running."""
    monkeypatch.chdir(tmp_path)
    lines = commands_in_blocks()
    assert len(lines) > 15
    parsed = []
    for line in lines:
        parsed.clear()
        monkeypatch.setattr(
            class_of(name_of(line)), "run", lambda command: parsed.append(command)
        )
        try:
            assert main(shlex.split(line)[1:]) == 0 and len(parsed) == 1, line
        except SystemExit as refused:
            raise AssertionError(f"{line!r} is refused") from refused


def test_mentioned_commands_and_flags_exist(capsys):
    helps = {}
    for page in PAGES:
        for command in commands_in_text(page):
            flags, name = re.findall(r"(?<!\S)(--\w+)", command), name_of(command)
            if flags and name not in helps:
                with pytest.raises(SystemExit):
                    main([*name.split(), "--help"])
                helps[name] = capsys.readouterr().out
            assert all(flag in helps[name] for flag in flags), (
                f"{page.name}: {command!r}"
            )


@pytest.mark.ci
@pytest.mark.usefixtures("short_answers", "coarse_predictions")
def test_small_documented_commands_run(monkeypatch, tmp_path):
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
    "demo": ["DEMO=--max_tokens 60"],
    "grade": ["EX=residual"],
    "slides": [],
    "test": ["PYTEST=--version"],
}
"""How make's targets in README are run here; `.ci/run` runs all of them."""


def readme_targets():
    """What README makes."""
    readme = (ROOT / "README.md").read_text("utf-8")
    return set(re.findall(r"^make (\w+)", readme, re.MULTILINE)) | set(
        re.findall(r"`make (\w+)", readme)
    )


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A copy of the sources, and an environment that is installed already."""
    folder = tmp_path_factory.mktemp("fresh")
    clone, venv = folder / "clone", folder / "venv"
    left_out = (
        ".*",
        "*.egg-info",
        "build",
        "dist",
        "site",
        "slides",
        "runs",
        "trained",
    )
    shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns(*left_out))
    venv.mkdir()
    for name in ("bin", "lib", "pyvenv.cfg"):
        (venv / name).symlink_to(Path(sys.prefix) / name)
    for stamp in ("made", "package", "dev", "learn"):
        (venv / f"{stamp}.stamp").touch()
    return clone, venv


@pytest.mark.ci
@pytest.mark.parametrize("target", sorted(readme_targets()))
def test_readmes_targets_run_in_a_fresh_copy(target, fresh):
    """What needs more than this environment says what it would do; `.ci/run` does
    it."""
    clone, venv = fresh
    words = ["make", target, f"VENV={venv}", *RUN.get(target, ["-n"])]
    environment = {**os.environ, "PYTHONPATH": str(clone)}
    done = subprocess.run(
        words, cwd=clone, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
