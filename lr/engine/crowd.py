"""Many questions at once on the same models: one ragged forward serves all that are being answered;
as one ends, the next begins.

What a question's tokens are does not depend on who shares a forward (draws are keyed, rows are
ragged), so each gets the answer that it gets alone. What a shared forward cost is divided evenly
among those it served: every trace gets an event of it with its share of the seconds, so seconds add
up over the questions while the number of passes does not.

Plain decoding is a `PlainChain`, which looks to the loop like a `Chain`. Read next: `lockstep.py`,
for one turn of the loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from lr.engine.answer import Asked, look_ahead
from lr.engine.chain import Chain
from lr.engine.draft_messages import Stamped
from lr.engine.drafts import DraftSide
from lr.engine.lockstep import Lockstep
from lr.engine.overlapped import Overlapped
from lr.engine.remote import insert
from lr.kvcache.branch import Branch
from lr.lab.endpoint.driver import Concurrently, OverlappedConcurrently
from lr.spec.protocol import Limits
from lr.spec.write import StepJob, StepWriter
from lr.trace import ForwardPass, Trace, emission
from lr.types import EmittedStep, Finish, Origin, Role, require


@dataclass
class PlainChain:
    """One question that the target answers alone, step by step, on a writer that may serve
    others.
    """

    asked: Asked
    target: StepWriter
    emitted: list[EmittedStep] = field(default_factory=list)
    done: bool = False
    _branch: Branch | None = None
    _job: StepJob | None = None
    _tokens: int = 0

    def start(self) -> None:
        """Open the prompt and begin the first step."""
        self._branch = self.target.runner.open(self.asked.prompt)
        self._begin()

    def written(self, job: StepJob) -> bool:
        """The target has finished a step: if it is ours, emit it and go on. Returns whether it is
        ours.
        """
        if job is not self._job:
            return False
        step = EmittedStep(job.index, job.step, Origin.TARGET)
        self.asked.trace.record(emission(step))
        self.emitted.append(step)
        self._job, self._tokens = None, self._tokens + len(job.tokens)
        if job.finish is Finish.EOS:
            self.done = True
        else:
            self._begin()
        return True

    def close(self) -> None:
        """Give everything back."""
        if self._job is not None:
            self.target.cancel(self._job)
        if self._branch is not None:
            self.target.close(self._branch)
        self._job = self._branch = None

    def _begin(self) -> None:
        limits: Limits = self.asked.limits
        limit = limits.step_limit(self._tokens)
        self.done = not limit
        if limit:
            assert self._branch is not None
            stream = self.asked.stream(Role.TARGET).child(len(self.emitted))
            self._job = StepJob(self._branch, len(self.emitted), limit, stream, self.asked.trace)
            self.target.begin([self._job])


@dataclass
class _Live:
    """A question that is being answered: how many of its steps were taken."""

    asked: Asked
    chain: Chain | PlainChain
    taken: int = 0

    @property
    def done(self) -> bool:
        return self.chain.done if isinstance(self.chain, PlainChain) else self.chain.scheduler.done


class Crowd:
    """Answers `asked`, at most `together` of them at a time; good for one `run`.

    All have the same models, verifier and options, but for the question and the sample, and were
    prepared with `share=together`.
    """

    def __init__(self, asked: Sequence[Asked], together: int) -> None:
        require(together >= 1, "concurrency", together, "a whole number >= 1")
        self.asked, self.together = asked, together
        self.shared = Trace(detailed=together == 1 and any(one.detailed for one in asked))

    def run(self) -> Iterator[Asked]:
        """Yield each question as its answer is complete. Whatever happens, all branches are closed
        at the end.
        """
        if not self.asked:
            return
        make, tick, end = self._open()
        waiting, live = deque(self.asked), list[_Live]()
        try:
            while waiting or live:
                while waiting and len(live) < self.together:
                    asked = waiting.popleft()
                    asked.trace = Trace(detailed=asked.detailed)  # its time begins now
                    live.append(_Live(asked, make(asked)))
                    live[-1].chain.start()
                tick([one.chain for one in live])
                self._share_out(live)
                for one in live:
                    self._take(one)
                for one in [one for one in live if one.done]:
                    live.remove(one)
                    one.chain.close()
                    yield one.asked
        finally:
            for one in live:
                one.chain.close()
            end()

    def _open(
        self,
    ) -> tuple[
        Callable[[Asked], Chain | PlainChain],
        Callable[[Sequence[Chain | PlainChain]], None],
        Callable[[], None],
    ]:
        """How a chain is made of a question, one turn for everybody, and what is to be done at the
        end.
        """
        most = max(self.asked, key=lambda one: len(one.prompt) + one.limits.max_tokens)
        most.trace = self.shared
        models = most.models
        target = most.plan(Role.TARGET).writer(models.target, models.codec.token_bytes, self.shared)
        if not most.options.looks_ahead:
            return (lambda asked: PlainChain(asked, target)), _plain_turn(target), lambda: None
        drafts: Callable[[Trace], DraftSide]
        driver: Lockstep | Overlapped
        drafts, driver = look_ahead(most, target)

        def end() -> None:
            if isinstance(driver, Overlapped):
                driver.drafts.finish()
            if isinstance(driver, Concurrently | OverlappedConcurrently):
                driver.end()

        return (lambda asked: asked.chain(target, drafts(asked.trace))), driver.tick, end  # type: ignore[return-value]

    def _take(self, one: _Live) -> None:
        for emitted in one.chain.emitted[one.taken :]:
            one.asked.take(emitted)
            if isinstance(one.chain, Chain):
                one.asked.control(one.chain.scheduler)
        one.taken = len(one.chain.emitted)

    def _share_out(self, live: Sequence[_Live]) -> None:
        """Give every question its share of the forwards of this turn. Example: 3 ms for 3
        questions: an event of 1 ms in each trace.

        What happens to the cache is told only where one question has it for itself.
        """
        for when, event in self.shared.events:
            if not isinstance(event, ForwardPass) and not self.shared.detailed:
                continue
            part = (
                replace(event, seconds=event.seconds / len(live))
                if isinstance(event, ForwardPass)
                else event
            )
            for one in live:
                insert(one.asked.trace, Stamped(None, self.shared.start + when, part))
        self.shared.events.clear()


def _plain_turn(target: StepWriter) -> Callable[[Sequence[Chain | PlainChain]], None]:
    def turn(chains: Sequence[Chain | PlainChain]) -> None:
        for job in target.tick():
            any(chain.written(job) for chain in chains)

    return turn
