"""The driver's end of a draft worker: start it once, keep it from question to question, and be sure
that it goes.

`DraftWorker` owns the process (or thread) and the connection; `begin` makes a `RemoteRun`, the
draft's side of one answer in the making, and each problem of it is a `RemoteDrafts`, which a
`Chain` uses like a local one. Orders are collected and sent together by `flush`.

*When things go wrong.* What the worker raises for a run (a full cache, say) is raised here as the
same error, as in lockstep. A worker that dies, cannot be started or is silent for `patience`
seconds raises `DraftWorkerError`; it is killed, and the next run starts a new one. It is not
replaced by plain decoding: an answer that silently lost its draft is a wrong measurement.

*When we go.* The worker ends when its connection closes: by `close`, by the garbage collector, at
exit, and, whatever kills this process, by the operating system. Not for use by several threads at
once. Read next: `draft_worker.py`.
"""

from __future__ import annotations

import pickle
import time
import weakref
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from lr.engine.draft_messages import (
    Begin,
    Close,
    Failed,
    Finish,
    Follow,
    News,
    Open,
    Order,
    Prepare,
    Ready,
    Reply,
    Report,
    Reported,
    Stamped,
    Stop,
)
from lr.engine.draft_worker import DraftWorkerError, Load
from lr.engine.drafts import DraftJob
from lr.engine.launch import Where, launch
from lr.engine.plan import WriterPlan
from lr.errors import SettingError
from lr.spec.protocol import NodeId
from lr.trace import Trace
from lr.types import Step, require


@dataclass
class _Live:
    """A worker that was started. `ready` once its model is loaded."""

    connection: Connection
    stop: Callable[[], None]
    pid: int | None = None
    ready: bool = False


class DraftWorker:
    """A worker that is started with the first run and then kept; a context manager that closes it.

    `load` makes the draft and the bytes of the tokens, in the worker. `patience`: seconds of
    silence that are waited through while a step is awaited; `start_patience`: until the model is
    loaded. `threads` of torch in a worker process.
    """

    def __init__(
        self,
        load: Load,
        *,
        where: Where = Where.PROCESS,
        patience: float = 120.0,
        start_patience: float = 900.0,
        threads: int = 1,
    ) -> None:
        require(patience > 0, "patience", patience, "a number of seconds > 0")
        require(start_patience > 0, "start_patience", start_patience, "a number of seconds > 0")
        require(threads >= 1, "threads", threads, "a whole number >= 1")
        self.load, self.where, self.threads = load, where, threads
        self.patience, self.start_patience = patience, start_patience
        self._live: _Live | None = None
        self._runs: dict[int, RemoteRun] = {}
        self._count = 0

    @property
    def pid(self) -> int | None:
        """The worker's process, if one is ready."""
        return None if self._live is None else self._live.pid

    def start(self) -> None:
        """Start the worker and wait until its model is loaded; nothing if it is there already.
        Raises `DraftWorkerError`, or what loading the model raises."""
        if self._live is None:
            connection, stop = launch(self.where, self.load, self.threads)
            self._live = _Live(connection, weakref.finalize(self, stop))
        while not self._live.ready:
            self.listen(self.start_patience)

    def begin(self, plan: WriterPlan, trace: Trace) -> RemoteRun:
        """A new run by `plan`; its forwards are reported to `trace`. Starts the worker if need be.
        Raises `SettingError` if the plan cannot be sent, and what `start` raises."""
        if self.where is Where.PROCESS:
            _check_portable(plan)
        self.start()
        self._count += 1
        run = self._runs[self._count] = RemoteRun(self, self._count, trace)
        run.order(Prepare(self._count, plan))
        return run

    def close(self) -> None:
        """End the worker. A later run starts a new one; runs in work raise `DraftWorkerError`."""
        self._give_up(DraftWorkerError("the draft worker was closed while a run was using it."))

    def __enter__(self) -> DraftWorker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def send(self, orders: Sequence[Order]) -> None:
        """Send orders, in order. Raises `DraftWorkerError` if the worker is gone."""
        if self._live is None:
            raise DraftWorkerError(
                "the draft worker is gone, and with it what this run had there. Ask again."
            )
        try:
            self._live.connection.send(list(orders))
        except OSError as error:
            self._lost(f"died ({error})")

    def listen(self, wait: float = 0.0) -> None:
        """Give everything that has arrived to the runs it is for. With `wait`, something must
        arrive in so many seconds.
        """
        while self._live is not None:
            try:
                if not self._live.connection.poll(wait):
                    if wait:
                        self._lost(f"has been silent for {wait:g} seconds")
                    return
                reply: Reply = self._live.connection.recv()
            except (EOFError, OSError):
                self._lost("died")
            self._hear(reply)
            wait = 0.0

    def forget(self, run: RemoteRun) -> None:
        """What still arrives for this run is dropped."""
        self._runs.pop(run.number, None)

    def _hear(self, reply: Reply) -> None:
        assert self._live is not None
        if isinstance(reply, Ready):
            self._live.ready, self._live.pid = True, reply.pid
        elif isinstance(reply, Failed) and reply.run is None:
            self._give_up(reply.error)
            raise reply.error
        elif reply.run in self._runs:
            self._runs[reply.run].hear(reply)

    def _lost(self, what: str) -> None:
        assert self._live is not None
        started = self._live.ready
        advice = (
            "It may have been killed for memory, or hang; ask again (a new worker is started), or use driver lockstep."
            if started
            else "It never became ready. A program that starts it must do so below `if __name__ == '__main__':`, because the worker "
            "imports the program's main module; or use driver lockstep."
        )
        error = DraftWorkerError(f"the draft worker {what}. {advice}")
        self._give_up(error)
        raise error

    def _give_up(self, error: Exception) -> None:
        live, self._live = self._live, None
        for run in self._runs.values():
            run.error = error
        self._runs.clear()
        if live is not None:
            live.stop()


