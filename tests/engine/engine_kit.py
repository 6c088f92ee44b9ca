"""An engine with small random models in fp64 and a toy tokenizer of twelve tokens, and
draft workers that are slowed down or broken on purpose.
"""

from __future__ import annotations

import os
import pickle
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import torch
from spec_kit import EOS, PIECES, random_model

from lr.engine.answer import Answer
from lr.engine.engine import Engine
from lr.engine.runner import Runners
from lr.engine.worker import DraftWorker, Parts
from lr.errors import OutOfBlocks
from lr.model.qwen import CausalLM
from lr.options import make_options
from lr.spec.variant import Variant
from lr.spec.verifiers.base import Pair, Verifier
from lr.types import EmittedStep, Role, Verdict

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
    def eos_ids(self) -> frozenset[int]:
        return frozenset() if self.endless else frozenset({EOS})

    def token_bytes(self, token: int) -> bytes:
        return PIECES[token]

    def chat(self, question: str, **_: object) -> list[int]:
        return [5 + "abcdef".index(letter) for letter in question]


class ByContent(Verifier):
    """Accepts by a coin that depends on the pair's tokens alone, in every process."""

    name = "by content"

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [Verdict(sum(pair.draft.tokens) % 3 > 0, "by content") for pair in pairs]


def toy_engine(*, endless: bool = False, worker: DraftWorker | None = None) -> Engine:
    codec: Any = ToyCodec(endless)
    return Engine(codec=codec, target=TARGET, draft=DRAFT, worker=worker)


BY_CONTENT = ByContent()  # answers that are served together share it


def ask(
    engine: Engine,
    question: str = QUESTIONS[0],
    verifier: Verifier | None = None,
    variant: Variant | None = None,
    **changes: Any,
) -> Answer:
    """An answer that is not begun: short steps, at a high temperature."""
    usual = {"max_tokens": 50, "max_step_tokens": 14, "temperature": 1.1, "mode": "lr"}
    options = make_options(**(usual | changes))
    asked = engine.question(question, options, verifier or BY_CONTENT, variant)
    answer: Any = Answer(asked)
    answer.served = engine.serve([answer])
    answer.engine = engine  # for `emitted`
    return answer


def emitted(answer: Any) -> list[EmittedStep]:
    """The steps of an answer, which is answered to its end; the engine is clean."""
    answer.finish()
    require_clean(answer.engine)
    return answer.emitted


def require_clean(engine: Engine, roles: Iterable[Role] = Role) -> None:
    """No idle cache holds a block, and none is lent: every runner came back."""
    for role in roles:
        for runner in engine.runners[role].idle:
            assert runner.cache.pool.num_used == 0


# Workers


class StrictRunners(Runners):
    """Ends the worker if a loop has left something in a cache."""

    def take_back(self, runner: Any) -> None:
        if runner.cache.pool.num_used:
            os._exit(9)
        super().take_back(runner)


@dataclass(frozen=True)
class Trouble:
    """Before each forward: sleep up to `delay` seconds; from forward number `after` on,
    do what `then` says: "die", "raise", or "fill" the cache."""

    delay: float = 0.0
    after: int | None = None
    then: str = "die"

    def strike(self, number: int) -> None:
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

    def __call__(self) -> Parts:
        torch.set_num_threads(1)
        model: CausalLM = pickle.loads(self.model)
        numbers = count(1)
        model.register_forward_pre_hook(lambda *_: self.trouble.strike(next(numbers)))
        return StrictRunners(model, len(PIECES)), PIECES.__getitem__


def alive(pid: int | None) -> bool:
    """Whether a process runs, and not only waits for its parent to read its exit
    code."""
    assert pid is not None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rsplit(")", 1)[1].split()[0] != "Z"
