"""The draft step as token draft: what the draft wrote for this very step, proposed to the target
that writes its own version of it.

Lookahead Reasoning has the draft's version of a step at hand when (or while) the target writes its
own; in any case its tokens pass through the target, for the node behind it. As long as the two
versions agree word for word, the target need only nod. From the first token at which they differ
on, the draft's version is of no use and `otherwise`, if there is one, drafts.

The proposal is certain (`Proposal.q` None): the draft's tokens do not depend on the target's draws,
so given them a lossless rule emits the target's law, whatever they are. With rule "match" and
coupling "shared" the two versions agree for long stretches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lr.kvcache.branch import Branch
from lr.spec.acceptance import Proposal
from lr.spec.drafters.base import Context, Drafter
from lr.types import Coupling


class StepDrafter:
    """Proposes the rest of the draft's version of a step. Whoever has it `offer`s it for the branch
    on which the target writes.
    """

    name = "step"
    trees = False
    coupling = Coupling.INDEPENDENT

    def __init__(self, otherwise: Drafter | None = None) -> None:
        self.otherwise = otherwise
        self._offers: dict[Branch, tuple[int, tuple[int, ...]]] = {}

    def offer(self, branch: Branch, start: int, tokens: Sequence[int]) -> None:
        """The draft's version of the step that begins at position `start` of `branch`. It may come
        while the step is being written.
        """
        self._offers[branch] = (start, tuple(tokens))

    def propose(self, contexts: Sequence[Context], k: int) -> list[Proposal]:
        made = [self._rest(context, min(k, context.limit)) for context in contexts]
        if self.otherwise is not None:
            silent = [i for i, proposal in enumerate(made) if not proposal.tokens]
            for i, proposal in zip(
                silent, self.otherwise.propose([contexts[i] for i in silent], k), strict=True
            ):
                made[i] = proposal
        return made

    def forget(self, branches: Iterable[Branch]) -> None:
        for branch in branches:
            self._offers.pop(branch, None)
            if self.otherwise is not None:
                self.otherwise.forget([branch])

    def _rest(self, context: Context, k: int) -> Proposal:
        """What the draft wrote behind the tokens on which both agree; nothing if they have parted.

        Example: offered (5, 6, 7, 8) from position 10 on; the branch has 12 tokens and ends in 5 6:
        (7, 8). If it ends in 5 9: nothing.
        """
        start, tokens = self._offers.get(context.branch, (0, ()))
        written = context.tokens[start:]
        if k < 1 or not tokens or tuple(written) != tokens[: len(written)]:
            return Proposal.chain(())
        return Proposal.chain(tokens[len(written) : len(written) + k])
