"""`python -m lr` and the console script."""

import os
import sys


def entry() -> None:
    """Run the command line. Ctrl-C while modules are imported is one word, too."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123
    try:
        from lr.commands.cli import main

        code = main()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    entry()
