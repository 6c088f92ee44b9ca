"""The lockstep driver: real models, one thread, every run the same. It serves any number of
problems at once.

Each tick is one ragged forward of the target over *all* live target rows of all problems, prefill
and decode mixed, and up to `draft_ticks` forwards of the draft over all live drafts; then one call
of the verifier with all pairs that became complete. What a step's tokens are does not depend on who
shares a forward (draws are keyed, rows are ragged), so neither does the output.

On one thread the draft runs instead of the target, not beside it; since target rows are cheap to
add and a tick is not, it pays to let the draft run ahead (`draft_ticks` > 1). `overlapped.py` runs
the models at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lr.engine.chain import Chain
from lr.engine.judging import judge_all
from lr.spec.verifiers.base import Verifier
from lr.spec.write import StepWriter
from lr.types import EmittedStep, require


@dataclass
class Lockstep:
    """Drives chains that share a target writer, a draft writer and a verifier. `draft_ticks`: draft
    forwards per target forward.
    """

    target: StepWriter
    draft: StepWriter
    verifier: Verifier
    draft_ticks: int = 8

    def __post_init__(self) -> None:
        require(self.draft_ticks >= 1, "draft_ticks", self.draft_ticks, "a whole number >= 1")

    def run(self, chains: Sequence[Chain]) -> Iterator[tuple[Chain, EmittedStep]]:
        """Yield every step of every chain as it is decided. Whatever happens, all branches are
        closed at the end.
        """
        try:
            for chain in chains:
                chain.start()
            seen = {id(chain): 0 for chain in chains}
            while any(not chain.scheduler.done for chain in chains):
                self.tick(chains)
                for chain in chains:
                    for emitted in chain.emitted[seen[id(chain)] :]:
                        yield chain, emitted
                    seen[id(chain)] = len(chain.emitted)
        finally:
            for chain in chains:
                chain.close()

    def tick(self, chains: Sequence[Chain]) -> None:
        """One turn for everybody."""
        for _ in range(self.draft_ticks):
            if not self.draft.live:
                break
            self.draft.tick()
            for chain in chains:
                chain.drafted()
        write_on(self.target, chains)
        judge_all(self.verifier, chains)


def write_on(target: StepWriter, chains: Sequence[Chain]) -> None:
    """One forward of the target, if it has anything to write, and the steps that it finished to the
    chains they belong to.
    """
    for job in target.tick() if target.live else []:
        any(
            chain.written(job) for chain in chains
        )  # nobody's: a step that finished together with it has cancelled it
