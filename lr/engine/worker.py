"""The draft's worker: a process or a thread that writes drafts while the target runs here.

Calls go there as tuples (run, method, arguments), all that one event leads to in one message;
steps, events for the trace and errors come back. A run is one loop's use of the worker: it has a
writer and a cache there, and any number of requests, each a `LocalDrafts`, the very object that the
loop uses without a worker. Only here it also writes steps before they are asked for
(`LocalDrafts.write_ahead`).

An error there is raised here, with the worker's traceback if it is not one of ours, and costs that
run only. A worker that dies, cannot be started or is silent for `patience` seconds raises
`DraftWorkerError` and is killed; the next run starts a new one. Plain decoding does not take its
place: an answer that silently lost its draft is a wrong measurement.

The worker ends when its connection closes: by `close`, by the garbage collector, at exit, and,
whatever kills this process, by the operating system. Not for use by several threads.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, ClassVar, NoReturn

import torch

from lr.engine.drafts import LocalDrafts, Streams, Written
from lr.engine.runner import Runners
from lr.errors import LRError, SettingError
from lr.model.device import own_stream, start_process
from lr.registry import find, load_file
from lr.spec.protocol import NodeId
from lr.spec.write import StepWriter, TokenBytes, WriterConfig
from lr.trace import ForwardPass, Trace
from lr.types import Step, require

GRACE = 2.0
"""Seconds that a worker has to end by itself before it is killed."""
START_PATIENCE = 900.0
"""Seconds within which its model must be loaded, and a run begun, with its CUDA graphs."""
SIGN_OF_LIFE = 0.2
"""Seconds after which a worker that is writing reports although no step is finished."""


class DraftWorkerError(LRError):
    """The draft's worker could not be started, died, fell silent, or met a bug."""


Parts = tuple[Runners, TokenBytes]
"""What a worker has: the runners of the draft model, and the bytes of the tokens."""
LoadParts = Callable[[], Parts]
"""Makes the parts, in the worker. It is pickled where the worker is a process."""


# In the worker


class _Run:
    """One run: its writer, its requests by number, the events of its forwards and its cache."""

    def __init__(self, parts: Parts, config: WriterConfig, blocks: int, detailed: bool) -> None:
        (self.runners, token_bytes), self.trace = parts, Trace(detailed=detailed)
        self.runner = self.runners.lend(blocks)
        self.runner.observer = lambda *seen: self.trace.record(ForwardPass(config.role, *seen))
        if detailed:
            recorder = find("lr.lab.trace.cache:CacheRecorder")
            self.runner.cache.observer = recorder(self.trace, config.role.value)
        self.writer = StepWriter(config, self.runner, token_bytes)
        self.requests: dict[int, LocalDrafts] = {}
        self.told = time.perf_counter()

    def call(self, number: int, method: str, *arguments: Any) -> None:
        """A request's call of a method of its `LocalDrafts`."""
        if number not in self.requests:
            trace = Trace(detailed=self.trace.detailed)
            self.requests[number] = LocalDrafts(self.writer, trace)
        getattr(self.requests[number], method)(*arguments)
        if method == "end":
            del self.requests[number]

    @property
    def busy(self) -> bool:
        """Whether there is something to write; what nobody has asked for comes last."""
        for side in () if self.writer.busy else self.requests.values():
            side.write_ahead()
        return self.writer.busy

    def write(self) -> tuple[list[Any], list[Any]] | None:
        """One forward. Then what there is to say: finished steps, each (request, `Written`), and
        events, each (request, or None for all; time; event). None: nothing yet.
        """
        self.writer.poll()
        steps = [(number, one) for number, side in self.requests.items() for one in side.take()]
        now = time.perf_counter()
        if not steps and now - self.told < SIGN_OF_LIFE:
            return None
        self.told, events = now, []
        traces = [(None, self.trace), *((n, side.trace) for n, side in self.requests.items())]
        for number, trace in traces:
            events += [(number, trace.start + when, event) for when, event in trace.events]
            trace.events.clear()
        return steps, events

    def finish(self) -> None:
        for side in self.requests.values():
            side.end()
        self.runners.take_back(self.runner)


def serve(connection: Connection, load: LoadParts) -> None:
    """The life of a worker: load, then work until the other end of the connection closes."""
    runs: dict[int, _Run] = {}

    def obey(number: int, method: str, *arguments: Any) -> None:
        """What fails costs the run, with its runner, whose cache may hold anything then."""
        try:
            if method == "begin":
                file, config, *how = arguments
                if file is not None:
                    load_file(file)
                made = runs[number] = _Run(parts, pickle.loads(config), *how)
                connection.send((number, "begun", made.runner.failure))
            elif number in runs:  # else it failed, and its owner will hear of it
                run = runs.pop(number) if method == "finish" else runs[number]
                if (news := getattr(run, method)(*arguments)) is not None:
                    connection.send((number, "news", news))
        except (OSError, EOFError):
            raise
        except Exception as error:
            runs.pop(number, None)
            connection.send((number, "error", presentable(error)))

    with suppress(EOFError, OSError), closing(connection):  # raised when the other end is gone
        try:
            parts = load()
            connection.send((None, "ready", os.getpid()))
            with own_stream(parts[0].model.device) as beside, beside():
                while True:
                    busy = [number for number, run in runs.items() if run.busy]
                    if connection.poll(0 if busy else None):
                        for call in connection.recv():
                            obey(*call)
                    else:
                        for number in busy:
                            obey(number, "write")
        except Exception as error:  # there is no model, or a part of what was sent is not here
            connection.send((None, "error", presentable(error)))


