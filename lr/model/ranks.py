"""Tensor parallelism: one model over several processes, its *ranks*, each with its
slices of the weights and of the KV cache (Megatron-LM, arXiv 1909.08053).

**Slices.** Example: 8 query heads, 2 KV heads, 4 ranks. Rank 3 has query heads 6 and 7,
which use KV head 1; rank 2 has KV head 1 too. A vocabulary of 61 is padded to 64, and
rank 3 has rows 48..63. The checkpoint has rows 48..60; the others are zero, and their
logits are cut off. Two sums over the ranks per layer make the hidden states whole
again, one after the attention and one after the MLP.

**Processes.** Rank 0 is the program itself, with scheduler, sampling and block tables.
It sends each pass to the others: the ragged batch with its block tables, and what its
cache has prepared since the last pass. Example: two forks share block 5 and each gets a
token. Rank 0's cache copies block 5 to 6, and the message says: fresh (), copies ((5,
6),); blocks [5] and [6], slots 23 and 25. If a rank ends, rank 0 says which, ends all
and raises `WorkerError`, now and later.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from lr.errors import LRError, ProtocolError, SettingError
from lr.kvcache.cache import PagedKVCache
from lr.model.attention import AttentionKind, RaggedBatch
from lr.model.attention_choice import equip
from lr.model.config import ModelConfig
from lr.model.device import find_device, start_process
from lr.model.layers import DecoderLayer
from lr.model.qwen import CausalLM, Replay
from lr.model.weights import Piece, config_of, load_pieces, pieces

BLAME = 10.0  # seconds in which a rank that failed must have ended


class WorkerError(LRError):
    """A rank of a tensor-parallel model died or failed. The text says which."""


class RankLost(LRError):
    """A collective operation failed, because another rank is gone."""


# 1. Who has which slice


def part_of(config: ModelConfig, ranks: int) -> ModelConfig:
    """The sizes of one rank's network. Raises `SettingError` for an impossible number
    of ranks."""
    h, k, width = config.num_heads, config.num_kv_heads, config.intermediate_size
    possible = [
        n for n in range(1, h + 1) if not (h % n or width % n or max(k, n) % min(k, n))
    ]
    if ranks not in possible:
        raise SettingError(
            f"tensor_parallel is {ranks}. It must divide this model's query heads ({h}) and MLP "
            f"width ({width}), and divide its KV heads ({k}) or be a multiple of them. Possible "
            f"for it: {', '.join(map(str, possible))}."
        )
    return replace(
        config,
        num_heads=h // ranks,
        num_kv_heads=max(1, k // ranks),
        intermediate_size=width // ranks,
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
    mine = []
    for full, long, short in zip(
        pieces(config), pieces(padded), pieces(part), strict=True
    ):
        taken = []
        for end, total, size in zip(full.shape, long.shape, short.shape, strict=True):
            start = rank * (total // size) // ranks * size
            taken.append(slice(min(start, end), min(start + size, end)))
        mine.append(replace(full, first=short.first, taken=tuple(taken)))
    return mine


# 2. A rank's part of the network


@dataclass(frozen=True)
class Ranks:
    """This process: number `rank` of the `size` that share a model. All make the same
    collective calls in the same order. They raise `RankLost`."""

    rank: int
    size: int
    device: torch.device

    def sum(self, x: Tensor) -> Tensor:
        """Add up the x of all ranks, in place."""
        self.together(dist.all_reduce, x)
        return x

    def gather(self, x: Tensor) -> list[Tensor]:
        """The x of every rank, on rank 0; elsewhere nothing."""
        parts = [torch.empty_like(x) for _ in range(self.size)] if not self.rank else []
        self.together(dist.gather, x, parts or None)
        return parts

    def together(self, collective: Callable[..., Any], *arguments: Any) -> None:
        """Call a collective operation of all ranks."""
        try:
            collective(*arguments)
        except RuntimeError as error:
            raise RankLost(f"this rank has lost the others: {error}") from error


class RankLM(CausalLM):
    """One rank's part of a model. `config`: of the whole model; `part`: of this
    rank."""

    def __init__(self, config: ModelConfig, ranks: Ranks) -> None:
        super().__init__(part_of(config, ranks.size))
        self.config, self.ranks = config, ranks
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            for divided in (layer.attention.out, layer.mlp.down):
                # y = sum over the ranks of W_r x_r
                divided.register_forward_hook(lambda _, x, y: ranks.sum(y))

    @classmethod
    def load(
        cls, source: str | Path, ranks: Ranks, dtype: torch.dtype | None = None
    ) -> Self:
        """Read this rank's slices only. Raises as `load_model` and `part_of`."""
        take = partial(cuts, rank=ranks.rank, ranks=ranks.size)
        return load_pieces(source, ranks.device, dtype, partial(cls, ranks=ranks), take)

    @property
    def replayable(self) -> bool:
        """False: passes of several ranks are not recorded in CUDA graphs."""
        return False

    def embed(self, tokens: Tensor) -> Tensor:
        """Tokens [n] -> [n, e]: the sum over the ranks, where all but one contribute
        zero. Of rows 48..63, token 50 is row 2; token 7 belongs to another rank: row 0
        is read, then zeroed.
        """
        rows = tokens - self.ranks.rank * self.part.vocab_size
        elsewhere = (rows < 0) | (rows >= self.part.vocab_size)
        x = self.embedding(rows.masked_fill(elsewhere, 0))
        return self.ranks.sum(x.masked_fill(elsewhere[:, None], 0))

    def logits(self, hidden: Tensor) -> Tensor:
        """The logits [m, v] of the whole vocabulary on rank 0; [m, 0] on the others."""
        parts = self.ranks.gather(super().logits(hidden).contiguous())
        if not parts:
            return hidden[:, :0]
        return torch.cat(parts, dim=-1)[:, : self.config.vocab_size]


