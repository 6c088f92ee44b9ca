"""The oracle of a tiny language: two steps mean the same iff both can be read and say the same
(`tiny/oracle.py`, `tiny/plans/oracle.py`).

It knows only the language whose `parse` it is given; for other text there is no oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lr.registry import find
from lr.spec.verifiers.base import Need, Pair
from lr.types import Verdict

Reads = Callable[[str], Any]
"""The meaning of a step (a named tuple), or None if it is not a sentence of the language."""


class OracleVerifier:
    """Accepts iff both steps parse to the same meaning. `decode` turns token ids into text, `parse`
    reads it (default: quantities).
    """

    name = "oracle"
    need = Need.TARGET_STEP

    def __init__(self, decode: Callable[[Sequence[int]], str], parse: Reads | None = None) -> None:
        self.decode, self.parse = decode, parse or find("lr.tiny.oracle:parse")

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [
            self._judge(self.decode(pair.draft.tokens), self.decode(pair.target_step.tokens))
            for pair in pairs
        ]

    def _judge(self, draft: str, target: str) -> Verdict:
        ours, theirs = self.parse(draft), self.parse(target)
        if ours is None or theirs is None:
            return Verdict(
                aligned=False,
                why=f"the {'draft' if ours is None else 'target'} step is not in the language",
            )
        if ours == theirs:
            return Verdict(aligned=True, why="same meaning")
        field = next(name for name in ours._fields if getattr(ours, name) != getattr(theirs, name))
        return Verdict(aligned=False, why=f"{field} differs")
