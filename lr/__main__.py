"""`python -m lr` and the console script. It answers signals from here on, before other imports."""

import signal
import sys


def entry() -> None:
    """The console script. A closed terminal and `kill` end it as Ctrl-C does: what is open is
    closed, what runs elsewhere is ended."""
    came: list[int] = []

    def end(number: int, _: object) -> None:
        came.append(number)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        usual = (signal.SIG_DFL, signal.default_int_handler)  # another one: under nohup
        if hasattr(signal, name) and signal.getsignal(getattr(signal, name)) in usual:
            signal.signal(getattr(signal, name), end)
    try:
        from lr.commands.cli import main

        code = main()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        code = 130
    except Exception:  # what a signal raises in native code may come out as another error
        if not came:
            raise
        code = 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is ending, and a second one is too late
    sys.exit(128 + came[-1] if came and code else code)


if __name__ == "__main__":
    entry()
