"""How the leader notices that a follower has died, hangs, or has failed: a thread that listens to
all of them.

A follower sends a sign of life twice a second. The first thing that goes wrong is kept as
`failure`, with the rank and the reason; then all followers are killed where they can be reached, so
that rank 0 waits for none of them in a collective. A follower that failed only because another was
lost is not the cause: the cause is waited for a little.

Silence is counted while this thread runs, not by the clock: a leader that was suspended (Ctrl-Z)
does not blame its followers. It does not know models or orders. Read next: `team.py`.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from lr.errors import LRError
from lr.model.parallel.orders import Failed, Hello, Ready, Reply

TICK = 0.5
"""Seconds between two looks at who is silent."""
AFTERMATH = 2.0
"""Seconds to wait for the cause when a rank fails only because another is lost."""
STARTING = 180.0
"""Seconds of silence allowed to a follower that starts or loads: it may import, or read gigabytes,
without a break.
"""


class WorkerError(LRError):
    """A rank of a tensor-parallel model died, hung or failed. Its text names the rank and the
    reason.
    """


@dataclass(eq=False)
class Worker:
    """A follower as the leader sees it. `process`: if it is a child of ours. `silent` counts
    seconds without a sign of life.
    """

    rank: int
    connection: Connection
    process: SpawnProcess | None = None
    pid: int | None = None
    host: str = ""
    silent: float = 0.0
    gone: bool = False
    loaded: set[int] = field(default_factory=set)

    def __str__(self) -> str:
        where = "" if self.host in ("", socket.gethostname()) else f" on {self.host}"
        return f"rank {self.rank} (process {'not started yet' if self.pid is None else self.pid}{where})"

    def kill(self) -> None:
        """End its process, if it runs on this machine. A stopped one is ended too."""
        if self.process is not None:
            self.process.kill()
        elif self.pid is not None and self.host == socket.gethostname():
            with suppress(OSError):  # it has ended meanwhile
                os.kill(self.pid, signal.SIGKILL)

    def ending(self) -> str:
        """How its process has ended, in words."""
        if self.process is None:
            return "is gone: it has closed its connection"
        self.process.join(1.0)
        code = self.process.exitcode
        if code is None:
            return "has closed its connection"
        return (
            f"was killed by {signal.Signals(-code).name}"
            if code < 0
            else f"ended by itself with exit code {code}"
        )


class Watch:
    """Listens to the followers from the beginning until `stop`. A running follower may be silent
    for `patience` seconds.

    `set_free` is called once something has failed: whoever waits in a collective shall wait no
    longer.
    """

    def __init__(
        self, workers: Sequence[Worker], patience: float, set_free: Callable[[], None]
    ) -> None:
        self.workers, self.patience, self._set_free = tuple(workers), patience, set_free
        self.failure: WorkerError | None = None
        self._busy = STARTING  # allowed silence now
        self._suspect: tuple[str, float] | None = (
            None  # a consequence without a cause yet, and how long ago it came
        )
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="lr watch over ranks", daemon=True)
        self._thread.start()

    def await_all(self, done: Callable[[Worker], bool]) -> None:
        """Wait, however long it takes, until all followers have started or loaded: `done` says so.
        Raises `WorkerError`.
        """
        with self._changed:
            self._busy = STARTING
            self._changed.wait_for(lambda: self.failure is not None or all(map(done, self.workers)))
            self._busy = self.patience
            for worker in self.workers:
                worker.silent = 0.0
        if self.failure is not None:
            raise self.failure

    def cause(self) -> WorkerError | None:
        """What went wrong, when something in this process already has: waits for what can be known
        shortly.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self.failure is not None, timeout=self.patience + AFTERMATH + 2 * TICK
            )
        return self.failure

    def stop(self) -> None:
        """Whatever ends from now on is meant to."""
        self._stopping = True
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        before = time.monotonic()
        while not self._stopping:
            for connection in wait(
                [worker.connection for worker in self.workers if not worker.gone], TICK
            ):
                worker = next(worker for worker in self.workers if worker.connection is connection)
                self._listen(worker)
            now = time.monotonic()
            passed, before = min(now - before, 2 * TICK), now
            if not self._stopping:
                self._count_silence(passed)

    def _listen(self, worker: Worker) -> None:
        worker.silent = 0.0
        try:
            reply: Reply = worker.connection.recv()
        except (EOFError, OSError):
            worker.gone = True
            if not self._stopping:
                self._fail(worker, worker.ending())
            return
        if isinstance(reply, Failed):
            if reply.lost:
                self._suspect = self._suspect or (f"{worker} failed: {reply.reason}", 0.0)
            else:
                self._fail(worker, f"failed: {reply.reason}")
        elif reply is not None:
            with self._changed:
                if isinstance(reply, Hello):
                    worker.pid, worker.host = reply.pid, reply.host
                else:
                    assert isinstance(reply, Ready)
                    worker.loaded.add(reply.model)
                self._changed.notify_all()

    def _count_silence(self, passed: float) -> None:
        for worker in self.workers:
            worker.silent += passed
            if worker.silent > self._busy and not worker.gone:
                self._fail(
                    worker,
                    f"hangs: it has given no sign of life for {self._busy:g} seconds, and was ended",
                )
                worker.gone = True
        if self._suspect is not None:
            what, age = self._suspect
            self._suspect = (what, age + passed)
            if age > AFTERMATH:
                self._fail(None, what)

    def _fail(self, worker: Worker | None, what: str) -> None:
        """Keep the first failure, and end everybody."""
        with self._changed:
            if self.failure is None:
                who = "" if worker is None else f"{worker} "
                self.failure = WorkerError(
                    f"{who}{what.rstrip('.')}. The model is spread over {len(self.workers) + 1} ranks and cannot go on without it. "
                    "If the process was killed, it may have been for memory. What was written to disk is kept; start again."
                )
            self._changed.notify_all()
        for one in (
            self.workers
        ):  # it is over for all of them; and rank 0 may be waiting for one that has lost another
            one.kill()
        self._set_free()
