"""The tiny language: synthetic reasoning problems, their oracle, and trained models that
run anywhere.

Importing it enters the names of its checkpoints and its verifier in `lr/registry.py`.
Read `language.py`, `grammar.py` and `oracle.py` in this order. The scripts in
`training/` have trained and measured the models; `docs/tiny.md` has the numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lr import registry

if TYPE_CHECKING:
    from lr.model.codec import Codec
    from lr.spec.verifiers.base import Verifier


def _oracle(codec: Codec) -> Verifier:
    from lr.tiny.names import oracle_for  # imports the model's tokenizer

    return oracle_for(codec)


CHECKPOINTS = ("tiny-target", "tiny-draft", "tiny-judge")
for _name in CHECKPOINTS:
    registry.checkpoints[_name] = Path(__file__).parent / "checkpoints" / _name
registry.verifiers["oracle"] = _oracle
