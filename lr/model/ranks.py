"""Tensor parallelism: one model over several processes, its *ranks*, each with its
slices of the weights and of the KV cache (Megatron-LM, arXiv 1909.08053).
`docs/parallel.md` lists them.

**Slices.** Example: 8 query heads, 2 KV heads, 4 ranks. Rank 3 has query heads 6 and 7, which use
KV head 1; rank 2 has KV head 1 too. A vocabulary of 61 is padded to 64, and rank 3 has rows 48..63.
The checkpoint has rows 48..60; the others are zero, and their logits are cut off.

**Processes.** Rank 0 is the program itself, with scheduler, sampling and block tables. The other
ranks follow it. For each pass, rank 0 sends them one message: the batch, whether all ranks replay
it from CUDA graphs, and what its cache has prepared since the last message. Example: two forks
share block 5 and each gets a token. Rank 0's cache copies block 5 to 6, and the message says: fresh
(), copies ((5, 6),); blocks [5] and [6], slots 23 and 25.

The ranks are started here, or by torchrun. Messages use a group of `torch.distributed`
(gloo) in which only rank 0 has a time limit, because other ranks may be idle; sums use
another group. Both fail when a rank dies, or hangs for `patience` seconds. A rank that
has only lost another one ends silently. Rank 0 finds the rank that failed, ends all and
raises `WorkerError`, now and later.
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

PATIENCE = (
    20.0  # seconds that any rank waits in a sum, and rank 0 for a message to be sent
)
STARTS = 10  # times `patience`: how long a rank may take to start
FOR_EVER = timedelta(days=365)
AFTERMATH = (
    3.0  # seconds in which ranks that only lost another end; one that still runs hangs
)
WATCHDOG = "ASYNC_ERROR_HANDLING", "DUMP_ON_TIMEOUT", "WAIT_TIMEOUT_DUMP_MILSEC"
"""Settings of PyTorch's NCCL watchdog. When a sum fails, it takes a minute for a dump
and then ends the process. They are off on rank 0, which keeps its own time limit and
names the lost rank."""


class WorkerError(LRError):
    """A rank of a tensor-parallel model died, hung or failed. The text gives rank and
    reason."""


@dataclass
class Ranks:
    """This process: number `rank` of the `size` that share a model. All make the same
    calls in the same order, on two groups of `torch.distributed`: `sums` and
    `messages`. Raises `RankLost`.
    """

    rank: int
    size: int
    device: torch.device
    sums: Any = None
    messages: Any = None

    def tell(self, message: Any = None) -> Any:
        """Send rank 0's message to all ranks. Returns it, on rank 0 too."""
        told = [message]
        together(dist.broadcast_object_list, told, 0, self.messages)
        return told[0]

    def sum(self, x: Tensor) -> Tensor:
        """Add up the x of all ranks, in place."""
        together(dist.all_reduce, x, group=self.sums)
        return x


