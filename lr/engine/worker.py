"""The draft's worker: a process or thread that writes draft steps while the target runs
here.

A run is one loop's use of the worker. In the worker it has a writer, a cache and one
`LocalDrafts` per request, as the loop has without a worker. Calls go there as tuples
(run, method, arguments), all calls that one event causes in one message. Finished
steps, events for the trace and errors come back. The worker also writes steps before
they are asked for (`LocalDrafts.write_ahead`).

An error in the worker is raised here, with its traceback unless it is an `LRError`, and
ends only its run. A worker that dies, cannot start or is silent for `patience` seconds
raises `DraftWorkerError` and is killed; the next run starts a new one. No run continues
with plain decoding: an answer that silently lost its draft would be a wrong
measurement.

The worker ends when its connection closes: by `close`, by the garbage collector, at
exit or, if this process is killed, by the operating system. Several threads must not
share it.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, ClassVar

import torch

from lr.engine.drafts import LocalDrafts, RemoteDrafts
from lr.engine.runner import Runners
from lr.errors import LRError, SettingError
from lr.model.device import own_stream, start_process
from lr.registry import find, load_file
from lr.spec.write import StepWriter, TokenBytes, WriterConfig
from lr.trace import ForwardPass, Trace
from lr.types import require

GRACE = 2.0  # seconds that a worker has to end by itself before it is killed
START_PATIENCE = (
    900.0  # seconds to load the model, or to begin a run with its CUDA graphs
)
SIGN_OF_LIFE = (
    0.2  # seconds after which a busy worker reports even if no step is finished
)
Parts = tuple[
    Runners, TokenBytes
]  # the draft model's runners, and the bytes of each token


class DraftWorkerError(LRError):
    """The draft's worker could not start, died, fell silent, or met a bug."""


# In the worker


class _Run:
    """One run in the worker: its writer, and its requests by number."""

    def __init__(
        self, parts: Parts, config: WriterConfig, blocks: int, detailed: bool
    ) -> None:
        (self.runners, token_bytes), self.trace = parts, Trace(detailed=detailed)
        self.runner = self.runners.lend(blocks)
        self.runner.observer = lambda *seen: self.trace.record(
            ForwardPass(config.role, *seen)
        )
        if detailed:
            recorder = find("lr.engine.recorder:CacheRecorder")
            self.runner.cache.observer = recorder(self.trace, config.role.value)
        self.writer = StepWriter(config, self.runner, token_bytes)
        self.requests: dict[int, LocalDrafts] = {}
        self.reported = time.perf_counter()

    def call(self, number: int, method: str, *arguments: Any) -> None:
        """Call a method of a request's `LocalDrafts`."""
        if number not in self.requests:
            trace = Trace(detailed=self.trace.detailed)
            self.requests[number] = LocalDrafts(self.writer, trace)
        getattr(self.requests[number], method)(*arguments)
        if method == "end":
            del self.requests[number]

    @property
    def busy(self) -> bool:
        """Whether there is something to write. Steps that are not asked for yet come
        last."""
        for side in () if self.writer.busy else self.requests.values():
            side.write_ahead()
        return self.writer.busy

    def write(self) -> tuple[list[Any], list[Any]] | None:
        """Run one forward. Returns finished steps, each (request, `Written`), and
        events, each (request, or None for all; time; event); or None if there is
        nothing to report yet.
        """
        self.writer.poll()
        steps = [
            (number, one)
            for number, side in self.requests.items()
            for one in side.take()
        ]
        now = time.perf_counter()
        if not steps and now - self.reported < SIGN_OF_LIFE:
            return None
        self.reported, events = now, []
        traces = [
            (None, self.trace),
            *((n, side.trace) for n, side in self.requests.items()),
        ]
        for number, trace in traces:
            events += [
                (number, trace.start + when, event) for when, event in trace.events
            ]
            trace.events.clear()
        return steps, events

    def finish(self) -> None:
        for side in self.requests.values():
            side.end()
        self.runners.take_back(self.runner)


