"""CUDA graphs: small forwards are recorded once and replayed, to save the time of
kernel launches.

A decoding step of a large model is some thousand kernels of a few microseconds.
Launching them from Python takes longer than running them; a CUDA graph launches them
all at once. It replays exactly the recorded kernels on the recorded addresses. So each
recording has static buffers for a fixed number of rows, and every row has its own pages
(`RowPages`). A batch runs in the smallest recording that holds its rows. The rest are
*padding rows*: token 0 at position 0 of a reserved block. A larger batch, such as a
prompt, is an ordinary forward.

Example, 4 rows and 2 pages, blocks of 4, two sequences that decode at positions 5 and 2
in blocks (9, 2) and (5), padding block 0: positions (5, 2, 0, 0), slots (9, 22, 0, 0),
blocks ((9, 2), (5, x), (0, 0), (0, 0)). x is an old value, which is not read.

The graphs belong to a `ModelRunner` and live as long as it does. They share one memory
pool: they never run at the same time, and results are copied out before the next
replay. Only `recorder_for` knows CUDA. `record_eager` does the same on a CPU, for
tests.
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

from lr.kvcache.branch import blocks_for, common_length
from lr.kvcache.cache import PagedKVCache, integers
from lr.model.attention import RaggedBatch, RowPages
from lr.model.qwen import CausalLM

Recorder = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]
"""record(compute) -> replay. `replay` does what `compute` does, always into the same
tensor."""
ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64)
"""The recorded numbers of rows. A batch of 5 rows runs as 8; the other three cost
nothing while reading the weights takes most of the time."""
WARM_UPS = (
    3  # forwards before recording, in which libraries choose algorithms and workspaces
)
_RECORDING = threading.Lock()  # one thread records at a time, on one stream per device


@dataclass
class _Recording:
    """The forward of a fixed number of rows, on its own buffers."""

    rows: Tensor  # [3, n]: tokens, positions and slots
    blocks: Tensor  # [n, pages]
    replay: Callable[[], Tensor]
    sent: list[list[int]]  # known beginning of each row of `blocks`; empty for padding

    def send(self, batch: RaggedBatch) -> None:
        """Send each sequence's blocks to its rows, from the first block that one of
        them lacks."""
        first = 0
        for table, count in zip(batch.tables, batch.counts, strict=True):
            rows, blocks = slice(first, first + count), table.blocks
            first += count
            there = {
                id(row): row for row in self.sent[rows]
            }  # rows sent together share a list
            same = min(common_length(row, blocks) for row in there.values())
            if same < len(blocks):
                tail = integers(blocks[same:], self.blocks.device, torch.int32)
                self.blocks[rows, same : len(blocks)].copy_(tail)
                self.sent[rows] = [blocks[:]] * count


class StepGraphs:
    """All recorded forwards of one model on one cache. The constructor records them,
    and must not run while another model does. One block of the cache is held for
    padding rows until `close`.

    `model.attention` must have a form for rows. If recording fails, a warning and
    `failure` say why, and all forwards are ordinary ones.
    """

    @torch.inference_mode()
    def __init__(
        self,
        model: CausalLM,
        cache: PagedKVCache,
        recorder: Recorder | None = None,
        rows: Sequence[int] = ROWS,
    ) -> None:
        attend_rows = model.attention.rows
        assert attend_rows is not None
        self.cache = cache
        context = min(
            model.config.max_position_embeddings, cache.num_blocks * cache.block_size
        )
        pages = blocks_for(context, cache.block_size)
        self.failure: str | None = None
        record = recorder or recorder_for(model.device)
        self.table = cache.new()
        with cache.append([self.table], [1]):
            pass  # the block is zeroed, so padding rows read finite values
        [padding] = self.table.blocks
        self.padding = padding
        self.padding_row = integers(
            [[0], [0], [padding * cache.block_size]], model.device
        )
        self._recordings: dict[int, _Recording] = {}

        def compute(buffer: Tensor, blocks: Tensor) -> Tensor:  # only launches kernels
            tokens, positions, slots = buffer.unbind(0)
            attend = attend_rows(RowPages(positions, slots, blocks), cache)
            return model.logits(model.trunk(tokens, positions, attend))

        for size in sorted(
            rows, reverse=True
        ):  # smaller ones reuse the largest's memory
            buffer = self.padding_row.repeat(1, size)  # [3, size]
            blocks = buffer.new_full((size, pages), padding, dtype=torch.int32)
            try:
                replay = record(partial(compute, buffer, blocks))
            except Exception as error:  # a kernel that does not fit may raise anything
                why = (str(error) or repr(error)).splitlines()[0]
                self.failure = f"recording {size} rows failed: {why}"
                self.forget()
                message = (
                    f"CUDA graphs are off, decoding will be slower: {self.failure}"
                )
                warnings.warn(message, RuntimeWarning, stacklevel=3)
                break
            self._recordings[size] = _Recording(buffer, blocks, replay, [[]] * size)

    @property
    def recorded(self) -> list[int]:
        """The numbers of rows that have a graph."""
        return sorted(self._recordings)

    def run(self, batch: RaggedBatch) -> Tensor | None:
        """Logits [m, v] of the batch's logit rows, a new tensor; None if no recording
        fits."""
        n, recordings = len(batch.tokens), self._recordings
        size = min((size for size in recordings if size >= n), default=None)
        if size is None:
            return None
        recording = recordings[size]
        recording.rows[:, :n].copy_(batch.rows)
        if any(recording.sent[n:]):  # rows that were in use last time become padding
            recording.rows[:, n:].copy_(self.padding_row)
            recording.blocks[n:].fill_(self.padding)
            recording.sent[n:] = [[]] * (size - n)
        recording.send(batch)
        logits = recording.replay()
        if batch.logit_rows is None:
            return logits[:n].clone()
        return logits.index_select(0, batch.logit_rows)

    def close(self) -> None:
        """Forget the graphs and release the padding block."""
        if self.failure != "closed":
            self.forget()
            self.failure = "closed"
            self.cache.release(self.table)

    def forget(self) -> None:
        """Give up the graphs; later forwards are ordinary ones."""
        self._recordings = {}  # a new one: another thread may be in `run` with the old one


def record_eager(compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Replay without CUDA: compute again, into the same tensor."""
    kept = compute().clone()
    return lambda: kept.copy_(compute())


def recorder_for(device: torch.device) -> Recorder:
    """A recorder of CUDA graphs for one device, in one memory pool; not on CUDA,
    `record_eager`. It warms up and records on a separate stream. Unlike
    `torch.cuda.graph`, it never waits for the whole device: other threads may use it,
    and none may wait for the device during a recording.
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
                    # If that fails, PyTorch before 2.12 does not tell its allocator,
                    # which then never frees anything, or ends the process. Telling it
                    # twice raises.
                    with suppress(RuntimeError, AttributeError):
                        torch._C._cuda_endAllocateToPool(
                            torch.cuda.current_device(), pool
                        )
                    raise
            before.wait_stream(stream)

        def replay() -> Tensor:
            graph.replay()
            return logits

        return replay

    return record


@cache
def _recording_stream(index: int) -> torch.cuda.Stream:
    """A stream that nothing else uses, so that a recording contains no other thread's
    work. PyTorch reuses 32 streams of each priority, and only this one has priority -1.
    """
    return torch.cuda.Stream(index, priority=-1)


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection, because freeing another CUDA graph would spoil the
    recording."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
