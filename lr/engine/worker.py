"""The draft's worker: a process or a thread that writes drafts while the target runs here.

Calls go there as tuples (run, method, arguments), many in one message; steps, events for the trace
and errors come back. A run is one loop's use of the worker: it has a writer and a cache there, and
any number of requests, each a `LocalDrafts`, the very object that the loop uses without a worker.
With nothing to write the worker sleeps on the connection.

*When things go wrong.* An error there is raised here, with the worker's traceback if it is not one
of ours, and costs that run only. A worker that dies, cannot be started or is silent for `patience`
seconds raises `DraftWorkerError` and is killed; the next run starts a new one. Plain decoding does
not take its place: an answer that silently lost its draft is a wrong measurement.

*When we go.* The worker ends when its connection closes: by `close`, by the garbage collector, at
exit, and, whatever kills this process, by the operating system. Not for use by several threads.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
import weakref
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import torch

from lr.engine.request import LocalDrafts
from lr.engine.runners import CacheRecorder, Runners
from lr.errors import LRError, SettingError
from lr.model.device import own_stream, undisturbed
from lr.rng import Stream
from lr.spec.protocol import NodeId
from lr.spec.segmenters import TokenBytes
from lr.spec.write import Writing
from lr.trace import Event, ForwardPass, Trace
from lr.types import Step, require

GRACE = 2.0
"""Seconds that a worker has to end by itself before it is killed."""
SIGN_OF_LIFE = 0.2
"""Seconds after which a worker that is writing reports although no step is finished."""
Stamped = tuple[int | None, float, Event]
"""An event of a request (None: of all requests of the run) at a time of `time.perf_counter`."""


class DraftWorkerError(LRError):
    """The draft's worker could not be started, died, fell silent, or met a bug."""


class Where(Enum):
    """What a worker is. On two CPU cores a process pays, because threads would share one
    interpreter; a thread suits a draft on the target's GPU, for which it waits most of the time.
    """

    PROCESS = "process"
    THREAD = "thread"


@dataclass(frozen=True)
class DraftParts:
    """What a worker has: the runners of the draft model, and the bytes of the tokens."""

    runners: Runners
    token_bytes: TokenBytes


Load = Callable[[], DraftParts]
"""Makes the parts, in the worker. It is pickled where the worker is a process."""


# In the worker


class _Run:
    """One run: its writer, its requests by number, the events of its forwards and its cache."""

    def __init__(self, parts: DraftParts, writing: Writing, blocks: int, detailed: bool) -> None:
        self.runners, self.detailed = parts.runners, detailed
        self.trace = Trace(detailed=detailed)
        self.runner = parts.runners.lend(blocks)
        self.runner.observer = self._saw
        if detailed:
            self.runner.cache.observer = CacheRecorder(self.trace, writing.role.value)
        self.writer = writing.writer(self.runner, parts.token_bytes)
        self.role = writing.role
        self.requests: dict[int, LocalDrafts] = {}
        self.told = time.perf_counter()

    def call(self, method: str, number: int, *arguments: Any) -> None:
        if number not in self.requests:
            trace = Trace(detailed=self.detailed)
            self.requests[number] = LocalDrafts(self.writer, trace)
        getattr(self.requests[number], method)(*arguments)
        if method == "end":
            del self.requests[number]

    def news(self, *, final: bool = False) -> tuple[list[Any], list[Stamped]] | None:
        """Finished steps, each (request, node, step), and events; None if there is nothing to
        say yet.
        """
        steps = [(number, *one) for number, side in self.requests.items() for one in side.take()]
        now = time.perf_counter()
        if not steps and not final and now - self.told < SIGN_OF_LIFE:
            return None
        self.told, events = now, list[Stamped]()
        traces = [(None, self.trace), *((n, side.trace) for n, side in self.requests.items())]
        for number, trace in traces:
            events += ((number, trace.start + when, event) for when, event in trace.events)
            trace.events.clear()
        return steps, events

    def end(self) -> None:
        for side in self.requests.values():
            side.end()
        self.runners.take_back(self.runner)

    def _saw(self, branches: int, tokens: int, seconds: float) -> None:
        self.trace.record(ForwardPass(self.role, branches, tokens, seconds))


