"""The `lr` command: finds the command named on the command line, parses its flags with
tyro, and prints user errors as one message.

Each command is a frozen dataclass with a `run` method in `lr/commands/`; its fields are
its flags. Exit codes: 0 done, 2 an error that the user can fix (one message, no
traceback), 130 interrupted, 141 the reader of the output is gone."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from lr.errors import LRError

COMMANDS = {tuple(words.split()): (place, what) for words, place, what in (
    ("demo", "answer:Demo", "watch the tiny models reason, and what lookahead saves"),
    ("generate", "answer:Generate", "answer one question with any checkpoint"),
    ("step", "trace:StepCommand", "step through an answer, force verdicts, fork what-ifs"),
    ("play", "trace:Play", "an answer as a page to step through in a browser"),
    ("draw", "trace:DrawCommand", "a trace as figures for slides: clock, tree, cache"),
    ("run", "run:RunCommand", "answer and grade a data set, with the official tool's flags"),
    ("calibrate", "theory:Calibrate", "measure what the formulas take, predict, and compare"),
    ("verify", "eval:Verify", "judge kept pairs of steps again: ROC, calibration, cost"),
    ("experiment", "eval:ExperimentRun", "the paper's experiments, in miniature or on checkpoints"),
    ("report", "eval:Report", "compare runs: accuracy, speed, speedup, acceptance"),
    ("check", "check:Check", "does a variant of yours keep to what the package relies on?"),
    ("reproduce table1", "eval:Table1", "the paper's speedups next to ours"),
    ("trace", "trace:TraceCommand", "check, summarise, replay or convert a trace"),
    ("theory", "theory:Theory", "any formula next to a simulation of it"),
    ("info", "info:Info", "what this machine offers: versions, devices, checkpoints"),
    ("bench decode", "bench:BenchDecode", "time plain decoding against other implementations"),
    ("bench step", "bench:BenchStep", "time Lookahead Reasoning in all its forms"),
    ("bench gpu", "bench:BenchGpu", "time real shapes without a checkpoint; compare the roofline"),
)}  # fmt: skip
"""By name: "module:class" of the command in `lr/commands`, and what it does."""


def command_class(name: tuple[str, ...]) -> Any:
    """The class of a command. Imports its module."""
    module, _, member = COMMANDS[name][0].partition(":")
    return getattr(import_module(f"lr.commands.{module}"), member)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the return value is the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    name = next((name for name in COMMANDS if tuple(words[: len(name)]) == name), None)
    try:
        code = (
            _help_or_version(words) if name is None else _run(name, words[len(name) :])
        )
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
        full = f"error: the disk is full: {error}. Make room, or write the output elsewhere."
        print(full, file=sys.stderr)
        return 2


def _run(name: tuple[str, ...], flags: Sequence[str]) -> int:
    """Parse the flags and run the command."""
    import tyro

    made = tyro.cli(
        command_class(name),
        args=list(flags),
        prog=" ".join(("lr", *name)),
        use_underscores=True,
        config=(tyro.conf.OmitArgPrefixes,),
    )
    made.run()
    return 0


def _help_or_version(words: Sequence[str]) -> int:
    """Print the help, the version, or an error about an unknown command."""
    if words[:1] == ["--version"]:
        from lr import __version__

        print(f"lr {__version__}")
        return 0
    group = words[0] if words and not words[0].startswith("-") else None
    shown = {
        name: entry
        for name, entry in COMMANDS.items()
        if group is None or name[0] == group
    }
    if not words or (words[-1] in ("-h", "--help") and shown):
        print(_help(shown))
        return 0
    wrong = (
        f"error: there is no command {' '.join(words)!r}.\n\n{_help(shown or COMMANDS)}"
    )
    print(wrong, file=sys.stderr)
    return 2


def _help(commands: Mapping[tuple[str, ...], tuple[str, str]]) -> str:
    lines = [
        f"  lr {' '.join(name):<14} {summary}"
        for name, (_, summary) in commands.items()
    ]
    head = "Lookahead Reasoning (arXiv 2506.19830) in pure PyTorch.\n"
    return "\n".join([head, *lines, "\nlr COMMAND --help explains its flags."])