def presentable(error: Exception) -> Exception:
    """The error itself if it is one of ours; else its traceback in a `DraftWorkerError`."""
    if isinstance(error, LRError) and type(error).__module__.startswith("lr."):
        return error
    trace = "".join(traceback.format_exception(error))
    return DraftWorkerError(f"the draft worker failed:\n{trace}")


def process_main(connection: Connection, load: LoadParts) -> None:
    """What a worker process runs. Ctrl-C is the parent's to answer: a terminal sends it to both."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    serve(connection, load)
    os._exit(0)  # there is nothing to save, and an interpreter with torch takes its time to go


# Our end


def launch(load: LoadParts, *, as_thread: bool) -> tuple[Connection, Callable[[], None]]:
    """Start a worker: our end of the connection, and what ends the worker for certain."""
    ours, theirs = Pipe()
    name, parent = "lr draft", os.getpid()
    if as_thread:
        thread = threading.Thread(target=serve, args=(theirs, load), name=name, daemon=True)
        thread.start()
    else:
        process = start_process(process_main, theirs, load, name=name)
        theirs.close()  # so that both ends notice when the other is gone

    def stop() -> None:
        ours.close()
        if as_thread:
            thread.join(GRACE)
        elif os.getpid() == parent:  # not a fork of the parent, whose child the worker is not
            process.join(GRACE)
            process.kill()
            process.join()
            process.close()

    return ours, stop


class DraftWorker:
    """A worker that is started with the first run and then kept: a process, since threads would
    share one interpreter, or beside a target on one GPU a thread (`DeviceMap.shares_gpu`).
    `patience`: seconds of silence while a step is awaited. `pid`: its process, once it is ready.
    `runs`: by their numbers.
    """

    def __init__(
        self, load: LoadParts, *, as_thread: bool = False, patience: float = 120.0
    ) -> None:
        require(patience > 0, "patience", patience, "a number of seconds > 0")
        self.load, self.as_thread, self.patience = load, as_thread, patience
        self.pid: int | None = None
        self._connection: Connection | None = None
        self._stop: Callable[[], None] = lambda: None
        self.runs: dict[int, RemoteRun] = {}
        self.numbers = count()  # of runs and of their sides

    def start(self) -> None:
        """Start the worker, if need be, and wait for its model. Raises what loading it raises."""
        if self._connection is None:
            self._connection, stop = launch(self.load, as_thread=self.as_thread)
            self._stop = weakref.finalize(self, stop)
        while self.pid is None:
            self.listen(START_PATIENCE)

    def begin(
        self, config: WriterConfig, blocks: int, *, detailed: bool = False, file: str | None = None
    ) -> RemoteRun:
        """A new run, with a cache of at least so many blocks of 16 tokens. `file`: where a part of
        `config` is defined, if not in a module. Raises as `start`, and what it raises there.
        """
        try:
            sent = pickle.dumps(config)
            if b"__main__" in sent and not self.as_thread:
                raise SettingError("a part of them is defined in the script that is run")
        except Exception as error:  # what pickle raises differs with the object
            raise SettingError(
                f"the draft's settings cannot be sent to its process ({error}). Define segmenters "
                "and drafters at the top level of a module, not as lambdas or inside functions; or "
                "use driver lockstep."
            ) from error
        self.start()
        number = next(self.numbers)
        run = self.runs[number] = RemoteRun(self, number)
        run.call("begin", file, sent, blocks, detailed)  # the file first: it unpacks what is sent
        while not run.begun:  # it records CUDA graphs, and not while the target runs here
            run.poll(None)
        return run

    def close(self) -> None:
        """End the worker. A later run starts a new one; present ones raise `DraftWorkerError`."""
        self._give_up(DraftWorkerError("the draft worker was closed while a run was using it."))

    def listen(self, wait: float, *, required: bool = True) -> None:
        """Give what has arrived to its runs. If `required`, something must in `wait` seconds."""
        while self._connection is not None:
            with self.connected() as connection:
                if not connection.poll(wait):
                    if wait and required:
                        self._lost(f"has been silent for {wait:g} seconds")
                    return
                run, kind, content = connection.recv()
            wait = 0.0
            if kind == "ready":
                self.pid = content
            elif run is None:
                self._give_up(content)
                raise content
            elif run in self.runs:
                self.runs[run].hear(kind, content)

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """The connection, for one use. Raises `DraftWorkerError` if the worker has died."""
        assert self._connection is not None, "a run without a worker has an error"
        try:
            yield self._connection
        except (EOFError, OSError):
            self._lost("died")
        except KeyboardInterrupt:  # it may have torn a message in two
            self.close()
            raise

    def _lost(self, what: str) -> NoReturn:
        advice = "It may have been killed for memory, or hang; ask again to start a new one, or"
        if self.pid is None:
            advice = "It never became ready;"
        error = DraftWorkerError(f"the draft worker {what}. {advice} use driver lockstep.")
        self._give_up(error)
        raise error

    def _give_up(self, error: Exception) -> None:
        for run in self.runs.values():
            run.error = error
        self.runs.clear()
        self._connection, self.pid = None, None
        self._stop()


@dataclass
class RemoteRun:
    """The draft of one loop, in a worker. A `Part` of the loop. `sides`: by their numbers."""

    worker: DraftWorker
    number: int
    error: Exception | None = None
    begun: bool = False
    failure: str | None = None  # as of its runner
    sides: dict[int, RemoteDrafts] = field(default_factory=dict)
    here: ClassVar[bool] = False
    _calls: list[tuple[Any, ...]] = field(default_factory=list)

    @property
    def busy(self) -> bool:
        return any(side.awaited - side.arrived.keys() for side in self.sides.values())

    def side(self, trace: Trace) -> RemoteDrafts:
        """The draft's side of one request, whose steps are reported to `trace`."""
        number = next(self.worker.numbers)
        side = self.sides[number] = RemoteDrafts(self, number, trace)
        return side

    def call(self, method: str, *arguments: Any) -> None:
        """Have this done there, after the next `flush`."""
        self._calls.append((self.number, method, *arguments))

    def flush(self) -> None:
        """Send the calls together: between two of them the worker would begin steps that the second
        forbids. What goes wrong is raised by the next `poll`.
        """
        calls, self._calls = self._calls, []
        if calls and self.error is None:
            with suppress(DraftWorkerError), self.worker.connected() as connection:
                connection.send(calls)

    def poll(self, wait: float | None = 0.0) -> None:
        """Take in what has arrived (`wait` None: something must). Raises what went wrong there."""
        self.flush()
        if self.error is None:
            patience = self.worker.patience if self.begun else START_PATIENCE
            self.worker.listen(patience if wait is None else wait, required=wait is None)
        if self.error is not None:
            raise self.error

    def end(self) -> None:
        """Give up what the worker has for this run. Raises nothing."""
        self.call("finish")
        self.flush()
        self.worker.runs.pop(self.number, None)  # what still arrives for it is dropped

    def hear(self, kind: str, content: Any) -> None:
        """Take in a message. A forward served all requests: each trace gets its share."""
        if kind == "begun":
            self.begun, self.failure = True, content
            return
        if kind == "error":
            self.error = content
            self.worker.runs.pop(self.number, None)
            return
        steps, events = content
        for number, written in steps:
            if number in self.sides:
                self.sides[number].arrived[written.node] = written
        for number, when, event in events:
            if isinstance(event, ForwardPass) and self.sides:
                event = replace(event, seconds=event.seconds / len(self.sides))
            for side in self.sides.values():
                if number in (None, side.number):  # one clock serves a whole machine
                    side.trace.events.append((when - side.trace.start, event))


