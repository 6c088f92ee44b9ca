"""The drivers for served models: everything that somebody else computes goes on at the same time,
and nothing here waits for one of them.

`Concurrently` is the lockstep loop without the lockstep: a model of this process makes its forward,
a served one is asked what has come, verdicts that a server decides are taken in as they come; only
when there is nothing to do does it sleep, until the bell rings. With local models that write in a
worker (driver overlapped), and only the judge behind a server, it is `OverlappedConcurrently`.

What is emitted does not depend on who is faster, for the same reasons as everywhere: the scheduler
ignores late events, and a request is a function of its prefix and its seed (as far as the server
keeps to that: `probe.py` looks). Read next: `writer.py`, `judge.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from lr.engine.chain import Chain
from lr.engine.judging import judge_all
from lr.engine.lockstep import Lockstep
from lr.engine.overlapped import Overlapped
from lr.lab.endpoint.judge import Question, ServedVerifier
from lr.lab.endpoint.writer import ServedWriter
from lr.spec.protocol import Judged, Work
from lr.spec.verifiers.base import Verifier
from lr.spec.write import StepJob, StepWriter
from lr.trace import VerifierCall
from lr.types import EmittedStep

NAP = 0.002
"""Seconds between two looks at a draft's process while a verdict is awaited."""


@dataclass(eq=False)
class _Question:
    chain: Chain
    work: Work
    started: float
    answer: Question


class Verdicts:
    """The questions to a verifier. One that is asked elsewhere is not waited for; another is asked
    on the spot.
    """

    def __init__(self, verifier: Verifier, bell: threading.Event) -> None:
        self.verifier, self.bell = verifier, bell
        self.elsewhere = verifier if isinstance(verifier, ServedVerifier) else None
        self.open: list[_Question] = []

    def turn(self, chains: Sequence[Chain]) -> bool:
        """Ask what is to be asked, tell what was answered, hang up on what nobody wants to know any
        more. Whether there was news.
        """
        if self.elsewhere is None:
            waiting = any(chain.asked for chain in chains)
            judge_all(self.verifier, chains)
            return waiting
        news = self._take()
        self._ask(chains)
        return news

    def close(self) -> None:
        """Hang up on everything."""
        for question in self.open:
            question.answer.cancel()
        self.open = []

    def _ask(self, chains: Sequence[Chain]) -> None:
        known = {(id(question.chain), question.work) for question in self.open}
        for chain in chains:
            for work, pair in chain.asked.items():
                if (id(chain), work) in known:
                    continue
                assert self.elsewhere is not None
                answer = self.elsewhere.ask(pair, self.bell.set)
                self.open.append(_Question(chain, work, time.perf_counter(), answer))

    def _take(self) -> bool:
        """Tell the scheduler what was answered. An answer may cancel other questions."""
        news = False
        for question in list(self.open):
            wanted = question.work in question.chain.asked
            if wanted and not question.answer.done():
                continue
            self.open.remove(question)
            if not wanted:
                question.answer.cancel()
                continue
            news = True
            chain, work = question.chain, question.work
            del chain.asked[work]
            chain.trace.record(VerifierCall(1, time.perf_counter() - question.started))
            chain.tell(Judged(work.node, question.answer.verdict()))
        return news


@dataclass
class Concurrently(Lockstep):
    """Drives chains on writers of which any may be served, and a verifier that may be asked
    elsewhere. See `Lockstep`.
    """

    bell: threading.Event = field(default_factory=threading.Event)
    verdicts: Verdicts = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.verdicts = Verdicts(self.verifier, self.bell)
        for writer in (self.target, self.draft):
            if isinstance(writer, ServedWriter):
                writer.bell = self.bell

    def run(self, chains: Sequence[Chain]) -> Iterator[tuple[Chain, EmittedStep]]:
        """See `Lockstep.run`. Raises what goes wrong on a server, `EndpointError` foremost."""
        try:
            yield from super().run(chains)
        finally:
            self.end()

    def tick(self, chains: Sequence[Chain]) -> None:
        """One turn for everybody; where nobody has anything to do, wait for news first."""
        if not self._turn(chains) and not all(chain.scheduler.done for chain in chains):
            self.bell.wait()
            self.bell.clear()
            self._turn(chains)

    def end(self) -> None:
        """Hang up on everything."""
        self.verdicts.close()
        for writer in (self.target, self.draft):
            if isinstance(writer, ServedWriter):
                writer.close_all()

    def _turn(self, chains: Sequence[Chain]) -> bool:
        """Whether anything was computed or came in."""
        news = self._draft(chains)
        computing = bool(self.target.live) and not isinstance(self.target, ServedWriter)
        jobs = advance(self.target)
        for job in jobs:
            any(chain.written(job) for chain in chains)
        return self.verdicts.turn(chains) or computing or news or bool(jobs)

    def _draft(self, chains: Sequence[Chain]) -> bool:
        news = False
        for _ in range(self.draft_ticks):
            if not self.draft.live:
                break
            served = isinstance(self.draft, ServedWriter)
            done = advance(self.draft)
            for chain in chains:
                chain.drafted()
            news = news or bool(done) or not served
            if served and not done:
                break
        return news


@dataclass
class OverlappedConcurrently(Overlapped):
    """As `Overlapped`, with a verifier that is asked elsewhere."""

    bell: threading.Event = field(default_factory=threading.Event)
    verdicts: Verdicts = field(init=False)

    def __post_init__(self) -> None:
        self.verdicts = Verdicts(self.verifier, self.bell)

    def run(self, chains: Sequence[Chain]) -> Iterator[tuple[Chain, EmittedStep]]:
        """See `Overlapped.run`."""
        try:
            yield from super().run(chains)
        finally:
            self.end()

    def tick(self, chains: Sequence[Chain]) -> None:
        """One turn for everybody. While only a verdict is awaited, the draft's process is looked
        after all the same.
        """
        idle = not self.target.live
        self.drafts.listen(wait=idle and not self.verdicts.open)
        for chain in chains:
            chain.drafted()
        self.verdicts.turn(chains)
        self.drafts.flush()
        if self.target.live:
            for job in self.target.tick():
                any(chain.written(job) for chain in chains)
        elif self.verdicts.open:
            self.bell.wait(NAP)
            self.bell.clear()
        self.verdicts.turn(chains)

    def end(self) -> None:
        """Hang up on everything that was asked."""
        self.verdicts.close()


def advance(writer: StepWriter) -> list[StepJob]:
    """One forward of a model of this process, or what has come of a served one, as far as there is
    anything in work.
    """
    if not writer.live:
        return []
    return writer.poll() if isinstance(writer, ServedWriter) else writer.tick()
