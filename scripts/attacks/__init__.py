"""The attacks that `scripts/attack.py` runs, one class each."""
