"""Tensor parallelism: one model over several processes, its *ranks*, each with its
slices of the weights and of the KV cache (Megatron-LM, arXiv 1909.08053).

**Slices.** Example: 8 query heads, 2 KV heads, 4 ranks. Rank 3 has query heads 6 and 7,
which use KV head 1; rank 2 has KV head 1 too. A vocabulary of 61 is padded to 64, and
rank 3 has rows 48..63. The checkpoint has rows 48..60; the others are zero, and their
logits are cut off. Two sums over the ranks per layer make the hidden states whole
again, one after the attention and one after the MLP.

**Processes.** Rank 0 is the program itself, with scheduler, sampling and block tables.
It sends each pass to the others: the ragged batch with its block tables and the copies
of blocks. Example: two forks share block 5 and each gets a token. Rank 0's cache copies
block 5 to 6, and the message says: copies [(5, 6)]; tables with blocks [5] and [6],
slots 23 and 25. If a rank ends, rank 0 says which, ends all and raises `WorkerError`,
now and later.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from lr.errors import LRError, SettingError
from lr.kvcache.cache import PagedKVCache
from lr.model.attention import AttentionKind, RaggedBatch
from lr.model.attention_choice import equip
from lr.model.config import ModelConfig
from lr.model.device import find_device, start_process
from lr.model.qwen import CausalLM, Replay
from lr.model.weights import Piece, config_of, load_pieces, pieces

PATIENCE = 3.0  # seconds in which a rank that has lost another ends too


class WorkerError(LRError):
    """A rank of a tensor-parallel model has ended. The text says which."""


# 1. Who has which slice


def part_of(config: ModelConfig, ranks: int) -> ModelConfig:
    """The sizes of one rank's network. Raises `SettingError` for an impossible number
    of ranks."""
    h, k, width = config.num_heads, config.num_kv_heads, config.intermediate_size
    if h % ranks or width % ranks or max(k, ranks) % min(k, ranks):
        raise SettingError(
            f"tensor_parallel is {ranks}. It must divide this model's query heads "
            f"({h}) and MLP width ({width}), and divide its KV heads ({k}) or be a "
            "multiple of them."
        )
    return replace(
        config,
        num_heads=h // ranks,
        num_kv_heads=max(1, k // ranks),
        intermediate_size=width // ranks,
        vocab_size=-(-config.vocab_size // ranks),
    )


def cuts(config: ModelConfig, rank: int, ranks: int) -> list[Piece]:
    """The part of each tensor of a checkpoint that a rank reads.

    An axis has total / size parts, and the rank takes part rank * parts // ranks. Of
    2 parts (KV heads), 4 ranks take 0, 0, 1, 1. An axis that is not divided is one
    part.
    """
    part = part_of(config, ranks)
    padded = replace(config, vocab_size=part.vocab_size * ranks)
    slices = []
    for piece, long, short in zip(
        pieces(config), pieces(padded), pieces(part), strict=True
    ):
        parts = []
        for end, total, size in zip(piece.shape, long.shape, short.shape, strict=True):
            start = rank * (total // size) // ranks * size
            parts.append(slice(min(start, end), min(start + size, end)))
        slices.append(replace(piece, first=short.first, slices=tuple(parts)))
    return slices


# 2. A rank's part of the network


def all_sum(x: Tensor) -> Tensor:
    """Add up the x of all ranks, in place."""
    dist.all_reduce(x)
    return x


class RankLM(CausalLM):
    """Part number `rank` of a model in `ranks` parts. `config`: of the whole model;
    `part`: of this rank."""

    def __init__(self, config: ModelConfig, rank: int, ranks: int) -> None:
        super().__init__(part_of(config, ranks))
        self.config, self.rank, self.ranks = config, rank, ranks
        for name, module in self.named_modules():
            if name.endswith(("attention.out", "mlp.down")):
                # y = sum over the ranks of W_r x_r
                module.register_forward_hook(lambda _, x, y: all_sum(y))

    @classmethod
    def load(
        cls,
        source: str | Path,
        devices: Sequence[torch.device],
        rank: int,
        dtype: torch.dtype | None = None,
    ) -> Self:
        """Read this rank's slices only. Raises as `load_model` and `part_of`."""
        ranks = len(devices)
        network = partial(cls, rank=rank, ranks=ranks)
        take = partial(cuts, rank=rank, ranks=ranks)
        return load_pieces(source, devices[rank], dtype, network, take)

    @property
    def replayable(self) -> bool:
        """False: passes of several ranks are not recorded in CUDA graphs."""
        return False

    def embed(self, tokens: Tensor) -> Tensor:
        """Tokens [n] -> [n, e]: the sum over the ranks, where all but one contribute
        zero. Of rows 48..63, token 50 is row 2; token 7 belongs to another rank: row 0
        is read, then zeroed.
        """
        rows = tokens - self.rank * self.part.vocab_size
        elsewhere = (rows < 0) | (rows >= self.part.vocab_size)
        x = self.embedding(rows.masked_fill(elsewhere, 0))
        return all_sum(x.masked_fill(elsewhere[:, None], 0))

    def logits(self, hidden: Tensor) -> Tensor:
        """The logits [m, v] of the whole vocabulary on rank 0; of a part elsewhere."""
        part = super().logits(hidden).contiguous()
        if self.rank > 0:
            dist.gather(part)
            return part
        parts = [torch.empty_like(part) for _ in range(self.ranks)]
        dist.gather(part, parts)
        return torch.cat(parts, dim=-1)[:, : self.config.vocab_size]


