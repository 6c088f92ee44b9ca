"""`python -m lr` is `lr`."""

from lr.cli import entry

if __name__ == "__main__":
    entry()
