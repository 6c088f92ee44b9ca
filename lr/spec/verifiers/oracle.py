"""The oracle of a tiny language: two steps mean the same iff both can be read and say the same
(`tiny/oracle.py`, `tiny/plans/oracle.py`).

It knows only the language whose `parse` it is given; for other text there is no oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lr.spec.verifiers.base import Need, Pair
from lr.tiny.languages import Reads
from lr.tiny.oracle import parse
from lr.types import Verdict


class OracleVerifier:
    """Accepts iff both steps parse to the same meaning. `decode` turns token ids into text, `parse`
    reads it (default: quantities).
    """

    name = "oracle"
    need = Need.TARGET_STEP

    def __init__(self, decode: Callable[[Sequence[int]], str], parse: Reads = parse) -> None:
        self.decode, self.parse = decode, parse

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
