"""Writing steps on a server: a `StepWriter` whose forwards are somebody else's.

A step is one request, a completion of everything before it. The answer streams in; where the step's
boundary is complete, the request is cancelled, and the server stops writing. The boundary is found
here and not by the server's stop string, because a step needs a visible character first, and
because other segmenters have no string; the string is sent along only where it leaves the text
whole.

Nothing blocks but `tick` (and `write`): `begin` sends, `cancel` hangs up, `poll` takes in what has
come. `bell` rings whenever there is something, so that one driver can wait for several writers.
Branches are lists of tokens: the server's prefix cache is the cache.

What is the truth, ids or text: see `models.py`. With text, steps are cut at characters instead of
tokens: a step never has more than its boundary. Read next: `driver.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import Any, ClassVar

from lr.lab.endpoint.branches import ServedBranch
from lr.lab.endpoint.client import EndpointError, Message, Piece, Restart
from lr.lab.endpoint.models import ServedModel, exact_ids
from lr.lab.endpoint.probe import Stops
from lr.spec.segmenters import BLANK_LINE, BlankLineSegmenter
from lr.spec.write import StepJob, StepWriter
from lr.trace import ForwardPass
from lr.types import Finish, Step

UNREADABLE = "\N{REPLACEMENT CHARACTER}"


def byte_of(number: int) -> bytes:
    """The bytes of a "token" where text is read byte by byte: byte number `number`."""
    return bytes([number])


@dataclass(eq=False)
class _Writing:
    """A step in the making: since when, from which length of its branch, and what the requests so
    far have brought.
    """

    one: Any
    length: int
    started: float = field(default_factory=time.perf_counter)
    call: Future[None] | None = None
    requests: int = 0
    stopping: bool = False
    """Whether the request in flight was sent with the stop string."""
    settled: str = ""
    """Text of earlier requests of this step."""
    text: str = ""
    """Text of the request in flight; a part of the token's text in id mode plays no role."""
    tokens: int = 0
    kept: int = 0
    """Tokens of earlier requests of this step, in id mode."""


