"""The processes of a tensor-parallel model. Rank 0 is the program itself: scheduler, sampling,
block tables. The others follow it: they do on their slices what it does.

One message per pass goes from rank 0 to all others, a list of orders: what the cache did since the
last pass (blocks zeroed, blocks copied) and the ragged batch with its block tables. Forks, releases
and truncations change the tables of rank 0 only. Worked example: two forks share block 5 and each
gets a token. Rank 0's cache copies block 5 to 6, and the message of the pass is [prepare fresh=(),
copies=((5, 6),); feed slots=(23, 25), blocks=([5], [6])].

Processes are started here, or by torchrun; they meet through the store of `torch.distributed`, and
messages go over a gloo group of their own, in which an idle rank may wait for ever. A rank that
dies breaks its connections, which ends the collectives of the others; one that hangs does so after
`patience` seconds. Then rank 0 looks for the cause: a report in the store, an exit code, a process
that still runs. It ends all of them and raises `WorkerError`, now and at every later use.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lr.errors import LRError, ProtocolError, SettingError
from lr.kvcache.cache import PagedKVCache
from lr.kvcache.pool import BlockPool
from lr.kvcache.table import BlockTable
from lr.model.attention import AttentionBackend
from lr.model.attention_choice import equip
from lr.model.batch import RaggedBatch
from lr.model.device import find_device, undisturbed
from lr.model.dummy import is_dummy
from lr.model.files import resolve
from lr.model.parallel import RankLM, RankLost, Ranks, config_of, load_part, part_of, together
from lr.model.qwen import CausalLM
from lr.model.weights import load_model

PATIENCE = 20.0
"""Seconds that a rank waits for the others in a collective."""
FOR_EVER = timedelta(days=365)
DOOR = timedelta(seconds=600)
"""How long ranks wait for rank 0 under torchrun: it may have to fetch a checkpoint first."""
AFTERMATH = 3.0
"""Seconds in which ranks that have only lost another end by themselves; one that still runs then
hangs."""
GRACE = 5.0
"""Seconds that a rank has to end when it is told to."""
LOST = 3
"""The exit code of a rank that ends because it has lost another."""


class WorkerError(LRError):
    """A rank of a tensor-parallel model died, hung or failed. Its text names the rank and why."""


@dataclass(frozen=True)
class Torchrun:
    """What torchrun says about this process: its rank among `size`, its number on its machine, and
    where torchrun's store is. `hosts_store`: rank 0 has to open it.
    """

    rank: int
    size: int
    local_rank: int
    address: str
    port: int
    hosts_store: bool

    def store(self) -> dist.Store:
        """Torchrun's store."""
        hosts = self.hosts_store
        return dist.PrefixStore(
            "lr",
            dist.TCPStore(
                self.address, self.port, is_master=hosts, wait_for_workers=False, timeout=DOOR
            ),
        )


@dataclass(frozen=True)
class Spread:
    """Over what a model is spread: `devices`, one per rank, the first for this process; or what
    torchrun has started (`place`), with the device of this process. Raises `SettingError`.
    """

    devices: tuple[torch.device, ...]
    place: Torchrun | None = None
    patience: float = PATIENCE

    @property
    def size(self) -> int:
        return len(self.devices) if self.place is None else self.place.size

    def __post_init__(self) -> None:
        kinds = sorted({device.type for device in self.devices})
        shown = ", ".join(map(str, self.devices))
        if len(kinds) != 1 or kinds[0] not in ("cpu", "cuda"):
            raise SettingError(f"a model cannot be spread over {shown}: CUDA devices, or cpu.")
        if self.size < 2:
            raise SettingError(
                f"tensor_parallel is {self.size}; a spread model needs at least 2 ranks."
            )
        if kinds == ["cuda"] and len(set(self.devices)) < len(self.devices):
            raise SettingError(f"a model cannot be spread over {shown}: each needs its own GPU.")


def spread_over(ranks: int, device: str | torch.device) -> Spread:
    """So many ranks from `device` on: cuda:0, cuda:1, ..., or all on the CPU. Raises `SettingError`
    if there are not so many GPUs.
    """
    device = find_device(device)
    if device.type != "cuda":
        return Spread((device,) * ranks)
    first = device.index or 0
    if first + ranks > torch.cuda.device_count():
        raise SettingError(
            f"tensor_parallel is {ranks} from {device} on, and this machine has "
            f"{torch.cuda.device_count()} CUDA devices. Take fewer ranks, or torchrun for several "
            "machines."
        )
    return Spread(tuple(torch.device("cuda", first + i) for i in range(ranks)))


