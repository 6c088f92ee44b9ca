"""`python -m lr` is the command `lr`. Read next: `cli.py`."""

from lr.cli import entry

if __name__ == "__main__":
    entry()
