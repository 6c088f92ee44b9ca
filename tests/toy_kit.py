"""What the tests of speculation share: small random models in fp64 with a vocabulary of
twelve tokens, writers, an engine with such models, and draft workers that are slowed
down or broken on purpose.
"""

import os
import pickle
import random
import time
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lr.engine.answer import Answer
from lr.engine.engine import Engine
from lr.engine.runner import IdleRunners, ModelRunner
from lr.errors import OutOfBlocks
from lr.model.config import ModelConfig
from lr.model.qwen import CausalLM
from lr.options import make_options
from lr.page_engine import emission
from lr.rng import Stream
from lr.spec.verifiers.base import Verifier
from lr.spec.write import StepJob, StepWriter, WriterConfig
from lr.trace import ForwardPass, Trace
from lr.types import EmittedStep, Finish, Origin, Role, SamplingParams, Verdict

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


def random_model(seed, *, layers=1, vocab_size=12, context=512):
    """A random model whose distributions are neither flat nor one-hot."""
    config = ModelConfig(
        vocab_size, 32, 48, layers, 4, 2, 8, context, 1e-6, 10_000.0, False, True, True
    )
    return randomised(CausalLM(config).double().requires_grad_(False).eval(), seed)


def randomised(model, seed):
    """The model, every parameter drawn anew: weights around 0, norms around 1."""
    noise = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        drawn = torch.randn(parameter.shape, generator=noise, dtype=parameter.dtype)
        parameter.data.copy_(1 + 0.1 * drawn if "norm" in name else 0.3 * drawn)
    return model


def poisoned(runner):
    """The runner; its cache shows NaN to whoever looks where nothing is written."""
    runner.cache.poison_freed = True
    runner.cache.keys.fill_(torch.nan)
    runner.cache.values.fill_(torch.nan)
    return runner


@dataclass(kw_only=True)
class KitWriter(StepWriter):
    """A writer with the randomness and the trace of its jobs."""

    stream: Stream
    trace: Trace

    def job(self, branch, index, limit):
        return StepJob(branch, index, limit, self.stream.fold_in(index), self.trace)

    def write(self, jobs):
        """Write one step per job, to its end."""
        for job in jobs:
            self.begin(job)
        while self.busy:
            self.poll()
        return [job.step for job in jobs]


def writer(
    role,
    model,
    *,
    temperature=0.0,
    seed=0,
    stream=None,
    num_blocks=300,
    block_size=4,
    trace=None,
):
    """A writer on a runner of its own; `stream` names its randomness (None: the role's
    own)."""
    trace = Trace() if trace is None else trace

    def saw(branches, tokens, seconds):
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


def decode_plainly(prompt, target, limits):
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


def tokens_of(emitted):
    return [token for step in emitted for token in step.step.tokens]


class Waits(TorchFunctionMode):
    """Counts what makes the host wait for a device: values that are read back, and
    shapes that depend on them."""

    READS = (
        *(Tensor.tolist, Tensor.item, Tensor.__float__, Tensor.__bool__),
        *(Tensor.nonzero, Tensor.masked_select, torch.equal, Tensor.equal),
    )
    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += func in self.READS
        self.count += func is Tensor.__getitem__ and isinstance(args[1], list)
        return func(*args, **(kwargs or {}))  # type: ignore[dict-item]


TARGET = random_model(0)
DRAFT = random_model(2)
QUESTIONS = ["abc", "de", "bacdbb"]


@dataclass
class ToyCodec:
    """The toy vocabulary. A question of the letters a to f is its own prompt.
    `endless`: no token ends the text."""

    endless: bool = False
    name: str = "toy"
    vocab_size: int = len(PIECES)
    generation_config: dict[str, Any] = field(default_factory=dict)

    @property
    def eos_ids(self):
        return frozenset() if self.endless else frozenset({EOS})

    def token_bytes(self, token):
        return PIECES[token]

    def chat(self, question, **_):
        return [5 + "abcdef".index(letter) for letter in question]


class OneByOne(Verifier):
    """Judges each pair by its method `verdict`."""

    def judge(self, pairs):
        return [self.verdict(pair) for pair in pairs]


class ByContent(OneByOne):
    """Accepts by a coin that depends on the pair's tokens alone, in every process."""

    name = "by content"

    def verdict(self, pair):
        return Verdict(sum(pair.draft_step.tokens) % 3 > 0, "by content")


def toy_engine(*, endless=False, worker=None):
    codec = ToyCodec(endless)
    return Engine(codec=codec, target_model=TARGET, draft_model=DRAFT, worker=worker)


BY_CONTENT = ByContent()  # answers that are served together share it


def ask(engine, question=QUESTIONS[0], verifier=None, variant=None, **changes):
    """An answer that is not begun: short steps, at a high temperature."""
    usual = {"max_tokens": 50, "max_step_tokens": 14, "temperature": 1.1, "mode": "lr"}
    options = make_options(**(usual | changes))
    asked = engine.question(question, options, verifier or BY_CONTENT, variant)
    answer = Answer(asked)
    answer.served = engine.serve([answer])
    answer.engine = engine  # for `emitted`
    return answer


def emitted(answer):
    """The steps of an answer, which is answered to its end; the engine is clean."""
    answer.finish()
    require_clean(answer.engine)
    return answer.emitted


def require_clean(engine, roles=Role):
    """No idle cache holds a block, and none is lent: every runner came back."""
    for role in roles:
        for runner in engine.runners[role].idle:
            assert runner.cache.pool.num_used == 0


# Workers


class StrictRunners(IdleRunners):
    """Ends the worker if a loop has left something in a cache."""

    def put_back(self, runner):
        if runner.cache.pool.num_used:
            os._exit(9)
        super().put_back(runner)


@dataclass(frozen=True)
class Trouble:
    """Before each forward: sleep up to `delay` seconds; from forward number `after` on,
    do what `then` says: "die", "raise", or "fill" the cache."""

    delay: float = 0.0
    after: int | None = None
    then: str = "die"

    def strike(self, number):
        time.sleep(random.Random(number).random() * self.delay)
        if self.after is None or number < self.after:
            return
        if self.then == "die":
            os._exit(3)
        raise OutOfBlocks(9, 1, 10) if self.then == "fill" else ValueError("a bug")


@dataclass(frozen=True)
class ToyDraft:
    """Makes the parts of a worker from a pickled model."""

    trouble: Trouble = Trouble()
    model: bytes = pickle.dumps(DRAFT)

    def __call__(self):
        torch.set_num_threads(1)
        model = pickle.loads(self.model)
        numbers = count(1)
        model.register_forward_pre_hook(lambda *_: self.trouble.strike(next(numbers)))
        return StrictRunners(model, len(PIECES)), PIECES.__getitem__
