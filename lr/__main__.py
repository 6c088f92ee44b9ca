"""`python -m lr` and the console script. It answers signals from here on, before other imports."""

import os
import signal
import sys


def entry() -> None:
    """The console script. A closed terminal and `kill` end it as Ctrl-C does: what is open is
    closed, what runs elsewhere is ended."""
    came: list[int] = []

    def end(number: int, _: object) -> None:
        came.append(number)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123
    usual = (signal.SIG_DFL, signal.default_int_handler)  # another one: under nohup
    known = [getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP")]
    ours = [one for one in known if one is not None and signal.getsignal(one) in usual]
    for one in ours:
        signal.signal(one, end)
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
    finally:
        for one in ours:
            signal.signal(one, signal.SIG_IGN)  # it is ending, and further ones are too late
    sys.exit(128 + came[-1] if came and code else code)


if __name__ == "__main__":
    entry()
