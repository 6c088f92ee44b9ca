"""A run on models as a source of the stepper: the engine's loop, one piece of work at a time, and a
fork of all of it.

    source = LiveSource(reasoner, question, {"mode": "lr", "depth": 4})
    source.advance()              # one forward of the draft, one of the target, or one verdict
    other = source.fork()         # a second run from here on: the same blocks, the same keys, its own future

A fork copies the books (scheduler, request, steps that are being written) and forks the branches.
Draws are keyed, so both sides go on alike until a verdict is not the same. Only driver lockstep can
be stopped, and only models of this process. Read next: `beside.py`; `session.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from lr.engine.engine import Run, Serving
from lr.engine.loop import Loop
from lr.engine.request import Request
from lr.lab.stepper.beside import Seat, SideRecorder
from lr.lab.stepper.script import forced_verdict
from lr.lab.stepper.source import StepperError, driven
from lr.lab.trace.file import Record, records_of
from lr.lab.trace.replay import header_of
from lr.model.qwen import CausalLM
from lr.options import make_options
from lr.reasoner import Reasoner
from lr.trace import Ended, Trace
from lr.types import Role

Forced = tuple[int, str, bool]
"""How many events there were before a forced verdict, its node, and what it is."""


@dataclass
class Desk:
    """All that one side has to itself."""

    trace: Trace
    loop: Loop
    request: Request
    agreed: dict[str, bool] = field(default_factory=dict)
    forced: list[Forced] = field(default_factory=list)


class LiveSource:
    """See `Source`. `options`: fields of `GenerateOptions`; raises `SettingError` and
    `StepperError` for what cannot be stepped through.
    """

    runs = True

    def __init__(self, reasoner: Reasoner, question: str, options: Mapping[str, Any]) -> None:
        self._begin = (reasoner, question, options)
        self.asked = asked = _asked(reasoner, question, options)
        self.header = header_of(asked)
        self._stack = ExitStack()
        serving = Serving(reasoner.engine, asked, asked.blocks, 1, self._stack)
        request = serving.request(asked)
        self.desk = Desk(asked.trace, serving.loop, request)
        roles = {"target": Role.TARGET, "draft": Role.DRAFT, "guesser": Role.DRAFT}
        self.seats = [
            Seat(runner, roles[name], SideRecorder(asked.trace, name))
            for name, runner in serving.borrowed.items()
        ]
        self.records: list[Record] = []
        self._take_seats()
        serving.loop.add(request)
        self._look()

    @property
    def waiting(self) -> list[str]:
        loop, request = self.desk.loop, self.desk.request
        told = [one.node for one in loop.told if one.node in request.asked]
        return [str(node) for node in (told if loop.told else request.asked)]

    def advance(self) -> bool:
        """One forward of one model, or one verdict. Raises what a forward raises (`OutOfBlocks`,
        `ContextError`).
        """
        if self._over:
            return False
        self._take_seats()
        try:
            self._piece()
            if self.desk.request.done and not self.desk.loop.told:
                self.desk.loop.close()
                self.desk.trace.record(Ended(done=True))
        finally:
            self._look()
        return True

    def force(self, aligned: bool, node: str) -> None:
        """See `Source`."""
        if node not in self.waiting:
            raise StepperError(
                f"no verdict on {node} is due; due are: {', '.join(self.waiting) or 'none'}."
            )
        self.desk.agreed[node] = aligned

    def fork(self) -> LiveSource:
        """See `Source`. Issues no forward and copies no block: branches are forked, books are
        copied.
        """
        made = copy.copy(self)
        trace = Trace(self.desk.trace.clock, list(self.desk.trace.events), detailed=True)
        trace.start = self.desk.trace.start
        memo: dict[int, Any] = {id(self.desk.trace): trace}
        made.seats = []
        for seat in self.seats:
            recorder, forks = seat.recorder.beside(seat.runner.cache, trace)
            made.seats.append(Seat(seat.runner, seat.role, recorder))
            memo |= {id(table): fork for table, fork in forks.items()} | {
                id(seat.runner): seat.runner
            }
        desk = self.desk
        for shared in (self.asked.models.codec, desk.loop.verifier, *desk.request.asked.values()):
            memo[id(shared)] = shared
        made.desk = copy.deepcopy(desk, memo)
        made.records = list(self.records)
        made._look()
        return made

    def again(self, number: int) -> LiveSource:
        """See `Source`. It has caches of its own. What was forced before that place is forced
        again.
        """

        def remake() -> LiveSource:
            made = LiveSource(*self._begin)
            made.desk.agreed = {
                node: aligned for place, node, aligned in self.desk.forced if place < number
            }
            return made

        made = driven(remake, number)
        assert isinstance(made, LiveSource)
        return made

    def close(self) -> None:
        if not self._over:
            self._take_seats()
            self.desk.loop.close()

    @property
    def _over(self) -> bool:
        return bool(self.records) and self.records[-1].kind == "end"

    def _piece(self) -> None:
        """One step of the loop; pairs that were judged are told one by one, and as was forced."""
        desk, loop = self.desk, self.desk.loop
        if not loop.told:
            loop.step()
            if not loop.told:
                return
        node = str(loop.told[0].node)
        if node in desk.agreed and loop.told[0].node in desk.request.asked:
            aligned = desk.agreed.pop(node)
            desk.forced.append((len(self.records), node, aligned))
            verdict = forced_verdict(aligned, loop.told[0].verdict)
            loop.told[0] = loop.told[0]._replace(verdict=verdict)
        loop.step()

    def _take_seats(self) -> None:
        for seat in self.seats:
            seat.take()

    def _look(self) -> None:
        """Take in the events that are new."""
        start = len(self.records)
        new = records_of(self.desk.trace.events[start:], self.asked.models.codec.token_bytes)
        self.records += [replace(one, number=start + one.number) for one in new]


def _asked(reasoner: Reasoner, question: str, options: Mapping[str, Any]) -> Run:
    """The question, prepared, with room for two in the caches."""
    made = make_options(**options)
    if not made.looks_ahead:
        raise StepperError(
            f"mode {made.mode!r} has no draft steps, so there is nothing to force or fork. Record "
            f"it with lr generate --mode {made.mode} --trace FILE, and step through the recording."
        )
    if made.driver != "lockstep":
        raise StepperError(
            f"driver is {made.driver!r}; only 'lockstep' stops between two pieces of work. A "
            "recording of it can be stepped."
        )
    models = reasoner.models
    if not all(isinstance(model, CausalLM) for model in (models.target, models.draft)):
        raise StepperError(
            "a model behind a server cannot be stopped in the middle. Record the answer with lr "
            "generate --trace FILE, and step through the recording."
        )
    run = Run(reasoner.engine, reasoner.verifier, question, made, detailed=True)
    run.blocks *= 2
    return run
