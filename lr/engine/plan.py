"""What makes a writer, as plain data: everything but the model and its tokenizer's bytes. It can be
sent to another process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lr.engine.runner import ModelRunner
from lr.engine.watching import CacheRecorder
from lr.lab.endpoint.branches import ServedRunner
from lr.lab.endpoint.models import ServedModel
from lr.lab.endpoint.writer import ServedWriter, byte_of
from lr.model.attention import SDPA, AttentionKind
from lr.model.qwen import CausalLM
from lr.rng import Stream
from lr.spec.segmenters import BlankLineSegmenter, Segmenter
from lr.spec.token_sd import Speculation
from lr.spec.write import StepWriter
from lr.trace import ForwardPass, Trace
from lr.types import Role, SamplingParams

TokenBytes = Callable[[int], bytes]
"""The exact bytes of a token id."""
SegmenterMaker = Callable[[TokenBytes], Segmenter]
"""Makes the rule that cuts steps from the bytes of tokens."""


@dataclass(frozen=True)
class CachePlan:
    """The memory and the vocabulary of a `ModelRunner`; see there. `attention` and `graphs`: how
    its model is run, wherever that is.
    """

    num_blocks: int
    block_size: int = 16
    vocab_size: int | None = None
    known_tokens: int | None = None
    attention: AttentionKind = SDPA
    graphs: bool = True

    def runner(
        self, model: CausalLM, role: Role, trace: Trace, cache: str | None = None
    ) -> ModelRunner:
        """A runner whose forwards appear in the trace under `role`, and its cache, in a detailed
        one, under `cache` (None: the role's).
        """

        def saw(branches: int, tokens: int, seconds: float) -> None:
            trace.record(ForwardPass(role, branches, tokens, seconds))

        model.attention, model.graphs = self.attention, self.graphs
        runner = ModelRunner(
            model,
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            vocab_size=self.vocab_size,
            known_tokens=self.known_tokens,
            observer=saw,
        )
        if trace.detailed:
            runner.cache.observer = CacheRecorder(trace, cache or role.value)
        return runner


@dataclass(frozen=True)
class WriterPlan:
    """A `StepWriter` to be. `detailed`: whether the traces of a process of its own are to be
    (`Trace.detailed`).
    """

    role: Role
    cache: CachePlan
    sampling: SamplingParams
    eos_ids: frozenset[int]
    stream: Stream
    segmenter: SegmenterMaker = BlankLineSegmenter
    speculation: Speculation | None = None
    detailed: bool = False

    def writer(
        self, model: CausalLM | ServedModel, token_bytes: TokenBytes, trace: Trace
    ) -> StepWriter:
        """The writer, on a runner and a cache of its own; for a served model one that sends
        requests.
        """
        if isinstance(model, ServedModel):
            return ServedWriter(
                role=self.role,
                runner=ServedRunner(model),
                sampling=self.sampling,
                segmenter=self.segmenter(token_bytes if model.ids else byte_of),
                eos_ids=self.eos_ids,
                stream=self.stream,
                trace=trace,
                model=model,
            )
        return StepWriter(
            role=self.role,
            runner=self.cache.runner(model, self.role, trace),
            sampling=self.sampling,
            segmenter=self.segmenter(token_bytes),
            eos_ids=self.eos_ids,
            stream=self.stream,
            trace=trace,
            speculation=self.speculation,
        )