def serve(connection: Connection, load: Callable[[], Parts]) -> None:
    """The worker's life: load the model, then work until the other end of the
    connection closes."""
    runs: dict[int, _Run] = {}

    def obey(number: int, method: str, *arguments: Any) -> None:
        """Carry out a call. An error ends the run, whose cache may be broken and is not
        reused."""
        try:
            if method == "begin":
                file, config, *how = arguments
                if file is not None:
                    load_file(file)  # the pickled config refers to it
                made = runs[number] = _Run(parts, pickle.loads(config), *how)
                connection.send((number, "begun", made.runner.failure))
            elif number in runs:  # otherwise it has failed, and its error is on the way
                run = runs.pop(number) if method == "finish" else runs[number]
                if (news := getattr(run, method)(*arguments)) is not None:
                    connection.send((number, "news", news))
        except Exception as error:
            runs.pop(number, None)
            connection.send((number, "error", presentable(error)))

    with (
        suppress(EOFError, OSError),
        closing(connection),
    ):  # raised if the other end is gone
        try:
            parts = load()
            connection.send((None, "ready", os.getpid()))
            with own_stream(parts[0].model.device) as stream, stream():
                while True:
                    busy = [number for number, run in runs.items() if run.busy]
                    if connection.poll(0 if busy else None):
                        for call in connection.recv():
                            obey(*call)
                    else:
                        for number in busy:
                            obey(number, "write")
        except (
            Exception
        ) as error:  # the model did not load, or a message cannot be unpickled here
            connection.send((None, "error", presentable(error)))


def presentable(error: Exception) -> Exception:
    """The error itself if it is one of ours; else a `DraftWorkerError` with its
    traceback."""
    if isinstance(error, LRError) and type(error).__module__.startswith("lr."):
        return error
    trace = "".join(traceback.format_exception(error))
    return DraftWorkerError(f"the draft worker failed:\n{trace}")


