"""The life of a rank other than 0: join the others, then do what the leader orders until it says
stop or is gone.

A second thread sends a sign of life twice a second, whatever the first is doing; if the leader is
gone it ends the process at once, also out of a collective that would wait for ever. Ctrl-C is the
leader's to answer. Nothing is decided here, and nothing is printed. Read next: `team.py`, the other
end.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import traceback
from dataclasses import replace
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist

from lr.errors import LRError
from lr.kvcache.cache import PagedKVCache
from lr.kvcache.pool import BlockPool
from lr.kvcache.table import BlockTable
from lr.model.attention import AttentionBackend
from lr.model.attention_choice import equip
from lr.model.batch import RaggedBatch
from lr.model.parallel.loading import load_part
from lr.model.parallel.network import RankLM
from lr.model.parallel.orders import (
    DropCache,
    Failed,
    Feed,
    Hello,
    Join,
    Load,
    NewCache,
    Order,
    Prepare,
    Ready,
    Stop,
)
from lr.model.parallel.ranks import RankLost, Ranks, join_group, leave_group

BEAT = 0.5
"""Seconds between two signs of life."""
FAREWELL = 10.0
"""Seconds that a follower that has failed waits for the leader to end."""


class FilledBlocks(BlockPool):
    """Followers count no holders. What they know is which blocks have ever been filled, and so
    contain numbers: those count as held.
    """

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.filled: set[int] = set()

    def refcount(self, block: int) -> int:
        return int(block in self.filled)


class Follower:
    """The models and caches of one rank, by their numbers."""

    def __init__(self, ranks: Ranks, device: torch.device) -> None:
        self.ranks, self.device = ranks, device
        self.models: dict[int, RankLM] = {}
        self.caches: dict[int, PagedKVCache] = {}

    def obey(self, order: Order) -> Ready | None:
        """Carry out one order."""
        if isinstance(order, Feed):
            self._feed(order)
        elif isinstance(order, Prepare):
            cache = self.caches[order.cache]
            cache.prepare(order.fresh, order.copies)
            assert isinstance(cache.pool, FilledBlocks)
            cache.pool.filled.update(order.fresh, (block for _, block in order.copies))
        elif isinstance(order, NewCache):
            cache = self.caches[order.cache] = self.models[order.model].make_cache(
                order.num_blocks, order.block_size
            )
            cache.pool = FilledBlocks(order.num_blocks)
        elif isinstance(order, DropCache):
            del self.caches[order.cache]
        elif isinstance(order, Load):
            self.models[order.model] = load_part(
                order.source, self.ranks, self.device, order.dtype, RankLM
            )
            return Ready(order.model)
        return None

    @torch.inference_mode()
    def _feed(self, order: Feed) -> None:
        cache = self.caches[order.cache]
        tables = [
            BlockTable(cache.block_size, list(blocks), length)
            for blocks, length in zip(order.blocks, order.lengths, strict=True)
        ]
        tokens, start = [], 0
        for count in order.counts:
            tokens.append(order.tokens[start : start + count])
            start += count
        batch = RaggedBatch.build(
            tables, tokens, order.slots, wanted=order.counts, device=self.device
        )
        if order.logit_rows is not None:
            batch = replace(
                batch, logit_rows=torch.tensor(order.logit_rows, dtype=torch.int64).to(self.device)
            )
        self.models[order.model](batch, cache, self._backend(order))

    def _backend(self, order: Feed) -> AttentionBackend:
        if not isinstance(order.backend, str):
            return order.backend
        model = self.models[order.model]
        if model.attention.name != order.backend:
            equip(model, order.backend)
        return model.attention.ragged


def follow(connection: Connection, local_rank: int) -> bool:
    """Obey until the leader says stop (True), is gone, or something fails, which is told the leader
    (False). Raises nothing.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sending = threading.Lock()
    threading.Thread(
        target=_beat, args=(connection, sending), name="lr sign of life", daemon=True
    ).start()
    try:
        _obey_all(connection, sending, local_rank)
        return True
    except EOFError:
        return False  # the leader is gone, and nobody is left to be told
    except BaseException as error:
        text = (
            str(error)
            if isinstance(error, LRError)
            else "\n" + "".join(traceback.format_exception(error))
        )
        try:
            with sending:
                connection.send(Failed(text, isinstance(error, RankLost)))
            _wait_for_the_end(connection)
        except (OSError, EOFError):
            pass
        return False


def worker_main(connection: Connection, local_rank: int) -> None:
    """The main function of a process that was started only to follow."""
    os._exit(0 if follow(connection, local_rank) else 1)


def _obey_all(connection: Connection, sending: threading.Lock, local_rank: int) -> None:
    (join,) = connection.recv()
    assert isinstance(join, Join)
    torch.set_num_threads(join.threads)
    device = torch.device(join.device or (f"cuda:{local_rank}" if join.cuda else "cpu"))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with sending:
        connection.send(Hello(os.getpid(), socket.gethostname()))
    ranks = Ranks(join.rank, join.size)
    store = dist.TCPStore(
        join.address, join.port, join.size, is_master=False, wait_for_workers=False
    )
    join_group(ranks, store, device, join.seconds)
    follower = Follower(ranks, device)
    while True:
        for order in connection.recv():
            if isinstance(order, Stop):
                leave_group()
                return
            reply = follower.obey(order)
            if reply is not None:
                with sending:
                    connection.send(reply)


def _wait_for_the_end(connection: Connection) -> None:
    """Let the leader say what went wrong before this process ends: torchrun ends all processes as
    soon as one of them fails.
    """
    deadline = time.monotonic() + FAREWELL
    while connection.poll(max(0.0, deadline - time.monotonic())):
        connection.recv()


def _beat(connection: Connection, sending: threading.Lock) -> None:
    rest = threading.Event()
    try:
        while not rest.wait(BEAT):
            with sending:
                connection.send(None)
    except OSError:
        os._exit(1)
