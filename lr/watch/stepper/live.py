"""An answer on models as a source of the stepper: the engine's loop, one piece of work
at a time, and forks of the whole answer.

    source = LiveSource(reasoner, question, {"mode": "lr", "depth": 4})
    source.advance()              # one forward of a model, or the verdicts that are due
    other = source.fork()         # a second answer from here on, on the same blocks

A fork copies what belongs to the answer (scheduler, sides, unfinished steps, loop) and
forks its branches; models, caches and verifier are shared. It runs no forward and
copies no block. Draws are keyed, so both go on alike until a verdict differs. Only
driver lockstep can be stopped between two pieces of work. Read next: `session.py`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from lr.engine.answer import Answer
from lr.engine.loop import Loop
from lr.engine.recorder import CacheRecorder
from lr.engine.runner import ModelRunner
from lr.kvcache.branch import BlockTable
from lr.options import make_options
from lr.reasoner import Reasoner
from lr.spec.protocol import NodeId
from lr.spec.variant import Variant
from lr.trace import Ended, Trace
from lr.types import Role, Verdict
from lr.watch.stepper.session import Source, StepperError, verdict_of
from lr.watch.trace.file import Record, TraceFile, header_of


class SteppedAnswer(Answer):
    """An answer whose verdicts can be forced: `forced` has them by node."""

    forced: dict[str, bool]

    def report_verdict(self, node: NodeId, verdict: Verdict) -> None:
        super().report_verdict(node, verdict_of(self.forced, str(node), verdict))


class LiveSource(Source):
    """An answer on models. `options`: fields of `GenerateOptions`. Raises
    `SettingError` and `StepperError` for an answer that cannot be stepped through."""

    runs = True

    def __init__(
        self,
        reasoner: Reasoner,
        question: str,
        options: Mapping[str, Any],
        variant: Variant | None = None,
    ) -> None:
        generation = make_options(**options)
        if generation.driver != "lockstep":
            raise StepperError(
                f"driver {generation.driver!r} does not stop between two pieces of "
                "work, as 'lockstep' does. Record it (lr generate --trace FILE) and "
                "step through that."
            )
        asked = reasoner.engine.question(
            question, generation, reasoner.verifier, variant
        )
        asked = replace(asked, blocks=2 * asked.blocks)  # room for a what-if
        self.answer = SteppedAnswer(asked, detailed=True)
        super().__init__(TraceFile(header_of(self.answer), []))
        self.answer.forced = self.forced
        self._stack = ExitStack()
        self._sharing = [self]  # all sources that share the caches
        self._paused = 0.0  # the time at which the last piece of work ended
        runners = reasoner.engine.runners
        self.loop = Loop([self.answer], 1, runners, None, asked.blocks, self._stack)
        self.runners: dict[str, ModelRunner] = self.loop.borrowed
        self.loop.admit()
        self.recorders: dict[str, CacheRecorder] = {}
        # Of this side alone: a side must not go on from the other's branches.
        self.branches = {name: runner.branches for name, runner in self.runners.items()}
        for name, runner in self.runners.items():
            recorder = runner.cache.observer
            assert isinstance(recorder, CacheRecorder)  # since the trace is detailed
            self.recorders[name] = recorder
        self._read_trace()

    @property
    def waiting(self) -> list[str]:
        return [str(node) for node in self.answer.pairs]

    def advance(self) -> bool:
        """One forward of one model, or the verdicts that are due. Raises what the
        forward raises."""
        if self.trace.complete:
            return False
        self._take_over()
        try:
            self.loop.step()
            if self.answer.scheduler.done:
                self.loop.close()
                self.answer.trace.record(Ended(done=True))
        finally:
            self._read_trace()
        return True

    def fork(self) -> LiveSource:
        """A second answer from here on. Its trace begins as a copy of this one; then
        its branches are forked from this side's, which are closed in it."""
        self._take_over()
        # 1. A trace of its own, and in it a fork of every branch.
        trace = copy.copy(self.answer.trace)
        trace.events = list(trace.events)  # events up to here belong to both
        copies: dict[int, Any] = {id(self.answer.trace): trace}
        recorders = {}
        for name, runner in self.runners.items():
            recorder, forks = fork_tables(self.recorders[name], runner, trace)
            recorders[name] = recorder
            copies |= {id(table): fork for table, fork in forks.items()}
        # 2. What belongs to the answer is copied, everything else is shared.
        answer = self.answer
        shared: list[Any] = [self.loop.runners, answer.question, answer.question.codec]
        shared += [answer.question.variant, answer.question.verifier, self._stack]
        shared += [*self.runners.values(), *answer.pairs.values()]
        copies |= {id(thing): thing for thing in shared}
        twin = copy.copy(self)  # then what differs
        parts = (self.loop, answer, self.branches)
        twin.loop, twin.answer, twin.branches = copy.deepcopy(parts, copies)
        # 3. A source of its own.
        Source.__init__(twin, TraceFile(self.header, list(self.records)))
        twin.forced = twin.answer.forced
        twin.recorders = recorders
        twin._sharing.append(twin)
        twin._read_trace()
        return twin

    def close(self) -> None:
        """Give back the blocks and, after the last side, the caches."""
        if self not in self._sharing:
            return  # closed already
        self._sharing.remove(self)
        if not self.trace.complete:
            self._take_over()
            self.loop.close()
        if not self._sharing:
            self._stack.close()

    def _take_over(self) -> None:
        """From now on what the models do belongs to this side's trace. Its clock stood
        since the last piece of work."""
        trace: Trace = self.answer.trace
        now = trace.clock()
        trace.start += now - self._paused  # the clock stood still
        self._paused = now
        for name, runner in self.runners.items():
            runner.cache.observer = self.recorders[name]
            runner.branches = self.branches[name]
            role = Role.TARGET if name == "target" else Role.DRAFT
            runner.observer = partial(self.loop.passed, role)

    def _read_trace(self) -> None:
        trace = self.answer.trace
        token_bytes = self.answer.question.codec.token_bytes
        for when, event in trace.events[len(self.records) :]:
            self.records.append(Record(len(self.records), when, event, token_bytes))
        self._paused = trace.clock()


def fork_tables(
    recorder: CacheRecorder, runner: ModelRunner, trace: Trace
) -> tuple[CacheRecorder, dict[BlockTable, BlockTable]]:
    """A recorder for a second side, and a fork of every table of the first. `trace`: a
    copy of the first side's.

    Example: A holds tables a (blocks 0 1) and b (blocks 0 2). Then B holds a' (0 1) and
    b' (0 2), and the refcounts of blocks 0, 1, 2 are 4, 2, 2."""
    twin = copy.copy(recorder)
    twin.trace = trace
    twin.numbers = dict(recorder.numbers)
    twin.nodes = {}
    runner.cache.observer = twin
    forks = {table: runner.cache.fork(table) for table in recorder.numbers}
    for table, node in recorder.nodes.items():
        twin.tag(forks[table], node)
    for table in forks:  # its own side has them; this one closes them
        twin.closed(table)
    return twin, forks