def process_main(connection: Connection, load: Callable[[], Parts]) -> None:
    """The main function of a worker process. The parent handles Ctrl-C, which reaches
    both."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    serve(connection, load)
    os._exit(
        0
    )  # nothing needs saving, and an interpreter with torch takes long to exit


# In this process


def launch(
    load: Callable[[], Parts], *, as_thread: bool
) -> tuple[Connection, Callable[[], None]]:
    """Start a worker. Returns this end of the connection and a function that ends the
    worker."""
    ours, theirs = Pipe()
    name, parent = "lr draft", os.getpid()
    if as_thread:
        thread = threading.Thread(
            target=serve, args=(theirs, load), name=name, daemon=True
        )
        thread.start()
    else:
        process = start_process(process_main, theirs, load, name=name)
        theirs.close()  # so that each end notices when the other is gone

    def stop() -> None:
        ours.close()
        if as_thread:
            thread.join(GRACE)
        elif (
            os.getpid() == parent
        ):  # not in a fork of the parent, whose child the worker is not
            process.join(GRACE)
            process.kill()
            process.join()
            process.close()

    return ours, stop


class DraftWorker:
    """A worker that starts with the first run and is then kept: a process, because
    threads share one interpreter, or a thread if the target is on the same GPU
    (`DeviceMap.shares_gpu`).

    `load` makes the parts, in the worker. `patience`: the longest silence, in seconds,
    while a step is awaited. `pid`: the worker's process, once it is ready. `runs`: by
    number.
    """

    def __init__(
        self,
        load: Callable[[], Parts],
        *,
        as_thread: bool = False,
        patience: float = 120.0,
    ) -> None:
        require(patience > 0, "patience", patience, "a number of seconds > 0")
        self.load, self.as_thread, self.patience = load, as_thread, patience
        self.pid: int | None = None
        self.runs: dict[int, RemoteRun] = {}
        self.numbers = count()  # of runs and of requests
        self._connection: Connection | None = None
        self._stop: Callable[[], object] = lambda: None
        self._error: Exception | None = None  # why the last worker was given up

    def start(self) -> None:
        """Start the worker, if need be, and wait for its model. Raises what loading it
        raises."""
        if self._connection is None:
            self._error = None
            self._connection, stop = launch(self.load, as_thread=self.as_thread)
            self._stop = weakref.finalize(self, stop)
        while self.pid is None:
            self.listen(START_PATIENCE)
            if self._error is not None:
                raise self._error

    def begin(
        self,
        config: WriterConfig,
        blocks: int,
        *,
        detailed: bool = False,
        file: str | None = None,
    ) -> RemoteRun:
        """A new run, with a cache of at least `blocks` blocks of 16 tokens. `file`
        defines a part of `config`, unless a module does. Raises as `start`, and what
        fails in the worker.
        """
        try:
            sent = pickle.dumps(config)
            if b"__main__" in sent and not self.as_thread:
                raise SettingError(
                    "a part of them is defined in the script that is run"
                )
        except Exception as error:  # what pickle raises depends on the object
            raise SettingError(
                f"the draft's settings cannot be sent to its process ({error}). Define segmenters "
                "and drafters at the top level of a module, not as lambdas or inside functions; or "
                "use driver lockstep."
            ) from error
        self.start()
        number = next(self.numbers)
        run = self.runs[number] = RemoteRun(self, number)
        run.calls.append((number, "begin", file, sent, blocks, detailed))
        while (
            not run.begun
        ):  # no graph may be recorded there while the target runs here
            run.poll(None)
        return run

    def close(self) -> None:
        """End the worker. Unfinished runs raise `DraftWorkerError`; the next run starts
        another."""
        self._give_up(
            DraftWorkerError("the draft worker was closed while a run was using it.")
        )

    def listen(self, wait: float, *, required: bool = True) -> None:
        """Pass on what arrives within `wait` seconds. If `required`, silence ends the
        worker."""
        with self.connected() as connection:
            while self._connection is not None and connection.poll(wait):
                run, kind, content = connection.recv()
                wait, required = 0.0, False
                if kind == "ready":
                    self.pid = content
                elif run is None:
                    self._give_up(content)
                elif run in self.runs:
                    self.runs[run].hear(kind, content)
            if required:
                self._lose(f"has been silent for {wait:g} seconds")

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """The connection, for one use. If it breaks, the worker is given up."""
        assert self._connection is not None, "a run without a worker has an error"
        try:
            yield self._connection
        except (EOFError, OSError):
            self._lose("died")
        except KeyboardInterrupt:  # a message may be half sent or half read
            self.close()
            raise

    def _lose(self, what: str) -> None:
        advice = "It may have been killed for memory, or hang; ask again to start a new one, or"
        if self.pid is None:
            advice = "It never became ready;"
        self._give_up(
            DraftWorkerError(f"the draft worker {what}. {advice} use driver lockstep.")
        )

    def _give_up(self, error: Exception) -> None:
        """End the worker. Its runs raise `error` at their next `poll`."""
        for run in self.runs.values():
            run.error = error
        self.runs.clear()
        self._connection, self.pid, self._error = None, None, error
        self._stop()


@dataclass
class RemoteRun:
    """The draft of one loop, in a worker: a `Part` of the loop. `sides`: by number."""

    worker: DraftWorker
    number: int
    error: Exception | None = None
    begun: bool = False
    failure: str | None = None  # of its runner
    sides: dict[int, RemoteDrafts] = field(default_factory=dict)
    calls: list[tuple[Any, ...]] = field(default_factory=list)  # not sent yet
    here: ClassVar[bool] = False

    @property
    def busy(self) -> bool:
        return any(side.awaited - side.arrived.keys() for side in self.sides.values())

    def side(self, trace: Trace) -> RemoteDrafts:
        """The draft's side of one request, which reports to `trace`."""
        number = next(self.worker.numbers)
        side = self.sides[number] = RemoteDrafts(self, number, trace)
        return side

    def flush(self) -> None:
        """Send the calls in one message: between two, the worker might begin a step
        that the second forbids. Errors are raised by the next `poll`.
        """
        calls, self.calls = self.calls, []
        if calls and self.error is None:
            with self.worker.connected() as connection:
                connection.send(calls)

    def poll(self, wait: float | None = 0.0) -> None:
        """Take in what arrives within `wait` seconds (None: something must). Raises its
        errors."""
        self.flush()
        if self.error is None:
            patience = self.worker.patience if self.begun else START_PATIENCE
            self.worker.listen(
                patience if wait is None else wait, required=wait is None
            )
        if self.error is not None:
            raise self.error

    def end(self) -> None:
        """Free what the worker holds for this run. Raises nothing."""
        self.calls.append((self.number, "finish"))
        self.flush()
        self.worker.runs.pop(self.number, None)  # drops what still arrives for it

    def hear(self, kind: str, content: Any) -> None:
        """Take in a message. A forward served all requests: each trace gets its
        share."""
        if kind == "begun":
            self.begun, self.failure = True, content
        elif kind == "error":
            self.error = content
            del self.worker.runs[self.number]
        else:
            steps, events = content
            for number, written in steps:
                if number in self.sides:
                    self.sides[number].arrived[written.node] = written
            for number, when, event in events:
                if isinstance(event, ForwardPass) and self.sides:
                    event = replace(event, seconds=event.seconds / len(self.sides))
                for side in self.sides.values():
                    if number in (
                        None,
                        side.number,
                    ):  # one clock serves the whole machine
                        side.trace.events.append((when - side.trace.start, event))