# 3. Rank 0 decides


def spread_over(ranks: int, device: str | torch.device) -> tuple[torch.device, ...]:
    """A device per rank: consecutive GPUs that begin with `device`, or always the same
    CPU. Raises `SettingError`."""
    first = find_device(device)
    if first.type != "cuda":
        return (first,) * ranks
    return tuple(find_device(f"cuda:{first.index + i}") for i in range(ranks))


def load_parallel(
    source: str | Path,
    devices: Sequence[torch.device],
    dtype: torch.dtype | None = None,
) -> LeaderLM:
    """Load a model over one process per device, of which this is the first. Raises as
    `load_model`; `SettingError` if the model cannot be divided, or if this process has
    another spread model.
    """
    part_of(config_of(source), len(devices))
    if dist.is_initialized():
        raise SettingError(
            "this process already belongs to a group of torch.distributed. Close the "
            "other model first (Reasoner.close)."
        )
    group = RankGroup(source, devices, dtype)
    with group.in_step():
        model = LeaderLM.load(source, devices, 0, dtype)
        group.wait_for_all()  # all have loaded
    model.group = group
    return model


class RankGroup:
    """Rank 0's side: the processes of the other ranks, and the caches that they have
    too. Ends by `close`, by the garbage collector, at exit, or when a rank is lost.
    """

    def __init__(
        self,
        source: str | Path,
        devices: Sequence[torch.device],
        dtype: torch.dtype | None,
    ) -> None:
        self.device = devices[0]
        self.error: WorkerError | None = None
        self.caches = weakref.WeakSet[PagedKVCache]()
        self.processes: list[SpawnProcess] = []
        self.connections: list[Connection] = []
        self._finalizer = weakref.finalize(self, _end, self.processes)
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        for rank in range(1, len(devices)):
            ours, theirs = multiprocessing.Pipe()
            threads = torch.get_num_threads()
            model = (source, devices, rank, dtype, threads)
            process = start_process(
                follow, store.port, theirs, *model, name=f"lr rank {rank}"
            )
            theirs.close()
            self.processes.append(process)
            self.connections.append(ours)
        with self.in_step():
            self.wait_for_all()  # all have started
            _join(0, devices, store)

    def wait_for_all(self) -> None:
        """Wait for a word of every other rank."""
        for connection in self.connections:
            connection.recv()  # `EOFError` if the rank has ended

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Rank 0's part of something that all ranks do. Any error ends the group."""
        if self.error is not None:
            raise self.error
        try:
            yield
            if self.device.type == "cuda":
                # NCCL would wait for ever for a rank that is gone; gloo notices.
                done = torch.cuda.Event()
                done.record(torch.cuda.current_stream(self.device))
                while not done.query():
                    if not all(process.is_alive() for process in self.processes):
                        raise ConnectionError("a rank has ended")
                    time.sleep(5e-5)
        except BaseException as error:
            ended = []
            if isinstance(error, (RuntimeError, EOFError, ConnectionError)):
                for rank, process in enumerate(self.processes, 1):
                    process.join(PATIENCE)
                    if process.exitcode is not None:
                        ended.append(f"rank {rank} ended with code {process.exitcode}")
            cause = ", ".join(ended) or f"a pass ended in {type(error).__name__}"
            self.close(cause)
            if ended and self.error is not None:
                raise self.error from error
            raise

    def close(self, cause: str = "this model was closed") -> None:
        """End the other ranks and leave the group."""
        if self.error is None:
            self.error = WorkerError(
                f"{cause}. A model that is spread over several ranks needs them all: "
                "load it again. What a rank that failed has to say is on the standard "
                "error; code -9 means that it was killed, perhaps for want of memory."
            )
        self._finalizer()


