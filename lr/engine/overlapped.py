"""The overlapped driver: the draft writes in a worker of its own while the target and the verifier
work here.

Nothing waits for anything that it does not need: between two forwards of the target what the draft
has finished is taken in and what the scheduler orders goes out; only when the target has nothing to
write does the driver sleep, until the draft has news. While the target writes step i, the draft is
steps ahead. The scheduler is the same as everywhere, draws are keyed, late events are ignored; so
the output is that of `lockstep.py`, token for token, however the two are timed (but see
`LateDrafts.REJECT`).

Several problems share the target, the worker and the verifier, as in lockstep. Read next:
`remote.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lr.engine.chain import Chain
from lr.engine.draft_messages import Reported
from lr.engine.judging import judge_all
from lr.engine.lockstep import write_on
from lr.engine.remote import RemoteRun
from lr.spec.verifiers.base import Verifier
from lr.spec.write import StepWriter
from lr.types import EmittedStep


@dataclass
class Overlapped:
    """Drives chains that share a target writer, a run of a draft worker and a verifier; good for
    one `run`.

    `last`: the worker's report after everything was given back (None: not over, or the worker
    failed).
    """

    target: StepWriter
    drafts: RemoteRun
    verifier: Verifier
    last: Reported | None = None

    def run(self, chains: Sequence[Chain]) -> Iterator[tuple[Chain, EmittedStep]]:
        """Yield every step of every chain as it is decided. Whatever happens, all branches are
        closed at the end, here and there.

        Raises what goes wrong in the worker. An interruption (Ctrl-C) may tear a message in two, so
        it ends the worker.
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
        except KeyboardInterrupt:
            self.drafts.worker.close()
            raise
        finally:
            for chain in chains:
                chain.close()
            self.last = self.drafts.finish()

    def tick(self, chains: Sequence[Chain]) -> None:
        """One turn for everybody."""
        self.drafts.listen(wait=not self.target.live)
        for chain in chains:
            chain.drafted()
        judge_all(self.verifier, chains)
        self.drafts.flush()  # the draft may go on while the target makes its forward
        write_on(self.target, chains)
        judge_all(self.verifier, chains)