def load_target(
    source: str | Path, where: torch.device | Spread, dtype: torch.dtype | None
) -> CausalLM:
    """The model on one device, or spread over several."""
    if isinstance(where, Spread):
        return load_parallel(source, where, dtype)
    return load_model(source, device=where, dtype=dtype)


def load_parallel(source: str | Path, spread: Spread, dtype: torch.dtype | None = None) -> LeaderLM:
    """A model over several ranks, as `load_model` on one. Ended by its `close`, or when it is
    forgotten.

    Raises as `load_model` does; `SettingError` if it cannot be divided so, before anything is
    started; `WorkerError` if a rank is lost.
    """
    part_of(config_of(source), spread.size)
    if spread.place is None and not is_dummy(source):
        source = resolve(source).resolve()  # found once; on several machines by each for itself
    team = Team(spread)
    try:
        return team.load(source, dtype)
    except BaseException:
        team.close()
        raise


class Team:
    """Rank 0's side: the other ranks, and all models and caches that are spread over them. Ended by
    `close`, when it is forgotten, when the program ends, or when a rank is lost.

    Only one at a time: torch has one default process group per process. Raises `SettingError` if
    there is one already, `WorkerError` if a rank is lost on the way.
    """

    def __init__(self, spread: Spread) -> None:
        if dist.is_initialized():
            raise SettingError(
                "this process belongs to a group of torch.distributed already, so that no "
                "tensor-parallel model can be started here. Close the other one first "
                "(Reasoner.close), or load this model on its team."
            )
        self.ranks, self.device = Ranks(0, spread.size), spread.devices[0]
        self.error: WorkerError | None = None
        self.queue: deque[tuple[Any, ...]] = deque()
        self.numbers = count()
        self._lock = threading.RLock()
        self._processes: list[SpawnProcess] = []
        place, cuda, threads = spread.place, self.device.type == "cuda", torch.get_num_threads()
        if place is not None:
            self._store = place.store()
            self._store.set("join", json.dumps([cuda, threads, spread.patience]))
        else:
            master = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            self._store = dist.PrefixStore("lr", master)
            context = multiprocessing.get_context("spawn")  # a fork of a threaded torch may hang
            for rank, device in enumerate(spread.devices[1:], 1):
                process = context.Process(
                    target=_worker,
                    args=(rank, spread.size, str(device), master.port, threads, spread.patience),
                    name=f"lr rank {rank}",
                    daemon=True,
                )
                with undisturbed():
                    process.start()
                self._processes.append(process)
        self._state: dict[str, Any] = {"failed": False, "ending": False, "control": None}
        self._finalizer = weakref.finalize(self, _end, os.getpid(), self._processes, self._state)
        try:
            self._await("started")
            self._state["control"] = _join(self.ranks, self._store, self.device, spread.patience)
        except BaseException as error:
            raise self._break(error) from error
        if cuda and self._processes:
            watch = threading.Thread(
                target=_abort_when_one_ends, args=(self._processes, self._state), daemon=True
            )
            watch.start()

    @property
    def pids(self) -> list[int]:
        """The processes of the other ranks that were started here, in order."""
        return [process.pid for process in self._processes if process.pid is not None]

    def load(self, source: str | Path, dtype: torch.dtype | None = None) -> LeaderLM:
        """A model on this team, beside its others. Under torchrun each machine finds `source` for
        itself.
        """
        part_of(config_of(source), self.ranks.size)
        number = next(self.numbers)
        with self.together(("load", number, str(source), dtype)):
            model = load_part(source, self.ranks, self.device, dtype, LeaderLM)
            self._await(f"loaded {number}")
        model.lead(self, number)
        return model

    @contextmanager
    def together(self, order: tuple[Any, ...]) -> Iterator[None]:
        """Send what is on the queue and one more order; rank 0's own part of it is done inside the
        `with`. If anything goes wrong there the ranks are out of step, and the team ends. Raises
        `WorkerError`.
        """
        with self._lock:
            if self.error is not None:
                raise self.error
            orders = [self.queue.popleft() for _ in range(len(self.queue))]
            try:
                together(dist.broadcast_object_list, [[*orders, order]], 0, self._state["control"])
                yield
            except BaseException as error:
                told = self._break(error)
                if told is error:
                    raise
                raise told from error

    def close(self) -> None:
        """End the other ranks and leave the process group. Its models cannot be used afterwards."""
        with self._lock:
            closed = "this tensor-parallel model was closed; load it again."
            self.error = self.error or WorkerError(closed)
            self._finalizer()

    def _await(self, what: str) -> None:
        """Wait, however long it takes, until every other rank has put `what` into the store. Raises
        `RankLost` as soon as one has failed or ended.
        """
        for rank in range(1, self.ranks.size):
            while not self._store.check([f"{what} {rank}"]):
                if self._ended():
                    raise RankLost(f"rank {rank} has not {what}")
                time.sleep(0.02)

    def _ended(self) -> str:
        """Which rank has failed or ended by itself, and how; "" if none has. Those that have only
        lost another are not meant.
        """
        for rank in range(1, self.ranks.size):
            if self._store.check([f"failed {rank}"]):
                why = self._store.get(f"failed {rank}").decode()
                return f"{self._named(rank)} failed: {why}"
        for rank, process in enumerate(self._processes, 1):
            code = process.exitcode
            if code is not None and code < 0:
                return f"{self._named(rank)} was killed by {signal.Signals(-code).name}"
            if code not in (None, LOST):
                return f"{self._named(rank)} ended by itself with exit code {code}"
        return ""

    def _named(self, rank: int) -> str:
        pid = f" (process {self.pids[rank - 1]})" if self._processes else ""
        return f"rank {rank}{pid}"

    def _break(self, error: BaseException) -> BaseException:
        """End the team; the error to raise in the place of `error`, and from now on."""
        if not isinstance(error, RankLost):
            interrupted = isinstance(error, KeyboardInterrupt)
            what = "was interrupted" if interrupted else f"failed on rank 0 ({error})"
            told: BaseException = error
            later = f"a pass of this tensor-parallel model {what}, and its ranks are out of step."
        else:
            deadline = time.monotonic() + AFTERMATH
            while not (cause := self._ended()) and time.monotonic() < deadline:
                time.sleep(0.05)
            hanging = [i for i, process in enumerate(self._processes, 1) if process.is_alive()]
            if not cause and hanging:
                cause = f"{self._named(hanging[0])} hangs: it did not come to a collective"
            later = f"{(cause or str(error)).rstrip('.')}. The model is spread over " + (
                f"{self.ranks.size} ranks and cannot go on without it. If the process was killed, "
                "it may have been for memory. What was written to disk is kept."
            )
        self.error = self.error or WorkerError(f"{later} Load it again.")
        if isinstance(error, RankLost):
            told = self.error
        self._state["failed"] = True
        self._finalizer()
        return told


