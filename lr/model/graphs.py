"""Decoding not bound by launches: forwards of a few sizes are replayed from CUDA graphs.

A decoding step of a large model is some thousand kernels of a few microseconds, and starting each
from Python takes longer than it runs. A CUDA graph starts them all at once. It replays the very
kernels that were recorded, on the very addresses; so each recording has buffers that stay, for a
fixed number of rows, and every row has the pages of its own sequence (`RowPages`). A batch goes
into the smallest recording that holds its rows; those left over are *padding rows* (token 0 at
position 0 of a block of their own). A larger batch, such as a prompt, goes the ordinary way.

Example, 4 rows and 2 pages, blocks of 4, two sequences that decode at positions 5 and 2 in blocks
(9, 2) and (5), padding block 0: positions (5, 2, 0, 0), slots (9, 22, 0, 0), blocks ((9, 2), (5,
x), (0, 0), (0, 0)); x is what stood there, and not read.

The graphs belong to a `ModelRunner` and live as long as it does. They share one pool of memory:
they are never replayed at the same time, and results are copied out before the next replay. Only
`recorder_for` knows of CUDA; `record_eager` is its counterpart on the CPU, for tests.
"""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from lr.errors import RankLost
from lr.kvcache.branch import BlockTable, blocks_for, common_length
from lr.kvcache.cache import PagedKVCache, integers
from lr.model.attention import RaggedBatch, RowPages
from lr.model.qwen import CausalLM

Recorder = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]
"""record(compute) -> replay: it does what `compute` does, always into the same tensor."""
ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64)
"""The numbers of rows that are recorded. A batch of 5 rows wastes three of 8, which costs nothing
while reading the weights is what takes the time."""
WARM_UPS = 3
"""Forwards before recording, in which libraries choose their algorithms and take workspaces."""
_RECORDING = threading.Lock()
"""One thread records at a time, on one stream per device."""


@dataclass
class _Recording:
    """The forward of a number of rows on buffers of its own, and what replays it."""

    rows: Tensor  # [3, n]: tokens, positions and slots
    blocks: Tensor  # [n, pages]
    replay: Callable[[], Tensor]
    sent: list[list[int]]  # with what each row begins in `blocks`; nothing for padding

    def send(self, batch: RaggedBatch) -> None:
        """Give the rows of each sequence its blocks, from the first on that one of them has not."""
        first = 0
        for table, count in zip(batch.tables, batch.counts, strict=True):
            rows, blocks = slice(first, first + count), table.blocks
            first += count
            there = {id(row): row for row in self.sent[rows]}  # one list for rows sent together
            same = min(common_length(row, blocks) for row in there.values())
            if same < len(blocks):
                tail = integers(blocks[same:], self.blocks.device, torch.int32)
                self.blocks[rows, same : len(blocks)].copy_(tail)
                self.sent[rows] = [blocks[:]] * count


