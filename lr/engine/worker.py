"""The draft's worker: a process or thread that writes draft steps while the target runs
here.

There, each answer has a `DraftSide` as it has one here without a worker. Here,
`RemoteSide` posts the scheduler's commands to it. `Begin` opens a loop and None closes
it; an answer in it begins with its `DraftPlan` and ends with None; `News` comes back.
All commands that one event causes are sent together: between two of them the worker
might begin a step that the second one forbids. No message contains code of a variant.

An error in the worker is raised here, and a worker that dies raises `DraftWorkerError`;
the next loop starts a new one. No answer goes on without its draft: it would be a wrong
measurement. One loop at a time uses the worker, which ends when its connection closes.
Read next: `spec/write.py`.
"""

from __future__ import annotations

import os
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

import torch

from lr.engine.recorder import CacheRecorder
from lr.engine.runner import IdleRunners
from lr.engine.side import DraftPlan, DraftSide, GivenStep, Written
from lr.errors import LRError, SettingError
from lr.model.device import own_stream, start_process
from lr.spec.protocol import Cancel, Command, Draft, Emit, NodeId, Release, WorkKind
from lr.spec.write import StepWriter, TokenBytes, WriterConfig
from lr.trace import ForwardPass, Trace

GRACE = 2.0  # seconds that a worker has to end by itself before it is killed
BEYOND = 2  # steps that a process may write beyond the window of the schedule
Parts = tuple[
    IdleRunners, TokenBytes
]  # the draft's runners and the bytes of each token


class DraftWorkerError(LRError):
    """The draft's worker could not start, died, or met a bug."""


@dataclass(frozen=True)
class Begin:
    """To the worker: a loop begins, with a cache of so many blocks."""

    config: WriterConfig
    blocks: int
    detailed: bool


Posts = list[tuple[int, DraftPlan | Command | GivenStep | None]]
"""To the worker: what concerns answers, each by its number. None: it is over."""


@dataclass(frozen=True)
class News:
    """From the worker: for each answer its finished steps, and events with their times.
    Without answers: it has begun, or is done with, what it was told to. After an `error`
    the loop is over."""

    answers: Sequence[tuple[int, list[Written], list[tuple[float, object]]]] = ()
    error: Exception | None = None


# In the worker


def run_loop(connection: Connection, parts: Parts, begin: Begin) -> None:
    """One loop: carry out commands and, in between, write, until it is over."""
    runners, token_bytes = parts
    runner = runners.lend(begin.blocks)
    writer = StepWriter(begin.config, runner, token_bytes)
    role = begin.config.role
    sides: dict[int, DraftSide] = {}  # of the answers in progress

    def record_forward(branches: int, tokens: int, seconds: float) -> None:
        for side in sides.values():
            share = seconds / len(sides)
            side.trace.record(ForwardPass(role, branches, tokens, share))

    runner.observer = record_forward
    connection.send(News())
    try:
        while True:
            if not writer.busy:
                for side in sides.values():
                    side.go_on()
            if writer.busy and not connection.poll():
                # 1. Write a token of every step.
                writer.poll()
            else:
                # 2. Carry out commands. A step source's step is finished by that.
                posts: Posts | None = connection.recv()
                if posts is None:  # the loop is over
                    break
                for answer, post in posts:
                    if isinstance(post, DraftPlan):
                        trace = Trace(detailed=begin.detailed)
                        trace.start = 0.0  # both ends read the same clock
                        if trace.detailed:
                            runner.cache.observer = CacheRecorder(trace, role.value)
                        sides[answer] = DraftSide(writer, trace, post)
                    elif post is None:
                        sides.pop(answer).end()
                    else:
                        sides[answer].carry_out(post)
            # 3. Report if a step has finished.
            finished = {answer: side.collect() for answer, side in sides.items()}
            if any(finished.values()):
                news = []
                for answer, side in sides.items():
                    news.append((answer, finished[answer], side.trace.events))
                    side.trace.events = []
                connection.send(News(news))
    finally:
        for side in sides.values():
            side.end()
        runners.put_back(runner)
    connection.send(News())


