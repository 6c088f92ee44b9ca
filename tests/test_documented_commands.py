"""The commands that the documents name: each exists and takes the flags it is given; each is run by
a test, here or elsewhere.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from lr.cli import COMMANDS, main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "GLOSSARY.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += sorted((ROOT / "notebooks").glob("*.ipynb"))
SMALL = ("lr theory", "lr plan", "lr info", "lr generate")
"""Commands that are run here as they stand where they need no checkpoint, no server and no second
machine.
"""
ELSEWHERE = re.compile(
    r"Qwen/|openai:|torchrun|--endpoint|\bDIR\b|tensor_parallel|theory( figures| reality|$)|How many \.\.\."
)


def text_of(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    if page.suffix != ".ipynb":
        return text
    return "\n".join(
        "".join(cell["source"])
        for cell in json.loads(text)["cells"]
        if cell["cell_type"] == "markdown"
    )


def blocks(page: Path) -> Iterator[str]:
    """Commands that stand in blocks of their own, as one would type them."""
    for block in re.findall(r"^```\w*\n(.*?)^```", text_of(page), re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            command = re.sub(r"\s+#\s.*", "", line.removeprefix("$ ")).strip()
            if re.match(r"lr [a-z]", command):
                yield command


def mentions(page: Path) -> Iterator[str]:
    """Commands in running text: often without their arguments."""
    yield from re.findall(
        r"`(lr [a-z][^`\n]*)`", re.sub(r"```.*?```", "", text_of(page), flags=re.DOTALL)
    )


def name_of(command: str) -> tuple[str, ...]:
    words = shlex.split(command)[1:]
    found = next((name for name in COMMANDS if tuple(words[: len(name)]) == name), None)
    group = [name for name in COMMANDS if name[0] == words[0]]
    assert found or (group and len(words) == 1), f"there is no command for {command!r}"
    return found or group[0]


BLOCKS = sorted({command for page in PAGES for command in blocks(page)})
RUN_HERE = [
    command for command in BLOCKS if command.startswith(SMALL) and not ELSEWHERE.search(command)
]


def test_there_are_commands_to_look_at() -> None:
    assert len(BLOCKS) > 15 and len(RUN_HERE) > 3


@pytest.mark.parametrize("command", BLOCKS)
def test_a_command_takes_its_flags(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The command is read as it would be, and stops short of running."""
    module, name, _ = COMMANDS[name_of(command)]
    seen = []
    monkeypatch.setattr(getattr(import_module(module), name), "run", lambda made: seen.append(made))
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command)[1:]) == 0
    assert len(seen) == 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_mentioned_commands_and_flags_exist(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in mentions(page):
        flags = re.findall(r"(?<!\S)(--\w+)", command)
        name = name_of(command)
        if flags:
            with pytest.raises(SystemExit):
                main([*name, "--help"])
            shown = capsys.readouterr().out
            assert all(flag in shown for flag in flags), (
                f"{command!r}: one of its flags is not there"
            )


@pytest.mark.parametrize("command", RUN_HERE)
def test_a_small_command_runs(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copy(ROOT / "docs" / "results" / "tiny_calibration.json", tmp_path / "my.json")
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command)[1:]) == 0


@pytest.mark.parametrize("name", sorted(COMMANDS), ids=" ".join)
def test_every_command_is_run_by_a_test(name: tuple[str, ...]) -> None:
    """Somewhere in the tests stands a list of words that begins with it and goes on."""
    words = r'",\s*"'.join(name)
    begins = re.compile(rf'\["{words}"[,\]]|\("{words}"[,)]|"lr",\s*"{words}"|= \["{words}"')
    tests = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    assert any(begins.search(path.read_text(encoding="utf-8")) for path in tests)
