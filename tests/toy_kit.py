"""Speculation in a language of twelve tokens, on random models in fp64: writers, an
engine, verifiers, draft workers that are slowed down or broken on purpose, every drafter
and rule by name, and random options.
"""

import os
import pickle
import random
import time
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from model_kit import random_model, runner_on

from lr.engine.answer import Answer
from lr.engine.engine import Engine
from lr.engine.runner import IdleRunners
from lr.errors import OutOfBlocks
from lr.options import make_options
from lr.rng import Stream
from lr.spec.acceptance import BlockRule, MatchRule, RejectRule
from lr.spec.drafters import LookupDrafter, ModelDrafter, TreeDrafter
from lr.spec.proposal import EMPTY, Proposal
from lr.spec.token_sd import Drafter
from lr.spec.verifiers.base import Verifier
from lr.spec.write import StepJob, StepWriter, WriterConfig
from lr.trace import ForwardPass, Trace
from lr.types import (
    Coupling,
    Role,
    SamplingParams,
    Verdict,
)

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
):
    """A writer on a runner of its own."""
    trace = Trace()

    def saw(branches, tokens, seconds):
        trace.record(ForwardPass(role, branches, tokens, seconds))

    return KitWriter(
        config=WriterConfig(role, SamplingParams(temperature), frozenset({EOS})),
        runner=runner_on(model, observer=saw),
        token_bytes=PIECES.__getitem__,
        stream=Stream.root(seed).fold_in(role.value),
        trace=trace,
    )


def tokens_of(emitted):
    return [token for step in emitted for token in step.step.tokens]


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


# Drafters and rules

PROPOSER = random_model(7)
END = frozenset({EOS})
UNSURE = 0.42  # half of this random model's places are less sure than that


class Stubborn(Drafter):
    """Proposes the same tokens whatever the text: mostly wrong, sometimes with the end
    of the text or a boundary inside.
    """

    name = "stubborn"

    def __init__(self, tokens=(5, EOS, 0, 6, 0)):
        self.tokens = tuple(tokens)

    def propose(self, contexts, k):
        return [
            Proposal.chain(self.tokens[: min(k, c.limit)]) if c.limit > 0 else EMPTY
            for c in contexts
        ]


DRAFTERS = {
    "ngram": lambda s: LookupDrafter(3, 1),
    "draft": lambda s: ModelDrafter(runner_on(PROPOSER), s, eos_ids=END),
    "draft unsure": lambda s: ModelDrafter(runner_on(PROPOSER), s, confidence=UNSURE),
    "draft shared": lambda s: ModelDrafter(
        runner_on(PROPOSER), s, coupling=Coupling.SHARED
    ),
    "tree": lambda s: TreeDrafter(
        runner_on(PROPOSER), s, branching=(3, 2, 1), eos_ids=END
    ),
    "tree shared": lambda s: TreeDrafter(
        runner_on(PROPOSER), s, branching=(2, 2, 2), coupling=Coupling.SHARED
    ),
    "stubborn": lambda s: Stubborn(),
}
RULES = {
    "reject": RejectRule(),
    "block": BlockRule(),
    "match": MatchRule(),
}
OF_TREES = {"tree", "tree shared"}
COUPLED = {"draft shared", "tree shared"}


def fits(drafter, rule):
    """Block verification takes chains, and drafts whose noise is new in every round."""
    return rule != "block" or drafter not in OF_TREES | COUPLED


# Options

CHOICES = {
    "mode": ["ar", "sd", "lr", "lr", "lr+sd", "lr+sd"],
    "drafter": ["ngram", "draft", "tree"],
    "acceptance": ["match"],
    "width": [1, 1, 2, 3],
    "schedule": ["sync", "paper", "depth"],
    "num_speculative_tokens": range(1, 8),
    "draft_confidence": [0.0, 0.5],
    "draft_forwards": [1, 3, 8],
    "draft_floor": [None, None, -4.0],
    "branching": [(2, 2), (3, 1), (1, 1, 1), (4,), (2, 1, 2)],
    "temperature": [0.0, 0.6, 1.0],
    "top_k": [0, 0, 20],
    "top_p": [1.0, 0.9],
    "max_step_tokens": [3, 12, 40, 100],
    "segmenter": ["blank_line", "sentence", "fixed"],
    "segment_tokens": [3],
    "max_target_rows": [None, None, 1, 3],
    "max_tokens": range(1, 41),
    "ignore_half_sentence": [True, False],
    "coupling": ["independent", "shared"],
    "driver": ["lockstep", "overlapped"],
    "seed": range(1000),
}


def random_options(rng, **choices):
    """Random options that fit each other. `choices`: among other values."""
    drawn = {name: rng.choice(values) for name, values in (CHOICES | choices).items()}
    drawn["depth"] = rng.randint(1, 4 if drawn["width"] == 1 else 2)
    if drawn["acceptance"] == "block":  # it takes chains, and fresh noise
        drawn |= {"coupling": "independent", "drafter": rng.choice(["ngram", "draft"])}
    return make_options(**drawn)