def serve(connection: Connection, load: Load) -> None:
    """The life of a worker: load, say so, then work until the other end of the connection
    closes.
    """
    runs: dict[int, _Run] = {}

    def obey(run: int, method: str, arguments: tuple[Any, ...]) -> None:
        if method == "begin":
            runs[run] = _Run(parts, *arguments)
        elif run not in runs:
            pass  # it failed, and its owner will hear of it
        elif method == "finish":
            runs.pop(run).end()
        elif method == "report":  # for tests: what is in use, after all calls so far
            connection.send((run, "news", runs[run].news(final=True)))
            used = runs[run].runner.cache.pool.num_used
            connection.send((run, "report", (used, len(runs[run].writer.live))))
        else:
            runs[run].call(method, *arguments)

    def write(run: int) -> None:
        runs[run].writer.poll()
        news = runs[run].news()
        if news is not None:
            connection.send((run, "news", news))

    def guarded(run: int, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(run, *arguments)
        except (OSError, EOFError):
            raise
        except Exception as error:
            runs.pop(run, None)  # with its runner, whose cache may hold anything now
            connection.send((run, "error", presentable(error)))

    try:
        try:
            parts = load()
        except Exception as error:
            connection.send((None, "error", presentable(error)))
            return
        connection.send((None, "ready", os.getpid()))
        with own_stream(parts.runners.model.device):
            while True:
                busy = [number for number, run in runs.items() if run.writer.busy]
                while connection.poll(0 if busy else None):
                    for run, method, arguments in connection.recv():
                        guarded(run, obey, method, arguments)
                    busy = [number for number, run in runs.items() if run.writer.busy]
                for run in busy:
                    guarded(run, write)
    except (EOFError, OSError):
        return  # the other end is gone
    finally:
        connection.close()


def presentable(error: Exception) -> Exception:
    """The error itself if it is one of ours and can be sent; else its traceback in a
    `DraftWorkerError`.
    """
    if isinstance(error, LRError):
        try:
            if str(pickle.loads(pickle.dumps(error))) == str(error):
                return error
        except Exception:
            return DraftWorkerError(f"the draft worker failed: {error}")
    return DraftWorkerError(
        "the draft worker failed:\n" + "".join(traceback.format_exception(error))
    )


def process_main(connection: Connection, load: Load, threads: int) -> None:
    """What a worker process runs. Ctrl-C is the parent's to answer: a terminal sends it to both."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    serve(connection, load)
    os._exit(0)  # there is nothing to save, and an interpreter with torch takes its time to go


# Starting and ending it


def launch(where: Where, load: Load, threads: int) -> tuple[Connection, Callable[[], None]]:
    """Start a worker, a process with so many threads of torch or a thread. Our end of the
    connection, and what ends the worker for certain (a thread ends with its forward).
    """
    if where is Where.THREAD:
        ours, theirs = multiprocessing.Pipe()
        thread = threading.Thread(target=serve, args=(theirs, load), name="lr draft", daemon=True)
        thread.start()

        def stop_thread() -> None:
            ours.close()
            thread.join(GRACE)

        return ours, stop_thread
    context = multiprocessing.get_context("spawn")  # a fork of a threaded torch may hang
    ours, theirs = context.Pipe()
    process = context.Process(
        target=process_main, args=(theirs, load, threads), name="lr draft", daemon=True
    )
    with undisturbed():
        process.start()
    theirs.close()  # so that both ends notice when the other is gone
    parent = os.getpid()

    def stop_process() -> None:
        ours.close()
        if os.getpid() != parent:
            return  # a fork of the parent that ends: the worker is not its child
        process.join(GRACE)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()

    return ours, stop_process


# Our end


class DraftWorker:
    """A worker that is started with the first run and then kept; a context manager that closes it.

    `patience`: seconds of silence while a step is awaited; `start_patience`: until the model is
    loaded. `pid`: its process, once it is ready.
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
        self.pid: int | None = None
        self._connection: Connection | None = None
        self._stop: Callable[[], None] = lambda: None
        self._runs: dict[int, RemoteRun] = {}
        self._count = 0

    def start(self) -> None:
        """Start the worker and wait until its model is loaded, if that has not been done. Raises
        `DraftWorkerError`, or what loading the model raises.
        """
        if self._connection is None:
            self._connection, stop = launch(self.where, self.load, self.threads)
            self._stop = weakref.finalize(self, stop)
        while self.pid is None:
            self.listen(self.start_patience)

    def begin(self, writing: Writing, blocks: int, *, detailed: bool = False) -> RemoteRun:
        """A new run, with a cache of at least so many blocks of 16 tokens. Starts the worker if
        need be. Raises `SettingError` if `writing` cannot be sent, and what `start` raises.
        """
        if self.where is Where.PROCESS:
            try:
                pickle.dumps(writing)
            except Exception as error:  # what pickle raises differs with the object
                raise SettingError(
                    f"the draft's settings cannot be sent to its process ({error}). Define "
                    "segmenters and drafters at the top level of a module, not as lambdas or "
                    "inside functions; or use driver lockstep."
                ) from error
        self.start()
        self._count += 1
        run = self._runs[self._count] = RemoteRun(self, self._count)
        run.call("begin", writing, blocks, detailed)
        return run

    def close(self) -> None:
        """End the worker. A later run starts a new one; present ones raise `DraftWorkerError`."""
        self._give_up(DraftWorkerError("the draft worker was closed while a run was using it."))

    def __enter__(self) -> DraftWorker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def send(self, calls: Sequence[tuple[int, str, tuple[Any, ...]]]) -> None:
        """Send calls, in order. Raises `DraftWorkerError` if the worker is gone."""
        if self._connection is None:
            raise DraftWorkerError(
                "the draft worker is gone, and with it what this run had there. Ask again."
            )
        try:
            self._connection.send(calls)
        except OSError as error:
            self._lost(f"died ({error})")
        except KeyboardInterrupt:  # it may have torn the message in two
            self.close()
            raise

    def listen(self, wait: float = 0.0, *, required: bool = True) -> None:
        """Give everything that has arrived to the runs it is for. Within `wait` seconds something
        must arrive, if that is `required`.
        """
        while self._connection is not None:
            try:
                if not self._connection.poll(wait):
                    if wait and required:
                        self._lost(f"has been silent for {wait:g} seconds")
                    return
                run, kind, content = self._connection.recv()
            except (EOFError, OSError):
                self._lost("died")
            except KeyboardInterrupt:
                self.close()
                raise
            wait = 0.0
            if kind == "ready":
                self.pid = content
            elif run is None:
                self._give_up(content)
                raise content
            elif run in self._runs:
                self._runs[run].hear(kind, content)

    def forget(self, run: RemoteRun) -> None:
        """What still arrives for this run is dropped."""
        self._runs.pop(run.number, None)

    def _lost(self, what: str) -> NoReturn:
        advice = (
            "It never became ready; use driver lockstep."
            if self.pid is None
            else "It may have been killed for memory, or hang; ask again, which starts a new one, "
            "or use driver lockstep."
        )
        error = DraftWorkerError(f"the draft worker {what}. {advice}")
        self._give_up(error)
        raise error

    def _give_up(self, error: Exception) -> None:
        for run in self._runs.values():
            run.error = error
        self._runs.clear()
        self._connection, self.pid = None, None
        self._stop()


class RemoteRun:
    """The draft of one loop, in a worker. A `Part` of the loop."""

    here = False

    def __init__(self, worker: DraftWorker, number: int) -> None:
        self.worker, self.number = worker, number
        self.error: Exception | None = None
        self.sides: dict[int, RemoteDrafts] = {}
        self.report: tuple[int, int] | None = None
        self._count = 0
        self._calls: list[tuple[int, str, tuple[Any, ...]]] = []

    @property
    def busy(self) -> bool:
        return any(side.awaited for side in self.sides.values())

    def side(self, trace: Trace) -> RemoteDrafts:
        """The draft's side of one request, whose steps are reported to `trace`."""
        self._count += 1
        side = self.sides[self._count] = RemoteDrafts(self, self._count, trace)
        return side

    def call(self, method: str, *arguments: Any) -> None:
        """Note a call for the next `flush`."""
        self._calls.append((self.number, method, arguments))

    def flush(self) -> None:
        """Send the calls. Raises what went wrong in the worker."""
        if self.error is not None:
            raise self.error
        if self._calls:
            calls, self._calls = self._calls, []
            self.worker.send(calls)

    def poll(self, wait: float | None = 0.0) -> None:
        """Take in what has arrived; `wait` None: something must arrive in the worker's patience.
        Raises what went wrong in the worker.
        """
        self.flush()
        if wait is None:
            self.worker.listen(self.worker.patience)
        else:
            self.worker.listen(wait, required=False)
        if self.error is not None:
            raise self.error

    def end(self) -> None:
        """Give up what the worker has for this run. Raises nothing."""
        try:
            self.call("finish")
            self.flush()
        except LRError:
            pass  # it was raised before: whatever is wrong, this run is over
        self.worker.forget(self)

    def used(self) -> tuple[int, int]:
        """For tests: blocks in use in the run's cache and steps in work, after all calls so far."""
        self.report = None
        self.call("report")
        while self.report is None:
            self.poll(None)
        return self.report

    def hear(self, kind: str, content: Any) -> None:
        """Take in a message of the worker."""
        if kind == "error":
            self.error = content
        elif kind == "report":
            self.report = content
        else:
            steps, events = content
            for number, node, step in steps:
                if number in self.sides:
                    self.sides[number].arrive(node, step)
            for number, when, event in events:
                self._record(number, when, event)

    def _record(self, number: int | None, when: float, event: Event) -> None:
        """A forward served all requests: each gets its share of the seconds."""
        if number is None:
            sides = list(self.sides.values())
        else:
            sides = [self.sides[number]] if number in self.sides else []
        if isinstance(event, ForwardPass) and sides:
            event = replace(event, seconds=event.seconds / len(sides))
        for side in sides:
            insert(side.trace, when, event)


@dataclass
class RemoteDrafts:
    """See `DraftSide`: every call goes to the worker, `take` gives what has arrived. `awaited`:
    steps that the worker is to write.
    """

    run: RemoteRun
    number: int
    trace: Trace
    awaited: set[NodeId] = field(default_factory=set)
    _arrived: list[tuple[NodeId, Step]] = field(default_factory=list)

    def open(self, node: NodeId, tokens: Sequence[int]) -> None:
        self.run.call("open", self.number, node, tuple(tokens))

    def draft(self, node: NodeId, parent: NodeId, limit: int, stream: Stream) -> None:
        self.awaited.add(node)
        self.run.call("draft", self.number, node, parent, limit, stream)

    def cancel(self, node: NodeId) -> None:
        self.awaited.discard(node)
        self.run.call("cancel", self.number, node)

    def follow(self, old: NodeId, new: NodeId, tokens: Sequence[int]) -> None:
        self.run.call("follow", self.number, old, new, tuple(tokens))

    def close(self, node: NodeId) -> None:
        self.run.call("close", self.number, node)

    def flush(self) -> None:
        self.run.flush()

    def end(self) -> None:
        self.awaited.clear()
        self.run.call("end", self.number)
        del self.run.sides[self.number]

    def arrive(self, node: NodeId, step: Step) -> None:
        self.awaited.discard(node)
        self._arrived.append((node, step))

    def take(self) -> list[tuple[NodeId, Step]]:
        arrived, self._arrived = self._arrived, []
        return arrived


def insert(trace: Trace, when: float, event: Event) -> None:
    """Put an event where it belongs in time. `time.perf_counter` is one clock for all processes of
    a machine; a trace by another clock gets the event now.
    """
    if trace.clock is not time.perf_counter:
        trace.record(event)
        return
    when -= trace.start
    place = bisect_right(trace.events, when, key=lambda pair: pair[0])
    trace.events.insert(place, (when, event))
