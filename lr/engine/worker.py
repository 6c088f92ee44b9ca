"""The draft's worker: a process or thread that writes draft steps while the target runs
here.

There, each answer has a `Side` as it has one here without a worker. Here, `RemoteSide`
has the same methods and posts the calls. Four messages are all that the two say to each
other: `Begin`, `Call` and `End` there, `News` here. All calls that one event
causes are sent together: between two of them the worker might begin a step that the
second one forbids.

An error in the worker is raised here, with its traceback unless it is an `LRError`, and
ends only its loop. A worker that dies raises `DraftWorkerError` with its exit code; the
next loop starts a new one. No answer goes on with plain decoding: an answer that lost
its draft without a word would be a wrong measurement.

The worker ends when its connection closes: by `close`, by the garbage collector, at
exit or, if this process is killed, by the operating system. One loop at a time uses a
worker. Several threads must not share it.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch

from lr.engine.loading import Loader
from lr.engine.recorder import CacheRecorder
from lr.engine.runner import Runners
from lr.engine.side import Side, Written
from lr.errors import LRError, SettingError
from lr.model.device import own_stream, start_process
from lr.registry import load_file
from lr.rng import Stream
from lr.spec.protocol import Limits, NodeId
from lr.spec.write import StepJob, StepWriter, TokenBytes, WriterConfig
from lr.trace import ForwardPass, Trace
from lr.types import Finish

GRACE = 2.0  # seconds that a worker has to end by itself before it is killed
BEYOND = 2  # steps that a process may write beyond the window of the schedule
Parts = tuple[Runners, TokenBytes]
"""The draft model's runners, and the bytes of each token."""


class DraftWorkerError(LRError):
    """The draft's worker could not start, died, or met a bug."""


@dataclass(frozen=True)
class DraftCheckpoint:
    """The draft that a process loads for itself. `pieces`: the bytes of each token, by
    id."""

    loader: Loader
    name: str | Path
    device: torch.device
    pieces: tuple[bytes, ...] = ()
    known_tokens: int | None = None
    num_blocks: int | None = None

    def __call__(self) -> Parts:
        model = self.loader.load(self.name, self.device)
        runners = Runners(model, len(self.pieces), self.known_tokens, self.num_blocks)
        return runners, self.pieces.__getitem__


# The four messages


@dataclass(frozen=True)
class Begin:
    """To the worker: a loop begins. `config`: a pickled `WriterConfig`, whose parts
    `plugin`, a file, may define."""

    config: bytes
    plugin: str | None
    blocks: int
    detailed: bool


@dataclass(frozen=True)
class Call:
    """To the worker: call a method of `Side` for an answer. `ahead` comes with the
    first call if steps may be written before they are asked for."""

    answer: int
    method: Callable[..., None]
    arguments: tuple[Any, ...]
    ahead: StepsAhead | None = None


@dataclass(frozen=True)
class End:
    """To the worker: the loop is over."""


@dataclass(frozen=True)
class News:
    """From the worker: steps, each with its answer, and events, each with its answer
    (None: for all) and its time. `graph_failure`: why CUDA graphs could not be
    recorded. `error`: the loop is over, or the model could not be loaded."""

    steps: list[tuple[int, Written]] = field(default_factory=list)
    events: list[tuple[int | None, float, object]] = field(default_factory=list)
    graph_failure: str | None = None
    error: Exception | None = None


# In the worker


@dataclass(frozen=True)
class StepsAhead:
    """What is needed to write draft steps before they are asked for: the randomness of
    the draft's steps in this answer, its limits, and how many steps may be written
    below the root."""

    stream: Stream
    limits: Limits
    window: int


@dataclass(eq=False)
class AheadWriter:
    """Writes the step that is asked for next unless a draft is rejected, while nothing
    else is to be done. Its name, randomness and limit are known, so the draft need not
    wait for the end of the target's forward."""

    side: Side
    settings: StepsAhead
    prompt: int  # tokens before the answer
    last: NodeId | None = None  # the node to which the last finished step leads
    unasked: dict[NodeId, StepJob] = field(default_factory=dict)

    def begin(self) -> None:
        """Begin the next step, and drop those whose parent has left the tree."""
        side = self.side
        for node in [n for n in self.unasked if n.parent(1) not in side.branches]:
            del self.unasked[node]
            side.cancel(node)
            side.close(node)
        parent = self.last
        if parent not in side.branches or len(side.branches) > self.settings.window:
            return
        node = parent.child(0, 1)
        length = len(side.branches[parent])
        limit = self.settings.limits.step_limit(length - self.prompt)
        if node not in side.branches and limit > 0:
            side.fork(parent, node, length)
            stream = self.settings.stream.fold_in(parent.index)
            side.write(node, parent.index, limit, stream)
            self.unasked[node] = side.jobs[node]
            unseen = Trace()  # the answer's trace shows only what was asked for
            unseen.start = side.trace.start
            side.jobs[node].trace = unseen

    def is_asked_for(self, node: NodeId) -> None:
        """From now on the step to `node` is one like any other."""
        job = self.unasked.pop(node)
        self.side.trace.events += job.trace.events
        job.trace = self.side.trace


