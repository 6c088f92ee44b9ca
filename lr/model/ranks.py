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
slots 23 and 25. If a rank ends, rank 0 ends all and raises `WorkerError`, which says which
rank it was.

Messages go through pipes: a pass costs half of what it costs with
`broadcast_object_list`, and the end of a pipe tells a rank, idle or not, that rank 0 is
gone. `torch.multiprocessing.spawn` would import the user's script again.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from lr.errors import LRError, SettingError
from lr.kvcache.cache import PagedKVCache
from lr.model.attention import RaggedBatch
from lr.model.attention_choice import equip
from lr.model.config import ModelConfig
from lr.model.device import start_process
from lr.model.qwen import CausalLM
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
        # fewer than ranks: several ranks have the same
        num_kv_heads=max(1, k // ranks),
        intermediate_size=width // ranks,
        vocab_size=-(-config.vocab_size // ranks),  # rounded up: the last has padding
    )


def cuts(config: ModelConfig, rank: int, ranks: int) -> list[Piece]:
    """The part of each tensor of a checkpoint that a rank reads.

    An axis has total / size parts, and the rank takes part rank * parts // ranks. Of
    2 parts (KV heads), 4 ranks take 0, 0, 1, 1. An axis that is not divided is one
    part.
    """
    part = part_of(config, ranks)
    padded = replace(config, vocab_size=part.vocab_size * ranks)  # divides evenly
    slices = []
    for piece, long, short in zip(
        pieces(config), pieces(padded), pieces(part), strict=True
    ):
        parts = []
        for end, total, size in zip(piece.shape, long.shape, short.shape, strict=True):
            start = rank * (total // size) // ranks * size
            # padding rows are not in the file
            parts.append(slice(min(start, end), min(start + size, end)))
        slices.append(replace(piece, first=short.first, slices=tuple(parts)))
    return slices


# 2. A rank's part of the network


class RankLM(CausalLM):
    """Part number `rank` of a model in `ranks` parts. `config`: of the whole model;
    `rank_config`: of this rank; `others`: on rank 0, the other ranks."""

    spread = True
    others: OtherRanks | None = None

    def __init__(self, config: ModelConfig, rank: int, ranks: int) -> None:
        super().__init__(part_of(config, ranks))
        self.config, self.rank, self.ranks = config, rank, ranks
        for name, module in self.named_modules():
            if name.endswith(("attention.out", "mlp.down")):
                # y = sum over the ranks of W_r x_r, in place
                module.register_forward_hook(lambda _, x, y: dist.all_reduce(y))

    @property
    def replayable(self) -> bool:
        """False: passes of several ranks are not recorded in CUDA graphs."""
        return False

    def embed(self, tokens: Tensor) -> Tensor:
        """Tokens [n] -> [n, e]: the sum over the ranks, where all but one contribute
        zero. Of rows 48..63, token 50 is row 2; token 7 belongs to another rank: row 0
        is read, then zeroed.
        """
        size = self.rank_config.vocab_size
        rows = tokens - self.rank * size  # [n], of this rank's slice
        elsewhere = (rows < 0) | (rows >= size)
        x = self.embedding(rows.masked_fill(elsewhere, 0))
        x = x.masked_fill(elsewhere[:, None], 0)  # [n, e]
        dist.all_reduce(x)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """The logits [m, v] of the whole vocabulary on rank 0; of a part elsewhere."""
        part = super().logits(hidden).contiguous()  # [m, v / ranks]
        if self.rank > 0:
            dist.gather(part)
            return part
        parts = [torch.empty_like(part) for _ in range(self.ranks)]
        dist.gather(part, parts)
        return torch.cat(parts, dim=-1)[:, : self.config.vocab_size]

    def forward(self, batch: RaggedBatch, cache: PagedKVCache) -> Tensor:
        """As in `CausalLM`; on rank 0, with all others. Raises `WorkerError`."""
        if self.others is None:
            return super().forward(batch, cache)
        with self.others.in_step():
            self.others.post(batch, cache, self.attention.name)
            return super().forward(batch, cache)

    def close(self) -> None:
        """End the other ranks."""
        if self.others is not None:
            self.others.end()


# 3. Rank 0 decides


def load_parallel(
    source: str | Path,
    devices: Sequence[torch.device],
    dtype: torch.dtype | None = None,
) -> RankLM:
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
    load = partial(load_part, source, devices, dtype)
    others = OtherRanks(load, devices)
    with others.in_step():
        model = load(0)
        for connection in others.connections:
            connection.recv()  # `EOFError` if the rank has ended
        join(devices, 0, others.store)
    model.others = others
    return model


def load_part(
    source: str | Path,
    devices: Sequence[torch.device],
    dtype: torch.dtype | None,
    rank: int,
) -> RankLM:
    """A rank's part of a model: only its slices are read."""
    make = partial(RankLM, rank=rank, ranks=len(devices))
    take = partial(cuts, rank=rank, ranks=len(devices))
    return load_pieces(source, devices[rank], dtype, make, take)


def join(devices: Sequence[torch.device], rank: int, store: dist.Store) -> None:
    """Form the group of torch.distributed, with all ranks."""
    backend = "gloo"
    if devices[rank].type == "cuda":
        backend = "nccl"
        torch.cuda.set_device(devices[rank])
    dist.init_process_group(backend, store=store, rank=rank, world_size=len(devices))


class OtherRanks:
    """The other ranks' processes, seen from rank 0. They end by `end`, by the garbage
    collector, at exit, or when one is lost."""

    def __init__(
        self, load: Callable[[int], RankLM], devices: Sequence[torch.device]
    ) -> None:
        self.device = devices[0]
        self.store = dist.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False
        )
        self.numbers = count()  # of rank 0's caches
        self.caches = weakref.WeakKeyDictionary[PagedKVCache, int]()
        place = (self.store.port, torch.get_num_threads())
        started = [
            start_process(run_rank, load, devices, rank, *place, name=f"lr rank {rank}")
            for rank in range(1, len(devices))
        ]
        self.processes, self.connections = zip(*started, strict=True)
        self.end = weakref.finalize(self, end, self.processes)

    def post(self, batch: RaggedBatch, cache: PagedKVCache, attention: str) -> None:
        """Tell them to repeat a pass."""
        # rank 0's caches have no name elsewhere
        number = self.caches.setdefault(cache, next(self.numbers))
        sizes = {n: (c.num_blocks, c.block_size) for c, n in self.caches.items()}
        copies = cache.open_append or []
        for connection in self.connections:
            connection.send((sizes, number, copies, attention, batch.source))

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Rank 0's part of something that all ranks do. Any error ends them."""
        if not self.end.alive:
            raise WorkerError("the ranks of this model have ended; load it again.")
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
            lost = []
            if isinstance(error, (RuntimeError, EOFError, ConnectionError)):
                for rank, process in enumerate(self.processes, 1):
                    process.join(PATIENCE)
                    if process.exitcode is not None:
                        lost.append(f"rank {rank} ended with code {process.exitcode}")
            self.end()
            if not lost:
                raise
            raise WorkerError(
                f"{', '.join(lost)}. A model that is spread over several ranks needs "
                "them all: load it again. What a rank that failed has to say is on the "
                "standard error; code -9 means that it was killed, perhaps for want of "
                "memory."
            ) from error


def end(processes: Sequence[SpawnProcess]) -> None:
    """Kill the other ranks, which have nothing to save, and leave the group."""
    for process in processes:
        process.kill()
        process.join()
    if dist.is_initialized():
        with suppress(RuntimeError):
            if dist.get_backend() == "nccl" and dist.group.WORLD is not None:
                dist.group.WORLD.abort()  # sums that a lost rank never joins
            dist.destroy_process_group()


# 4. The other ranks follow


def run_rank(
    connection: Connection,
    load: Callable[[int], RankLM],
    devices: Sequence[torch.device],
    rank: int,
    port: int,
    threads: int,
) -> None:
    """Repeat rank 0's passes on another rank, until any rank is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 handles Ctrl-C
    torch.set_num_threads(threads)
    caches: dict[int, PagedKVCache] = {}
    try:
        model = load(rank)
        connection.send("loaded")
        join(devices, rank, dist.TCPStore("127.0.0.1", port, is_master=False))
        while True:
            # 1. Have the caches that rank 0 has. It counts who owns a block; here any
            # block may be read, so none has NaN. NOTE: no variable may hold a cache:
            # one that is dropped must be free before the next is made.
            sizes, number, copies, attention, source = connection.recv()
            for dropped in caches.keys() - sizes.keys():
                del caches[dropped]
            if number not in caches:
                caches[number] = model.make_cache(*sizes[number])
                caches[number].pool.allocate(caches[number].num_blocks)
                caches[number].keys.zero_()
                caches[number].values.zero_()

            # 2. Repeat the pass.
            with torch.inference_mode():
                caches[number].prepare([], copies)
                if model.attention.name != attention:
                    equip(model, attention)
                batch = RaggedBatch.build(*source, device=model.device)
                model(batch, caches[number])
    except EOFError:
        os._exit(0)  # rank 0 has ended
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # the group of torch.distributed may hang when it is left
