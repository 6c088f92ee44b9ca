"""The leader's end: who belongs together, how orders go out, and what happens to everybody when one
rank is lost.

All orders go through one queue. `later` puts something on it that can wait for the next pass (a new
cache, a copied block); `together` sends the queue and one more order, and is the time in which the
ranks meet. If anything at all goes wrong inside, the ranks are out of step and the team is at its
end: every later call raises the same `WorkerError`, which names the rank and the reason.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import torch
import torch.distributed as dist

from lr.model.parallel.orders import Load, Order, Stop
from lr.model.parallel.ranks import RankLost, Ranks, join_group, leave_group
from lr.model.parallel.watch import Watch, Worker, WorkerError

GRACE = 5.0
"""Seconds that a follower has to end by itself before it is killed."""


class Crew:
    """The followers and who watches over them, and their end, which is the same whether all went
    well or not.
    """

    def __init__(self, workers: Sequence[Worker], watch: Watch) -> None:
        self.workers, self.watch = tuple(workers), watch
        self.failed = False
        self.met = False
        self._owner = os.getpid()

    def meet(self, ranks: Ranks, store: dist.Store, device: torch.device, seconds: float) -> None:
        """Join the process group, which every follower does at the same time, when all have
        started. Raises `WorkerError`.
        """
        self.watch.await_all(lambda worker: worker.host != "")
        join_group(ranks, store, device, seconds)
        self.met = True

    def send(self, orders: Sequence[Order]) -> None:
        """The same message to every follower. Raises `OSError` if one is gone."""
        message = ForkingPickler.dumps(list(orders))
        for worker in self.workers:
            worker.connection.send_bytes(message)

    def end(self) -> None:
        """Stop the followers, leave the group, and see that no process is left. Raises nothing, may
        be called twice.
        """
        if os.getpid() != self._owner:
            return  # a fork of the leader that ends: the followers are not its children
        self.watch.stop()
        if not self.failed:
            try:
                self.send([Stop()])
            except OSError:
                self.failed = True
        if self.failed:
            self._kill()  # first: a rank that sits in a collective is not to notice that the group is gone
        if self.met:
            self.met = False
            leave_group()
        self._kill()
        for worker in self.workers:
            worker.connection.close()

    def _kill(self) -> None:
        """No child of ours is left afterwards; without a failure each gets some seconds to end by
        itself.
        """
        for worker in self.workers:
            if worker.process is not None:
                worker.process.join(0.0 if self.failed else GRACE)
                if worker.process.exitcode is None:
                    worker.kill()
                    worker.process.join()


class Team:
    """Several ranks that share models. Made by `start.py`; ended by `close`, when it is forgotten,
    or when the program ends.
    """

    def __init__(self, ranks: Ranks, device: torch.device, crew: Crew) -> None:
        self.ranks, self.device = ranks, device
        self.inside = False
        self.error: WorkerError | None = None
        self._crew = crew
        self._lock = threading.RLock()
        self._queue: deque[Order] = deque()
        self._numbers = count()
        self._finalizer = weakref.finalize(self, crew.end)

    @property
    def pids(self) -> list[int]:
        """The processes of the followers, in the order of their ranks."""
        return [worker.pid for worker in self._crew.workers if worker.pid is not None]

    def number(self) -> int:
        """A number that no model and no cache of this team has."""
        return next(self._numbers)

    def later(self, order: Order) -> None:
        """Give an order with the next pass. May be called by the garbage collector: it only puts it
        on the list.
        """
        self._queue.append(order)

    @contextmanager
    def together(self, order: Order) -> Iterator[None]:
        """Give an order in which the ranks meet; the leader's part of it is done inside the `with`.
        Raises `WorkerError`.
        """
        with self._lock:
            self._refuse()
            self.inside = True
            try:
                self._send(order)
                yield
            except BaseException as error:
                told = self._lost(error)
                if told is error:
                    raise
                raise told from error
            finally:
                self.inside = False

    def load(self, source: str | Path, number: int, dtype: torch.dtype | None) -> None:
        """Let the followers begin to load a model; `loaded` waits for them."""
        with self._lock:
            self._refuse()
            try:
                self._send(Load(number, str(source), dtype))
            except OSError as error:
                raise self._lost(error) from error

    def loaded(self, number: int) -> None:
        """Wait until every follower has loaded a model. Raises `WorkerError`."""
        try:
            self._crew.watch.await_all(lambda worker: number in worker.loaded)
        except WorkerError as error:
            self._break(error)
            raise

    def close(self) -> None:
        """End the followers and leave the process group. The models of this team cannot be used
        afterwards.
        """
        with self._lock:
            self.error = self.error or WorkerError(
                "this tensor-parallel model was closed; load it again."
            )
            self._finalizer()

    def _refuse(self) -> None:
        if self.error is None and self._crew.watch.failure is not None:
            self._break(self._crew.watch.failure)
        if self.error is not None:
            raise self.error

    def _send(self, order: Order) -> None:
        orders: list[Order] = []
        while self._queue:
            orders.append(self._queue.popleft())
        self._crew.send([*orders, order])

    def _lost(self, error: BaseException) -> BaseException:
        """The error to raise instead of one that came while the ranks met."""
        cause = self._crew.watch.cause() if isinstance(error, (RankLost, OSError)) else None
        if cause is not None:
            self._break(cause)
            return cause
        what = (
            "was interrupted"
            if isinstance(error, KeyboardInterrupt)
            else f"failed on rank 0 ({error})"
        )
        self._break(
            WorkerError(
                f"a pass of this tensor-parallel model {what}, and its ranks are out of step. Load it again."
            )
        )
        return self.error if isinstance(error, RankLost) and self.error is not None else error

    def _break(self, error: WorkerError) -> None:
        """This is the end: nobody may wait for anybody any more."""
        self.error = self.error or error
        self._crew.failed = True
        self._finalizer()