# 3. Rank 0 decides


def spread_over(ranks: int, device: str | torch.device) -> tuple[torch.device, ...]:
    """A device per rank: consecutive GPUs that begin with `device`, or always the same
    CPU."""
    device = find_device(device)
    if device.type != "cuda":
        return (device,) * ranks
    first, present = device.index or 0, torch.cuda.device_count()
    if first + ranks > present:
        raise SettingError(
            f"tensor_parallel is {ranks}, beginning with {device}, but this machine has {present} "
            "CUDA devices. Use fewer ranks."
        )
    return tuple(torch.device("cuda", first + i) for i in range(ranks))


def load_parallel(
    source: str | Path,
    devices: Sequence[torch.device],
    dtype: torch.dtype | None = None,
) -> LeaderLM:
    """Load a model over one process per device, of which this is the first. Raises as
    `load_model` and `RankGroup`; `SettingError` if the model cannot be divided.
    """
    part_of(config_of(source), len(devices))
    group = RankGroup(devices, source, dtype)
    with group.in_step():
        model = LeaderLM.load(source, group.ranks, dtype)
        group.wait_until_ready()  # all have loaded
    model.group = group
    return model


class RankGroup:
    """Rank 0's side: the processes of the other ranks, and the caches of the model that
    is spread over them. Ends by `close`, by the garbage collector, at exit, or when a
    rank is lost. Raises `SettingError` for impossible devices or a second group.
    """

    def __init__(
        self,
        devices: Sequence[torch.device],
        source: str | Path,
        dtype: torch.dtype | None,
    ) -> None:
        kinds = {device.type for device in devices}
        shared = kinds == {"cuda"} and len(set(devices)) < len(devices)
        if shared or kinds not in ({"cpu"}, {"cuda"}):
            raise SettingError(
                f"a model cannot be spread over {', '.join(map(str, devices))}: give CUDA "
                "devices, or cpu. Each rank needs its own GPU."
            )
        if dist.is_initialized():
            raise SettingError(
                "this process already belongs to a group of torch.distributed. Close the other "
                "model first (Reasoner.close)."
            )
        self.ranks = Ranks(0, len(devices), devices[0])
        self.error: WorkerError | None = None
        self.numbers = count()  # of caches
        self.caches = weakref.WeakValueDictionary[int, LeaderCache]()
        self.processes: list[SpawnProcess] = []
        self.connections: list[Connection] = []
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._finalizer = weakref.finalize(self, _end, self.processes)
        for rank, device in enumerate(devices[1:], 1):
            ours, theirs = multiprocessing.Pipe()
            ranks = Ranks(rank, len(devices), device)
            threads = torch.get_num_threads()
            load = (str(source), dtype, threads)
            process = start_process(
                follow, ranks, store.port, theirs, *load, name=f"lr rank {rank}"
            )
            theirs.close()
            self.processes.append(process)
            self.connections.append(ours)
        with self.in_step():
            self.wait_until_ready()  # all have started
            _join(self.ranks, store)

    def wait_until_ready(self) -> None:
        """Wait for a word of every other rank."""
        for connection in self.connections:
            while not connection.poll(0.05):
                self.require_alive()
            connection.recv()

    def require_alive(self) -> None:
        """Raise `RankLost` if a rank has ended."""
        if any(process.exitcode is not None for process in self.processes):
            raise RankLost("a rank has ended")

    def send(self, *message: Any) -> None:
        """Send a message to all other ranks."""
        for connection in self.connections:
            connection.send(message)

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Rank 0's part of something that all ranks do. Any error ends the group."""
        if self.error is not None:
            raise self.error
        try:
            yield
            if self.ranks.device.type == "cuda":
                # NCCL would wait for ever for a rank that is gone; gloo notices.
                done = torch.cuda.Event()
                done.record(torch.cuda.current_stream(self.ranks.device))
                while not done.query():
                    self.require_alive()
                    time.sleep(5e-5)
        except (RankLost, EOFError, ConnectionError) as error:
            raise self.close(f"{self.blame() or error}") from error
        except BaseException as error:
            name = type(error).__name__
            self.close(f"a pass of this model ended in {name}; its ranks lost step")
            raise

    def blame(self) -> str:
        """Which rank ended by itself or was killed, and how; "" if none. A rank that
        has only lost another ends with exit code 0."""
        deadline = time.monotonic() + BLAME
        while time.monotonic() < deadline:
            for rank, process in enumerate(self.processes, 1):
                name = f"rank {rank} (process {process.pid})"
                code = process.exitcode
                if code is not None and code < 0:
                    return f"{name} was killed by {signal.Signals(-code).name}"
                if code is not None and code > 0:
                    report = ""
                    with suppress(EOFError, OSError):
                        report = f": {self.connections[rank - 1].recv()}"
                    return f"{name} failed{report}"
            time.sleep(0.05)
        return ""

    def close(self, why: str = "this tensor-parallel model was closed") -> WorkerError:
        """End the other ranks and leave the group. Returns the error that its model
        now raises."""
        if self.error is None:
            self.error = WorkerError(
                f"{why.rstrip('.')}. The model is spread over several ranks and needs them all: "
                "load it again. If a process was killed, memory may have run out."
            )
        self._finalizer()
        return self.error