def _join(rank: int, devices: Sequence[torch.device], store: dist.Store) -> None:
    """Form the group of torch.distributed."""
    backend = "gloo"
    if devices[rank].type == "cuda":
        backend = "nccl"
        torch.cuda.set_device(devices[rank])
    size = len(devices)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)


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


class LeaderLM(RankLM):
    """Rank 0's part of a spread model: a `CausalLM` for callers."""

    group: RankGroup

    def close(self) -> None:
        """End the other ranks."""
        self.group.close()

    def forward(
        self,
        batch: RaggedBatch,
        cache: PagedKVCache,
        attention: AttentionKind | None = None,
        replay: Replay | None = None,
    ) -> Tensor:
        """As in `CausalLM`, on all ranks. Raises `WorkerError`."""
        kind = attention or self.attention
        self.group.caches.add(cache)
        in_use = {_key(other) for other in self.group.caches}
        copies = cache.open_append or []
        with self.group.in_step():
            for connection in self.group.connections:
                connection.send((in_use, _key(cache), copies, kind.name, batch.source))
            return super().forward(batch, cache, kind)


Key = tuple[int, int, int]
"""Which cache of rank 0, and its sizes. A later cache may have the same number."""


def _key(cache: PagedKVCache) -> Key:
    return id(cache), cache.num_blocks, cache.block_size


# 4. The other ranks follow


def follow(
    port: int,
    connection: Connection,
    source: str | Path,
    devices: Sequence[torch.device],
    rank: int,
    dtype: torch.dtype | None,
    threads: int,
) -> None:
    """Repeat rank 0's passes on another rank, until any rank is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 handles Ctrl-C
    torch.set_num_threads(threads)
    try:
        connection.send("started")
        _join(rank, devices, dist.TCPStore("127.0.0.1", port, is_master=False))
        model = RankLM.load(source, devices, rank, dtype)
        connection.send("loaded")
        caches: dict[Key, PagedKVCache] = {}
        while True:
            repeat(model, caches, *connection.recv())
    except EOFError:
        os._exit(0)  # rank 0 has ended
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # the group of torch.distributed may hang when it is left


@torch.inference_mode()
def repeat(
    model: RankLM,
    caches: dict[Key, PagedKVCache],
    in_use: set[Key],
    key: Key,
    copies: Sequence[tuple[int, int]],
    attention: str,
    source: tuple[Any, ...],
) -> None:
    """Repeat a pass of `LeaderLM.forward`. A cache that rank 0 has dropped is dropped
    here at the next pass."""
    for dropped in caches.keys() - in_use:
        del caches[dropped]
    if key not in caches:
        cache = caches[key] = model.make_cache(*key[1:])
        # Rank 0 counts who owns a block; here any block may be read, so none has NaN.
        cache.pool.allocate(cache.num_blocks)
        cache.keys.zero_()
        cache.values.zero_()
    caches[key].prepare([], copies)
    if model.attention.name != attention:
        equip(model, attention, graphs=False)
    model(RaggedBatch.build(*source, device=model.device), caches[key])