@dataclass(kw_only=True)
class ServedWriter(StepWriter):
    """A served model in its role. `runner` must be its `ServedRunner`; in text mode `segmenter`
    must read bytes as tokens.
    """

    here: ClassVar[bool] = False
    model: ServedModel
    bell: threading.Event = field(default_factory=threading.Event)
    _inbox: SimpleQueue[tuple[_Writing, int, Message]] = field(default_factory=SimpleQueue)
    _writing: dict[StepJob, _Writing] = field(default_factory=dict)

    def write(self, jobs: Sequence[StepJob], logits: Sequence[Any] | None = None) -> list[Step]:
        """As `StepWriter.write`; there are never logits."""
        try:
            return super().write(jobs)
        finally:
            self.end()

    def begin(self, jobs: Sequence[StepJob]) -> None:
        """Send the requests for these steps."""
        before = len(self.live)
        super().begin(jobs)
        for one in self.live[before:]:
            writing = self._writing[one.job] = _Writing(one, len(one.job.branch))
            self._ask(writing, stopping=self._may_stop())

    def cancel(self, job: StepJob) -> None:
        """Hang up. The server stops writing when it notices."""
        super().cancel(job)
        self._part(job)

    def tick(self) -> list[StepJob]:
        """Wait until something comes and take it in; returns the jobs that it finished. Raises what
        goes wrong on the server.
        """
        return self.poll(None)

    def poll(self, wait: float | None = 0.0) -> list[StepJob]:
        """As `tick`, but wait no longer than that."""
        if self.live and self._inbox.empty() and wait != 0.0:
            self.bell.wait(wait)
        self.bell.clear()
        while True:
            try:
                writing, request, message = self._inbox.get_nowait()
            except Empty:
                return self._part_with_finished()
            if writing.requests == request and self._writing.get(writing.one.job) is writing:
                self._hear(writing, message)

    def end(self) -> None:
        """Hang up on everything that is being written."""
        for job in list(self._writing):
            self.cancel(job)

    def _ask(self, writing: _Writing, *, stopping: bool) -> None:
        """Send a request for the rest of a step."""
        one, branch = writing.one, writing.one.job.branch
        assert isinstance(branch, ServedBranch)
        number = writing.requests = writing.requests + 1
        writing.stopping, writing.text = stopping, ""
        writing.kept = len(one.job.tokens)
        limit = one.job.limit - writing.tokens
        fields = self.model.settings(self.sampling, limit, one.stream.key(number - 1))
        if stopping:
            fields |= {"stop": [BLANK_LINE.decode()]}
            fields |= (
                {"include_stop_str_in_output": True}
                if self.model.can.stops is Stops.CUT_BEFORE
                else {}
            )
        prompt = self.model.prompt(branch.head, branch.start, branch.tokens)
        if isinstance(prompt, str):
            prompt += writing.settled

        def deliver(message: Message) -> None:
            self._inbox.put((writing, number, message))
            self.bell.set()

        writing.call = self.model.endpoint.begin(
            prompt, fields, deliver, stream=self.model.can.streams
        )

    def _may_stop(self) -> bool:
        """Whether the server may be told the boundary: only a blank line, and only where the text
        comes with it.
        """
        if not isinstance(self.segmenter, BlankLineSegmenter):
            return False
        return (
            self.model.can.stops in (Stops.CUT_AFTER, Stops.OVERSHOOTS)
            or self.model.can.stop_is_kept
        )

    def _hear(self, writing: _Writing, message: Message) -> None:
        one = writing.one
        if isinstance(message, Exception):
            raise message
        if isinstance(message, Restart):
            self._forget(writing)
            return
        take = self._take_ids if self.model.ids else self._take_text
        take(writing, message)
        if one.job.finish is None and message.finish is not None:
            self._end(writing, message)
        if one.job.finish is not None:
            self._settle(writing, message)

    def _forget(self, writing: _Writing) -> None:
        """What the request in flight has brought is void."""
        one = writing.one
        writing.text = ""
        del one.job.tokens[writing.kept :]
        self.runner.rewind(one.job.branch, writing.length + writing.kept)
        self._renew(writing)

    def _renew(self, writing: _Writing) -> None:
        """A detector that has read what is settled of the step, and nothing else."""
        one = writing.one
        detector = self.segmenter.start()
        for token in one.job.tokens if self.model.ids else writing.settled.encode():
            detector.feed(token)
        fresh = replace(one, detector=detector)
        self.live[self.live.index(one)] = fresh
        writing.one = fresh

    def _take_ids(self, writing: _Writing, piece: Piece) -> None:
        one = writing.one
        if piece.ids is None and piece.text:
            raise EndpointError(
                f"{self.model} sent text without token ids ({piece.text[:40]!r}), though it has them."
            )
        for token in piece.ids or ():
            if not 0 <= token < self.model.chain.vocab_size:
                raise EndpointError(
                    f"{self.model} wrote token id {token}; the tokenizer of {self.model.chain.name} has ids 0 to "
                    f"{self.model.chain.vocab_size - 1}. They are not of the same checkpoint: name the right tokenizer."
                )
            if one.job.finish is None:
                one.job.branch.append(token)
                self._take(one, token)

    def _take_text(self, writing: _Writing, piece: Piece) -> None:
        """Take text up to the character with which the boundary is complete.

        A white space that does not end a blank line is left to the next step, which begins with it,
        as tokens do. Example, sentences: behind "He ran. " a server would go on behind a lone
        space; "He ran." and " Then" are what it writes at one go.
        """
        for place, character in enumerate(piece.text):
            if any(writing.one.detector.feed(byte) for byte in character.encode()):
                before = writing.settled + writing.text + piece.text[:place]
                left = character.isspace() and before.strip() and not before.endswith("\n")
                writing.text += piece.text[: place if left else place + 1]
                self._write_down(writing, Finish.BOUNDARY)
                return
        writing.text += piece.text

    def _end(self, writing: _Writing, piece: Piece) -> None:
        """The request is over and the step has no boundary: it was cut, the text has ended, or a
        leading blank line stopped the server.
        """
        one = writing.one
        cut = piece.finish == "length"
        if writing.stopping and not cut and self._stopped_early(writing):
            writing.settled += writing.text
            writing.tokens += (
                piece.usage.completion
                if piece.usage
                else max(1, len(one.job.tokens) - writing.kept)
            )
            if writing.tokens < one.job.limit:
                self._ask(writing, stopping=False)
                return
            cut = True
        if not self.model.ids:
            self._write_down(writing, Finish.LENGTH if cut else Finish.EOS)
        elif cut and one.job.tokens:
            one.job.finish = Finish.LENGTH
        else:
            one.job.branch.append(self._eos)
            self._take(one, self._eos)

    def _stopped_early(self, writing: _Writing) -> bool:
        ids = writing.one.job.tokens[writing.kept :]
        text = (
            b"".join(map(self.model.chain.token_bytes, ids))
            if self.model.ids
            else writing.text.encode()
        )
        return BLANK_LINE in text

    def _write_down(self, writing: _Writing, finish: Finish) -> None:
        """The step's ids, from its text; at most as many as it may have."""
        job, chain = writing.one.job, self.model.chain
        text = writing.settled + writing.text
        if finish is Finish.LENGTH:
            text = (
                text.rstrip(UNREADABLE) or UNREADABLE
            )  # a character that the cut has torn comes again, whole
        ids = exact_ids(chain, text) + ([self._eos] if finish is Finish.EOS else [])
        if len(ids) > job.limit:
            ids, finish = ids[: job.limit], Finish.LENGTH
            while len(ids) > 1 and chain.decode(ids).endswith(UNREADABLE):
                ids.pop()
        job.tokens[:], job.finish = ids, finish
        job.branch.extend(ids)

    @property
    def _eos(self) -> int:
        own = self.model.chain.tokenizer.eos_token_id
        return own if own in self.eos_ids else min(self.eos_ids)

    def _settle(self, writing: _Writing, piece: Piece) -> None:
        """A step is complete: hang up, and report the request as the pass that it was."""
        job = writing.one.job
        self._part(job)
        tokens = piece.usage.completion if piece.usage else len(job.tokens)
        seconds = time.perf_counter() - writing.started
        writing.one.trace.record(ForwardPass(self.role, 1, tokens, seconds))

    def _part(self, job: StepJob) -> None:
        writing = self._writing.pop(job, None)
        if writing is not None and writing.call is not None:
            writing.call.cancel()