@dataclass
class RemoteDrafts:
    """As `LocalDrafts`: every call goes to the worker. `awaited`: steps that were asked for and not
    taken yet; `arrived`: steps that have come and were not taken, some before they are asked for.
    """

    run: RemoteRun
    number: int
    trace: Trace
    awaited: set[NodeId] = field(default_factory=set)
    arrived: dict[NodeId, Written] = field(default_factory=dict)

    def _call(self, method: str, *arguments: Any) -> None:
        self.run.call("call", self.number, method, *arguments)

    def open(self, node: NodeId, tokens: Sequence[int], streams: Streams) -> None:
        self._call("open", node, tuple(tokens), streams)

    def draft(
        self, parent: NodeId, limit: int, children: Sequence[NodeId], steps: Mapping[NodeId, Step]
    ) -> None:
        self.awaited |= set(children) - set(steps)
        self._call("draft", parent, limit, children, steps)

    def cancel(self, node: NodeId) -> None:
        self.awaited.discard(node)
        self._call("cancel", node)

    def follow(self, old: NodeId, new: NodeId, tokens: Sequence[int]) -> None:
        self.arrived.clear()  # the tree begins anew
        self._call("follow", old, new, tuple(tokens))

    def close(self, node: NodeId) -> None:
        self._call("close", node)

    def end(self) -> None:
        self.awaited.clear()
        self._call("end")
        del self.run.sides[self.number]

    def take(self) -> list[Written]:
        ready = [node for node in self.arrived if node in self.awaited]
        self.awaited.difference_update(ready)
        return [self.arrived.pop(node) for node in ready]