class Drafting:
    """One loop in the worker: its writer, and a side per answer."""

    def __init__(self, parts: Parts, begin: Begin) -> None:
        if begin.plugin is not None:
            load_file(begin.plugin)  # the pickled settings refer to it
        config: WriterConfig = pickle.loads(begin.config)
        self.runners, token_bytes = parts
        self.trace = Trace(detailed=begin.detailed)
        self.runner = self.runners.lend(begin.blocks)
        self.runner.observer = lambda *forward: self.trace.record(
            ForwardPass(config.role, *forward)
        )
        if begin.detailed:
            self.runner.cache.observer = CacheRecorder(self.trace, config.role.value)
        self.writer = StepWriter(config, self.runner, token_bytes)
        self.sides: dict[int, Side] = {}
        self.ahead: dict[int, AheadWriter] = {}

    def carry_out(self, call: Call) -> None:
        """Call a method of an answer's side, unless what it asks for is done."""
        answer = call.answer
        if answer not in self.sides:
            trace = Trace(detailed=self.trace.detailed)
            self.sides[answer] = Side(self.writer, trace)
            if call.ahead is not None:
                prompt = len(call.arguments[1])
                side = self.sides[answer]
                self.ahead[answer] = AheadWriter(side, call.ahead, prompt)
        side, ahead = self.sides[answer], self.ahead.get(answer)
        if call.method is Side.end:
            side.end()
            del self.sides[answer]
            self.ahead.pop(answer, None)
        elif ahead is not None and call.method is Side.fork:
            node = call.arguments[1]
            if node not in ahead.unasked:
                side.fork(*call.arguments)
        elif ahead is not None and call.method is Side.write:
            node = call.arguments[0]
            if node in ahead.unasked:
                ahead.is_asked_for(node)
            else:
                side.write(*call.arguments)
        else:
            call.method(side, *call.arguments)

    @property
    def busy(self) -> bool:
        """Whether there is something to write. Steps that nobody has asked for come
        last."""
        if not self.writer.busy:
            for ahead in self.ahead.values():
                ahead.begin()
        return self.writer.busy

    def write(self) -> News | None:
        """Run one forward. None: no step is finished."""
        self.writer.poll()
        steps = []
        for answer, side in self.sides.items():
            for written in side.take():
                steps.append((answer, written))
                if answer in self.ahead:
                    goes_on = written.step.finish is Finish.BOUNDARY
                    self.ahead[answer].last = written.node if goes_on else None
        return News(steps, self._events()) if steps else None

    def _events(self) -> list[tuple[int | None, float, object]]:
        """The new events of all traces. One clock serves the whole machine."""
        traces: list[tuple[int | None, Trace]] = [(None, self.trace)]
        traces += [(answer, side.trace) for answer, side in self.sides.items()]
        events = []
        for answer, trace in traces:
            events += [
                (answer, trace.start + time, event) for time, event in trace.events
            ]
            trace.events.clear()
        return events

    def end(self) -> None:
        for side in self.sides.values():
            side.end()
        self.runners.take_back(self.runner)


def serve(connection: Connection, load: Callable[[], Parts]) -> None:
    """The worker's life: load the model, then work until the other end of the
    connection closes."""
    with suppress(EOFError, OSError), closing(connection):
        try:
            parts = load()
        except Exception as error:
            connection.send(News(error=presentable(error)))
            return
        connection.send(News())
        with own_stream(parts[0].model.device) as stream, stream():
            work(connection, parts)


def work(connection: Connection, parts: Parts) -> None:
    """Obey messages and, in between, write. Ends by the error that a closed connection
    raises."""
    drafting: Drafting | None = None
    while True:
        try:
            if drafting is None or not drafting.busy or connection.poll():
                for message in connection.recv():
                    if isinstance(message, Begin):
                        drafting = Drafting(parts, message)
                        failure = drafting.runner.failure
                        connection.send(News(graph_failure=failure))
                    elif drafting is None:
                        pass  # its loop has failed already
                    elif isinstance(message, Call):
                        drafting.carry_out(message)
                    else:
                        drafting.end()
                        drafting = None
            elif news := drafting.write():
                connection.send(news)
        except (EOFError, OSError):
            if drafting is not None:
                drafting.end()
            raise
        except Exception as error:  # the cache may be broken, so it is not used again
            drafting = None
            connection.send(News(error=presentable(error)))


