"""The worker that writes drafts while the target runs elsewhere: read all orders, one forward for
all live drafts, send what is done.

It owns its model, and per run a writer and a cache; each problem is a `LocalDrafts`, the very
object that the lockstep driver uses, so what is drafted cannot depend on where. `serve` is the
whole life of a worker; it talks through a connection (`send`, `recv`, `poll`) and does not know
whether the other end is in another process or thread. With nothing to write it sleeps on the
connection. Read next: `remote.py`, the other end.
"""

from __future__ import annotations

import os
import pickle
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import torch

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
    Report,
    Reported,
    Stamped,
    Stop,
)
from lr.engine.drafts import LocalDrafts
from lr.engine.plan import TokenBytes, WriterPlan
from lr.errors import LRError
from lr.model.device import own_stream
from lr.model.qwen import CausalLM
from lr.model.weights import load_model
from lr.spec.write import StepWriter
from lr.trace import Trace

SIGN_OF_LIFE = 0.2
"""Seconds after which a worker that is writing reports its forwards although no step is
finished.
"""


class DraftWorkerError(LRError):
    """The draft worker could not be started, died, fell silent, or failed in a way that is no
    `LRError` of its own.
    """


@dataclass(frozen=True)
class DraftParts:
    """What a worker has of its own: the draft model, and the bytes of the tokens."""

    model: CausalLM
    token_bytes: TokenBytes


Load = Callable[[], DraftParts]
"""Makes the parts, in the worker. It must survive pickling where the worker is a process."""


def load_parts(
    draft: str | Path,
    device: str | torch.device,
    dtype: torch.dtype | None,
    tokens: Sequence[bytes],
) -> DraftParts:
    """The parts from a checkpoint, as `load_model` loads it, and the bytes of all tokens by id. No
    tokenizer is needed.
    """
    return DraftParts(load_model(draft, device=device, dtype=dtype), tokens.__getitem__)


@dataclass
class _Run:
    """One run: its writer, its problems, and when its owner last heard of it."""

    writer: StepWriter
    chains: dict[int, LocalDrafts] = field(default_factory=dict)
    told: float = field(default_factory=time.perf_counter)

    @classmethod
    def begin(cls, plan: WriterPlan, parts: DraftParts) -> _Run:
        return cls(plan.writer(parts.model, parts.token_bytes, Trace(detailed=plan.detailed)))

    def chain(self, number: int) -> LocalDrafts:
        if number not in self.chains:
            self.chains[number] = LocalDrafts(
                self.writer, Trace(detailed=self.writer.trace.detailed)
            )
        return self.chains[number]

    def obey(self, order: Open | Begin | Stop | Follow | Close) -> None:
        chain = self.chain(order.chain)
        match order:
            case Open():
                chain.open(order.node, order.tokens)
            case Begin():
                chain.draft(order.job)
            case Stop():
                chain.cancel(order.node)
            case Follow():
                chain.follow(order.old, order.new, order.tokens)
            case Close():
                chain.close(order.node)

    def news(self, run: int, *, final: bool = False) -> News | None:
        """What the owner should hear now, if anything."""
        steps = tuple(
            (number, *done) for number, chain in self.chains.items() for done in chain.take()
        )
        now = time.perf_counter()
        if not steps and not final and now - self.told < SIGN_OF_LIFE:
            return None
        self.told = now
        events = _drain(None, self.writer.trace)
        for number, chain in self.chains.items():
            events += _drain(number, chain.trace)
        return News(run, steps, tuple(events))

    def report(self, run: int) -> Reported:
        return Reported(run, self.writer.runner.cache.pool.num_used, len(self.writer.live))  # type: ignore[attr-defined]


class DraftServer:
    """The runs of one worker. `obey` acts on an order, `tick` does one forward per run that writes;
    both may send replies.
    """

    def __init__(self, parts: DraftParts, send: Callable[[object], None]) -> None:
        self.parts, self.send = parts, send
        self.runs: dict[int, _Run] = {}

    @property
    def busy(self) -> bool:
        """Whether any step is being written."""
        return any(run.writer.live for run in self.runs.values())

    def obey(self, order: Order) -> None:
        """Carry out one order. An order for a run that failed is too late and ignored."""
        run = self.runs.get(order.run)
        with _Guard(self, order.run):
            if isinstance(order, Prepare):
                self.runs[order.run] = _Run.begin(order.plan, self.parts)
            elif run is None:
                pass
            elif isinstance(order, Finish):
                del self.runs[order.run]
            elif isinstance(order, Report):
                self._tell(run.news(order.run, final=True))
                self.send(run.report(order.run))
            else:
                run.obey(order)

    def tick(self) -> None:
        """One forward of the draft for everything that is being written, and the news of it."""
        for number, run in list(self.runs.items()):
            if run.writer.live:
                with _Guard(self, number):
                    run.writer.tick()
                    self._tell(run.news(number))

    def _tell(self, news: News | None) -> None:
        if news is not None:
            self.send(news)


@dataclass
class _Guard:
    """What goes wrong for one run is reported to its owner and costs that run, not the worker."""

    server: DraftServer
    run: int

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception) or isinstance(error, (OSError, EOFError)):
            return False
        self.server.runs.pop(self.run, None)
        self.server.send(Failed(self.run, presentable(error)))
        return True


def serve(connection: Connection, load: Load) -> None:
    """The life of a worker: load, say so, then work until the other end of the connection
    closes.
    """
    try:
        try:
            server = DraftServer(load(), connection.send)
        except Exception as error:
            connection.send(Failed(None, presentable(error)))
            return
        connection.send(Ready(os.getpid()))
        with own_stream(server.parts.model.device):
            while True:
                while connection.poll(0 if server.busy else None):
                    for order in connection.recv():
                        server.obey(order)
                server.tick()
    except (EOFError, OSError):
        return  # the other end is gone, and with it all reason to go on
    finally:
        connection.close()


def presentable(error: Exception) -> Exception:
    """The error itself if it is one of ours and survives being sent; else its traceback in a
    `DraftWorkerError`.
    """
    if isinstance(error, LRError):
        try:
            copy = pickle.loads(pickle.dumps(error))
        except Exception:
            return DraftWorkerError(f"the draft worker failed: {error}")
        if str(copy) == str(error):
            return error
    return DraftWorkerError(
        "the draft worker failed:\n" + "".join(traceback.format_exception(error))
    )


def _drain(chain: int | None, trace: Trace) -> list[Stamped]:
    """Take the events out of a trace, with their times by the clock itself."""
    events = [Stamped(chain, trace.start + when, event) for when, event in trace.events]
    trace.events.clear()
    return events


def process_main(connection: Connection, load: Load, threads: int) -> None:
    """What runs in a worker process. Ctrl-C is the parent's to answer: a terminal sends it to
    both.
    """
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    serve(connection, load)
    os._exit(0)  # there is nothing to save, and an interpreter with torch takes its time to go
