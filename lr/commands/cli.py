"""The `lr` command: finds the command named on the command line, parses its flags with
tyro, and prints user errors as one message.

Each command is a frozen dataclass with a `run` method in `lr/commands/`; its fields are
its flags. Exit codes: 0 done, 2 an error that the user can fix (one message, no
traceback), 130 interrupted, 141 the reader of the output is gone."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lr.errors import LRError


@dataclass(frozen=True)
class Entry:
    """A command in the table. `find` imports its module, which takes time."""

    group: str
    summary: str
    find: Callable[[], Any]


COMMANDS: dict[str, Entry] = {}


def command(name: str, group: str, summary: str) -> Callable[[Any], Any]:
    """Enter the decorated function, which imports and returns the class of a command,
    in the table."""

    def enter(find: Callable[[], Any]) -> Callable[[], Any]:
        COMMANDS[name] = Entry(group, summary, find)
        return find

    return enter


WATCH, CHECK, MEASURE = "watch", "check", "measure"


@command("demo", WATCH, "watch the tiny models reason, and what lookahead saves")
def _demo() -> Any:
    from lr.commands.answer import Demo

    return Demo


@command("generate", WATCH, "answer one question with any checkpoint")
def _generate() -> Any:
    from lr.commands.answer import Generate

    return Generate


@command("step", WATCH, "step through an answer, force verdicts, fork what-ifs")
def _step() -> Any:
    from lr.commands.trace import StepCommand

    return StepCommand


@command("play", WATCH, "an answer as a page to step through in a browser")
def _play() -> Any:
    from lr.commands.trace import Play

    return Play


@command("draw", WATCH, "a trace as figures for slides: clock, tree, cache")
def _draw() -> Any:
    from lr.commands.trace import DrawCommand

    return DrawCommand


@command("trace", WATCH, "check, summarise or replay a trace")
def _trace() -> Any:
    from lr.commands.trace import TraceCommand

    return TraceCommand


@command("theory", CHECK, "any formula next to a simulation of it")
def _theory() -> Any:
    from lr.commands.theory import Theory

    return Theory


@command("calibrate", CHECK, "measure what the formulas take, predict, and compare")
def _calibrate() -> Any:
    from lr.commands.theory import Calibrate

    return Calibrate


@command("check", CHECK, "does a variant of yours keep to what the package relies on?")
def _check() -> Any:
    from lr.commands.check import Check

    return Check


@command("info", CHECK, "what this machine offers: versions, devices, checkpoints")
def _info() -> Any:
    from lr.commands.info import Info

    return Info


@command("run", MEASURE, "answer and grade a data set, with the official tool's flags")
def _run_data() -> Any:
    from lr.commands.run import RunCommand

    return RunCommand


@command("report", MEASURE, "compare runs: accuracy, speed, speedup, acceptance")
def _report() -> Any:
    from lr.commands.eval import Report

    return Report


@command("experiment", MEASURE, "the paper's experiments, on tiny or real models")
def _experiment() -> Any:
    from lr.commands.eval import ExperimentCommand

    return ExperimentCommand


@command("verify", MEASURE, "judge saved pairs of steps again: ROC, acceptance, cost")
def _verify() -> Any:
    from lr.commands.eval import Verify

    return Verify


@command("bench decode", MEASURE, "time decoding against transformers")
def _bench_decode() -> Any:
    from lr.commands.bench import BenchDecode

    return BenchDecode


@command("bench step", MEASURE, "time Lookahead Reasoning in all its forms")
def _bench_step() -> Any:
    from lr.commands.bench import BenchStep

    return BenchStep


@command("bench gpu", MEASURE, "time real shapes without a checkpoint")
def _bench_gpu() -> Any:
    from lr.commands.bench import BenchGpu

    return BenchGpu


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the return value is the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
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
            COMMANDS[name].find(),
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
    for group in (WATCH, CHECK, MEASURE):
        lines += ["", f"{group}:"]
        for name, entry in COMMANDS.items():
            if entry.group == group:
                lines.append(f"  lr {name:<14} {entry.summary}")
    return "\n".join([*lines, "", "lr COMMAND --help explains its flags."])
