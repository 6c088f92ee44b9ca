"""What the tests of the overlapped driver share: workers whose draft is a random model,
slowed down or broken on purpose.
"""

from __future__ import annotations

import os
import pickle
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

import torch
from spec_kit import EOS, PIECES, KitWriter, answered, writer

from lr.engine.drafts import Streams
from lr.engine.loop import Loop
from lr.engine.request import Request
from lr.engine.runner import ModelRunner, Runners
from lr.engine.worker import DraftWorker, RemoteRun
from lr.errors import OutOfBlocks
from lr.model.qwen import CausalLM
from lr.rng import Stream
from lr.spec.acceptance import MatchRule
from lr.spec.drafters import LookupDrafter
from lr.spec.protocol import NodeId, SchedulerConfig
from lr.spec.scheduler import LookaheadScheduler
from lr.spec.token_sd import Speculation
from lr.spec.verifiers.base import Pair, Verifier
from lr.spec.write import TokenBytes, WriterConfig
from lr.trace import Trace
from lr.types import Coupling, EmittedStep, Role, SamplingParams, Verdict


class ByTokens(Verifier):
    """Accepts by a coin that depends on the pair's tokens alone, the same in every
    process."""

    name = "by tokens"

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [Verdict(sum(p.draft.tokens) % 3 > 0, "by tokens") for p in pairs]


@dataclass(frozen=True)
class Parts:
    """Makes the parts of a worker from a pickled model; `trouble` is put before every
    forward."""

    model: bytes
    trouble: Trouble | None = None

    def __call__(self) -> tuple[Runners, TokenBytes]:
        torch.set_num_threads(1)
        model: CausalLM = pickle.loads(self.model)
        if self.trouble is not None:
            trouble, numbers = self.trouble, count(1)
            model.register_forward_pre_hook(lambda *_: trouble.strike(next(numbers)))
        return Strict(model), PIECES.__getitem__


class Strict(Runners):
    """Caches with blocks of 4 tokens. Ends the worker when a run has left something in
    one."""

    def lend(self, blocks: int) -> ModelRunner:
        runner = super().lend(4 * blocks)
        if runner.cache.block_size != 4:
            runner.cache = self.model.make_cache(4 * blocks, 4)
        return runner

    def take_back(self, runner: ModelRunner) -> None:
        if runner.cache.pool.num_used:
            raise SystemExit("a run left blocks in the worker's cache")
        super().take_back(runner)


@dataclass(frozen=True)
class Trouble:
    """Before a forward: sleep up to `delay` seconds at random; from forward number
    `after` on, do what `then` says.
    """

    delay: float = 0.0
    seed: int = 0
    after: int | None = None
    then: str = "die"

    def strike(self, count: int) -> None:
        if self.delay:
            time.sleep(random.Random(self.seed * 7919 + count).random() * self.delay)
        if self.after is not None and count >= self.after:
            if self.then == "die":
                os._exit(3)
            if self.then == "hang":
                time.sleep(3600)
            raise (
                OutOfBlocks(9, 1, 10)
                if self.then == "run out of blocks"
                else ValueError("a bug")
            )


def parts(model: CausalLM, trouble: Trouble | None = None) -> Parts:
    return Parts(pickle.dumps(model), trouble)


@dataclass
class Setting:
    """A target and what its runs with a draft worker need. `endless`: no token ends the
    text."""

    target_model: CausalLM
    temperature: float = 1.1
    seed: int = 0
    k: int = 0
    coupling: Coupling = Coupling.INDEPENDENT
    num_blocks: int = 900
    endless: bool = False

    @property
    def eos_ids(self) -> frozenset[int]:
        return frozenset() if self.endless else frozenset({EOS})

    def speculation(self) -> Speculation | None:
        return Speculation(LookupDrafter(2, 1), MatchRule(), self.k) if self.k else None

    def target(self, trace: Trace | None = None) -> KitWriter:
        made = writer(
            Role.TARGET,
            self.target_model,
            temperature=self.temperature,
            seed=self.seed,
            num_blocks=self.num_blocks,
            trace=trace,
        )
        eos_ids, speculation = self.eos_ids, self.speculation()
        made.config = replace(made.config, eos_ids=eos_ids, speculation=speculation)
        return made

    def writing(self) -> WriterConfig:
        """How the draft writes."""
        sampling, speculation = SamplingParams(self.temperature), self.speculation()
        return WriterConfig(Role.DRAFT, sampling, self.eos_ids, speculation=speculation)

    def streams(self, target: KitWriter, prompt: Sequence[int]) -> Streams:
        draft = Stream.root(self.seed).fold_in(Role.DRAFT.value)
        return Streams(
            target.stream.fold_in(str(prompt)),
            draft.fold_in(str(prompt)),
            self.coupling,
        )

    def begin(
        self,
        worker: DraftWorker,
        config: SchedulerConfig,
        prompts: Sequence[list[int]],
        verifier: Verifier,
    ) -> tuple[Loop, list[Request]]:
        """The loop and the requests of one run, not started."""
        trace = Trace()
        target = self.target(trace)
        run = worker.begin(self.writing(), self.num_blocks)
        requests = [
            Request(
                prompt,
                LookaheadScheduler(config),
                target,
                run.side(trace),
                self.streams(target, prompt),
                trace,
            )
            for prompt in prompts
        ]
        return Loop(target, run, verifier, 1), requests

    def run(
        self,
        worker: DraftWorker,
        config: SchedulerConfig,
        prompts: Sequence[list[int]],
        verifier: Verifier,
    ) -> list[list[EmittedStep]]:
        """The output of a run to its end. Every block is back, here and in the
        worker."""
        loop, requests = self.begin(worker, config, prompts, verifier)
        for _ in answered(loop, requests):
            pass
        assert all_is_back(loop, self.writing())
        return [request.emitted for request in requests]


def all_is_back(loop: Loop, writing: WriterConfig) -> bool:
    """Ends the run; whether every block was given back, here and in the worker, which
    then still answers (`Strict`).
    """
    assert isinstance(loop.draft, RemoteRun)
    loop.draft.end()
    again = loop.draft.worker.begin(writing, 30)
    side, root = again.side(Trace()), NodeId(0, 0)
    side.open(root, [5], Streams(Stream.root(0), Stream.root(0)))
    side.draft(root, 1, [NodeId(1, 1)], {})
    while not side.take():
        again.poll(None)
    side.end()
    again.end()
    return not loop.target.runner.cache.pool.num_used and not loop.target.live


def alive(pid: int) -> bool:
    """Whether a process exists. One that has ended but was not waited for counts as
    alive: it would be an orphan of ours.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
