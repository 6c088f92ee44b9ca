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
from itertools import chain
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
NEXT = frozenset(["lr", "make", "python", "$", "#", "|", "&&", "```"])
"""Words with which something else begins."""


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
        parts_of_joined = {id(part) for parts in joined for part in parts}
        for parts in joined:
            yield "".join(
                getattr(part, "value", "1") if is_text(part) else "1" for part in parts
            )
        yield from (
            n.value for n in nodes if is_text(n) and id(n) not in parts_of_joined
        )
    else:
        yield text


def is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def sentence(text):
    """The words of a command line at the start of a text, to the end of its sentence
    or the start of another."""
    before = ""
    for word in re.findall(r"""(?:"[^"]*"|'[^']*'|[^\s"'])+""", text.split("`")[0]):
        if word in NEXT and before != "--mode":
            return
        before = word.rstrip(".,:;")
        before = before.removesuffix(")" * (word.count(")") > word.count("(")))
        yield before
        if before != word and word != "...":
            return


def missing(text, reads):
    """What a text names and this project has not."""
    line = re.sub(r"[\s\\]+", " ", text)
    command = (
        r"(?<![\w.+/-])(?<!from )(?<!import )lr ([a-z]+(?:(?:, [a-z]+)+ and [a-z]+)?)\b"
    )
    for match in re.finditer(command, line):
        names = re.split(", | and ", match[1])
        for name in names:
            if name not in COMMANDS and name not in NOT_A_COMMAND:
                yield f"lr {name}"
        words = list(sentence(line[match.end() :]))
        flags = [i for i, word in enumerate(words, 1) if word.startswith("--")]
        if flags and names[0] in COMMANDS:
            # Are the words after the last flag its values? If none are, they are made up.
            upto, after = words[: flags[-1]], words[flags[-1] :]
            values = ([], after[:1], after[:2], ["1"], ["1", "1"])
            if not any(reads(" ".join(["lr", names[0], *upto, *v])) for v in values):
                yield " ".join([match[0], *upto])
    for module in re.findall(r"python -m (lr(?:\.\w+)*)", line):
        if importlib.util.find_spec(module) is None:
            yield module
    for script in re.findall(r"python ([a-z_]+/[\w/]+\.py)", line):
        if not (ROOT / script).exists():
            yield script
    # `make target`, make target VAR=, and a line of its own
    makes = re.findall(r"`make ([a-z]\w*)|\bmake ([a-z]+) (?=[A-Z_]+=)", line)
    for target in {
        *chain(*makes),
        *re.findall(r"^ *make (\w+) *(?:#.*)?$", text, re.M),
    }:
        if target and not re.search(rf"^{target}:", MAKEFILE, re.M):
            yield f"make {target}"
    for variable in re.findall(r"\bmake [a-z ]*([A-Z_]+)=", line):
        if not re.search(rf"^{variable} \?=", MAKEFILE, re.M):
            yield f"make {variable}="
    for extra in re.findall(r"(?:lookahead-reasoning|\.)\[(\w+)\]", line):
        if extra not in PROJECT["optional-dependencies"]:
            yield f"the extra {extra}"
    for statement in re.findall(r"\bfrom lr[.\w]* import \w+(?:, \w+)*", text):
        try:
            exec(statement)
        except ImportError as error:
            yield str(error)


def test_what_messages_and_pages_name_exists(reads):
    """Commands with their flags, modules, scripts, targets, extras and imports."""
    assert [
        f"{path.relative_to(ROOT)}: {fault}"
        for path in SOURCES
        for text in messages(path)
        for fault in missing(text, reads)
    ] == []


@pytest.mark.parametrize(
    "message",
    [
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
    ],
)
def test_a_message_that_names_what_is_not_there_is_noticed(message, reads):
    assert list(missing(message, reads)) != []


def test_flags_that_messages_of_the_package_name_exist(capsys):
    for name in COMMANDS:
        with pytest.raises(SystemExit):
            main([name, "--help"])
    flags = set(re.findall(r"--\w+", capsys.readouterr().out))
    said = "\n".join(
        text for path in CODE if ROOT / "lr" in path.parents for text in messages(path)
    )
    assert set(re.findall(r"(?<![\w-])--[a-z]\w+", said)) - flags == {"--version"}


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
