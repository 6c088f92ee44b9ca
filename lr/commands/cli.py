"""The `lr` command: finds the command named on the command line, parses its flags with
tyro, and prints user errors as one message.

Each command is a frozen dataclass with a `run` method in `lr/commands/`; its fields are
its flags. Exit codes: 0 done, 2 an error that the user can fix (one message, no
traceback), 130 interrupted, 141 the reader of the output is gone."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Any

from lr.errors import LRError

GROUPS = {
    "watch": {
        "demo": "watch the tiny models reason, and what lookahead saves",
        "generate": "answer one question with any checkpoint",
        "step": "step through an answer, force verdicts, fork what-ifs",
        "play": "an answer as a page to step through in a browser",
        "trace": "check and summarise a trace",
    },
    "check": {
        "theory": "any formula next to a simulation of it",
        "calibrate": "measure what the formulas take, predict, and compare",
        "check": "does a variant of yours keep to what the package relies on?",
        "info": "what this machine offers: versions, devices, checkpoints",
    },
    "measure": {
        "run": "answer and grade a data set, with the official tool's flags",
        "report": "compare runs: accuracy, speed, speedup, acceptance",
        "experiment": "the paper's experiments, on tiny or real models",
        "verify": "judge saved pairs of steps again: ROC, acceptance, cost",
        "bench decode": "time decoding against transformers",
        "bench step": "time Lookahead Reasoning in all its forms",
        "bench gpu": "time real shapes without a checkpoint",
    },
}
COMMANDS = [name for group in GROUPS.values() for name in group]


def class_of(command: str) -> Any:
    """The class of a command. Only its own module is imported, since that takes
    time."""
    match command:
        case "demo":
            from lr.commands.answer import Demo

            return Demo
        case "generate":
            from lr.commands.answer import Generate

            return Generate
        case "step":
            from lr.commands.trace import StepCommand

            return StepCommand
        case "play":
            from lr.commands.trace import Play

            return Play
        case "trace":
            from lr.commands.trace import TraceCommand

            return TraceCommand
        case "theory":
            from lr.commands.theory import Theory

            return Theory
        case "calibrate":
            from lr.commands.theory import Calibrate

            return Calibrate
        case "check":
            from lr.commands.check import Check

            return Check
        case "info":
            from lr.commands.info import Info

            return Info
        case "run":
            from lr.commands.run import RunCommand

            return RunCommand
        case "report":
            from lr.commands.eval import Report

            return Report
        case "experiment":
            from lr.commands.eval import ExperimentCommand

            return ExperimentCommand
        case "verify":
            from lr.commands.eval import Verify

            return Verify
        case "bench decode":
            from lr.commands.bench import BenchDecode

            return BenchDecode
        case "bench step":
            from lr.commands.bench import BenchStep

            return BenchStep
        case "bench gpu":
            from lr.commands.bench import BenchGpu

            return BenchGpu


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
        print(f"error: {error}", file=sys.stderr)
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
    size = 2 if words[:1] == ["bench"] else 1
    name = " ".join(words[:size])
    if name in COMMANDS:
        import tyro

        parsed = tyro.cli(
            class_of(name),
            args=list(words[size:]),
            prog=f"lr {name}",
            use_underscores=True,
            config=(tyro.conf.OmitArgPrefixes,),
        )
        parsed.run()
        return 0
    if words[:1] == ["--version"]:
        from lr import __version__

        print(f"lr {__version__}")
        return 0
    wants_help = not words or words[-1] in ("-h", "--help")
    if wants_help and (len(words) < 2 or words[0] == "bench"):
        print(_help())
        return 0
    print(f"error: there is no command {name!r}.\n\n{_help()}", file=sys.stderr)
    return 2


def _help() -> str:
    lines = ["Lookahead Reasoning (arXiv 2506.19830) in pure PyTorch."]
    for group, commands in GROUPS.items():
        lines += ["", f"{group}:"]
        lines += [f"  lr {name:<14} {words}" for name, words in commands.items()]
    return "\n".join([*lines, "", "lr COMMAND --help explains its flags."])