def _abort_when_one_ends(processes: list[SpawnProcess], state: dict[str, Any]) -> None:
    """NCCL would wait for a rank that is gone; gloo notices by itself."""
    wait([process.sentinel for process in processes])
    if not state["ending"] and dist.group.WORLD is not None:
        dist.group.WORLD.abort()


def _end(owner: int, processes: list[SpawnProcess], state: dict[str, Any]) -> None:
    """Stop the other ranks, leave the group, and see that no process is left. Raises nothing."""
    if os.getpid() != owner:
        return  # a fork of rank 0 that ends: the ranks are not its children
    state["ending"] = True
    if state["control"] is not None and not state["failed"]:
        try:
            dist.broadcast_object_list([[("stop",)]], 0, state["control"])
        except RuntimeError:
            state["failed"] = True
    for process in processes:
        process.join(0.0 if state["failed"] else GRACE)
        if process.exitcode is None:
            process.kill()
            process.join()
    if dist.is_initialized():
        dist.destroy_process_group()


def _join(ranks: Ranks, store: dist.Store, device: torch.device, patience: float) -> Any:
    """Meet the other ranks, which do the same at the same time; the group for messages."""
    cuda = device.type == "cuda"
    together(
        dist.init_process_group,
        "nccl" if cuda else "gloo",
        store=store,
        rank=ranks.rank,
        world_size=ranks.size,
        timeout=timedelta(seconds=patience),
        device_id=device if cuda else None,
    )
    return together(dist.new_group, backend="gloo", timeout=FOR_EVER)


