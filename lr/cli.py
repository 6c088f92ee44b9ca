"""The `lr` command: finds the command that the words name, reads its flags with tyro, and turns
user errors into one message.

Each command is a frozen dataclass with a `run` method in `lr/commands/`; its fields are its flags.
Exit codes: 0 done, 2 the user's to mend (one message, no traceback), 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from lr.commands.ranks import follow_if_told, require_spreadable, torchrun_place
from lr.errors import LRError

if TYPE_CHECKING:
    from lr.model.parallel.start import Place

COMMANDS = {
    ("demo",): (
        "lr.commands.answer",
        "Demo",
        "watch the tiny models reason, and compare plain decoding with lookahead",
    ),
    ("generate",): ("lr.commands.answer", "Generate", "answer one question with any checkpoint"),
    ("step",): (
        "lr.commands.step",
        "StepCommand",
        "step through an answer, force verdicts, fork what-ifs",
    ),
    ("play",): ("lr.commands.trace", "Play", "a trace as a page to step through in a browser"),
    ("draw",): ("lr.commands.trace", "Draw", "a trace as figures for slides: clock, tree, cache"),
    ("run",): (
        "lr.commands.run",
        "Run",
        "answer and grade a data set, with the official tool's flags",
    ),
    ("calibrate",): (
        "lr.commands.theory",
        "Calibrate",
        "measure what the formulas take, on real models",
    ),
    ("plan",): (
        "lr.commands.theory",
        "PlanRun",
        "how a pair of models should be run, from a calibration or the paper",
    ),
    ("theory", "reality"): (
        "lr.commands.theory",
        "TheoryReality",
        "predicted speedups beside measured ones",
    ),
    ("verify",): (
        "lr.commands.experiments",
        "Verify",
        "judge kept pairs of steps again: ROC, calibration, cost",
    ),
    ("drift",): (
        "lr.commands.experiments",
        "Drift",
        "what accepted steps have cost, beside the answers that flipped",
    ),
    ("experiment",): (
        "lr.commands.experiments",
        "Experiment",
        "the paper's experiments, in miniature or on checkpoints",
    ),
    ("report",): (
        "lr.commands.run",
        "Report",
        "compare runs: accuracy, speed, speedup, acceptance",
    ),
    ("trace",): (
        "lr.commands.trace",
        "TraceCommand",
        "check a trace, say what is in it, run it again, convert it",
    ),
    ("theory", "figures"): ("lr.commands.theory", "TheoryFigures", "draw the theoretical curves"),
    ("theory",): ("lr.commands.theory", "Theory", "any formula beside a simulation of it"),
    ("info",): (
        "lr.commands.info",
        "Info",
        "what this machine offers: versions, devices, checkpoints",
    ),
    ("tiny", "eval"): (
        "lr.commands.info",
        "TinyEval",
        "measure the tiny models on held-out problems",
    ),
    ("bench", "decode"): (
        "lr.commands.bench",
        "BenchDecode",
        "time plain decoding against other implementations",
    ),
    ("bench", "token"): (
        "lr.commands.bench",
        "BenchToken",
        "time token-level speculation against transformers",
    ),
    ("bench", "step"): (
        "lr.commands.bench",
        "BenchStep",
        "time Lookahead Reasoning in all its forms",
    ),
    ("bench", "gpu"): (
        "lr.commands.bench_gpu",
        "BenchGpu",
        "time real shapes without a checkpoint, beside the roofline",
    ),
    ("bench", "trace"): ("lr.commands.bench", "BenchTrace", "time what writing a trace costs"),
    ("bench", "alpha"): (
        "lr.commands.bench",
        "BenchAlpha",
        "tokens per speculative round, measured and predicted",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the return value is the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    name = next((name for name in COMMANDS if tuple(words[: len(name)]) == name), None)
    try:
        place = torchrun_place()
        if (followed := follow_if_told(place)) is not None:
            return followed
        code = _without_command(words) if name is None else _run(name, words[len(name) :], place)
        sys.stdout.flush()
        return code
    except LRError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone (lr demo | head)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(
            f"error: the disk is full: {error}. Make room, or write the output elsewhere.",
            file=sys.stderr,
        )
        return 2


def _run(name: tuple[str, ...], flags: Sequence[str], place: Place | None) -> int:
    import tyro

    module, command, _ = COMMANDS[name]
    made = tyro.cli(
        getattr(import_module(module), command),
        args=list(flags),
        prog=" ".join(("lr", *name)),
        use_underscores=True,
        config=(tyro.conf.OmitArgPrefixes,),
    )
    require_spreadable(made, place)
    made.run()
    return 0


def _without_command(words: Sequence[str]) -> int:
    """Help, the version, or what is wrong with the words."""
    if words[:1] == ["--version"]:
        from lr import __version__

        print(f"lr {__version__}")
        return 0
    asked = words[-1:] in (["-h"], ["--help"])
    group = words[0] if words and not words[0].startswith("-") else None
    shown = {name: entry for name, entry in COMMANDS.items() if group is None or name[0] == group}
    if not words or (asked and shown):
        print(_help(shown))
        return 0
    print(
        f"error: there is no command {' '.join(words)!r}.\n\n{_help(shown or COMMANDS)}",
        file=sys.stderr,
    )
    return 2


def _help(commands: dict[tuple[str, ...], tuple[str, str, str]]) -> str:
    lines = [f"  lr {' '.join(name):<14} {summary}" for name, (_, _, summary) in commands.items()]
    return "\n".join(
        [
            "Lookahead Reasoning (arXiv 2506.19830) in pure PyTorch.",
            "",
            *lines,
            "",
            "lr COMMAND --help explains its flags.",
        ]
    )


def entry() -> None:
    """The console script."""
    sys.exit(main())
