"""CUDA graphs: small forwards are recorded once and replayed, to save the time of
kernel launches.

A decoding step of a large model is some thousand kernels of a few microseconds.
Launching them from Python takes longer than running them; a CUDA graph launches them
all at once. It replays exactly the recorded kernels on the recorded addresses. So each
recording has static buffers for a fixed number of rows. A batch runs in the smallest
recording that holds its rows. The rest are *padding rows*: token 0 at position 0 of a
reserved block, in no tile. A larger batch, such as a prompt, is an ordinary forward.

Example, 4 rows, blocks of 4, two sequences that decode at positions 5 and 2 in blocks
(9, 2) and (5), padding block 0: positions (5, 2, 0, 0), slots (9, 22, 0, 0), tiles of
one row each with borders (0, 1, 2, 2, 2) and owners (0, 1, 0, 0), blocks ((9, 2),
(5, x), x, x). x is an old value, which is not read.

The graphs belong to a `ModelRunner` and live as long as it does. They share one memory
pool: they never run at the same time, and results are copied out before the next
replay. Only `recorder_for` knows CUDA. `record_eager` does the same on a CPU, for
tests.
"""

import gc
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from lr.errors import SettingError
from lr.kvcache.branch import blocks_for
from lr.kvcache.cache import PagedKVCache, integers
from lr.model.attention import RaggedBatch, Tiles, cut_tiles
from lr.model.device import recording_stream
from lr.model.qwen import CausalLM

Recorder = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]
"""record(compute) -> replay. `replay` does what `compute` does, always into the same
tensor."""
RECORDED_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
"""The recorded numbers of rows. A batch of 5 rows runs as 8; the other three cost
nothing while reading the weights takes most of the time."""
WARM_UPS = 3  # forwards before recording, in which libraries choose algorithms
_RECORDING = threading.Lock()  # one thread records at a time, on one stream per device


@dataclass
class _Recording:
    """The forward of a fixed number of rows, on its own buffers. What the buffers hold
    is known here, so that only changes are sent."""

    rows: Tensor  # [3, n]: tokens, positions and slots
    tiles: Tiles  # n of them, with views of rows; the blocks of sequence i in row i
    replay: Callable[[], Tensor]
    num_rows: int = 0  # of the last batch
    counts: tuple[int, ...] = ()  # of its sequences
    sent: dict[int, list[int]] = field(default_factory=dict)  # blocks, by row

    def send(self, batch: RaggedBatch, tile: int, padding_row: Tensor) -> None:
        """Fill the buffers for a batch."""
        # 1. Tokens, positions and slots. Rows of the last batch become padding again.
        n = len(batch.tokens)
        ints = partial(integers, device=self.rows.device, dtype=torch.int32)
        self.rows[:, :n].copy_(batch.rows)
        if self.num_rows > n:
            self.rows[:, n : self.num_rows].copy_(padding_row)
        self.num_rows = n

        # 2. The tiles; those that are left over are empty.
        if batch.counts != self.counts:
            borders, owners = cut_tiles(batch.counts, tile)
            left_over = len(self.tiles.owners) - len(owners)
            self.tiles.borders.copy_(ints(borders + [n] * left_over))
            self.tiles.owners.copy_(ints(owners + [0] * left_over))
            self.counts = batch.counts

        # 3. The blocks of each sequence that has others than its row.
        for row, table in enumerate(batch.tables):
            if self.sent.get(row) != table.blocks:
                held = self.tiles.blocks[row, : len(table.blocks)]
                held.copy_(ints(table.blocks))
                self.sent[row] = table.blocks[:]