class LeaderCache(PagedKVCache):
    """The cache of rank 0's KV heads; the other ranks' caches do what it does."""

    def __init__(self, team: Team, number: int, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.queue, self.number = team.queue, number
        weakref.finalize(self, team.queue.append, ("drop", number)).atexit = False

    def prepare(self, fresh: Sequence[int], copies: Sequence[tuple[int, int]]) -> None:
        super().prepare(fresh, copies)
        self.queue.append(("prepare", self.number, tuple(fresh), tuple(copies)))


class LeaderLM(RankLM):
    """Rank 0's part of a model that is spread over a team, and for everybody else a `CausalLM`. To
    be used through `forward` with a cache that it has made.
    """

    team: Team
    number: int

    def lead(self, team: Team, number: int) -> None:
        """Belong to a team, whose other ranks have the other parts under this number."""
        self.team, self.number = team, number

    def close(self) -> None:
        """End the team, with all its models."""
        self.team.close()

    def make_cache(self, num_blocks: int, block_size: int) -> PagedKVCache:
        """A cache for the KV heads of all ranks. Raises `SettingError` for a size below 1."""
        number = next(self.team.numbers)
        cache = LeaderCache(self.team, number, **self.cache_sizes(num_blocks, block_size))
        self.team.queue.append(("cache", self.number, number, num_blocks, block_size))
        return cache

    def forward(
        self, batch: RaggedBatch, cache: PagedKVCache, backend: AttentionBackend | None = None
    ) -> Tensor:
        """As that of `CausalLM`; all ranks take part. Raises `WorkerError`."""
        if not isinstance(cache, LeaderCache):
            raise ProtocolError(
                "a tensor-parallel model needs a cache that its own make_cache has made."
            )
        blocks = [(table.blocks, table.length) for table in batch.tables]
        how = self.attention.name if backend is None else backend
        with self.team.together(("feed", self.number, cache.number, how, blocks, batch.source)):
            return super().forward(batch, cache, backend)


class _Everything(BlockPool):
    """Other ranks count no holders. Their memory is zeroed when it is made, so that every block may
    be read: all count as held.
    """

    def refcount(self, block: int) -> int:
        return 1


def _worker(rank: int, size: int, device: str, port: int, threads: int, patience: float) -> None:
    """The main function of a process that was started only to follow."""
    store = dist.PrefixStore("lr", dist.TCPStore("127.0.0.1", port, is_master=False))
    os._exit(_follow(Ranks(rank, size), torch.device(device), store, threads, patience))


def follow_torchrun(place: Torchrun) -> bool:
    """The whole life of a rank above 0 under torchrun. False if it failed, or rank 0 did. Raises
    `WorkerError` if there is no rank 0.
    """
    try:
        store = place.store()
        cuda, threads, patience = json.loads(store.get("join"))
    except RuntimeError as error:
        raise WorkerError(
            f"rank {place.rank} has not found rank 0 at {place.address}:{place.port}: {error}"
        ) from error
    device = torch.device(f"cuda:{place.local_rank}" if cuda else "cpu")
    return _follow(Ranks(place.rank, place.size), device, store, threads, patience) == 0


def _follow(
    ranks: Ranks, device: torch.device, store: dist.Store, threads: int, patience: float
) -> int:
    """Carry out orders until rank 0 says stop (0), a rank is lost (`LOST`), or something fails (1),
    which is reported in the store. Ctrl-C is rank 0's to answer.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        torch.set_num_threads(threads)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        store.set(f"started {ranks.rank}", "")
        control = _join(ranks, store, device, patience)
        models: dict[int, RankLM] = {}
        caches: dict[int, PagedKVCache] = {}
        while True:
            message: list[Any] = [None]
            together(dist.broadcast_object_list, message, 0, control)
            for order in message[0]:
                if order == ("stop",):
                    dist.destroy_process_group()
                    return 0
                _obey(order, ranks, device, store, models, caches)
    except RankLost:
        return LOST
    except BaseException as error:
        lines = [str(error)] if isinstance(error, LRError) else traceback.format_exception(error)
        try:
            store.set(f"failed {ranks.rank}", "".join(lines))
        except RuntimeError:
            return LOST  # rank 0 is gone, nobody is left to be told
        return 1


@torch.inference_mode()
def _obey(
    order: tuple[Any, ...],
    ranks: Ranks,
    device: torch.device,
    store: dist.Store,
    models: dict[int, RankLM],
    caches: dict[int, PagedKVCache],
) -> None:
    match order:
        case ("feed", number, cache_number, how, blocks, (tokens, slots, wanted)):
            model, cache = models[number], caches[cache_number]
            tables = [BlockTable(cache.block_size, list(ids), length) for ids, length in blocks]
            batch = RaggedBatch.build(tables, tokens, slots, wanted=wanted, device=device)
            if isinstance(how, str) and model.attention.name != how:
                equip(model, how)
                model.graphs = False
            model(batch, cache, None if isinstance(how, str) else how)
        case ("prepare", number, fresh, copies):
            caches[number].prepare(fresh, copies)
        case ("cache", number, cache_number, num_blocks, block_size):
            cache = caches[cache_number] = models[number].make_cache(num_blocks, block_size)
            cache.pool = _Everything(num_blocks)
            cache.keys.zero_()
            cache.values.zero_()
        case ("drop", number):
            del caches[number]
        case ("load", number, source, dtype):
            with torch.inference_mode(False):
                models[number] = load_part(source, ranks, device, dtype, RankLM)
            store.set(f"loaded {number} {ranks.rank}", "")
        case _:
            raise AssertionError(f"an unknown order: {order}")