def together(collective: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a collective operation of all ranks. Raises `RankLost`."""
    try:
        return collective(*arguments, **named)
    except RuntimeError as error:
        raise RankLost(f"this rank has lost the others: {error}") from error


def part_of(config: ModelConfig, ranks: int) -> ModelConfig:
    """The sizes of one rank's network. Raises `SettingError` for an impossible number
    of ranks."""
    h, k, width = config.num_heads, config.num_kv_heads, config.intermediate_size
    fits = [
        n for n in range(1, h + 1) if not (h % n or width % n or max(k, n) % min(k, n))
    ]
    if ranks not in fits:
        raise SettingError(
            f"tensor_parallel is {ranks}. It must divide this model's query heads ({h}) and MLP "
            f"width ({width}), and divide its KV heads ({k}) or be a multiple of them. Possible "
            f"for it: {', '.join(map(str, fits))}."
        )
    return replace(
        config,
        num_heads=config.num_heads // ranks,
        num_kv_heads=max(1, config.num_kv_heads // ranks),
        intermediate_size=config.intermediate_size // ranks,
        vocab_size=-(-config.vocab_size // ranks),
    )


def cuts(config: ModelConfig, rank: int, ranks: int) -> list[Piece]:
    """The part of each tensor of a checkpoint that a rank reads. Raises as `part_of`
    does.

    An axis has whole / part pieces, and the rank takes piece rank * pieces // ranks. Of
    2 pieces (KV heads), 4 ranks take 0, 0, 1, 1. An axis that is not divided is one
    piece.
    """
    part = part_of(config, ranks)
    padded = replace(config, vocab_size=part.vocab_size * ranks)
    found = []
    for whole, long, mine in zip(
        pieces(config), pieces(padded), pieces(part), strict=True
    ):
        taken = []
        for end, total, size in zip(whole.shape, long.shape, mine.shape, strict=True):
            start = rank * (total // size) // ranks * size
            taken.append(slice(min(start, end), min(start + size, end)))
        found.append(replace(whole, first=mine.first, taken=tuple(taken)))
    return found


class RankLM(CausalLM):
    """One rank's part of a model. `config`: of the whole model; `part`: of this
    rank."""

    def __init__(self, config: ModelConfig, ranks: Ranks) -> None:
        super().__init__(part_of(config, ranks.size))
        self.config, self.ranks = config, ranks
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            for one in (
                layer.attention.out,
                layer.mlp.down,
            ):  # y = sum over the ranks of W_r x_r
                one.register_forward_hook(lambda _, x, y: ranks.sum(y))

    @classmethod
    def load(
        cls, source: str | Path, ranks: Ranks, dtype: torch.dtype | None = None
    ) -> Self:
        """Read this rank's slices only. Raises as `load_model` and `part_of`."""
        take = partial(cuts, rank=ranks.rank, ranks=ranks.size)
        return load_pieces(source, ranks.device, dtype, partial(cls, ranks=ranks), take)

    def agreed(self, failure: str | None) -> str | None:
        """Why a recording failed, on all ranks. Raises `RankLost` if it failed only on
        some."""
        failures: list[str | None] = [None] * self.ranks.size
        together(dist.all_gather_object, failures, failure, group=self.ranks.messages)
        for rank, one in enumerate(failures):
            if one is not None and None in failures:  # the others wait in a sum
                raise RankLost(f"rank {rank}, and not all others: {one}")
        return failures[0]

    def embed(self, tokens: Tensor) -> Tensor:
        """Tokens [n] -> [n, e]: the sum over the ranks, where all but one contribute
        zero. Of rows 48..63, token 50 is row 2; token 7 belongs to another rank: row 0
        is read, then zeroed.
        """
        here = tokens - self.ranks.rank * self.part.vocab_size
        elsewhere = (here < 0) | (here >= self.part.vocab_size)
        x = self.embedding(here.masked_fill(elsewhere, 0))
        return self.ranks.sum(x.masked_fill(elsewhere[:, None], 0))

    def logits(self, hidden: Tensor) -> Tensor:
        """The logits [m, v] of the whole vocabulary on rank 0; [m, 0] on the others."""
        mine, ranks = super().logits(hidden).contiguous(), self.ranks
        parts = (
            [torch.empty_like(mine) for _ in range(ranks.size)]
            if ranks.rank == 0
            else None
        )
        together(dist.gather, mine, parts, dst=0, group=ranks.sums)
        return (
            torch.cat(parts, dim=-1)[:, : self.config.vocab_size]
            if parts
            else hidden[:, :0]
        )


# The processes


def spread_over(ranks: int, device: str | torch.device) -> tuple[torch.device, ...]:
    """A device per rank: consecutive GPUs that begin with `device`, or always the same
    CPU."""
    device = find_device(device)
    if device.type != "cuda":
        return (device,) * ranks
    first, here = device.index or 0, torch.cuda.device_count()
    if first + ranks > here:
        raise SettingError(
            f"tensor_parallel is {ranks}, beginning with {device}, but this machine has {here} "
            "CUDA devices. Use fewer ranks, or torchrun for several machines."
        )
    return tuple(torch.device("cuda", first + i) for i in range(ranks))


def load_parallel(
    source: str | Path,
    devices: Sequence[torch.device],
    dtype: torch.dtype | None = None,
    torchrun: Torchrun | None = None,
    patience: float = PATIENCE,
) -> LeaderLM:
    """Load a model over one process per device, of which this is the first, or over
    torchrun's. Raises as `load_model` and `RankGroup`; `SettingError` if the model
    cannot be divided.
    """
    part_of(config_of(source), len(devices) if torchrun is None else torchrun.size)
    return RankGroup(devices, torchrun, patience).load(source, dtype)


class RankGroup:
    """Rank 0's side: the other ranks, and all models and caches that are spread over
    them. Ends by `close`, by the garbage collector, at exit, or when a rank is lost
    (`WorkerError`). Raises `SettingError` for impossible devices or a second group.
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
                "devices, or cpu. Each rank needs its own GPU."
            )
        if dist.is_initialized():
            raise SettingError(
                "this process already belongs to a group of torch.distributed. Close the other "
                "model first (Reasoner.close), or load this one on its group."
            )
        size = len(devices) if torchrun is None else torchrun.size
        places = [
            Torchrun(rank, size, one.index or 0) for rank, one in enumerate(devices)
        ]
        self.error: WorkerError | None = None
        self.numbers, self.recorded = (
            count(),
            weakref.WeakSet[StepGraphs](),
        )  # of models and caches
        self.caches = weakref.WeakValueDictionary[int, LeaderCache]()
        self.lock, self.processes, self.patience = (
            threading.RLock(),
            list[SpawnProcess](),
            patience,
        )
        self._store: dist.Store | None = None
        if torchrun is None:
            self._store = dist.TCPStore(
                "127.0.0.1", 0, is_master=True, wait_for_workers=False
            )
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
        """Load a model on this group. Under torchrun, each machine looks for `source`
        itself."""
        part_of(config_of(source), self.ranks.size)
        if self.processes and not is_dummy(source):
            source = resolve(source).resolve()
        number = next(self.numbers)
        with self.together("load", number, str(source), dtype):
            model = LeaderLM.load(source, self.ranks, dtype)
            together(dist.barrier)  # without a time limit
        model.group, model.number = self, number
        return model

    @contextmanager
    def together(self, *call: Any) -> Iterator[None]:
        """Send a call, if given, and the live caches' numbers; rank 0 does its part in
        the `with`. An error there ends the group. Raises `WorkerError` for a lost rank.
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
                    f"{cause}. The model is spread over several ranks and cannot run without this "
                    "one. If the process was killed, memory may have run out. Files already "
                    "written are kept."
                ) from error
            except BaseException as error:
                interrupted = isinstance(error, KeyboardInterrupt)
                what = (
                    "was interrupted" if interrupted else f"failed on rank 0 ({error})"
                )
                self.close(
                    f"a pass of this spread model {what}, so its ranks are out of step."
                )
                raise

    def close(self, why: str = "this tensor-parallel model was closed.") -> WorkerError:
        """End the other ranks and leave the group. Returns the error that its models
        now raise."""
        with self.lock:
            self.error = self.error or WorkerError(f"{why} Load it again.")
            self._finalizer()
            return self.error

    def finish(self) -> None:
        """Wait until this GPU has finished the pass. NCCL alone would wait for ever for
        a rank that is gone or hangs, and if it is stopped, the logits are garbage.
        Raises `RankLost`.
        """
        if self.ranks.device.type == "cuda":  # on a CPU, gloo has waited already
            done = torch.cuda.Event()
            done.record(torch.cuda.current_stream(self.ranks.device))
            self._wait(done.query, self.patience, pause=5e-5)

    def _wait(self, done: Callable[[], bool], seconds: float, pause: float) -> None:
        late = time.monotonic() + seconds
        while not done():
            if time.monotonic() > late or any(
                p.exitcode is not None for p in self.processes
            ):
                raise RankLost("a rank did not answer in time")
            time.sleep(pause)

    def _cause(self) -> str:
        """Which process started here failed or hangs, and how; "" if none."""
        deadline, running = time.monotonic() + AFTERMATH, list[str]()
        while time.monotonic() < deadline and not any(
            one.exitcode for one in self.processes
        ):
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
        return (
            f"{' or '.join(running)} hangs: it did not join the others"
            if running
            else ""
        )


