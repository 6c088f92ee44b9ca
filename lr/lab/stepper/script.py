"""A scripted run (`lab/scripted.py`) as a source of the stepper: for lessons and tests,
without models and without torch.

    source = ScriptSource(lambda: ScriptedRun(config, TextScript(["a.", "b$"], ["A.", "C."])))

One piece of work is one turn of the run. A fork is a copy of the scheduler and its books; there is
no cache to share.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

from lr.lab.scripted import ScriptedRun
from lr.lab.stepper.source import FORCED, StepperError, driven
from lr.lab.trace.file import Record
from lr.lab.trace.virtual import scripted_trace
from lr.spec.protocol import Judged, Kind, Work
from lr.types import Verdict


class ScriptSource:
    """`begin` makes the run, each time anew. `forced`: (number of events before it, node, verdict),
    in order.
    """

    runs = True

    def __init__(self, begin: Callable[[], ScriptedRun]) -> None:
        self.begin, self.run = begin, begin()
        self.forced: list[tuple[int, str, bool]] = []
        self.agreed: dict[str, bool] = {}
        self.records: list[Record] = []
        self._look()

    @property
    def waiting(self) -> list[str]:
        return [str(work.node) for work in self.run.work if work.kind is Kind.JUDGE]

    def advance(self) -> bool:
        """The turn that is next by the run's order."""
        if self.run.done:
            return False
        pieces = self.run.work
        work = pieces[self.run.order(pieces)]
        judged = work.kind is Kind.JUDGE
        aligned = self.agreed.pop(str(work.node), None) if judged else None
        if aligned is None:
            self.run.step(work)
        else:
            self.forced.append((len(self.records), str(work.node), aligned))
            self.run.tell(self._forced(work, aligned))
        self._look()
        return True

    def force(self, aligned: bool, node: str) -> None:
        """See `Source`."""
        if node not in self.waiting:
            raise StepperError(
                f"no verdict on {node} is due; due are: {', '.join(self.waiting) or 'none'}."
            )
        self.agreed[node] = aligned

    def fork(self) -> ScriptSource:
        return copy.deepcopy(self)

    def again(self, number: int) -> ScriptSource:
        """See `Source`. What was forced before that place is forced again."""

        def remake() -> ScriptSource:
            made = ScriptSource(self.begin)
            made.agreed = {node: aligned for place, node, aligned in self.forced if place < number}
            return made

        made = driven(remake, number)
        assert isinstance(made, ScriptSource)
        return made

    def close(self) -> None:
        """Nothing is held."""

    def _forced(self, work: Work, aligned: bool) -> Judged:
        said = self.run.event_of(work)
        own = said.verdict if isinstance(said, Judged) else None
        return Judged(work.node, forced_verdict(aligned, own))

    def _look(self) -> None:
        """Take in the events of the last turn."""
        trace = scripted_trace(self.run)
        self.header = trace.header
        self.records += trace.records[len(self.records) :]


def forced_verdict(aligned: bool, own: Verdict | None) -> Verdict:
    """A verdict that was forced; its reason tells the verifier's own (None: it had none)."""
    if own is None:
        return Verdict(aligned, FORCED)
    return replace(
        own,
        aligned=aligned,
        why=f"{FORCED}; else {'aligned' if own.aligned else 'not aligned'}: {own.why}",
    )
