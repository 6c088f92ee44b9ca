"""Who decodes: our runner (greedy, and sampled), `transformers` generate, and the bare loop, behind
one method.

`decode` is given a prompt, which all rows share, and a number of steps. Prefill is not timed; a
step is one forward of one token per row and the choice of the next. All greedy contenders do the
same work, which a test checks by comparing their tokens.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from lr.engine.runner import ModelRunner
from lr.lab.bench.bare_loop import BareLoop
from lr.model.config import config_json
from lr.model.qwen import CausalLM
from lr.model.weights import pieces
from lr.rng import Stream
from lr.spec.write import StepJob, StepWriter
from lr.trace import Trace
from lr.types import Role, SamplingParams


@dataclass(frozen=True)
class Decoded:
    """`seconds` for all steps together, and the tokens that each row wrote, one per step."""

    seconds: float
    tokens: list[list[int]]


class Contender(Protocol):
    """One way to decode with one model."""

    name: str

    def decode(self, prompt: Sequence[int], rows: int, steps: int) -> Decoded:
        """Continue `rows` copies of `prompt`, all in one batch, by `steps` tokens each."""
        ...


class Ours:
    """`ModelRunner.feed`, paged and ragged, and the likeliest token."""

    name = "lr"

    def __init__(self, model: CausalLM) -> None:
        self.model = model

    def decode(self, prompt: Sequence[int], rows: int, steps: int) -> Decoded:
        runner = _runner(self.model, rows, len(prompt) + steps)
        branches = [runner.open(prompt) for _ in range(rows)]
        logits = runner.feed(branches)
        started = time.perf_counter()
        for _ in range(steps):
            for branch, token in zip(
                branches, torch.stack(logits).argmax(-1).tolist(), strict=True
            ):
                branch.append(token)
            logits = runner.feed(branches)
        seconds = time.perf_counter() - started
        return Decoded(seconds, [branch.tokens[len(prompt) :] for branch in branches])


class OursSampled:
    """The same as it is used: a `StepWriter` with keyed sampling and a step detector."""

    name = "lr, sampled"

    def __init__(self, model: CausalLM, sampling: SamplingParams) -> None:
        self.model, self.sampling = model, sampling

    def decode(self, prompt: Sequence[int], rows: int, steps: int) -> Decoded:
        runner = _runner(self.model, rows, len(prompt) + steps)
        branches = [runner.open(prompt[:-1]) for _ in range(rows)]
        runner.feed(branches)
        for branch in branches:
            branch.append(prompt[-1])
        writer = StepWriter(
            Role.TARGET,
            runner,
            self.sampling,
            _Endless(),
            frozenset(),
            Stream.root(0).child("bench"),
            Trace(),
        )
        jobs = [StepJob(branch, index, steps) for index, branch in enumerate(branches)]
        started = time.perf_counter()
        written = writer.write(jobs)
        return Decoded(time.perf_counter() - started, [list(step.tokens) for step in written])


class _Endless:
    """A segmenter under which no step ends."""

    def start(self) -> _Endless:
        return self

    def feed(self, token: int) -> bool:
        return False


class Bare:
    """The loop of `bare_loop.py` and the likeliest token."""

    name = "bare loop"

    def __init__(self, model: CausalLM) -> None:
        self.model = model

    @torch.inference_mode()
    def decode(self, prompt: Sequence[int], rows: int, steps: int) -> Decoded:
        loop = BareLoop(self.model, rows, len(prompt) + steps)
        for token in prompt:
            logits = loop.step(torch.full((rows,), token))
        chosen = []
        started = time.perf_counter()
        for _ in range(steps):
            tokens = logits.argmax(-1)
            chosen.append(tokens.tolist())
            logits = loop.step(tokens)
        seconds = time.perf_counter() - started
        return Decoded(seconds, [list(row) for row in zip(*chosen, strict=True)])


class Transformers:
    """`generate` of Hugging Face's model, greedy, with its default cache and attention. It shares
    our weights in memory.
    """

    name = "transformers"

    def __init__(self, model: CausalLM) -> None:
        self.model = hugging_face_model(model)

    def decode(self, prompt: Sequence[int], rows: int, steps: int) -> Decoded:
        from transformers import LogitsProcessorList

        stamps: list[float] = []

        def stamp(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            stamps.append(
                time.perf_counter()
            )  # called between each forward and the choice that follows it
            return scores

        ids = torch.tensor([list(prompt)] * rows)
        written = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=steps + 1,
            do_sample=False,
            logits_processor=LogitsProcessorList([stamp]),
        )
        assert len(stamps) == steps + 1
        return Decoded(stamps[-1] - stamps[0], written[:, len(prompt) : -1].tolist())


def hugging_face_model(model: CausalLM) -> Any:
    """The model of `transformers` with the weights of `model` themselves; nothing is copied or
    written to disk.
    """
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # what it says about its own settings is no news here
    described = config_json(model.config)
    parameters = dict(model.named_parameters())
    weights = {
        p.key: parameters[p.parameter][p.first : p.first + p.shape[0]] for p in pieces(model.config)
    }
    made = getattr(transformers, described["architectures"][0]).from_pretrained(
        None,
        config=transformers.AutoConfig.for_model(**described),
        state_dict=weights,
        dtype=model.dtype,
    )
    made.generation_config = (
        transformers.GenerationConfig()
    )  # no end of sequence: every step is taken
    return made.eval()


def _runner(model: CausalLM, rows: int, length: int) -> ModelRunner:
    size = model.attention.block_size
    runner = ModelRunner(model, num_blocks=rows * (length // size + 1), block_size=size)
    runner.prepare(rows)
    return runner
