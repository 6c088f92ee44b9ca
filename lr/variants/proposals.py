"""The draft steps of a `StepProposer`, for the engine that runs a variant with one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lr.spec.segmenters import Segmenter
from lr.spec.variant import StepProposer
from lr.types import Finish, Step, require


@dataclass(frozen=True)
class Proposals:
    """What a `StepProposer` proposes, as steps. `segmenter` and `eos_ids` say where one ends."""

    proposer: StepProposer
    segmenter: Callable[[], Segmenter]
    eos_ids: frozenset[int]
    vocab_size: int

    def after(self, prefix: Sequence[int], width: int, limit: int) -> list[Step | None]:
        """Up to `width` steps after a prefix, each at most `limit` tokens long; None where what is
        proposed does not end a step. Raises `SettingError` for a token that does not exist.
        """
        return [self._step(made, limit) for made in self.proposer.propose(prefix, width)]

    def _step(self, tokens: Sequence[int] | None, limit: int) -> Step | None:
        segmenter = self.segmenter()
        for length, token in enumerate((tokens or ())[:limit], start=1):
            expected = f"a token id from 0 to {self.vocab_size - 1}"
            require(token < self.vocab_size, "a token of the variant's proposer", token, expected)
            if token in self.eos_ids or segmenter.feed(token):
                finish = Finish.EOS if token in self.eos_ids else Finish.BOUNDARY
                return Step(tuple((tokens or ())[:length]), finish)
        return None