def _end(processes: Sequence[SpawnProcess]) -> None:
    """Kill the other ranks, which have nothing to save, and leave the group."""
    for process in processes:
        process.kill()
        process.join()
    if dist.is_initialized():
        with suppress(RuntimeError):
            if dist.get_backend() == "nccl" and dist.group.WORLD is not None:
                dist.group.WORLD.abort()  # sums that a lost rank never joins
            dist.destroy_process_group()


def _join(ranks: Ranks, store: dist.Store) -> None:
    """Form the group of torch.distributed, for sums and gathering."""
    if ranks.device.type == "cuda":
        torch.cuda.set_device(ranks.device)
        backend, device = "nccl", ranks.device
    else:
        backend, device = "gloo", None
    start = partial(dist.init_process_group, backend, device_id=device, store=store)
    ranks.together(partial(start, rank=ranks.rank, world_size=ranks.size))


class LeaderCache(PagedKVCache):
    """The cache of rank 0's KV heads. `prepared`: what the other ranks' caches must
    repeat."""

    def __init__(self, number: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.number = number
        self.prepared: list[tuple[Any, ...]] = []

    def prepare(self, fresh: Sequence[int], copies: Sequence[tuple[int, int]]) -> None:
        super().prepare(fresh, copies)
        self.prepared.append((fresh, copies))


class LeaderLM(RankLM):
    """Rank 0's part of a spread model: a `CausalLM` for callers, with caches from
    `make_cache`."""

    group: RankGroup

    def close(self) -> None:
        """End the other ranks."""
        self.group.close()

    def make_cache(self, num_blocks: int, block_size: int) -> PagedKVCache:
        """A cache on all ranks. Raises `SettingError` for a size below 1."""
        sizes = {"num_blocks": num_blocks, "block_size": block_size, **self.cache_shape}
        cache = LeaderCache(next(self.group.numbers), **sizes, device=self.device)
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
        if not isinstance(cache, LeaderCache):
            raise ProtocolError(
                "a tensor-parallel model needs a cache from its own make_cache."
            )
        kind = attention or self.attention
        sizes = (cache.num_blocks, cache.block_size)
        prepared, cache.prepared = cache.prepared, []
        live = set(self.group.caches)
        with self.group.in_step():
            self.group.send(
                live, cache.number, sizes, prepared, kind.name, batch.source
            )
            return super().forward(batch, cache, kind)


# 4. The other ranks follow


@torch.inference_mode()
def follow(
    ranks: Ranks,
    port: int,
    connection: Connection,
    source: str,
    dtype: torch.dtype | None,
    threads: int,
) -> None:
    """Carry out rank 0's passes on another rank, until any rank is gone. A cache that
    rank 0 has dropped is dropped here at the next pass.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 handles Ctrl-C
    torch.set_num_threads(threads)
    try:
        connection.send("started")
        _join(ranks, dist.TCPStore("127.0.0.1", port, is_master=False))
        with torch.inference_mode(False):
            model = RankLM.load(source, ranks, dtype)
        connection.send("loaded")
        caches: dict[int, PagedKVCache] = {}
        while True:
            live, number, *message = connection.recv()
            for dropped in caches.keys() - live:
                del caches[dropped]
            _pass(model, caches, number, *message)
    except (RankLost, EOFError, ConnectionError):
        os._exit(0)  # rank 0 finds out which rank is gone
    except BaseException as error:
        expected = isinstance(error, LRError)
        connection.send(str(error) if expected else traceback.format_exc())
        os._exit(1)  # the group of torch.distributed may hang when it is left


def _pass(
    model: RankLM,
    caches: dict[int, PagedKVCache],
    number: int,
    sizes: tuple[int, int],
    prepared: Sequence[tuple[Any, ...]],
    kind: str,
    batch: tuple[Any, ...],
) -> None:
    """One pass of `LeaderLM.forward`."""
    if number not in caches:
        cache = caches[number] = model.make_cache(*sizes)
        # Rank 0 counts who owns a block; here any block may be read.
        cache.pool.allocate(cache.num_blocks)
        cache.keys.zero_()
        cache.values.zero_()
    for fresh, copies in prepared:
        caches[number].prepare(fresh, copies)
    if model.attention.name != kind:
        equip(model, kind, graphs=False)
    model(RaggedBatch.build(*batch, device=model.device), caches[number])