def run_worker(connection: Connection, load: Callable[[], Parts]) -> None:
    """The worker's life: load the model, then one loop after the other, until the other
    end of the connection closes."""
    with suppress(EOFError, OSError), closing(connection), reports_errors(connection):
        parts = load()
        connection.send(News())
        with own_stream(parts[0].model.device) as stream, stream():
            while True:
                message = connection.recv()
                if isinstance(message, Begin):  # other messages are of a failed loop
                    with reports_errors(connection):
                        run_loop(connection, parts, message)


@contextmanager
def reports_errors(connection: Connection) -> Iterator[None]:
    """Send errors to the other end; one that is not ours, with its traceback."""
    try:
        yield
    except Exception as error:
        ours = isinstance(error, LRError) and type(error).__module__.startswith("lr.")
        if not ours:
            error = DraftWorkerError("".join(traceback.format_exception(error)))
        connection.send(News(error=error))  # raises if there is no other end


def process_main(connection: Connection, load: Callable[[], Parts]) -> None:
    """The main function of a process. Ctrl-C reaches both; the parent handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    run_worker(connection, load)
    os._exit(0)  # nothing needs saving, and an interpreter with torch exits slowly


# In this process


class DraftWorker:
    """Starts with the first loop and is then kept: a process, because threads share one
    interpreter, or a thread if the target is on the same GPU. `load` makes its parts."""

    def __init__(self, load: Callable[[], Parts], *, as_thread: bool = False) -> None:
        self.load = load
        self.as_thread = as_thread
        self.process: SpawnProcess | None = None
        self.in_use = False
        self.sides: dict[int, RemoteSide] = {}  # of the answers in progress
        self.numbers = count()  # of answers
        self.posts: Posts = []  # not sent yet
        self._connection: Connection | None = None
        self._stop: weakref.finalize[..., DraftWorker] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        """A copy or a pickle is a worker that has not started."""
        return partial(DraftWorker, as_thread=self.as_thread), (self.load,)

    def start(self) -> None:
        """Start the worker, if need be, and wait for its model. Raises what loading it
        raises."""
        if self._connection is not None:
            return
        worker: threading.Thread | SpawnProcess
        if self.as_thread:
            self._connection, far_end = Pipe()
            worker = threading.Thread(
                target=run_worker, args=(far_end, self.load), daemon=True
            )
            worker.start()
        else:
            worker, self._connection = start_process(
                process_main, self.load, name="lr draft"
            )
            self.process = worker
        self._stop = weakref.finalize(self, stop, self._connection, worker)
        try:
            self._receive()  # loaded
        except BaseException:
            self.close()
            raise

    def begin(self, config: WriterConfig, blocks: int, *, detailed: bool) -> None:
        """Begin a loop. Raises as `start`, and what fails in the worker."""
        if self.in_use:
            raise SettingError(
                "the draft's worker is in use by another answer; finish that one first, "
                "or use driver lockstep."
            )
        self.start()
        self.sides.clear()
        self.posts.clear()
        self._send(Begin(config, blocks, detailed))
        self._receive()  # two must not record CUDA graphs at once
        self.in_use = True

    def side(self, trace: Trace, plan: DraftPlan) -> RemoteSide:
        """The draft's side of one answer. Two processes do not slow each other down, so
        there the draft may write beyond the window. A detailed trace shows only what
        was asked for."""
        if trace.detailed:
            plan = replace(plan, window=0)
        elif plan.window and not self.as_thread:
            plan = replace(plan, window=plan.window + BEYOND)
        number = next(self.numbers)
        self.posts.append((number, plan))
        self.sides[number] = RemoteSide(self, number, trace)
        return self.sides[number]

    @property
    def busy(self) -> bool:
        """Whether a step is awaited."""
        return any(side.awaited - side.arrived.keys() for side in self.sides.values())

    def flush(self) -> None:
        """Send what was not sent yet."""
        if self.posts:
            self._send(self.posts)
            self.posts = []

    def poll(self, *, wait: bool) -> None:
        """Send what was not sent yet, and take in what has arrived. `wait`: something
        must. Raises the worker's errors."""
        self.flush()
        with self._connected() as connection:
            while wait or connection.poll():
                wait = False
                for number, steps, events in self._receive().answers:
                    if number in self.sides:  # else it has ended
                        self.sides[number].arrive(steps, events)

    def end(self) -> None:
        """The loop is over, once the worker has ended what it was doing. Raises
        nothing."""
        if self.in_use:
            self.in_use = False
            with suppress(LRError):
                self.flush()
                self._send(None)
                while self._receive().answers:
                    pass  # what the worker sent before it was done

    def close(self) -> None:
        """End the worker. The next loop starts another."""
        self._connection = None
        self.process = None
        if self._stop is not None:
            self._stop()

    def _send(self, message: Begin | Posts | None) -> None:
        with self._connected() as connection:
            connection.send(message)

    def _receive(self) -> News:
        """The next message. Raises the worker's errors."""
        with self._connected() as connection:
            news: News = connection.recv()
        if news.error is not None:
            self.in_use = False
            raise news.error
        return news

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """The connection, for one use. If it breaks, the worker is given up."""
        if self._connection is None:
            raise DraftWorkerError("the draft's worker was closed while it was in use.")
        try:
            yield self._connection
        except (EOFError, OSError) as error:
            process = self.process
            self.close()
            code = None if process is None else process.exitcode
            raise DraftWorkerError(
                f"the draft's worker ended with exit code {code}. It may have been killed "
                "for memory; ask again to start a new one, or use driver lockstep."
            ) from error
        except KeyboardInterrupt:  # a message may be half sent or half read
            self.close()
            raise


