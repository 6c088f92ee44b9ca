"""What a drafter is: given some branches, it proposes a few tokens behind each. Whether they stay
is not its business.

Two facts about a drafter matter to others. Does its proposal depend on the branch's own tokens
alone (then the output does not depend on what else is in the batch, whatever the rule)? And from
which law were the tokens drawn (`Proposal.q`; None where they were certain)? A drafter that states
a wrong q breaks losslessness; `lab/counterexamples.py` shows how. Read next: `lookup.py`, the
simplest; `model.py` for a draft model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from lr.kvcache.branch import Branch
from lr.spec.acceptance import Draws, Proposal
from lr.types import Coupling


@dataclass(frozen=True)
class Context:
    """A branch that wants a proposal of at most `limit` tokens in depth. `draws` is the target's
    randomness of this round.
    """

    branch: Branch
    limit: int
    draws: Draws

    @property
    def tokens(self) -> list[int]:
        """All tokens of the branch, pending ones included. Not to be changed."""
        return self.branch.tokens


class Drafter(Protocol):
    """Proposes tokens for branches of the model it serves.

    `trees`: it may propose more than chains. `coupling`: whether its noise is the target's
    (`Coupling.INDEPENDENT` where there is none).
    """

    @property
    def name(self) -> str: ...

    @property
    def trees(self) -> bool: ...

    @property
    def coupling(self) -> Coupling: ...

    def propose(self, contexts: Sequence[Context], k: int) -> list[Proposal]:
        """One proposal per context, in order, each at most min(k, limit) tokens deep; `EMPTY` where
        there is nothing to say.
        """
        ...

    def forget(self, branches: Iterable[Branch]) -> None:
        """These branches are closed: give back what is kept for them."""
        ...