class RemoteRun:
    """The draft's side of one run: some problems that share a writer and a cache in the worker."""

    def __init__(self, worker: DraftWorker, number: int, trace: Trace) -> None:
        self.worker, self.number, self.trace = worker, number, trace
        self.error: Exception | None = None
        self.chains: list[RemoteDrafts] = []
        self.reports: list[Reported] = []
        self._orders: list[Order] = []

    def chain(self, trace: Trace) -> RemoteDrafts:
        """The draft's side of one problem, whose steps are reported to `trace`."""
        self.chains.append(RemoteDrafts(self, len(self.chains), trace))
        return self.chains[-1]

    def order(self, order: Order) -> None:
        """Put an order on the list for the next `flush`."""
        self._orders.append(order)

    def flush(self) -> None:
        """Send what was ordered. Raises what went wrong in the worker."""
        self._check()
        if self._orders:
            orders, self._orders = self._orders, []
            self.worker.send(orders)

    def listen(self, *, wait: bool = False) -> None:
        """Take in what has arrived; with `wait`, sleep until something has. Raises what went wrong
        in the worker.
        """
        self.flush()
        self.worker.listen(self.worker.patience if wait else 0.0)
        self._check()

    def report(self) -> Reported:
        """How much of the run's cache in the worker is in use now, after all orders so far."""
        self.order(Report(self.number))
        seen = len(self.reports)
        while len(self.reports) == seen:
            self.listen(wait=True)
        return self.reports[-1]

    def finish(self) -> Reported | None:
        """The run is over: give up what the worker has for it. Returns the last report; None if the
        worker had failed. Raises nothing.
        """
        last = None
        try:
            last = self.report()
            self.order(Finish(self.number))
            self.flush()
        except Exception:  # whoever is interested has met it before: `listen` raises it
            pass
        self.worker.forget(self)
        return last

    def hear(self, reply: News | Reported | Failed) -> None:
        """Take a reply in."""
        if isinstance(reply, Failed):
            self.error = reply.error
        elif isinstance(reply, Reported):
            self.reports.append(reply)
        else:
            for chain, node, step in reply.steps:
                self.chains[chain].arrived.append((node, step))
            for stamped in reply.events:
                insert(
                    self.trace if stamped.chain is None else self.chains[stamped.chain].trace,
                    stamped,
                )

    def _check(self) -> None:
        if self.error is not None:
            raise self.error


@dataclass
class RemoteDrafts:
    """See `DraftSide`: every call is an order, `take` gives what has arrived."""

    run: RemoteRun
    number: int
    trace: Trace
    arrived: list[tuple[NodeId, Step]] = field(default_factory=list)

    def open(self, node: NodeId, tokens: Sequence[int]) -> None:
        self.run.order(Open(self.run.number, self.number, node, tuple(tokens)))

    def draft(self, job: DraftJob) -> None:
        self.run.order(Begin(self.run.number, self.number, job))

    def cancel(self, node: NodeId) -> None:
        self.run.order(Stop(self.run.number, self.number, node))

    def follow(self, old: NodeId, new: NodeId, tokens: Sequence[int]) -> None:
        self.run.order(Follow(self.run.number, self.number, old, new, tuple(tokens)))

    def close(self, node: NodeId) -> None:
        self.run.order(Close(self.run.number, self.number, node))

    def take(self) -> list[tuple[NodeId, Step]]:
        arrived, self.arrived = self.arrived, []
        return arrived


def _check_portable(plan: WriterPlan) -> None:
    try:
        pickle.dumps(plan)
    except Exception as error:  # what pickle raises differs with the object
        raise SettingError(
            f"the draft's settings cannot be sent to its process ({error}). Define segmenters and drafters at the top level of a "
            "module, not as lambdas or inside functions; or use driver lockstep."
        ) from error


def insert(trace: Trace, stamped: Stamped) -> None:
    """Put an event where it belongs in time. `time.perf_counter` is one clock for all processes of
    a machine; a trace by another clock gets the event now."""
    if trace.clock is not time.perf_counter:
        trace.record(stamped.event)
        return
    when = stamped.when - trace.start
    place = bisect_right(trace.events, when, key=lambda pair: pair[0])
    trace.events.insert(place, (when, stamped.event))
