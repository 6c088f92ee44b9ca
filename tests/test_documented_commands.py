"""Every command line in the README, the documents and the notebooks is one that `lr`
understands; the small ones run."""

import ast
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from contextlib import redirect_stdout, suppress
from io import StringIO
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
    text = page.read_text("utf-8")
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


@pytest.fixture
def reads(monkeypatch, tmp_path):
    """Whether `lr` takes a line as one would type it; it stops short of running."""
    monkeypatch.chdir(tmp_path)
    for name in COMMANDS:
        monkeypatch.setattr(class_of(name), "run", lambda command: None)

    def reads(line):
        try:
            return main(shlex.split(line)[1:]) == 0
        except SystemExit:
            return False

    return reads


def test_every_documented_command_takes_its_flags(reads):
    lines = commands_in_blocks()
    assert len(lines) > 15
    assert [line for line in lines if not reads(line)] == []


# ---- what messages, help, docstrings and running text name

CODE = [p for room in ("lr", "scripts", "training", "notebooks")
        for p in sorted((ROOT / room).rglob("*.py"))]  # fmt: skip
GUIDES = [ROOT / "notebooks/README.md", ROOT / "notebooks/exercises/README.md"]
SOURCES = [ROOT / "Makefile", ROOT / "CONTRIBUTING.md", *GUIDES, *PAGES, *CODE]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
NOT_A_COMMAND = frozenset(
    "and depth draft driver lr makes math or rank reasoner tests verifier was".split()
)
"""What follows lr where it is the mode, or the name of a process."""


def messages(path):
    """What a file says. Of Python its strings, with 1 in the place of a value; of a
    notebook all cells, and what they printed."""
    text = path.read_text("utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        printed = [output for cell in cells for output in cell.get("outputs", [])]
        for part in cells + printed:
            yield "".join(part.get("source", part.get("text", "")))
    elif path.suffix == ".py":
        nodes = list(ast.walk(ast.parse(text)))
        joined = [node.values for node in nodes if isinstance(node, ast.JoinedStr)]
        for parts in joined:
            yield "".join(part.value if is_text(part) else "1" for part in parts)
        inside = {id(part) for parts in joined for part in parts}
        yield from (n.value for n in nodes if is_text(n) and id(n) not in inside)
    else:
        yield text


def is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


@pytest.fixture(scope="module")
def flags():
    """The flags of each command, as its help lists them."""
    listed = {}
    for name in COMMANDS:
        with redirect_stdout(StringIO()) as printed, suppress(SystemExit):
            main([name, "--help"])
        listed[name] = {"--help", *re.findall(r"--\w+", printed.getvalue())}
    return listed


COMMAND = r"""(?x)
    (?<![\w.+/-])(?<!from[ ])(?<!import[ ])
    lr[ ] ([a-z]+ (?: (?:,[ ][a-z]+)+ [ ]and[ ][a-z]+ )?) \b
    (?= ( (?: (?![ ](?:lr|make|python)\b | [.:;]([ ]|$)) [^`|&$] )* ) )
"""
"""Names of commands, and what follows to the end of the sentence or another command."""
NAMED = {
    r"python -m (lr(?:\.\w+)*)": importlib.util.find_spec,
    r"python ([a-z_]+/[\w/]+\.py)": lambda script: (ROOT / script).exists(),
    r"(?:lookahead-reasoning|\.)\[(\w+)\]": PROJECT["optional-dependencies"].get,
    # `make target`, make target VAR=, and a line of its own
    r"`make ([a-z]\w*)": lambda target: f"\n{target}:" in MAKEFILE,
    r"\bmake ([a-z]+) (?=[A-Z_]+=)": lambda target: f"\n{target}:" in MAKEFILE,
    r"(?m)^ *make (\w+) *(?:#.*)?$": lambda target: f"\n{target}:" in MAKEFILE,
    r"\bmake [a-z ]*([A-Z_]+)=": lambda variable: f"\n{variable} ?=" in MAKEFILE,
}
"""How a text names something, and whether that is there."""


def missing(text, flags):
    """What a text names and this project has not."""
    for names, more, _ in re.findall(COMMAND, re.sub(r"[\s\\]+", " ", text)):
        for name in re.split(", | and ", names):
            if name in COMMANDS:
                unknown = set(re.findall(r"--[a-z]\w+", more)) - flags[name]
                yield from (f"lr {name} {flag}" for flag in unknown)
            elif name not in NOT_A_COMMAND:
                yield f"lr {name}"
    for pattern, is_there in NAMED.items():
        yield from (name for name in re.findall(pattern, text) if not is_there(name))
    for statement in re.findall(r"\bfrom lr[.\w]* import \w+(?:, \w+)*", text):
        try:
            exec(statement)
        except ImportError as error:
            yield str(error)


def test_what_messages_and_pages_name_exists(flags):
    """Commands with their flags, modules, scripts, targets, extras and imports."""
    assert [
        f"{path.relative_to(ROOT)}: {fault}"
        for path in SOURCES
        for text in messages(path)
        for fault in missing(text, flags)
    ] == []


def test_a_message_that_names_what_is_not_there_is_noticed(flags):
    for message in (
        "Draw it with lr draw FILE.",
        "lr step, play and draw read it.",
        "Record it (lr generate --tracks FILE) first.",
        "`lr verify PAIRS --fits FILE` finds it.",
        "python -m lr.page",
        "python scripts/draw.py",
        "Type `make jokes`.",
        "make grade EXERCISE=fit",
        'pip install "lookahead-reasoning[plots]"',
        "from lr.types import Nodes",
    ):
        assert [*missing(message, flags)], message


def test_flags_that_messages_of_the_package_name_exist(flags):
    package = [path for path in CODE if ROOT / "lr" in path.parents]
    texts = "\n".join(text for path in package for text in messages(path))
    named = set(re.findall(r"(?<![\w-])--[a-z]\w+", texts))
    assert named <= set().union({"--version"}, *flags.values())


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
    return set(re.findall(r"^make ([a-z]+)", readme, re.MULTILINE)) | set(
        re.findall(r"`make ([a-z]+)", readme)
    )


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A copy of the sources, and an environment that is installed already."""
    folder = tmp_path_factory.mktemp("fresh")
    clone, venv = folder / "clone", folder / "venv"
    left_out = ".* *.egg-info build dist site slides runs trained".split()
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
