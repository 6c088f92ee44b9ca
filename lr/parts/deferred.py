"""Verifiers that are not waited for: the target writes on while a pair is judged elsewhere, on a
server (`lr/lab/endpoint/judge.py`) or in a thread, as a judge on a GPU is.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import nullcontext

import torch

from lr.engine.loop import Judgement
from lr.engine.request import Request
from lr.errors import SettingError
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
        told = []
        for key, (_, question, began, passes) in list(self.open.items()):
            if question.done():
                del self.open[key]
                told.append(Judgement(*key, question.result(), time.perf_counter() - began, passes))
        if told:  # forwards of a thread, which begin after the question was put
            later = self.verifier.passes - self._counted
            self._counted += later
            told[0] = told[0]._replace(passes=told[0].passes + later)
        return told

    def close(self) -> None:
        """Drop all questions."""
        for _, question, *_ in self.open.values():
            question.cancel()
        self.open.clear()


class VerifierThread(DeferredVerifier):
    """A `threaded` verifier in a thread, on CUDA with a stream of its own. Pairs that come while it
    is busy are judged together, in the next batch. Raises `SettingError` for one that needs more
    than the two steps.
    """

    def __init__(self, verifier: Verifier) -> None:
        if verifier.requires & ~Requires.TARGET_STEP or verifier.early_requires is not None:
            raise SettingError(
                f"verifier {verifier.name!r} is threaded and requires {verifier.requires}, early "
                f"{verifier.early_requires}: in a thread only Requires.TARGET_STEP can be had, and "
                "no early pass. Leave `threaded` False."
            )
        self.verifier, self._waiting = verifier, deque[tuple[Pair, Future[Verdict]]]()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"lr verifier {verifier.name}")
        self._stream = torch.cuda.Stream() if torch.cuda.is_initialized() else None
        if self._stream is not None:  # after what has been started to load the model
            self._stream.wait_stream(torch.cuda.current_stream())

    @property
    def passes(self) -> int:  # type: ignore[override]  # it only counts up
        return self.verifier.passes

    def ask(self, pair: Pair) -> Future[Verdict]:
        answer = Future[Verdict]()
        self._waiting.append((pair, answer))
        self._thread.submit(self._work)
        return answer

    def close(self) -> None:
        """Wait for the batch that is being judged: the next answer may ask the same model."""
        self._thread.shutdown(cancel_futures=True)

    def _work(self) -> None:
        """Judge all that waits now. As many calls come as pairs: most find nothing left."""
        waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
        asked = [
            (pair, answer) for pair, answer in waiting if answer.set_running_or_notify_cancel()
        ]
        try:
            with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
                verdicts = verdicts_of(self.verifier, [pair for pair, _ in asked])
        except BaseException as error:
            for _, answer in asked:
                answer.set_exception(error)
        else:
            for (_, answer), verdict in zip(asked, verdicts, strict=True):
                answer.set_result(verdict)
