"""The `lr` command: finds the command named on the command line, parses its flags with
tyro, and prints user errors as one message.

Each command is a frozen dataclass with a `run` method in `lr/commands/`; its fields are
its flags. Exit codes: 0 done, 2 an error that the user can fix (one message, no
traceback), 130 interrupted, 141 the reader of the output is gone."""

from __future__ import annotations

import errno
import os
import sys
from collections import ChainMap
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from io import TextIOWrapper
from typing import Any

from lr.errors import LRError

GROUPS = {
    "watch": {
        "demo": ("answer.Demo", "watch the tiny models reason, and what lookahead saves"),
        "generate": ("answer.Generate", "answer one question with any checkpoint"),
        "step": (
            "trace.StepCommand",
            "step through an answer, force verdicts, fork what-ifs"
        ),
        "play": ("trace.Play", "an answer as a page to step through in a browser"),
        "trace": ("trace.TraceCommand", "check and summarise a trace"),
    },
    "check": {
        "theory": ("theory.Theory", "any formula next to a simulation of it"),
        "calibrate": (
            "theory.Calibrate", "measure what the formulas take, predict, and compare"
        ),
        "check": (
            "check.Check", "does a variant of yours keep to what the package relies on?"
        ),
        "info": ("info.Info", "what this machine offers: versions, devices, checkpoints"),
    },
    "measure": {
        "run": (
            "run.RunCommand", "answer and grade a data set, with the official tool's flags"
        ),
        "report": ("eval.Report", "compare runs: accuracy, speed, speedup, acceptance"),
        "experiment": (
            "eval.ExperimentCommand",
            "ways to answer, timed side by side; the paper's experiments"
        ),
        "verify": ("eval.Verify", "judge saved pairs of steps again: ROC, acceptance, cost"),
    },
}  # fmt: skip
"""By group: the module of `lr/commands` and the class of each command, and what it does."""
COMMANDS = ChainMap(*GROUPS.values())


def class_of(command: str) -> Any:
    """The class of a command. Only its own module is imported, since that takes
    time."""
    module, _, name = COMMANDS[command][0].partition(".")
    return getattr(import_module(f"lr.commands.{module}"), name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the return value is the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # Pages of 2 MB for weights, which PyTorch asks for if this was set before its import
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    for stream in (sys.stdout, sys.stderr):  # PYTHONIOENCODING=ascii has no "→"
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        code = _run(words)
        sys.stdout.flush()
        return code
    except LRError as error:
        notes = getattr(error, "__notes__", [])
        print("\n".join([f"error: {error}", *notes]), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except OSError as error:  # no reader (lr demo | head), or no room on the disk
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:
            return 141
        print(f"error: the disk is full: {error}. Make room.", file=sys.stderr)
        return 2


def _run(words: Sequence[str]) -> int:
    """Parse the flags and run the command, or print help or the version."""
    name = words[0] if words else ""
    if name in COMMANDS:
        import tyro

        parsed = tyro.cli(
            class_of(name),
            args=list(words[1:]),
            prog=f"lr {name}",
            use_underscores=True,
            config=(tyro.conf.OmitArgPrefixes,),
        )
        parsed.run()
        return 0
    if name == "--version":
        from lr import __version__

        print(f"lr {__version__}")
        return 0
    if name in ("", "-h", "--help"):
        print(_help())
        return 0
    hints = [f" Did you mean {n}?" for n in get_close_matches(name, COMMANDS, 1)]
    error = f"error: there is no command {name!r}.{''.join(hints)}"
    print(f"{error}\n\n{_help()}", file=sys.stderr)
    return 2


def _help() -> str:
    lines = ["Lookahead Reasoning (arXiv 2506.19830) in pure PyTorch."]
    for group, commands in GROUPS.items():
        lines += ["", f"{group}:"]
        lines += [f"  lr {name:<14} {text}" for name, (_, text) in commands.items()]
    return "\n".join([*lines, "", "lr COMMAND --help explains its flags."])
