"""Decoding that is not bound by launches: forwards of a few shapes are recorded as CUDA graphs and
replayed.

A decoding step of a large model is some thousand kernels of a few microseconds, and starting each
from Python takes longer than it runs. A CUDA graph starts them all at once. A batch is put into the
smallest shape that holds it (`padded.py`); one that no shape holds, such as a prompt, goes the
ordinary way. A shape is recorded when it has been asked for a few times: recording costs about as
much as ten steps, and an answer with a rare shape should not pay for it. All graphs share one pool
of memory, for they are never replayed at the same time and their results are copied out before the
next one runs.

`CudaRecorder` is the only part that needs CUDA. `EagerRecorder` is its twin on the CPU: it computes
anew what the graph would replay, and hands the result out in memory that the next replay
overwrites, as the graph does; so everything else is tested without a GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from lr.kvcache.cache import PagedKVCache
from lr.kvcache.table import BlockTable, blocks_for
from lr.model.attention_rows import RowAttention
from lr.model.batch import RaggedBatch
from lr.model.graph_shapes import GraphShapes
from lr.model.padded import PaddedForward
from lr.model.qwen import CausalLM

Results = tuple[Tensor, Tensor]
"""Hidden states [rows, e] and logits [rows, v]."""
WARM_UPS = 3
"""Forwards before recording: libraries choose their algorithms and take their workspaces in the
first ones.
"""
_RECORDING = threading.Lock()
"""While one thread records, no other may begin to: PyTorch gives memory back to the device before
it records.
"""


class Recorder(Protocol):
    """Turns a forward into something that can be replayed."""

    def record(self, compute: Callable[[], Results]) -> Callable[[], Results]:
        """Returns `replay`: it does what `compute` does and gives the same two tensors every time,
        overwritten by the next replay.
        """


class StepGraphs:
    """The recorded forwards of one model on one cache. It holds one block of the cache, for inert
    rows, until `close`.

    `recorded` are the shapes that have a graph. If recording fails, `failure` says why and nothing
    is recorded any more.
    """

    def __init__(
        self,
        model: CausalLM,
        cache: PagedKVCache,
        attention: RowAttention,
        shapes: GraphShapes,
        recorder: Recorder,
    ) -> None:
        self.model, self.cache, self.attention = model, cache, attention
        self.shapes, self.recorder = shapes, recorder
        self.failure: str | None = None
        self._inert: BlockTable = cache.new()
        with cache.append([self._inert], [1]):
            pass  # the block is zeroed: what an inert row sees is finite
        self._asked: dict[tuple[int, int], int] = {}
        self._ready: dict[tuple[int, int], tuple[PaddedForward, Callable[[], Results]]] = {}

    @classmethod
    def of(cls, model: CausalLM, cache: PagedKVCache) -> StepGraphs:
        """Those of a model that has `graphs` and a kind of attention with rows."""
        assert model.graphs is not None and model.attention.rows is not None
        return cls(model, cache, model.attention.rows, model.graphs, recorder_for(model.device))

    @property
    def recorded(self) -> list[tuple[int, int]]:
        """Rows and tokens of the shapes that have a graph."""
        return sorted(self._ready)

    def run(self, batch: RaggedBatch) -> Results | None:
        """Hidden states [m, e] and logits [m, v] of the batch's logit rows, two new tensors; None
        where it must go the ordinary way.
        """
        shape = self.shapes.smallest(len(batch.tokens), max(batch.lengths))
        if shape is None or self.failure is not None:
            return None
        if shape not in self._ready:
            self._asked[shape] = self._asked.get(shape, 0) + 1
            if self._asked[shape] <= self.shapes.after or not self._record(shape):
                return None
        forward, replay = self._ready[shape]
        forward.fill(batch)
        results = replay()
        if batch.logit_rows is None:
            n = len(batch.tokens)
            return results[0][:n].clone(), results[1][:n].clone()
        return results[0].index_select(0, batch.logit_rows), results[1].index_select(
            0, batch.logit_rows
        )

    def prepare(self, rows: int, span: int) -> None:
        """Record now what batches of so many rows will ask for while their branches grow to `span`
        tokens.
        """
        for longest in self.shapes.spans:
            shape = self.shapes.smallest(rows, longest)
            if shape is not None and shape not in self._ready and self.failure is None:
                self._record(shape)
            if longest >= span:
                break

    def close(self) -> None:
        """Forget the graphs and give the inert block back."""
        self._ready.clear()
        self.failure = "closed"
        self.cache.release(self._inert)

    def _record(self, shape: tuple[int, int]) -> bool:
        """Record a shape with nothing but inert rows; they have the kernels of all others."""
        rows, span = shape
        pages = blocks_for(span, self.cache.block_size)
        forward = PaddedForward(
            self.model, self.cache, self.attention, (rows, pages), self._inert.blocks[0]
        )
        try:
            self._ready[shape] = forward, self.recorder.record(forward.compute)
        except RuntimeError as error:
            self.failure = (
                f"recording {rows} rows of up to {span} tokens failed: {str(error).splitlines()[0]}"
            )
        return self.failure is None


class EagerRecorder:
    """The twin without CUDA: replaying is computing again, into the same two tensors."""

    def record(self, compute: Callable[[], Results]) -> Callable[[], Results]:
        hidden, logits = (result.clone() for result in compute())

        def replay() -> Results:
            for kept, result in zip((hidden, logits), compute(), strict=True):
                kept.copy_(result)
            return hidden, logits

        return replay


class CudaRecorder:
    """Records CUDA graphs of one device, all in one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream(device)

    def record(self, compute: Callable[[], Results]) -> Callable[[], Results]:
        """Warm up on a stream beside, as PyTorch asks, then record. Other threads may use the
        device meanwhile.
        """
        with _RECORDING, torch.cuda.device(self.device):
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                for _ in range(WARM_UPS):
                    compute()
            torch.cuda.current_stream().wait_stream(self.stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(
                graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"
            ):
                results = compute()

        def replay() -> Results:
            graph.replay()
            return results

        return replay


def recorder_for(device: torch.device) -> Recorder:
    """CUDA graphs on CUDA, the twin elsewhere (which is for tests: it saves nothing)."""
    return CudaRecorder(device) if device.type == "cuda" else EagerRecorder()
