"""Starting a draft worker, and ending it for certain: a process of its own, or a thread of this
one.

Either way there is a connection, and `serve` (`draft_worker.py`) at the other end of it. Read next:
`remote.py`, which keeps it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from multiprocessing.connection import Connection
from types import ModuleType

from lr.engine.draft_worker import Load, process_main, serve

GRACE = 2.0
"""Seconds that a worker has to end by itself before it is killed."""
Launched = tuple[Connection, Callable[[], None]]
"""Our end of the connection, and what ends the worker."""


class Where(Enum):
    """What a worker is. On two CPU cores a process pays: two threads would share one interpreter. A
    thread suits a draft that waits for a device of its own most of the time."""

    PROCESS = "process"
    THREAD = "thread"


def launch(where: Where, load: Load, threads: int) -> Launched:
    """Start a worker with so many threads of torch (in a process of its own; a thread has those of
    this process).
    """
    return _process(load, threads) if where is Where.PROCESS else _thread(load)


def _process(load: Load, threads: int) -> Launched:
    """A worker process, and what ends it for certain. It is started afresh, not forked: a fork of a
    threaded torch may hang.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=process_main, args=(theirs, load, threads), name="lr draft worker", daemon=True
    )
    with undisturbed():
        process.start()
    theirs.close()  # so that both ends notice when the other is gone
    parent = os.getpid()

    def stop() -> None:
        ours.close()
        if os.getpid() != parent:
            return  # a fork of the parent that ends: the worker is not its child
        process.join(GRACE)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()

    return ours, stop


@contextmanager
def undisturbed() -> Iterator[None]:
    """While a process is started: it shall not import the user's script, of which it needs nothing
    (a script without the guard `if __name__ == "__main__"` would run again), and not die of a
    Ctrl-C before it can say that this is the parent's to answer."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    blockable = hasattr(signal, "pthread_sigmask")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if blockable else set()
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        if blockable:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _thread(load: Load) -> Launched:
    """A worker thread. A thread cannot be killed: it ends with its forward."""
    ours, theirs = multiprocessing.Pipe()
    thread = threading.Thread(
        target=serve, args=(theirs, load), name="lr draft worker", daemon=True
    )
    thread.start()

    def stop() -> None:
        ours.close()
        thread.join(GRACE)

    return ours, stop
