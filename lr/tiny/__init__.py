"""The tiny language: synthetic reasoning problems, their oracle, and trained models that
run anywhere.

Read `language.py`, `grammar.py` and `oracle.py` in this order. The scripts in
`training/` have trained and measured the models; `docs/tiny.md` has the numbers."""

from pathlib import Path

CHECKPOINTS = {
    name: Path(__file__).parent / "checkpoints" / name
    for name in ("tiny-target", "tiny-draft", "tiny-judge")
}
"""The names of the models, and their directories."""
