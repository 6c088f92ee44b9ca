"""`python -m lr` and the console script. Signal handlers are set first, before other
imports."""

import os
import signal
import sys


def entry() -> None:
    """Run the command line. A closed terminal and `kill` end it cleanly, as Ctrl-C
    does."""
    received: list[int] = []

    def end(number: int, _: object) -> None:
        received.append(number)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123
    usual = (
        signal.SIG_DFL,
        signal.default_int_handler,
    )  # nohup sets another handler; it stays
    numbers = [getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP")]
    ours = [
        number for number in numbers if number and signal.getsignal(number) in usual
    ]
    for number in ours:
        signal.signal(number, end)
    try:
        from lr.commands.cli import main

        code = main()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        code = 130
    except (
        Exception
    ):  # native code may turn an exception of the handler into another one
        if not received:
            raise
        code = 1
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_IGN)  # the program is ending already
    sys.exit(128 + received[-1] if received and code else code)


if __name__ == "__main__":
    entry()
