"""The loop that runs draft and target for one or many questions, alternately or at the
same time.

Draft and target have `busy` and `poll`; so has a verifier that runs elsewhere. A poll
of a model in this thread is one forward for everything that is being written for all
requests. A poll of anything elsewhere (a worker, a server) takes in what has arrived.
So there is a single loop:

    verdicts on complete pairs;  the draft, up to `draft_forwards` times;
    verdicts on complete pairs;  the target, once;  and again

On one thread, another row in a forward of the target costs little, and the forward as
much as several of the draft. So the draft may run several steps ahead. The output does
not depend on who shares a forward, nor on timing: draws are keyed, rows are ragged, and
the scheduler ignores late events. The two exceptions are rejected late drafts and
drafter "step". Read next: `request.py`.
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
"""A model that writes. `here`: in this thread, so `poll` computes instead of
waiting."""
READINGS = Requires.TARGET_LOGPROBS | Requires.HIDDEN | Requires.SAMPLING_LOGPROBS
NAP = 0.002  # seconds between two polls if several parts work elsewhere


class Judgement(NamedTuple):
    """A verdict (None: unsure) for a request, the seconds that it took, and the
    verifier's forwards (given to each request only once)."""

    request: Request
    node: NodeId
    verdict: Verdict | None
    seconds: float
    passes: int = 0


class Loop:
    """Answers `live` requests, which share a target writer, a draft (None: plain
    decoding) and a verifier. `judgements`: those not reported to their requests yet.
    """

    def __init__(
        self,
        target: StepWriter,
        draft: Part | None,
        verifier: Verifier | None,
        draft_forwards: int,
    ) -> None:
        self.target, self.draft, self.verifier = target, draft, verifier
        self.draft_forwards = draft_forwards if draft is None or draft.here else 1
        self.live: list[Request] = []
        self.judgements: list[Judgement] = []
        self.deferred = None
        if isinstance(verifier, DeferredVerifier) and not (
            draft and draft.here and verifier.here
        ):
            self.deferred = find("lr.engine.deferred:Deferred")(verifier)
        self._left = (
            self.draft_forwards
        )  # forwards left to the draft before the target's next one
        self._passed = 0.0  # seconds of all forwards

    def add(self, request: Request) -> None:
        self.live.append(request)
        request.start()

    def remove(self, request: Request) -> None:
        """Stop answering a request, whether done or not."""
        self.live.remove(request)
        request.close()

    def close(self) -> None:
        """Stop all work and free all branches."""
        for request in list(self.live):
            self.remove(request)
        if self.deferred is not None:
            self.deferred.close()

    def step(self) -> None:
        """Do one piece of work: report a verdict, judge complete pairs, or poll a
        model. Raises `ProtocolError` if nothing can ever happen again.
        """
        took = sum(
            request.take() for request in self.live
        )  # proposed steps are ready at once
        if isinstance(self.draft, RemoteRun):
            self.draft.flush()
        busy = self.draft is not None and self.draft.busy
        draft = self.draft if busy and self._left > 0 else None
        if self.judgements:
            request, node, verdict, seconds, passes = self.judgements.pop(0)
            request.trace.record(VerifierCall(1, seconds, passes))
            request.judged(node, verdict)
        elif (self._left == self.draft_forwards or draft is None) and self._judge():
            pass
        elif draft is not None:
            self._left -= 1
            self._poll(draft)
        else:
            waits = busy or (
                self.deferred is not None and self.deferred.busy(self.live)
            )
            self._left = self.draft_forwards
            if self.target.busy:
                self._poll(self.target)
            elif not (waits or took or all(request.done for request in self.live)):
                work = [str(w) for request in self.live for w in request.scheduler.work]
                raise ProtocolError(
                    f"no model is writing and no verdict is awaited, but this work is not done: "
                    f"{', '.join(work)}. A draft side must hand over the steps it was asked for."
                )

    def passed(self, role: Role, branches: int, tokens: int, seconds: float) -> None:
        """Record a forward that served all live requests: each trace gets its share of
        the time."""
        self._passed += seconds
        for request in self.live:
            event = ForwardPass(role, branches, tokens, seconds / len(self.live))
            request.trace.record(event)

    def _poll(self, part: Part) -> None:
        part.poll(self._patience())
        for request in self.live:
            request.take()

    def _judge(self) -> bool:
        """Judge all complete pairs of all requests at once. Returns whether there were
        any."""
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
            find("lr.engine.readings:read_drafts")(waiting, sampling=sampling)
        started, passed = time.perf_counter(), self._passed
        pairs = [request.asked[node] for request, node in waiting]
        before = self.verifier.passes
        verdicts = all_verdicts_of(self.verifier, pairs)
        seconds = (
            time.perf_counter() - started - (self._passed - passed)
        )  # forwards are counted
        share = seconds / len(waiting)
        passes = {request: self.verifier.passes - before for request, _ in waiting}
        self.judgements = [
            Judgement(request, node, verdict, share, passes.pop(request, 0))
            for (request, node), verdict in zip(waiting, verdicts, strict=True)
        ]
        return True

    def _patience(self) -> float | None:
        """How long a poll may wait for news: not at all while a model in this thread
        has work."""
        parts: list[Part] = [self.target, *([] if self.draft is None else [self.draft])]
        if any(part.here and part.busy for part in parts):
            return 0.0
        elsewhere = sum(part.busy for part in parts)
        elsewhere += self.deferred is not None and self.deferred.busy(self.live)
        return None if elsewhere < 2 else NAP
