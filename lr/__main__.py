"""`python -m lr` and the console script. Ctrl-C is answered from here on, before other imports."""

import sys


def entry() -> None:
    """The console script."""
    try:
        from lr.commands.cli import run

        code = run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        code = 130
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is ending, and a second one is too late
    sys.exit(code)


if __name__ == "__main__":
    entry()
