"""Tensor parallelism: one model over several processes, its *ranks*, each with its slices of the
weights and of the KV cache (Megatron-LM, arXiv 1909.08053). The table is in `docs/parallel.md`.

**Slices.** Example: 8 query heads, 2 KV heads, 4 ranks. Rank 3 has the query heads 6 and 7, which
look at KV head 1, and so has rank 2. A vocabulary of 61 is padded to 64: rank 3 has the rows
48..63, of which the checkpoint has 48..60; the others are zero, and their logits are cut off.

**Processes.** Rank 0 is the program itself: scheduler, sampling, block tables. The others follow
it. One message per pass goes to all of them: what the cache of rank 0 has prepared since the last
one, and the batch, which all replay from CUDA graphs or none. Example: two forks share block 5 and
each gets a token. Rank 0's cache copies block 5 to 6, and the message says: fresh (), copies ((5,
6),); blocks [5] and [6], slots 23 and 25.

Processes are started here, or by torchrun. Messages go over a group of `torch.distributed` (gloo)
in which only rank 0 is impatient: an idle rank may wait for ever; sums go over another. Both fail
when a rank dies, or hangs for `patience` seconds. Ranks that have only lost another end silently;
what is left is the cause: rank 0 names it, ends all and raises `WorkerError`, now and later.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import count
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from lr.errors import LRError, ProtocolError, RankLost, SettingError
from lr.kvcache.cache import PagedKVCache
from lr.model.attention import AttentionKind, RaggedBatch
from lr.model.attention_choice import equip
from lr.model.config import ModelConfig
from lr.model.device import Torchrun, find_device, start_process
from lr.model.files import resolve
from lr.model.graphs import StepGraphs
from lr.model.layers import DecoderLayer
from lr.model.qwen import CausalLM, Replay
from lr.model.weights import Piece, config_of, load_pieces, pieces
from lr.registry import is_dummy

PATIENCE, STARTS = 20.0, 10
"""Seconds that a rank waits in a sum, rank 0 in sending; so many times that for one to start."""
FOR_EVER = timedelta(days=365)
AFTERMATH = 3.0  # Seconds for ranks that only lost another to end; one that still runs hangs.
WATCHDOG = "ASYNC_ERROR_HANDLING", "DUMP_ON_TIMEOUT", "WAIT_TIMEOUT_DUMP_MILSEC"
"""What PyTorch's watchdog of NCCL does when a sum fails: a minute for its notes, then it ends the
process. Not on rank 0, which looks at the clock itself and says which rank was lost."""


class WorkerError(LRError):
    """A rank of a tensor-parallel model died, hung or failed. Its text names the rank and why."""


@dataclass
class Ranks:
    """This process among those that share a model: number `rank` of `size`, on `device`. All ranks
    make the same calls in the same order, on two groups of `torch.distributed`: for `sums`, and for
    messages. Raises `RankLost`.
    """

    rank: int
    size: int
    device: torch.device
    sums: Any = None
    messages: Any = None

    def tell(self, message: Any = None) -> Any:
        """The message of rank 0, there and on all others."""
        told = [message]
        together(dist.broadcast_object_list, told, 0, self.messages)
        return told[0]

    def all(self, value: Any) -> list[Any]:
        """The values of all ranks, on each."""
        values = [None] * self.size
        together(dist.all_gather_object, values, value, group=self.messages)
        return values

    def sum(self, x: Tensor) -> Tensor:
        """Add up x of all ranks, in place."""
        together(dist.all_reduce, x, group=self.sums)
        return x

    def gather(self, x: Tensor) -> list[Tensor]:
        """On rank 0 the x of all ranks (equal shapes), elsewhere nothing."""
        parts = [torch.empty_like(x) for _ in range(self.size)] if self.rank == 0 else None
        together(dist.gather, x.contiguous(), parts, dst=0, group=self.sums)
        return parts or []


def together(collective: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """One collective of all ranks. Raises `RankLost`."""
    try:
        return collective(*arguments, **named)
    except RuntimeError as error:
        raise RankLost(f"this rank has lost the others: {error}") from error


def part_of(config: ModelConfig, ranks: int) -> ModelConfig:
    """The sizes of one rank's network. Raises `SettingError` if it cannot be divided so."""

    def wrong(n: int) -> str:
        k = config.num_kv_heads
        if config.num_heads % n:
            return f"query heads ({config.num_heads})"
        if config.intermediate_size % n:
            return f"MLP width ({config.intermediate_size})"
        return f"KV heads ({k})" if max(k, n) % min(k, n) else ""

    if found := wrong(ranks):
        possible = [str(n) for n in range(1, config.num_heads + 1) if not wrong(n)]
        raise SettingError(
            f"tensor_parallel is {ranks}, and this model's {found} cannot be divided among so many "
            f"ranks. Possible for it: {', '.join(possible)}."
        )
    return replace(
        config,
        num_heads=config.num_heads // ranks,
        num_kv_heads=max(1, config.num_kv_heads // ranks),
        intermediate_size=config.intermediate_size // ranks,
        vocab_size=-(-config.vocab_size // ranks),
    )


def cuts(config: ModelConfig, rank: int, ranks: int) -> list[Piece]:
    """What a rank takes of every tensor of a checkpoint. Raises as `part_of` does.

    An axis has whole / part pieces, and the rank takes number rank * pieces // ranks: of 2 pieces
    (KV heads) 4 ranks take 0, 0, 1, 1; an axis that is not divided is one piece.
    """
    part = part_of(config, ranks)
    padded = replace(config, vocab_size=part.vocab_size * ranks)
    found = []
    for whole, long, mine in zip(pieces(config), pieces(padded), pieces(part), strict=True):
        taken = []
        for end, total, size in zip(whole.shape, long.shape, mine.shape, strict=True):
            start = rank * (total // size) // ranks * size
            taken.append(slice(min(start, end), min(start + size, end)))
        found.append(replace(whole, first=mine.first, taken=tuple(taken)))
    return found


class RankLM(CausalLM):
    """One rank's part of a model. `config` is that of the whole; only rank 0 gets logits."""

    def __init__(self, config: ModelConfig, ranks: Ranks) -> None:
        part = part_of(config, ranks.size)
        super().__init__(part)
        self.config, self.part, self.ranks = config, part, ranks
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            for one in (layer.attention.out, layer.mlp.down):  # y = sum over the ranks of W_r x_r
                one.register_forward_hook(lambda _, x, y: ranks.sum(y))

    @classmethod
    def load(cls, source: str | Path, ranks: Ranks, dtype: torch.dtype | None = None) -> Self:
        """This rank's part: only its slices are read. Raises as `load_model` and `part_of`."""
        take = partial(cuts, rank=ranks.rank, ranks=ranks.size)
        return load_pieces(source, ranks.device, dtype, partial(cls, ranks=ranks), take)

    def agreed(self, failure: str | None) -> str | None:
        """Why a recording failed, on all ranks alike. Raises `RankLost` if only on some."""
        failures = self.ranks.all(failure)
        for rank, one in enumerate(failures):
            if one is not None and None in failures:  # sums are left over that nobody waits for
                raise RankLost(f"rank {rank}, and not all others: {one}")
        return failures[0]

    def embed(self, tokens: Tensor) -> Tensor:
        """Tokens [n] -> [n, e]. A token whose row is elsewhere is zero here, and the sum over the
        ranks is its row. Of rows 48..63, token 50 is row 2; for token 7 row 0 is read, and zeroed.
        """
        here = tokens - self.ranks.rank * self.part.vocab_size
        elsewhere = (here < 0) | (here >= self.part.vocab_size)
        x = self.embedding(here.masked_fill(elsewhere, 0))
        return self.ranks.sum(x.masked_fill(elsewhere[:, None], 0))

    def logits(self, hidden: Tensor) -> Tensor:
        """On rank 0 the logits [m, v] of all ranks side by side, elsewhere [m, 0]."""
        parts = self.ranks.gather(super().logits(hidden))
        return torch.cat(parts, dim=-1)[:, : self.config.vocab_size] if parts else hidden[:, :0]


# The processes


def spread_over(ranks: int, device: str | torch.device) -> tuple[torch.device, ...]:
    """So many devices from `device` on: cuda:0, cuda:1, ..., or the CPU as often."""
    device = find_device(device)
    if device.type != "cuda":
        return (device,) * ranks
    first, here = device.index or 0, torch.cuda.device_count()
    if first + ranks > here:
        raise SettingError(
            f"tensor_parallel is {ranks} from {device} on, and this machine has {here} CUDA "
            "devices. Take fewer ranks, or torchrun for several machines."
        )
    return tuple(torch.device("cuda", first + i) for i in range(ranks))


def load_parallel(
    source: str | Path,
    devices: Sequence[torch.device],
    dtype: torch.dtype | None = None,
    torchrun: Torchrun | None = None,
    patience: float = PATIENCE,
) -> LeaderLM:
    """A model over several ranks, as `load_model` on one: a process for each of the `devices`, this
    one for the first; or those that torchrun has started. Ended as its `RankGroup` is. Raises as
    `load_model`; `SettingError` if it cannot be divided; `WorkerError` if a rank is lost.
    """
    part_of(config_of(source), len(devices) if torchrun is None else torchrun.size)
    return RankGroup(devices, torchrun, patience).load(source, dtype)


class RankGroup:
    """Rank 0's side: the other ranks, and all models and caches that are spread over them. Ended by
    `close`, when it is forgotten, when the program ends, or when a rank is lost. Raises
    `SettingError` if there is another one already, `WorkerError` if a rank is lost on the way.
    """

    def __init__(
        self,
        devices: Sequence[torch.device],
        torchrun: Torchrun | None = None,
        patience: float = PATIENCE,
    ) -> None:
        kinds, distinct = {device.type for device in devices}, set(devices)
        if kinds != {"cpu"} and (kinds != {"cuda"} or len(distinct) < len(devices)):
            raise SettingError(
                f"a model cannot be spread over {', '.join(map(str, devices))}: give CUDA "
                "devices, or cpu; each rank needs its own GPU."
            )
        if dist.is_initialized():
            raise SettingError(
                "this process belongs to a group of torch.distributed already. Close the other "
                "model first (Reasoner.close), or load this one on its group."
            )
        size = len(devices) if torchrun is None else torchrun.size
        places = [Torchrun(rank, size, one.index or 0) for rank, one in enumerate(devices)]
        self.error: WorkerError | None = None
        self.numbers, self.recorded = count(), weakref.WeakSet[StepGraphs]()  # of models and caches
        self.caches = weakref.WeakValueDictionary[int, LeaderCache]()
        self.lock, self.processes, self.patience = threading.RLock(), list[SpawnProcess](), patience
        self._store: dist.Store | None = None
        if torchrun is None:
            self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            for place in places[1:]:
                name, port = f"lr rank {place.rank}", self._store.port
                self.processes.append(start_process(_process, place, port, name=name))
        self.ranks = Ranks(0, size, torch.device("cpu"))
        ending = os.getpid(), self.processes, self.recorded, self.ranks
        self._finalizer = weakref.finalize(self, _end, *ending)
        settings = ("cuda" in kinds, torch.get_num_threads(), patience)
        with self.together():
            if store := self._store:
                names = [f"started {rank}" for rank in range(1, size)]
                self._wait(lambda: store.check(names), STARTS * patience, pause=0.02)
            _join(self.ranks, places[0], self._store, settings)

    def load(self, source: str | Path, dtype: torch.dtype | None = None) -> LeaderLM:
        """Another model on this group. Under torchrun each machine finds `source` for itself."""
        part_of(config_of(source), self.ranks.size)
        if self.processes and not is_dummy(source):
            source = resolve(source).resolve()
        number = next(self.numbers)
        with self.together("load", number, str(source), dtype):
            model = LeaderLM.load(source, self.ranks, dtype)
            together(dist.barrier)  # however long the others take
        model.group, model.number = self, number
        return model

    @contextmanager
    def together(self, *call: Any) -> Iterator[None]:
        """Send a call, if there is one, and which caches there are. Rank 0 does its own part
        inside the `with`; if that goes wrong the ranks are out of step: the group ends. Raises
        `WorkerError` for a lost rank.
        """
        with self.lock:
            if error := self.error:
                raise error
            try:
                if call:
                    self.ranks.tell((set(self.caches), *call))
                yield
            except RankLost as error:
                cause = (self._cause() or str(error)).rstrip(".")
                raise self.close(
                    f"{cause}. The model is spread over several ranks and cannot go on without it. "
                    "If the process was killed, it may have been for memory. What was written to "
                    "disk is kept."
                ) from error
            except BaseException as error:
                interrupted = isinstance(error, KeyboardInterrupt)
                what = "was interrupted" if interrupted else f"failed on rank 0 ({error})"
                self.close(f"a pass of this spread model {what}, and its ranks are out of step.")
                raise

    def close(self, why: str = "this tensor-parallel model was closed.") -> WorkerError:
        """End the other ranks and leave the group. Returns what its models raise from now on."""
        with self.lock:
            self.error = self.error or WorkerError(f"{why} Load it again.")
            self._finalizer()
            return self.error

    def finish(self) -> None:
        """Wait until this GPU has done the pass: NCCL waits for ever for a rank that is gone or
        hangs, and once it is stopped, what is read are no logits. Raises `RankLost`.
        """
        if self.ranks.device.type == "cuda":  # gloo has waited already
            done = torch.cuda.Event()
            done.record(torch.cuda.current_stream(self.ranks.device))
            self._wait(done.query, self.patience, pause=5e-5)

    def _wait(self, done: Callable[[], bool], seconds: float, pause: float) -> None:
        late = time.monotonic() + seconds
        while not done():
            if time.monotonic() > late or any(p.exitcode is not None for p in self.processes):
                raise RankLost("a rank did not come in time")
            time.sleep(pause)

    def _cause(self) -> str:
        """Which of the processes started here has failed or hangs, and how; "" if none has."""
        deadline, running = time.monotonic() + AFTERMATH, list[str]()
        while time.monotonic() < deadline and not any(one.exitcode for one in self.processes):
            time.sleep(0.05)
        for rank, process in enumerate(self.processes, 1):
            name, code = f"rank {rank} (process {process.pid})", process.exitcode
            if self._store is not None and self._store.check([f"failed {rank}"]):
                return f"{name} failed: {self._store.get(f'failed {rank}').decode()}"
            if code is None:
                running.append(name)
            elif code < 0:
                return f"{name} was killed by {signal.Signals(-code).name}"
            elif code:
                return f"{name} ended by itself with exit code {code}"
        return f"{' or '.join(running)} hangs: it did not come to a collective" if running else ""


def _end(owner: int, processes: Sequence[SpawnProcess], *left: Any) -> None:
    """Kill the other ranks, which have nothing to save; leaving the group ends torchrun's."""
    if os.getpid() != owner:
        return  # a fork of rank 0 that ends: the ranks are not its children
    for process in processes:
        process.kill()
        process.join()
    _leave(*left)


def _leave(recorded: Iterable[StepGraphs], ranks: Ranks) -> None:
    """Leave the group: CUDA graphs first, which hold NCCL's sums, then sums that nobody joins."""
    for graphs in recorded:
        graphs.forget()
    with suppress(RuntimeError):  # they cannot be given up: nothing more may be waited for
        if ranks.device.type == "cuda" and ranks.sums is not None:
            ranks.sums.abort()
        if dist.is_initialized():  # its threads must end before the process does
            dist.destroy_process_group()


def _join(
    ranks: Ranks, place: Torchrun, store: dist.Store | None, settings: tuple[Any, ...] | None = None
) -> None:
    """Meet the other ranks, through `store` or where torchrun says. Rank 0 tells its `settings`:
    GPUs or not, threads of each, patience.
    """
    where = {"store": store, "rank": place.rank, "world_size": place.size}
    together(dist.init_process_group, "gloo", **where, timeout=FOR_EVER)
    cuda, threads, patience = ranks.tell(settings)
    torch.set_num_threads(threads)
    how, soon = dict[str, Any](backend="gloo"), timedelta(seconds=patience)
    if cuda:
        ranks.device = torch.device("cuda", place.local_rank)
        how = {"backend": "nccl", "device_id": ranks.device}
    if cuda and place.rank > 0:
        torch.cuda.set_device(ranks.device)
    told = [f"TORCH_NCCL_{name}" for name in WATCHDOG if place.rank == 0]
    kept = {name: os.environ[name] for name in told if name in os.environ}
    os.environ.update(dict.fromkeys(told, "0"))  # PyTorch reads it as it makes the group
    try:
        ranks.sums = together(dist.new_group, timeout=soon, **how)
    finally:
        for name in told:
            del os.environ[name]
        os.environ.update(kept)
    late = FOR_EVER if place.rank else soon
    ranks.messages = together(dist.new_group, timeout=late, backend="gloo")


class LeaderCache(PagedKVCache):
    """The cache of rank 0's KV heads; the other ranks' caches will do what it has `prepared`."""

    def __init__(self, number: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.number, self.prepared = number, list[tuple[Any, ...]]()

    def prepare(self, fresh: Sequence[int], copies: Sequence[tuple[int, int]]) -> None:
        super().prepare(fresh, copies)
        self.prepared.append((fresh, copies))


class LeaderLM(RankLM):
    """Rank 0's part of a spread model: to others a `CausalLM`, used with caches it has made."""

    group: RankGroup
    number: int  # under which the other ranks of the group have the other parts

    def close(self) -> None:
        """End the group, with all its models."""
        self.group.close()

    def make_cache(self, num_blocks: int, block_size: int) -> PagedKVCache:
        """A cache for the KV heads of all ranks. Raises `SettingError` for a size below 1."""
        sizes = {"num_blocks": num_blocks, "block_size": block_size, **self.cache_shape}
        cache = LeaderCache(next(self.group.numbers), **sizes, device=self.device)
        with self.group.lock:
            self.group.caches[cache.number] = cache
        return cache

    def forward(
        self,
        batch: RaggedBatch,
        cache: PagedKVCache,
        attention: AttentionKind | None = None,
        replay: Replay | None = None,
    ) -> Tensor:
        """As that of `CausalLM`; all ranks take part. Raises `WorkerError`."""
        kind = attention or self.attention
        with self._with_others(cache, kind, "feed", batch.source, replay is not None):
            return super().forward(batch, cache, attention, replay)

    def recording(self, graphs: StepGraphs, rows: Sequence[int]) -> AbstractContextManager[object]:
        """All ranks record the same forwards, with the sums and the gathering inside."""
        self.group.recorded.add(graphs)
        return self._with_others(graphs.cache, self.attention, "record", rows, graphs.padding)

    @contextmanager
    def _with_others(
        self, cache: PagedKVCache, kind: AttentionKind, what: str, *arguments: Any
    ) -> Iterator[None]:
        """The others do `what` too, on their part of this cache, after what it has prepared."""
        if not isinstance(cache, LeaderCache):
            raise ProtocolError("a tensor-parallel model needs a cache of its own make_cache.")
        sizes, prepared = (cache.num_blocks, cache.block_size), cache.prepared
        into = cache.number, sizes, prepared, self.attention.name, kind
        with self.group.together(what, self.number, into, *arguments):
            cache.prepared = []
            yield
            self.group.finish()


def _process(place: Torchrun, port: int) -> None:
    """The life of a process that was started only to follow. It leaves a report if it fails."""
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    store.set(f"started {place.rank}", "")
    try:
        follow(place, store)
    except BaseException as error:
        lines = [str(error)] if isinstance(error, LRError) else traceback.format_exception(error)
        store.set(f"failed {place.rank}", "".join(lines))
        os._exit(1)
    os._exit(0)


@torch.inference_mode()
def follow(place: Torchrun, store: dist.Store | None = None) -> None:
    """The whole life of a rank above 0: carry out calls until rank 0 or another rank is gone. With
    the first call after rank 0 has dropped a cache, it and its recordings are dropped here.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is rank 0's to answer
    models: dict[int, RankLM] = {}
    caches: dict[int, tuple[PagedKVCache, StepGraphs | None]] = {}  # with what is recorded on them
    ranks = Ranks(place.rank, place.size, torch.device("cpu"))
    try:
        _join(ranks, place, store)
        while True:
            held, *call = ranks.tell()
            for number in caches.keys() - held:
                del caches[number]
            match call:
                case ("load", number, source, dtype):
                    with torch.inference_mode(False):
                        models[number] = RankLM.load(source, ranks, dtype)
                    together(dist.barrier)
                case (what, number, into, *arguments):
                    _follow(models[number], caches, into, what, arguments)
    except RankLost:
        return  # rank 0 finds out why
    finally:
        _leave([graphs for _, graphs in caches.values() if graphs], ranks)


def _follow(
    model: RankLM, caches: dict[int, Any], into: Sequence[Any], what: str, arguments: Sequence[Any]
) -> None:
    """A function of its own, so that nothing holds a cache that has been dropped."""
    number, sizes, prepared, name, kind = into  # as `LeaderLM._with_others` sends it
    if number not in caches:
        cache = model.make_cache(*sizes)
        cache.pool.allocate(cache.num_blocks)  # other ranks count no owners: all blocks are
        cache.keys.zero_()  # held, and may be read
        cache.values.zero_()
        caches[number] = cache, None
    cache, graphs = caches[number]
    for fresh, copies in prepared:
        cache.prepare(fresh, copies)
    if model.attention.name != name:
        equip(model, name, graphs=False)
    if what == "record":
        model.attention = kind
        caches[number] = cache, StepGraphs(model, cache, None, *arguments)
    else:
        source, replays = arguments
        replay = graphs.run if graphs and replays else None
        model(RaggedBatch.build(*source, device=model.device), cache, kind, replay)