def stop(connection: Connection, worker: threading.Thread | SpawnProcess) -> None:
    """End a worker."""
    connection.close()
    worker.join(GRACE)  # it ends by itself when its connection closes
    if isinstance(worker, SpawnProcess):
        worker.kill()
        worker.join()


@dataclass(eq=False)
class RemoteSide:
    """A `DraftSide` in the worker, seen from here. `awaited`: nodes whose steps were
    asked for and not collected; `arrived`: steps that were not, nor perhaps asked
    for."""

    worker: DraftWorker
    number: int
    trace: Trace
    awaited: set[NodeId] = field(default_factory=set)
    arrived: dict[NodeId, Written] = field(default_factory=dict)

    def carry_out(self, command: Command | GivenStep) -> None:
        match command:
            case Draft():
                self.awaited.update(command.children)
            case Cancel((WorkKind.DRAFT, node)):
                self.awaited.discard(node)
            case Emit() if command.root != command.node:
                self.arrived.clear()  # a new tree begins
            case Release() | GivenStep():
                pass  # there is nothing to note here
            case _:
                return  # it is not the draft's
        self.worker.posts.append((self.number, command))

    def arrive(
        self, steps: Sequence[Written], events: Sequence[tuple[float, object]]
    ) -> None:
        """Keep what the worker has sent."""
        for written in steps:
            self.arrived[written.node] = written
        for time, event in events:
            self.trace.events.append((time - self.trace.start, event))

    def collect(self) -> list[Written]:
        # others were begun ahead
        ready = [node for node in self.arrived if node in self.awaited]
        self.awaited.difference_update(ready)
        return [self.arrived.pop(node) for node in ready]

    def end(self) -> None:
        self.worker.posts.append((self.number, None))
        del self.worker.sides[self.number]


DraftPart = DraftSide | RemoteSide
"""The draft's part in an answer, here or in a worker."""
