"""Verifiers that are not waited for: the target writes on while a pair is judged elsewhere, on a
server (`lr/lab/endpoint/judge.py`) or in a thread, as a judge on a GPU is with driver overlapped.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_for
from contextlib import nullcontext
from queue import SimpleQueue

import torch

from lr.engine.loop import Judgement
from lr.engine.request import Request
from lr.errors import SettingError
from lr.parts.verifiers import Around
from lr.spec.protocol import NodeId
from lr.spec.verifiers.base import DeferredVerifier, Pair, Requires, Verifier, verdicts_of
from lr.types import Verdict


class Deferred:
    """The questions of one loop to a verifier that is not waited for."""

    def __init__(self, verifier: DeferredVerifier) -> None:
        self.verifier = verifier
        self.open: dict[tuple[Request, NodeId], tuple[Pair, Future[Verdict], float, int]] = {}
        self._counted = verifier.passes  # its forwards so far, as far as a question has them

    def busy(self, live: Sequence[Request]) -> bool:
        """Whether an answer is waited for."""
        return bool(self.open) or any(request.asked for request in live)

    def poll(self, live: Sequence[Request], wait: float | None) -> list[Judgement]:
        """Ask what is new, take in what is answered, drop what nobody asks any more."""
        for request in live:
            for node, pair in request.asked.items():
                if (request, node) not in self.open:
                    before, began = self.verifier.passes, time.perf_counter()
                    question = self.verifier.ask(pair)
                    passes = self.verifier.passes - before
                    self._counted += passes
                    self.open[request, node] = pair, question, began, passes
        for (request, node), (pair, question, *_) in list(self.open.items()):
            if request.asked.get(node) is not pair:
                question.cancel()
                del self.open[request, node]
        if self.open and wait != 0.0:
            wait_for([question for _, question, *_ in self.open.values()], wait, FIRST_COMPLETED)
        told, now = [], time.perf_counter()
        for key, (_, question, began, passes) in list(self.open.items()):
            if question.done():
                del self.open[key]
                verdict, seconds = question.result(), now - began
                if isinstance(question, Question):
                    seconds = question.seconds
                told.append(Judgement(*key, verdict, seconds, passes))
        if told:  # forwards of a thread begin after the question was put; one serves all requests
            later = self.verifier.passes - self._counted
            self._counted += later
            first = {one.request: i for i, one in reversed(list(enumerate(told)))}
            for i in first.values():
                told[i] = told[i]._replace(passes=told[i].passes + later)
        return told

    def close(self) -> None:
        """Drop all questions."""
        for _, question, *_ in self.open.values():
            question.cancel()
        self.open.clear()


class Question(Future[Verdict]):
    """The verdict to come from a `ThreadedVerifier`, and its share of the batch's seconds."""

    seconds = 0.0


class ThreadedVerifier(Around, DeferredVerifier):  # type: ignore[override]  # passes only counts up
    """`verifier`, asked in a thread of its own, on CUDA with a stream of its own. With driver
    overlapped the target goes on meanwhile; else it is waited for. Pairs that come while it is busy
    are judged together, in the next batch.

    It must judge by the two steps alone and ask neither target nor draft. One that may hang needs a
    time limit of its own. Raises `SettingError` for one that requires more.
    """

    here = True

    def __init__(self, verifier: Verifier, device: torch.device | None = None) -> None:
        super().__init__(verifier)
        if verifier.requires & ~Requires.TARGET_STEP or verifier.early_requires is not None:
            raise SettingError(
                f"verifier {verifier.name!r} requires {verifier.requires}, early "
                f"{verifier.early_requires}; in a thread a verifier can have the target's step "
                "and no early pass. Give it as it is."
            )
        stream = None
        if device is not None and device.type == "cuda":
            stream = torch.cuda.Stream(device)  # after what has been started to load the model
            stream.wait_stream(torch.cuda.current_stream(device))
        self._asked = SimpleQueue[tuple[Pair, Question] | None]()
        work = (verifier, self._asked, stream)
        threading.Thread(target=_judge, args=work, name=f"lr {self.name}", daemon=True).start()
        weakref.finalize(self, self._asked.put, None)

    def ask(self, pair: Pair) -> Question:
        question = Question()
        self._asked.put((pair, question))
        return question

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """In the same thread, since a model serves one at a time, and waited for."""
        return [question.result() for question in [self.ask(pair) for pair in pairs]]


def _judge(
    verifier: Verifier,
    asked: SimpleQueue[tuple[Pair, Question] | None],
    stream: torch.cuda.Stream | None,
) -> None:
    """The life of the thread: judge all that waits, in one batch, until None comes."""
    waiting: list[tuple[Pair, Question] | None] = []
    while None not in waiting:
        waiting = [asked.get()]
        while not asked.empty():
            waiting.append(asked.get())
        batch = [one for one in waiting if one and one[1].set_running_or_notify_cancel()]
        began = time.perf_counter()
        try:
            with nullcontext() if stream is None else torch.cuda.stream(stream):
                verdicts = verdicts_of(verifier, [pair for pair, _ in batch])
        except BaseException as error:
            for _, question in batch:
                question.set_exception(error)
            continue
        share = (time.perf_counter() - began) / max(1, len(batch))
        for (_, question), verdict in zip(batch, verdicts, strict=True):
            question.seconds = share
            question.set_result(verdict)
