"""A run on models as a source of the stepper: the engine's loop, one piece of work at a
time, and forks of the whole run.

    source = LiveSource(reasoner, question, {"mode": "lr", "depth": 4})
    source.advance()              # one forward of the draft, one of the target, or the verdicts due
    other = source.fork()         # a second run from here on, with the same blocks and keys

A fork copies the scheduler, the answer and the unfinished steps, and forks the
branches of the cache. It runs no forward and copies no block. Draws are keyed, so A and
B continue alike until a verdict differs. They share models and caches. Each has its own
trace, which the models write while that side works. The trace of B begins as a copy of
A's, forks B's branches from A's and closes A's (in this trace only; A keeps its
blocks): each trace adds up to the branches of its own side. Only driver lockstep can be
stopped. Read next: `session.py`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from lr.engine.answer import Answer
from lr.engine.engine import Loop
from lr.engine.recorder import CacheRecorder
from lr.options import make_options
from lr.reasoner import Reasoner
from lr.spec.protocol import NodeId
from lr.spec.variant import Variant
from lr.trace import Ended, Trace
from lr.types import Role, Verdict
from lr.watch.stepper.sources import Source, StepperError
from lr.watch.trace.file import Record
from lr.watch.trace.replay import header_of


class SteppedAnswer(Answer):
    """An answer whose verdicts can be forced by hand."""

    source: LiveSource

    def take_verdict(self, node: NodeId, verdict: Verdict | None) -> None:
        super().take_verdict(node, self.source.verdict(str(node), verdict))


class LiveSource(Source):
    """A run on models. `options`: fields of `GenerateOptions`. Raises `SettingError`
    and `StepperError` for a run that cannot be stepped through."""

    def __init__(
        self,
        reasoner: Reasoner,
        question: str,
        options: Mapping[str, Any],
        variant: Variant | None = None,
    ) -> None:
        self._begin = (reasoner, question, options, variant)
        self.answer = _answer(reasoner, question, options, variant)
        self.answer.source = self
        super().__init__(header_of(self.answer), [])
        self._stack = ExitStack()
        self._sides = [self]  # all sources that share the caches
        self._rested = 0.0  # the time at which the last piece of work ended
        blocks = self.answer.blocks
        self.loop = Loop(reasoner.engine, self.answer, blocks, self._stack, alone=True)
        self.loop.add(self.answer)
        # Both sides use the same runners, each side with its own recorders.
        self.runners = []
        for name, runner in self.loop.borrowed.items():
            role = Role.TARGET if name == "target" else Role.DRAFT
            recorder = runner.cache.observer
            assert isinstance(recorder, CacheRecorder), "the trace is detailed"
            self.runners.append((role, runner, recorder))
        self._look()

    @property
    def waiting(self) -> list[str]:
        return [str(node) for node in self.answer.pairs]

    def advance(self) -> bool:
        """One forward of one model, or the verdicts that are due. Raises what the
        forward raises."""
        if self.trace.complete:
            return False
        self._watch()
        self._resume()
        try:
            self.loop.step()
            if self.answer.scheduler.done:
                self.loop.close()
                self.answer.trace.record(Ended(done=True))
        finally:
            self._look()
        return True

    def fork(self) -> LiveSource:
        """Runs no forward and copies no block: it forks the branches and copies the
        bookkeeping."""
        self._resume()
        made, own_trace = copy.copy(self), self.answer.trace
        trace = Trace(own_trace.clock, list(own_trace.events), detailed=True)
        trace.start = own_trace.start
        memo: dict[int, Any] = {id(own_trace): trace, id(self): made}
        made.runners = []
        for role, runner, own in self.runners:
            recorder, forks = own.beside(runner.cache, trace)
            made.runners.append((role, runner, recorder))
            memo |= {id(table): fork for table, fork in forks.items()} | {
                id(runner): runner
            }
        answer, loop = self.answer, self.loop
        shared = [answer.engine, answer.engine.codec, answer.variant, loop.verifier]
        shared += [loop.stack, *answer.pairs.values()]
        shared += [runner for _, runner in loop.asked]
        memo |= {id(one): one for one in shared}
        made.loop, made.answer = copy.deepcopy((loop, answer), memo)
        Source.__init__(made, self.header, list(self.records))
        made.forced = dict(self.forced)
        made._sides.append(made)
        made._look()
        return made

    def anew(self) -> LiveSource:
        """A fresh run of the same answer, with its own caches."""
        return LiveSource(*self._begin)

    def close(self) -> None:
        """Give back the blocks and, after the last side, the caches."""
        if self not in self._sides:
            return  # closed already
        self._sides.remove(self)
        if not self.trace.complete:
            self._watch()
            self.loop.close()
        if not self._sides:
            self._stack.close()

    def _watch(self) -> None:
        """Record what the models do in this side's trace from now on."""
        for _, runner, recorder in self.runners:
            runner.cache.observer = recorder
        for role, runner in [
            (role, runner) for role, runner, _ in self.runners
        ] + self.loop.asked:
            runner.observer = partial(self.loop.passed, role)

    def _resume(self) -> None:
        """Do not count the time since the last piece of work: nothing was done in
        it."""
        now = self.answer.trace.clock()
        self.answer.trace.start += now - self._rested
        self._rested = now

    def _look(self) -> None:
        start, trace = len(self.records), self.answer.trace
        for number, (when, event) in enumerate(trace.events[start:], start):
            self.records.append(
                Record(number, when, event, self.answer.engine.codec.token_bytes)
            )
        self._rested = trace.clock()


def _answer(
    reasoner: Reasoner,
    question: str,
    options: Mapping[str, Any],
    variant: Variant | None,
) -> SteppedAnswer:
    """An answer, not yet begun, with cache space for two sides."""
    made, cannot = make_options(**options), None
    if not made.looks_ahead:
        cannot = f"mode {made.mode!r} has no draft steps, so there is nothing to force or fork"
    elif made.driver != "lockstep":
        cannot = f"driver is {made.driver!r}; only 'lockstep' stops between two pieces of work"
    if cannot is not None:
        record = f"Record it (lr generate --mode {made.mode} --trace FILE) and step through that."
        raise StepperError(f"{cannot}. {record}")
    answer = SteppedAnswer(
        reasoner.engine, question, made, reasoner.verifier, variant, detailed=True
    )
    answer.blocks *= 2
    return answer
