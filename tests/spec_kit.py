"""What the tests of speculation share: small random models in fp64, a toy vocabulary,
writers, and the output of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lr.engine.runner import ModelRunner
from lr.kvcache.branch import Branch
from lr.model.config import ModelConfig
from lr.model.qwen import CausalLM
from lr.page_engine import emission
from lr.rng import Stream
from lr.spec.protocol import Limits
from lr.spec.write import StepJob, StepWriter, WriterConfig
from lr.trace import ForwardPass, Trace
from lr.types import EmittedStep, Finish, Origin, Role, SamplingParams, Step

EOS = 11
PIECES = [
    b"\n\n",
    b"\n",
    b".\n",
    b".\n\nx",
    b" ",
    *(bytes([letter]) for letter in b"abcdef"),
    b"",
]
"""The bytes of the 12 tokens: several ways to make a blank line, and the end of
sequence, which has no bytes.
"""
PROMPT = [5, 6, 7]


def random_model(
    seed: int, *, layers: int = 1, vocab_size: int = len(PIECES), context: int = 512
) -> CausalLM:
    """A random model whose distributions are neither flat nor one-hot."""
    config = ModelConfig(
        vocab_size, 32, 48, layers, 4, 2, 8, context, 1e-6, 10_000.0, False, True, True
    )
    model = CausalLM(config).double().requires_grad_(False).eval()
    noise = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        drawn = torch.randn(parameter.shape, generator=noise, dtype=torch.float64)
        parameter.copy_(1 + 0.1 * drawn if "norm" in name else 0.3 * drawn)
    return model


@dataclass(kw_only=True)
class KitWriter(StepWriter):
    """A writer with the randomness and the trace of its jobs."""

    stream: Stream
    trace: Trace

    def job(self, branch: Branch, index: int, limit: int) -> StepJob:
        return StepJob(branch, index, limit, self.stream.fold_in(index), self.trace)

    def write(self, jobs: Sequence[StepJob]) -> list[Step]:
        """Write one step per job, to its end."""
        self.begin(jobs)
        while self.busy:
            self.poll()
        return [job.step for job in jobs]


def writer(
    role: Role,
    model: CausalLM,
    *,
    temperature: float = 0.0,
    seed: int = 0,
    stream: str | None = None,
    num_blocks: int = 300,
    block_size: int = 4,
    trace: Trace | None = None,
) -> KitWriter:
    """A writer on a runner of its own; `stream` names its randomness (None: the role's
    own)."""
    trace = Trace() if trace is None else trace

    def saw(branches: int, tokens: int, seconds: float) -> None:
        trace.record(ForwardPass(role, branches, tokens, seconds))

    return KitWriter(
        config=WriterConfig(role, SamplingParams(temperature), frozenset({EOS})),
        runner=ModelRunner(
            model, num_blocks=num_blocks, block_size=block_size, observer=saw
        ),
        token_bytes=PIECES.__getitem__,
        stream=Stream.root(seed).fold_in(stream or role.value),
        trace=trace,
    )


def decode_plainly(
    prompt: Sequence[int], target: KitWriter, limits: Limits
) -> Iterator[EmittedStep]:
    """Plain decoding of the target, step by step: the baseline of every comparison,
    with the keys that Lookahead Reasoning uses.
    """
    branch = target.runner.open(prompt)
    try:
        index = written = 0
        while limit := limits.step_limit(written):
            [step] = target.write([target.job(branch, index, limit)])
            emitted = EmittedStep(index, step, Origin.TARGET)
            target.trace.record(emission(emitted))
            yield emitted
            if step.finish is Finish.EOS:
                return
            index, written = index + 1, written + len(step.tokens)
    finally:
        target.close(branch)


def tokens_of(emitted: Iterable[EmittedStep]) -> list[int]:
    return [token for step in emitted for token in step.step.tokens]


def rows_per_forward(trace: Trace, role: Role) -> list[tuple[int, int]]:
    """(branches, tokens) of every forward of a role, in order."""
    events: Sequence[object] = [event for _, event in trace.events]
    return [
        (e.branches, e.tokens)
        for e in events
        if isinstance(e, ForwardPass) and e.role is role
    ]


class Waits(TorchFunctionMode):
    """Counts what makes the host wait for a device: values that are read back, and
    shapes that depend on them."""

    READS = (
        *(Tensor.tolist, Tensor.item, Tensor.__float__, Tensor.__bool__),
        *(Tensor.nonzero, Tensor.masked_select, torch.equal, Tensor.equal),
    )
    count = 0

    def __torch_function__(
        self, func: Callable, types: object, args: tuple = (), kwargs: object = None
    ) -> object:
        self.count += func in self.READS
        self.count += func is Tensor.__getitem__ and isinstance(args[1], list)
        return func(*args, **(kwargs or {}))  # type: ignore[dict-item]