def _end(owner: int, processes: Sequence[SpawnProcess], *left: Any) -> None:
    """Kill the ranks that were started here, which have nothing to save, and leave the
    group."""
    if os.getpid() != owner:
        return  # a fork of rank 0 ends, and the ranks are not its children
    for process in processes:
        process.kill()
        process.join()
    _leave(*left)  # this ends the ranks of torchrun


def _leave(recorded: Iterable[StepGraphs], ranks: Ranks) -> None:
    """Leave the group. CUDA graphs go first, because they hold NCCL's sums."""
    for graphs in recorded:
        graphs.forget()
    with suppress(RuntimeError):  # if `abort` fails, `destroy_process_group` could hang
        if ranks.device.type == "cuda" and ranks.sums is not None:
            ranks.sums.abort()  # sums that a lost rank never joins
        if dist.is_initialized():  # its threads must end before the process does
            dist.destroy_process_group()


def _join(
    ranks: Ranks,
    place: Torchrun,
    store: dist.Store | None,
    settings: tuple[Any, ...] | None = None,
) -> None:
    """Form the groups, through `store` or torchrun's. Rank 0 sends its `settings` to
    the others: whether they use GPUs, the number of threads, and `patience`.
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
    os.environ.update(dict.fromkeys(told, "0"))  # read when the group is made
    try:
        ranks.sums = together(dist.new_group, timeout=soon, **how)
    finally:
        for name in told:
            del os.environ[name]
        os.environ.update(kept)
    late = FOR_EVER if place.rank else soon
    ranks.messages = together(dist.new_group, timeout=late, backend="gloo")


class LeaderCache(PagedKVCache):
    """The cache of rank 0's KV heads. `prepared`: what the other ranks' caches must
    repeat."""

    def __init__(self, number: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.number, self.prepared = number, list[tuple[Any, ...]]()

    def prepare(self, fresh: Sequence[int], copies: Sequence[tuple[int, int]]) -> None:
        super().prepare(fresh, copies)
        self.prepared.append((fresh, copies))


class LeaderLM(RankLM):
    """Rank 0's part of a spread model: a `CausalLM` for callers, with caches from
    `make_cache`."""

    group: RankGroup
    number: int  # of this model, on all ranks of the group

    def close(self) -> None:
        """End the group, with all its models."""
        self.group.close()

    def make_cache(self, num_blocks: int, block_size: int) -> PagedKVCache:
        """A cache on all ranks. Raises `SettingError` for a size below 1."""
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
        """As in `CausalLM`, on all ranks. Raises `WorkerError`."""
        with self._with_others(
            cache, "feed", batch.source, attention, replay is not None
        ):
            return super().forward(batch, cache, attention, replay)

    def recording(
        self, graphs: StepGraphs, rows: Sequence[int]
    ) -> AbstractContextManager[object]:
        """All ranks record the same forwards, including sums and gathering."""
        self.group.recorded.add(graphs)
        return self._with_others(graphs.cache, "record", rows, graphs.padding)

    @contextmanager
    def _with_others(
        self, cache: PagedKVCache, what: str, *arguments: Any
    ) -> Iterator[None]:
        """The other ranks do `what` too, after their caches repeat what this one has
        prepared."""
        if not isinstance(cache, LeaderCache):
            raise ProtocolError(
                "a tensor-parallel model needs a cache from its own make_cache."
            )
        into = (
            cache.number,
            (cache.num_blocks, cache.block_size),
            cache.prepared,
            self.attention,
        )
        with self.group.together(what, self.number, into, *arguments):
            cache.prepared = []
            yield
            self.group.finish()


def _process(place: Torchrun, port: int) -> None:
    """The main function of a rank that was started here. If it fails, it leaves a
    report."""
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    store.set(f"started {place.rank}", "")
    try:
        follow(place, store)
    except BaseException as error:
        lines = (
            [str(error)]
            if isinstance(error, LRError)
            else traceback.format_exception(error)
        )
        store.set(f"failed {place.rank}", "".join(lines))
        os._exit(1)
    os._exit(0)


@torch.inference_mode()
def follow(place: Torchrun, store: dist.Store | None = None) -> None:
    """Carry out rank 0's calls on another rank until any rank is gone. A cache that
    rank 0 has dropped is dropped here at the next call, with its recordings.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 handles Ctrl-C
    models: dict[int, RankLM] = {}
    caches: dict[
        int, tuple[PagedKVCache, StepGraphs | None]
    ] = {}  # with their recordings
    ranks = Ranks(place.rank, place.size, torch.device("cpu"))
    try:
        _join(ranks, place, store)
        while True:
            held, what, number, *arguments = ranks.tell()
            for dropped in caches.keys() - held:
                del caches[dropped]
            if what == "load":
                source, dtype = arguments
                with torch.inference_mode(False):
                    models[number] = RankLM.load(source, ranks, dtype)
                together(dist.barrier)
            else:
                _follow(models[number], caches, what, *arguments)
    except RankLost:
        return  # rank 0 finds out why
    finally:
        _leave([graphs for _, graphs in caches.values() if graphs], ranks)


def _follow(
    model: RankLM,
    caches: dict[int, Any],
    what: str,
    into: tuple[Any, ...],
    *arguments: Any,
) -> None:
    """Do a call of `LeaderLM._with_others`. A separate function, so that no local
    variable of `follow` holds a dropped cache.
    """
    number, sizes, prepared, kind = into
    if number not in caches:
        cache = model.make_cache(*sizes)
        cache.pool.allocate(
            cache.num_blocks
        )  # rank 0 counts owners; here any may be read
        cache.keys.zero_()
        cache.values.zero_()
        caches[number] = cache, None
    cache, graphs = caches[number]
    for fresh, copies in prepared:
        cache.prepare(fresh, copies)
    if model.attention.name != kind.name:
        equip(model, kind.name, graphs=False)
    model.attention = kind
    if what == "record":
        caches[number] = cache, StepGraphs(model, cache, None, *arguments)
    else:
        source, attention, replays = arguments
        replay = graphs.run if graphs and replays else None
        model(RaggedBatch.build(*source, device=model.device), cache, attention, replay)