class StepGraphs:
    """The forwards of one model on one cache, of all sizes, recorded when it is made: never while
    another model runs. It holds one block of the cache, for padding rows, until `close`.

    `model.attention` must have a form for rows. If recording fails, a warning and `failure` say
    why, and forwards go the ordinary way from then on. All ranks of a model that is spread over
    several do this together; `padding`: on those above 0, the block of rank 0's padding rows.
    """

    @torch.inference_mode()
    def __init__(
        self,
        model: CausalLM,
        cache: PagedKVCache,
        recorder: Recorder | None = None,
        rows: Sequence[int] = ROWS,
        padding: int | None = None,
    ) -> None:
        assert model.attention.rows is not None
        self.model, self.cache = model, cache
        self.attend_rows = model.attention.rows
        context = min(model.config.max_position_embeddings, cache.num_blocks * cache.block_size)
        pages = blocks_for(context, cache.block_size)
        self.failure: str | None = None
        record = recorder or recorder_for(model.device)
        self.table: BlockTable | None = None
        if padding is None:
            self.table = cache.new()
            with cache.append([self.table], [1]):
                pass  # the block is zeroed: what a padding row sees is finite
            [padding] = self.table.blocks
        self.padding = padding
        self.padding_row = integers([[0], [0], [padding * cache.block_size]], model.device)
        self._recordings: dict[int, _Recording] = {}
        with model.recording(self, rows):
            for size in sorted(rows, reverse=True):  # smaller ones find room where the largest has
                buffer = self.padding_row.repeat(1, size)  # [3, size]: tokens, positions, slots
                tokens, positions, slots = buffer.unbind(0)
                blocks = buffer.new_full((size, pages), padding, dtype=torch.int32)
                where = RowPages(positions, slots, blocks)
                try:
                    replay = record(partial(self._compute, tokens, where))
                    self._recordings[size] = _Recording(buffer, blocks, replay, [[]] * size)
                except RankLost:
                    raise
                except Exception as error:  # a kernel that does not fit may raise anything
                    why = (str(error) or repr(error)).splitlines()[0]
                    self.failure = f"recording {size} rows failed: {why}"
                self.failure = model.agreed(self.failure)
                if self.failure is not None:
                    break
        if self.failure is not None:
            self.forget()
            said = f"CUDA graphs are off, decoding will be slower: {self.failure}"
            if self.table is not None:  # else rank 0 says it
                warnings.warn(said, RuntimeWarning, stacklevel=3)

    @property
    def recorded(self) -> list[int]:
        """The numbers of rows that have a graph."""
        return sorted(self._recordings)

    def run(self, batch: RaggedBatch) -> Tensor | None:
        """Logits [m, v] of the batch's logit rows, a new tensor; None: go the ordinary way."""
        n, recordings = len(batch.tokens), self._recordings
        size = min((size for size in recordings if size >= n), default=None)
        if size is None:
            return None
        recording = recordings[size]
        recording.rows[:, :n].copy_(batch.rows)
        if any(recording.sent[n:]):  # some were used last time, and are not now
            recording.rows[:, n:].copy_(self.padding_row)
            recording.blocks[n:].fill_(self.padding)
            recording.sent[n:] = [[]] * (size - n)
        recording.send(batch)
        logits = recording.replay()
        if batch.logit_rows is None:
            return logits[:n].clone()
        return logits.index_select(0, batch.logit_rows)

    def close(self) -> None:
        """Forget the graphs and give the padding block back."""
        if self.failure != "closed":
            self.forget()
            self.failure = "closed"
            if self.table is not None:
                self.cache.release(self.table)

    def forget(self) -> None:
        """Give up the graphs; forwards go the ordinary way."""
        self._recordings = {}  # not emptied: a forward of another thread may look for its own

    def _compute(self, tokens: Tensor, where: RowPages) -> Tensor:
        """Logits [rows, v] of what is in the buffers. Issues kernels only, always the same."""
        attend = self.attend_rows(where, self.cache)
        return self.model.logits(self.model.trunk(tokens, where.positions, attend))


def record_eager(compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The counterpart without CUDA: replaying is computing again, into the same tensor."""
    kept = compute().clone()
    return lambda: kept.copy_(compute())


def recorder_for(device: torch.device) -> Recorder:
    """Records CUDA graphs of one device in one pool of memory: warms up, then records, on a stream
    that is for this only. Nobody waits for the whole device, as `torch.cuda.graph` would: other
    threads may run on it meanwhile, and none may wait for all of it. Elsewhere: `record_eager`.
    """
    if device.type != "cuda":
        return record_eager
    pool = torch.cuda.graph_pool_handle()

    def record(compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream(device)
        with _RECORDING, _uncollected(), torch.cuda.device(device):
            stream = _recording_stream(torch.cuda.current_device())
            stream.wait_stream(before)
            with torch.cuda.stream(stream):
                for _ in range(WARM_UPS):
                    compute()
                try:
                    graph.capture_begin(pool, capture_error_mode="thread_local")
                    logits = compute()
                    graph.capture_end()
                except BaseException:
                    with suppress(RuntimeError):
                        graph.capture_end()
                    # Where that fails, PyTorch before 2.12 does not tell its allocator, which then
                    # never frees anything, or ends the process. Told twice, it raises.
                    with suppress(RuntimeError, AttributeError):
                        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
                    raise
            before.wait_stream(stream)

        def replay() -> Tensor:
            graph.replay()
            return logits

        return replay

    return record


@cache
def _recording_stream(index: int) -> torch.cuda.Stream:
    """PyTorch hands out 32 streams of each priority in turn. One of another priority than all
    others is nobody else's, so that a recording contains no other thread's work.
    """
    return torch.cuda.Stream(index, priority=-1)


@contextmanager
def _uncollected() -> Iterator[None]:
    """A CUDA graph that the garbage collector finds during a recording would spoil it."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
