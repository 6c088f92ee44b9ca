"""A run on models as a source of the stepper: the engine's loop, one piece of work at a
time, and forks of the whole run.

    source = LiveSource(reasoner, question, {"mode": "lr", "depth": 4})
    source.advance()              # one forward of the draft, one of the target, or one verdict
    other = source.fork()         # a second run from here on, with the same blocks and keys

A fork copies the scheduler, the request and the unfinished steps, and forks the
branches of the cache. It runs no forward and copies no block. Draws are keyed, so A and
B continue alike until a verdict differs. They share models and caches. Each has its own
trace, which the models write while that side works. The trace of B begins as a copy of
A's, forks B's branches from A's and closes A's (in this trace only; A keeps its
blocks): each trace adds up to the branches of its own side. Only driver lockstep with
models of this process can be stopped. Read next: `session.py`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from lr.engine.engine import Run, Serving
from lr.engine.recorder import CacheRecorder
from lr.model.qwen import CausalLM
from lr.options import make_options
from lr.reasoner import Reasoner
from lr.spec.variant import Variant
from lr.spec.verifiers.base import DeferredVerifier
from lr.trace import Ended, Trace
from lr.types import Role
from lr.watch.stepper.sources import Source, StepperError
from lr.watch.trace.file import Record
from lr.watch.trace.replay import header_of


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
        self.asked = asked = _asked(reasoner, question, options, variant)
        super().__init__(header_of(asked), [])
        self._stack = ExitStack()
        self._sides = [self]  # all sources that share the caches
        self._rested = 0.0  # the time at which the last piece of work ended
        serving = Serving(reasoner.engine, asked, asked.blocks, 1, self._stack)
        self.loop, self.request = serving.loop, serving.request(asked)
        self.runners = [  # both sides use the same ones, each side with its own recorders
            (
                Role.TARGET if name == "target" else Role.DRAFT,
                one,
                CacheRecorder(asked.trace, name),
            )
            for name, one in serving.borrowed.items()
        ]
        self.others = serving.asked
        self._watch()
        self.loop.add(self.request)
        self._look()

    @property
    def waiting(self) -> list[str]:
        loop, asked = self.loop, self.request.asked
        told = [one.node for one in loop.judgements if one.node in asked]
        return [str(node) for node in (told if loop.judgements else asked)]

    def advance(self) -> bool:
        """One forward of one model, or one verdict. Raises what the forward raises."""
        if self.trace.complete:
            return False
        self._watch()
        self._resume()
        try:
            self._piece()
            if self.request.done and not self.loop.judgements:
                self.loop.close()
                self.request.trace.record(Ended(done=True))
        finally:
            self._look()
        return True

    def fork(self) -> LiveSource:
        """Runs no forward and copies no block: it forks the branches and copies the
        bookkeeping."""
        self._resume()
        made, own_trace = copy.copy(self), self.request.trace
        trace = Trace(own_trace.clock, list(own_trace.events), detailed=True)
        trace.start = own_trace.start
        memo: dict[int, Any] = {id(own_trace): trace}
        made.runners = []
        for role, runner, own in self.runners:
            recorder, forks = own.beside(runner.cache, trace)
            made.runners.append((role, runner, recorder))
            memo |= {id(table): fork for table, fork in forks.items()} | {
                id(runner): runner
            }
        for same in (
            self.asked.models.codec,
            self.loop.verifier,
            *self.request.asked.values(),
        ):
            memo[id(same)] = same
        made.loop, made.request = copy.deepcopy((self.loop, self.request), memo)
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

    def _piece(self) -> None:
        """One step of the loop. Verdicts are handed over one by one, with forced ones
        replaced."""
        loop = self.loop
        if not loop.judgements:
            loop.step()
            if not loop.judgements:
                return
        told = loop.judgements[0]
        if told.node in self.request.asked:
            loop.judgements[0] = told._replace(
                verdict=self.verdict(str(told.node), told.verdict)
            )
        loop.step()

    def _watch(self) -> None:
        """Record what the models do in this side's trace from now on."""
        for _, runner, recorder in self.runners:
            runner.cache.observer = recorder
        for role, runner in [
            (role, runner) for role, runner, _ in self.runners
        ] + self.others:
            runner.observer = partial(self.loop.passed, role)

    def _resume(self) -> None:
        """Do not count the time since the last piece of work: nothing was done in
        it."""
        now = self.request.trace.clock()
        self.request.trace.start += now - self._rested
        self._rested = now

    def _look(self) -> None:
        start, trace = len(self.records), self.request.trace
        for number, (when, event) in enumerate(trace.events[start:], start):
            self.records.append(
                Record(number, when, event, self.asked.models.codec.token_bytes)
            )
        self._rested = trace.clock()


def _asked(
    reasoner: Reasoner,
    question: str,
    options: Mapping[str, Any],
    variant: Variant | None,
) -> Run:
    """A run of the question, not yet begun, with cache space for two sides."""
    made = make_options(**options)
    models, cannot = reasoner.models, None
    if not made.looks_ahead:
        cannot = f"mode {made.mode!r} has no draft steps, so there is nothing to force or fork"
    elif made.driver != "lockstep":
        cannot = f"driver is {made.driver!r}; only 'lockstep' stops between two pieces of work"
    elif isinstance(reasoner.verifier, DeferredVerifier) and not reasoner.verifier.here:
        cannot = "a judge behind a server cannot be stopped in the middle"
    elif not all(
        isinstance(model, CausalLM) for model in (models.target, models.draft)
    ):
        cannot = "a model behind a server cannot be stopped in the middle"
    if cannot is not None:
        record = f"Record it (lr generate --mode {made.mode} --trace FILE) and step through that."
        raise StepperError(f"{cannot}. {record}")
    run = Run(
        reasoner.engine, reasoner.verifier, question, made, variant, detailed=True
    )
    run.blocks *= 2
    return run
