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
        # the last batch whose passes each request was told
        self._counted = weakref.WeakKeyDictionary[Request, int]()
        self._dropped: list[Future[Verdict]] = []  # while they were being judged

    def busy(self, live: Sequence[Request]) -> bool:
        """Whether an answer is waited for."""
        return bool(self.open) or any(request.asked for request in live)

    def poll(self, live: Sequence[Request], wait: float | None) -> list[Judgement]:
        """Ask what is new, take in what is answered, drop what nobody asks any more."""
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
                    self._dropped = [one for one in self._dropped if not one.done()] + [question]
                del self.open[key]
        if self.open and wait != 0.0:
            wait_for([question for _, question, *_ in self.open.values()], wait, FIRST_COMPLETED)
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
        """Drop all questions. What runs in a thread is waited for, so that nothing of this answer
        is computed in the time of the next.
        """
        asked = [question for _, question, *_ in self.open.values() if not question.cancel()]
        self.open.clear()
        if self.verifier.here:
            wait_for([*asked, *self._dropped])


class Question(Future[Verdict]):
    """The verdict to come from a `ThreadedVerifier`. Of the batch in which it was judged: its
    number, this pair's share of the seconds, the verifier's forwards.
    """

    batch, seconds, passes = 0, 0.0, 0


class ThreadedVerifier(Around, DeferredVerifier):  # type: ignore[override]  # passes only counts up
    """`verifier`, asked in a thread of its own; on a CUDA `device` with a stream of its own. With
    driver overlapped the target goes on meanwhile, else it is waited for. Pairs that come while it
    is busy are judged together, in the next batch.

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
        self._asked = SimpleQueue[Asked | None]()
        work = (verifier, self._asked, stream)
        threading.Thread(target=_work, args=work, name=f"lr {self.name}", daemon=True).start()
        weakref.finalize(self, self._asked.put, None)

    def ask(self, pair: Pair) -> Question:
        return self.ask_all([pair])[0]

    def ask_all(self, pairs: Sequence[Pair]) -> list[Question]:
        """Begin to judge pairs, in one batch."""
        questions = [Question() for _ in pairs]
        if questions:
            self._asked.put(list(zip(pairs, questions, strict=True)))
        return questions

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """In the same thread, since a model serves one at a time, and waited for."""
        questions = self.ask_all(pairs)
        try:
            return [question.result() for question in questions]
        finally:
            for question in questions:
                question.cancel()


Asked = list[tuple[Pair, Question]]


def _work(
    verifier: Verifier, asked: SimpleQueue[Asked | None], stream: torch.cuda.Stream | None
) -> None:
    """The life of the thread. Between two batches it holds nothing but these."""
    number = 0
    while _judge_batch(verifier, asked, stream, number := number + 1):
        pass


def _judge_batch(
    verifier: Verifier,
    asked: SimpleQueue[Asked | None],
    stream: torch.cuda.Stream | None,
    number: int,
) -> bool:
    """Wait for pairs and judge all that there are. False after None: the owner is gone."""
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
