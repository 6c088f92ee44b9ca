"""Asynchronous verifiers: the target continues while a pair is judged elsewhere.

This is on a server (`lr/measure/endpoint/judge.py`) or in a thread, such as a judge on
a GPU with driver overlapped."""

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
from lr.spec.protocol import NodeId
from lr.spec.verifiers.base import (
    DeferredVerifier,
    Pair,
    Requires,
    Verifier,
    verdicts_of,
)
from lr.spec.verifiers.named import Around
from lr.types import Verdict


class Deferred:
    """The open questions of one loop to an asynchronous verifier."""

    def __init__(self, verifier: DeferredVerifier) -> None:
        self.verifier = verifier
        self.open: dict[
            tuple[Request, NodeId], tuple[Pair, Future[Verdict], float, int]
        ] = {}
        # the last batch whose passes were reported to each request
        self._counted = weakref.WeakKeyDictionary[Request, int]()
        self._dropped: list[
            Future[Verdict]
        ] = []  # cancelled too late: still being judged

    def busy(self, live: Sequence[Request]) -> bool:
        """Whether a verdict is outstanding."""
        return bool(self.open) or any(request.asked for request in live)

    def poll(self, live: Sequence[Request], wait: float | None) -> list[Judgement]:
        """Submit new pairs, return new verdicts, drop pairs that are no longer needed.

        `wait`: seconds to wait for a verdict; None: until there is one."""
        asked = {(one, node): pair for one in live for node, pair in one.asked.items()}
        new = {key: pair for key, pair in asked.items() if key not in self.open}
        if isinstance(self.verifier, ThreadedVerifier):
            questions = self.verifier.ask_all(list(new.values()))
            for (key, pair), put in zip(new.items(), questions, strict=True):
                self.open[key] = pair, put, 0.0, 0
        else:
            for key, pair in new.items():
                before, began = self.verifier.passes, time.perf_counter()
                question = self.verifier.ask(pair)
                self.open[key] = pair, question, began, self.verifier.passes - before
        for key, (pair, question, *_) in list(self.open.items()):
            if asked.get(key) is not pair:
                if not question.cancel() and self.verifier.here:
                    self._dropped = [one for one in self._dropped if not one.done()] + [
                        question
                    ]
                del self.open[key]
        if self.open and wait != 0.0:
            wait_for(
                [question for _, question, *_ in self.open.values()],
                wait,
                FIRST_COMPLETED,
            )
        told = []
        for key, (_, question, began, passes) in list(self.open.items()):
            if question.done():
                del self.open[key]
                verdict, seconds = question.result(), time.perf_counter() - began
                if isinstance(question, Question):
                    again = self._counted.get(key[0]) == question.batch
                    seconds, passes = question.seconds, 0 if again else question.passes
                    self._counted[key[0]] = question.batch
                told.append(Judgement(*key, verdict, seconds, passes))
        return told

    def close(self) -> None:
        """Drop all questions. Waits for a thread, so that no work runs into the next
        answer."""
        asked = [
            question for _, question, *_ in self.open.values() if not question.cancel()
        ]
        self.open.clear()
        if self.verifier.here:
            wait_for([*asked, *self._dropped])


class Question(Future[Verdict]):
    """A future verdict of a `ThreadedVerifier`.

    `batch`: the number of the batch that judged it. `seconds`: the pair's share of the
    batch's time. `passes`: the verifier's forwards in the batch."""

    batch, seconds, passes = 0, 0.0, 0


class ThreadedVerifier(Around, DeferredVerifier):  # type: ignore[override]  # passes only counts up
    """Runs `verifier` in its own thread, on a CUDA `device` with its own stream.

    With driver overlapped the target continues meanwhile; else the caller waits. Pairs
    that arrive while the verifier is busy are judged together in the next batch. The
    verifier must judge by the two steps alone, without target or draft. If it can hang,
    it needs its own time limit. Raises `SettingError` for a verifier that requires
    more."""

    here = True

    def __init__(self, verifier: Verifier, device: torch.device | None = None) -> None:
        super().__init__(verifier)
        if (
            verifier.requires & ~Requires.TARGET_STEP
            or verifier.early_requires is not None
        ):
            raise SettingError(
                f"verifier {verifier.name!r} requires {verifier.requires}, early "
                f"{verifier.early_requires}; in a thread a verifier can have the target's step "
                "and no early pass. Use it without ThreadedVerifier."
            )
        stream = None
        if device is not None and device.type == "cuda":
            stream = torch.cuda.Stream(
                device
            )  # it must follow the work that loads the model
            stream.wait_stream(torch.cuda.current_stream(device))
        self._asked = SimpleQueue[Asked | None]()
        work = (verifier, self._asked, stream)
        threading.Thread(
            target=_work, args=work, name=f"lr {self.name}", daemon=True
        ).start()
        weakref.finalize(self, self._asked.put, None)

    def ask(self, pair: Pair) -> Question:
        return self.ask_all([pair])[0]

    def ask_all(self, pairs: Sequence[Pair]) -> list[Question]:
        """Submit pairs to be judged in one batch."""
        questions = [Question() for _ in pairs]
        if questions:
            self._asked.put(list(zip(pairs, questions, strict=True)))
        return questions

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Judge in the thread, since a model serves one caller at a time, and wait."""
        questions = self.ask_all(pairs)
        try:
            return [question.result() for question in questions]
        finally:
            for question in questions:
                question.cancel()


Asked = list[tuple[Pair, Question]]


def _work(
    verifier: Verifier,
    asked: SimpleQueue[Asked | None],
    stream: torch.cuda.Stream | None,
) -> None:
    """The thread's loop. Between batches it holds no reference to pairs or verdicts."""
    number = 0
    while _judge_batch(verifier, asked, stream, number := number + 1):
        pass


def _judge_batch(
    verifier: Verifier,
    asked: SimpleQueue[Asked | None],
    stream: torch.cuda.Stream | None,
    number: int,
) -> bool:
    """Wait for pairs and judge all that have arrived. False after None: the owner is
    gone."""
    waiting = [asked.get()]
    while not asked.empty():
        waiting.append(asked.get())
    together = [one for some in waiting if some is not None for one in some]
    batch = [one for one in together if one[1].set_running_or_notify_cancel()]
    began, before = time.perf_counter(), verifier.passes
    try:
        with nullcontext() if stream is None else torch.cuda.stream(stream):
            verdicts = verdicts_of(verifier, [pair for pair, _ in batch])
    except BaseException as error:
        for _, question in batch:
            question.set_exception(error)
        return None not in waiting
    share = (time.perf_counter() - began) / max(1, len(batch))
    for (_, question), verdict in zip(batch, verdicts, strict=True):
        question.batch, question.seconds = number, share
        question.passes = verifier.passes - before
        question.set_result(verdict)
    return None not in waiting