def presentable(error: Exception) -> Exception:
    """The error itself if it is one of ours; else a `DraftWorkerError` with its
    traceback."""
    if isinstance(error, LRError) and type(error).__module__.startswith("lr."):
        return error
    trace = "".join(traceback.format_exception(error))
    return DraftWorkerError(f"the draft's worker failed:\n{trace}")


def process_main(connection: Connection, load: Callable[[], Parts]) -> None:
    """The main function of a worker process. The parent handles Ctrl-C, which reaches
    both."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    serve(connection, load)
    os._exit(0)  # nothing needs saving, and an interpreter with torch exits slowly


# In this process


class DraftWorker:
    """A worker that starts with the first loop and is then kept: a process, because
    threads share one interpreter, or a thread if the target is on the same GPU
    (`DeviceMap.shares_gpu`). `load` makes its parts. `pid`: its process.
    """

    def __init__(self, load: Callable[[], Parts], *, as_thread: bool = False) -> None:
        self.load = load
        self.as_thread = as_thread
        self.pid: int | None = None
        self.writer: RemoteWriter | None = None  # of the loop that uses the worker
        self._connection: Connection | None = None
        self._process: SpawnProcess | None = None
        self._stop: weakref.finalize[[], DraftWorker] | None = None

    def start(self) -> None:
        """Start the worker, if need be, and wait for its model. Raises what loading it
        raises."""
        if self._connection is not None:
            return
        self._connection, theirs = Pipe()
        if self.as_thread:
            thread = threading.Thread(
                target=serve, args=(theirs, self.load), name="lr draft", daemon=True
            )
            thread.start()
            self.pid = os.getpid()
            stop = partial(stop_thread, self._connection, thread)
        else:
            process = start_process(process_main, theirs, self.load, name="lr draft")
            theirs.close()  # so that each end notices when the other is gone
            self._process = process
            self.pid = process.pid
            stop = partial(stop_process, self._connection, process, os.getpid())
        self._stop = weakref.finalize(self, stop)
        try:
            self.receive(None)
        except BaseException:
            self.close()
            raise

    def begin(
        self,
        config: WriterConfig,
        blocks: int,
        *,
        detailed: bool = False,
        plugin: str | None = None,
    ) -> RemoteWriter:
        """The draft's writer for a new loop, with a cache of at least `blocks` blocks
        of 16 tokens. `plugin` is the file that defines parts of `config`, unless a
        module does. Raises as `start`, and what fails in the worker.
        """
        if self.writer is not None:
            raise SettingError(
                "the draft's worker is in use by another answer; finish that one first, or use "
                "driver lockstep."
            )
        try:
            pickled = pickle.dumps(config)
        except Exception as error:  # what pickle raises depends on the object
            raise SettingError(
                f"the draft's settings cannot be sent to its process ({error}). Define segmenters "
                "and rules at the top level of a module, not as lambdas or inside functions; or "
                "use driver lockstep."
            ) from error
        self.start()
        self.send([Begin(pickled, plugin, blocks, detailed)])
        # No graph may be recorded there while the target runs here, so wait.
        begun = self.receive(None)
        assert begun is not None
        self.writer = RemoteWriter(self, begun.graph_failure)
        return self.writer

    def close(self) -> None:
        """End the worker. An unfinished loop raises `DraftWorkerError`; the next one
        starts another."""
        self._connection = None
        self._process = None
        self.pid = None
        if self._stop is not None:
            self._stop()
            self._stop = None

    def send(self, messages: Sequence[Begin | Call | End]) -> None:
        with self._connected() as connection:
            connection.send(messages)

    def receive(self, wait: float | None) -> News | None:
        """What has arrived after at most `wait` seconds (None: however long it takes).
        Raises the worker's errors."""
        with self._connected() as connection:
            message: News | None = None
            if connection.poll(wait):
                message = connection.recv()
        if message is not None and message.error is not None:
            raise message.error
        return message

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """The connection, for one use. If it breaks, the worker is given up."""
        # At exit the worker may have been ended before the last answer is.
        if self._connection is None or self._stop is None or not self._stop.alive:
            raise DraftWorkerError("the draft's worker was closed while it was in use.")
        try:
            yield self._connection
        except (EOFError, OSError) as error:
            code = None
            if self._process is not None:
                self._process.join(GRACE)
                code = self._process.exitcode
            self.close()
            raise DraftWorkerError(
                f"the draft's process ended with exit code {code}. It may have been killed for "
                "memory; ask again to start a new one, or use driver lockstep."
            ) from error
        except KeyboardInterrupt:  # a message may be half sent or half read
            self.close()
            raise


