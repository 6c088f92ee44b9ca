"""A run on models as a source of the stepper: the lockstep driver, one piece of work at a time, and
a fork of all of it.

    source = LiveSource(reasoner, question, {"mode": "lr", "depth": 4})
    source.advance()              # one forward of the draft, one of the target, or one verdict, in the order of lockstep
    other = source.fork()         # a second run from here on: the same blocks, the same keys, its own future

The pieces are those of `engine/lockstep.py`, so the events are those of `lr generate --trace`. A
fork copies the books (scheduler, chain, steps that are being written) and forks the branches. Draws
are keyed, so both sides go on alike until a verdict is not the same. Only lockstep is driven, and
only models of this process. Read next: `beside.py`; `session.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lr.engine.answer import Asked
from lr.engine.chain import Chain
from lr.engine.drafts import LocalDrafts
from lr.engine.judging import READINGS, Waiting, ask, read_drafts
from lr.engine.lockstep import write_on
from lr.engine.runner import ModelRunner
from lr.lab.endpoint.models import ServedModel
from lr.lab.stepper.beside import Seat, SideRecorder
from lr.lab.stepper.script import forced_verdict
from lr.lab.stepper.source import StepperError, driven
from lr.lab.trace.file import Record, records_of
from lr.lab.trace.replay import header_of
from lr.options import make_options
from lr.reasoner import Reasoner
from lr.spec.protocol import Judged, Work
from lr.spec.verifiers.base import Verifier
from lr.spec.write import StepWriter
from lr.trace import Ended, Trace, VerifierCall
from lr.types import Role, Verdict

Forced = tuple[int, str, bool]
"""How many events there were before a forced verdict, its node, and what it is."""


@dataclass
class Desk:
    """All that one side has to itself. `wave`: pairs whose verdicts are there and not told yet,
    with the seconds each took.
    """

    trace: Trace
    target: StepWriter
    draft: StepWriter
    chain: Chain
    ticks: int
    judging: bool = False
    wave: list[tuple[Work, Verdict | None, float]] = field(default_factory=list)
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
        self.header = replace(header_of(asked), alone=True)
        codec, trace = asked.models.codec, asked.trace
        target = asked.plan(Role.TARGET).writer(asked.models.target, codec.token_bytes, trace)
        assert asked.models.draft is not None
        draft = asked.plan(Role.DRAFT).writer(asked.models.draft, codec.token_bytes, trace)
        chain = asked.chain(target, LocalDrafts(draft, trace))
        self.desk = Desk(trace, target, draft, chain, asked.options.draft_ticks)
        self.seats = [
            Seat(runner, role, SideRecorder(trace, name))
            for name, role, runner in _runners(target, draft)
        ]
        self.records: list[Record] = []
        self._take_seats()
        chain.start()
        self._look()

    @property
    def waiting(self) -> list[str]:
        desk = self.desk
        told = (
            [work for work, _, _ in desk.wave if work in desk.chain.asked]
            if desk.wave
            else list(desk.chain.asked)
        )
        return [str(work.node) for work in told]

    def advance(self) -> bool:
        """One forward of one model, or one verdict. Raises what a forward raises (`OutOfBlocks`,
        `ContextError`).
        """
        if self._over:
            return False
        self._take_seats()
        try:
            self._piece()
            if self.desk.chain.scheduler.done and not self.desk.wave:
                self.desk.chain.close()
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
        for shared in (
            self.asked.models.codec,
            desk.target.segmenter,
            desk.draft.segmenter,
            *desk.chain.asked.values(),
        ):
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
            self.desk.chain.close()

    @property
    def _over(self) -> bool:
        return bool(self.records) and self.records[-1].kind == "end"

    def _piece(self) -> None:
        """The next piece of `Lockstep.tick`: drafts as many as it allows, one forward of the
        target, all verdicts; and again.
        """
        desk = self.desk
        if desk.wave or (desk.judging and desk.chain.asked):
            if not desk.wave:
                desk.wave = _verdicts(self._verifier, desk.chain)
            self._tell(*desk.wave.pop(0))
            return
        if desk.judging:
            desk.judging, desk.ticks = False, self.asked.options.draft_ticks
        if desk.ticks and desk.draft.live:
            desk.ticks -= 1
            desk.draft.tick()
            desk.chain.drafted()
        else:
            write_on(desk.target, [desk.chain])
            desk.judging = True

    def _tell(self, work: Work, verdict: Verdict | None, seconds: float) -> None:
        """As `judge_all` does, but for a verdict that was forced."""
        desk, node = self.desk, str(work.node)
        desk.trace.record(VerifierCall(1, seconds))
        if desk.chain.asked.pop(work, None) is None:  # an earlier verdict has cancelled it
            return
        if node in desk.agreed:
            verdict = forced_verdict(desk.agreed[node], verdict)
            desk.forced.append((len(self.records), node, desk.agreed.pop(node)))
        desk.chain.tell(Judged(work.node, verdict))

    @property
    def _verifier(self) -> Verifier:
        assert not isinstance(self.asked.verifier, str)
        return self.asked.verifier

    def _take_seats(self) -> None:
        for seat in self.seats:
            seat.take()

    def _look(self) -> None:
        """Take in the events that are new."""
        start = len(self.records)
        new = records_of(self.desk.trace.events[start:], self.asked.models.codec.token_bytes)
        self.records += [replace(one, number=start + one.number) for one in new]


def _asked(reasoner: Reasoner, question: str, options: Mapping[str, Any]) -> Asked:
    """The question, prepared, with room for two in the caches."""
    made = make_options(**options)
    if not made.looks_ahead:
        raise StepperError(
            f"mode {made.mode!r} has no draft steps, so there is nothing to force or fork. Record it with lr generate --mode {made.mode} "
            "--trace FILE, and step through the recording."
        )
    if made.driver != "lockstep":
        raise StepperError(
            f"driver is {made.driver!r}; only 'lockstep' stops between two pieces of work. A recording of it can be stepped."
        )
    if any(
        isinstance(model, ServedModel) for model in (reasoner.models.target, reasoner.models.draft)
    ):
        raise StepperError(
            "a model behind a server cannot be stopped in the middle. Record the answer with lr generate --trace FILE, and step through "
            "the recording."
        )
    return Asked(reasoner.models, reasoner.verifier, question, made, share=2, detailed=True)


def _runners(target: StepWriter, draft: StepWriter) -> list[tuple[str, Role, ModelRunner]]:
    """The models with a cache, by the cache's name: target, draft, and the draft as it guesses
    tokens for the target.
    """
    found = [("target", Role.TARGET, target.runner), ("draft", Role.DRAFT, draft.runner)]
    if target.speculation is not None:
        found.append(("guesser", Role.DRAFT, getattr(target.speculation.drafter, "runner", None)))  # type: ignore[arg-type]
    return [(name, role, runner) for name, role, runner in found if isinstance(runner, ModelRunner)]


def _verdicts(verifier: Verifier, chain: Chain) -> list[tuple[Work, Verdict | None, float]]:
    """What the verifier says about all pairs that are complete, and the seconds each took."""
    clock = chain.trace.clock
    waiting: Sequence[Waiting] = [Waiting(chain, work, pair) for work, pair in chain.asked.items()]
    if verifier.requires & READINGS:
        waiting = read_drafts(waiting)
    started = clock()
    verdicts = ask(verifier, waiting)
    share = (clock() - started) / len(waiting)
    return [(one.work, verdict, share) for one, verdict in zip(waiting, verdicts, strict=True)]
