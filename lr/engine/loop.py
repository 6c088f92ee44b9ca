"""The loop that runs the models, for one question or many, the draft in turn or at the same time.

Draft and target offer `busy` and `poll`, and so does a verifier that is not waited for. For a model
of this thread a poll is one forward, over everything that is being written for all requests; for
what works elsewhere (a worker, a server) it takes in what has arrived. So there is one loop:

    verdicts on complete pairs;  the draft, up to `draft_ticks` times;
    verdicts on complete pairs;  the target, once;  and again

On one thread target rows are cheap to add and a forward is not, so the draft may run ahead. What is
emitted depends neither on who shares a forward nor on who is faster: draws are keyed, rows are
ragged, and the scheduler ignores late events. Two options are exceptions, and say so: late drafts
that are rejected, and drafter "step". Read next: `request.py`.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from lr.engine.request import Request
from lr.engine.worker import RemoteRun
from lr.errors import ProtocolError
from lr.registry import find
from lr.spec.protocol import NodeId
from lr.spec.verifiers.base import DeferredVerifier, Requires, Verifier, all_verdicts_of
from lr.spec.write import StepWriter
from lr.trace import ForwardPass, VerifierCall
from lr.types import Role, Verdict

Part = StepWriter | RemoteRun
"""A model that writes. `here`: in this thread, so that a `poll` computes and does not wait."""
READINGS = Requires.TARGET_LOGPROBS | Requires.HIDDEN | Requires.SAMPLING_LOGPROBS
NAP = 0.002
"""Seconds between two looks where several parts work elsewhere."""


class Judgement(NamedTuple):
    """A verdict (None: unsure) that a request is to be told, the seconds that it took, and the
    verifier's forwards, told to every request once."""

    request: Request
    node: NodeId
    verdict: Verdict | None
    seconds: float
    passes: int = 0


class Loop:
    """Answers `live` requests, which share a target writer, the draft (None: nothing looks ahead)
    and a verifier. `judgements`: those that are there and not told yet.
    """

    def __init__(
        self, target: StepWriter, draft: Part | None, verifier: Verifier | None, draft_ticks: int
    ) -> None:
        self.target, self.draft, self.verifier = target, draft, verifier
        self.draft_ticks = draft_ticks if draft is None or draft.here else 1
        self.live: list[Request] = []
        self.judgements: list[Judgement] = []
        self.deferred = None
        if isinstance(verifier, DeferredVerifier) and not (draft and draft.here and verifier.here):
            self.deferred = find("lr.parts.deferred:Deferred")(verifier)
        self._ticks = self.draft_ticks  # forwards of the draft before the target's turn
        self._passed = 0.0  # seconds of all forwards

    def add(self, request: Request) -> None:
        self.live.append(request)
        request.start()

    def remove(self, request: Request) -> None:
        """Stop answering a request, done or not."""
        self.live.remove(request)
        request.close()

    def close(self) -> None:
        """Stop everything and give it back."""
        for request in list(self.live):
            self.remove(request)
        if self.deferred is not None:
            self.deferred.close()

    def step(self) -> None:
        """One piece of work: a verdict is told, complete pairs are judged, or a model polled.
        Raises `ProtocolError` where nothing could ever happen again.
        """
        took = sum(request.take() for request in self.live)  # proposed steps are there at once
        if isinstance(self.draft, RemoteRun):
            self.draft.flush()
        busy = self.draft is not None and self.draft.busy
        draft = self.draft if busy and self._ticks > 0 else None
        if self.judgements:
            told = self.judgements.pop(0)
            told.request.trace.record(VerifierCall(1, told.seconds, told.passes))
            told.request.judged(told.node, told.verdict)
        elif (self._ticks == self.draft_ticks or draft is None) and self._judge():
            pass
        elif draft is not None:
            self._ticks -= 1
            self._poll(draft)
        else:
            waits = busy or (self.deferred is not None and self.deferred.busy(self.live))
            self._ticks = self.draft_ticks
            if self.target.busy:
                self._poll(self.target)
            elif not (waits or took or all(request.done for request in self.live)):
                work = [str(w) for request in self.live for w in request.scheduler.work]
                raise ProtocolError(
                    f"no model is writing and no verdict is awaited, but this work is not done: "
                    f"{', '.join(work)}. A draft side must hand over the steps it was asked for."
                )

    def passed(self, role: Role, branches: int, tokens: int, seconds: float) -> None:
        """A forward served all live requests: the trace of each gets its share of the seconds."""
        self._passed += seconds
        for request in self.live:
            event = ForwardPass(role, branches, tokens, seconds / len(self.live))
            request.trace.record(event)

    def _poll(self, part: Part) -> None:
        part.poll(self._patience())
        for request in self.live:
            request.take()

    def _judge(self) -> bool:
        """Ask about all complete pairs of all requests at once. Whether there was any news."""
        if self.deferred is not None:
            self.judgements = self.deferred.poll(self.live, self._patience())
            return bool(self.judgements)
        waiting = [(request, node) for request in self.live for node in request.asked]
        if not waiting:
            return False
        assert self.verifier is not None, "nothing is drafted without one"
        requires = self.verifier.requires
        if requires & READINGS:
            sampling = bool(requires & Requires.SAMPLING_LOGPROBS)
            find("lr.parts.readings:read_drafts")(waiting, sampling=sampling)
        started, passed = time.perf_counter(), self._passed
        pairs = [request.asked[node] for request, node in waiting]
        before = self.verifier.passes
        verdicts = all_verdicts_of(self.verifier, pairs)
        seconds = time.perf_counter() - started - (self._passed - passed)  # forwards are counted
        share = seconds / len(waiting)
        passes = {request: self.verifier.passes - before for request, _ in waiting}
        self.judgements = [
            Judgement(request, node, verdict, share, passes.pop(request, 0))
            for (request, node), verdict in zip(waiting, verdicts, strict=True)
        ]
        return True

    def _patience(self) -> float | None:
        """How long a poll may wait for news: not at all while a model of this thread has work."""
        parts: list[Part] = [self.target, *([] if self.draft is None else [self.draft])]
        if any(part.here and part.busy for part in parts):
            return 0.0
        elsewhere = sum(part.busy for part in parts)
        elsewhere += self.deferred is not None and self.deferred.busy(self.live)
        return None if elsewhere < 2 else NAP