class StepGraphs:
    """All recorded forwards of one model on one cache. The constructor records them,
    and must not run while another model does. One block of the cache is held for
    padding rows until `close`.

    `model.attention` must have a form for tiles. Raises `SettingError` if recording
    fails.
    """

    @torch.inference_mode()
    def __init__(
        self,
        model: CausalLM,
        cache: PagedKVCache,
        recorder: Recorder | None = None,
        rows: Sequence[int] = RECORDED_ROWS,
    ) -> None:
        kind = model.attention
        attend_tiles = kind.tiles
        assert attend_tiles is not None
        self.cache, self.tile = cache, kind.tile
        self._recordings: dict[int, _Recording] = {}
        record = recorder or recorder_for(model.device)

        # 1. A block for the padding rows, which all write to its first slot.
        self.table = cache.new()
        with cache.append([self.table], [1]):
            pass
        [padding] = self.table.blocks
        slot = padding * cache.block_size
        self.padding_row = integers([[0], [0], [slot]], model.device)
        context = min(
            model.config.max_position_embeddings, cache.num_blocks * cache.block_size
        )
        pages = blocks_for(context, cache.block_size)

        # 2. The forward, which only launches kernels.
        def compute(tokens: Tensor, tiles: Tiles) -> Tensor:
            attend = attend_tiles(tiles, cache)
            return model.logits(model.trunk(tokens, tiles.positions, attend))

        # 3. The recordings; smaller ones reuse the memory of the largest.
        for size in sorted(rows, reverse=True):
            buffer = self.padding_row.repeat(1, size)  # [3, size]
            tokens, positions, slots = buffer.unbind(0)
            borders = torch.arange(size + 1, dtype=torch.int32, device=model.device)
            owners = borders[:-1].clone()
            blocks = borders.new_full((size, pages), padding)
            longest = min(self.tile, size)
            tiles = Tiles(positions, slots, borders, owners, blocks, longest)
            try:
                replay = record(partial(compute, tokens, tiles))
            except Exception as error:  # a kernel that does not fit may raise anything
                raise SettingError(
                    f"a CUDA graph of {size} rows cannot be recorded ({error}). Use "
                    "--no_cuda_graphs."
                ) from error
            self._recordings[size] = _Recording(buffer, tiles, replay)

    def run(self, batch: RaggedBatch) -> Tensor | None:
        """Logits [m, v] of the batch's logit rows, a new tensor; None if no recording
        fits."""
        n = len(batch.tokens)
        fitting = [each for size, each in self._recordings.items() if size >= n]
        if not fitting:
            return None
        recording = fitting[-1]  # the smallest; they were recorded from the largest on
        recording.send(batch, self.tile, self.padding_row)
        return recording.replay().index_select(0, batch.logit_rows)

    def close(self) -> None:
        """Forget the graphs and release the padding block."""
        self._recordings = {}
        self.cache.release(self.table)


def record_eager(compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Replay without CUDA: compute again, into the same tensor."""
    result = compute().clone()
    return lambda: result.copy_(compute())


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
        graph = torch.cuda.CUDAGraph()
        with _RECORDING, torch.cuda.device(device):
            before = torch.cuda.current_stream(device)
            stream = recording_stream(device)
            stream.wait_stream(before)
            with torch.cuda.stream(stream):
                for _ in range(WARM_UPS):
                    compute()
                # NOTE: cuBLAS keeps one workspace per stream, and a graph its address.
                # Without these two calls, all graphs recorded on this stream would
                # share it, also those of other models; and the end of one graph frees
                # it (pytorch/pytorch#193402). With them, it is allocated inside the
                # recording and belongs to the pool.
                torch._C._cuda_clearCublasWorkspaces()
                gc.disable()  # freeing another graph would spoil the recording
                try:
                    graph.capture_begin(pool, capture_error_mode="thread_local")
                    logits = compute()
                    graph.capture_end()
                except BaseException:
                    _abandon(graph, pool)
                    raise
                finally:
                    gc.enable()
                    torch._C._cuda_clearCublasWorkspaces()
            before.wait_stream(stream)

        def replay() -> Tensor:
            graph.replay()
            return logits

        return replay

    return record


def _abandon(graph: torch.cuda.CUDAGraph, pool: tuple[int, int]) -> None:
    """End a recording that failed. If that fails, PyTorch before 2.12 does not tell its
    allocator, which then never frees anything, or ends the process. Telling it twice
    raises.
    """
    with suppress(RuntimeError):
        graph.capture_end()
    with suppress(RuntimeError, AttributeError):
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