def stop_thread(connection: Connection, thread: threading.Thread) -> None:
    """End a worker that is a thread."""
    connection.close()
    thread.join(GRACE)


def stop_process(connection: Connection, process: SpawnProcess, parent: int) -> None:
    """End a worker that is a process of `parent`."""
    connection.close()
    if os.getpid() == parent:  # not in a fork of the parent, whose child it is not
        process.join(GRACE)
        process.kill()
        process.join()
        process.close()


@dataclass(eq=False)
class RemoteWriter:
    """The draft's writer of one loop, in a worker. `failure`: why it could not record
    CUDA graphs."""

    worker: DraftWorker
    failure: str | None = None
    sides: dict[int, RemoteSide] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)  # not sent yet
    numbers: Iterator[int] = field(default_factory=count)

    @property
    def busy(self) -> bool:
        """Whether a step is awaited."""
        return any(side.awaited - side.arrived.keys() for side in self.sides.values())

    def side(self, trace: Trace, ahead: StepsAhead | None) -> RemoteSide:
        """The draft's side of one answer. Two processes do not slow each other down, so
        there the draft may write beyond the window."""
        if ahead is not None and not self.worker.as_thread:
            ahead = replace(ahead, window=ahead.window + BEYOND)
        number = next(self.numbers)
        self.sides[number] = RemoteSide(self, number, trace, ahead)
        return self.sides[number]

    def flush(self) -> None:
        """Send the calls that were not sent yet."""
        calls, self.calls = self.calls, []
        if calls:
            self.worker.send(calls)

    def receive(self, *, wait: bool) -> None:
        """Take in what has arrived. `wait`: something must. Raises the worker's
        errors."""
        self.flush()
        news = self.worker.receive(None if wait else 0.0)
        while news is not None:
            self._take_in(news)
            news = self.worker.receive(0.0)

    def _take_in(self, news: News) -> None:
        for answer, written in news.steps:
            if answer in self.sides:
                self.sides[answer].arrived[written.node] = written
        for number, time, event in news.events:
            if isinstance(event, ForwardPass) and self.sides:  # it served all answers
                event = replace(event, seconds=event.seconds / len(self.sides))
            for answer, side in self.sides.items():
                if number is None or number == answer:
                    side.trace.events.append((time - side.trace.start, event))

    def end(self) -> None:
        """The loop is over. Raises nothing."""
        with suppress(DraftWorkerError):
            self.worker.send([*self.calls, End()])
        self.worker.writer = None


@dataclass(eq=False)
class RemoteSide:
    """As `Side`, but calls go to the worker. `awaited`: nodes whose steps were asked
    for and not taken. `arrived`: finished steps that were not taken; some of them were
    not asked for yet.
    """

    writer: RemoteWriter
    number: int
    trace: Trace
    ahead: StepsAhead | None = None
    awaited: set[NodeId] = field(default_factory=set)
    arrived: dict[NodeId, Written] = field(default_factory=dict)

    def _post(self, method: Callable[..., None], *arguments: Any) -> None:
        ahead = self.ahead if method is Side.open else None
        self.writer.calls.append(Call(self.number, method, arguments, ahead))

    def open(self, node: NodeId, prompt: Sequence[int]) -> None:
        self._post(Side.open, node, prompt)

    def fork(
        self, parent: NodeId, node: NodeId, length: int, tokens: Sequence[int] = ()
    ) -> None:
        self._post(Side.fork, parent, node, length, tokens)

    def write(self, node: NodeId, index: int, limit: int, stream: Stream) -> None:
        self.awaited.add(node)
        self._post(Side.write, node, index, limit, stream)

    def take(self) -> list[Written]:
        ready = [node for node in self.arrived if node in self.awaited]
        self.awaited.difference_update(ready)
        return [self.arrived.pop(node) for node in ready]

    def cancel(self, node: NodeId) -> None:
        self.awaited.discard(node)
        self._post(Side.cancel, node)

    def rename(self, old: NodeId, new: NodeId, tokens: Sequence[int] = ()) -> None:
        self.arrived.clear()  # a new tree begins
        self._post(Side.rename, old, new, tokens)

    def close(self, node: NodeId) -> None:
        self._post(Side.close, node)

    def end(self) -> None:
        self._post(Side.end)
        del self.writer.sides[self.number]
