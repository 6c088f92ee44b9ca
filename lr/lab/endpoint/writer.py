"""Steps written on a server: a `StepWriter` whose forwards are requests, as docs/engines.md tells.

The boundary of a step is found here and not by the server's stop string, because a step needs a
visible character first, and because other segmenters have no string; the string is sent along only
if it leaves the text whole. Nothing blocks but `poll` with a wait: `begin` sends, `cancel` hangs
up. Branches are lists of tokens: the server's prefix cache is the cache. With text, steps are cut
at characters, not at tokens: a step never has more than its boundary."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, ClassVar

from lr.errors import ContextError, ProtocolError
from lr.kvcache.branch import BlockTable, Branch
from lr.lab.endpoint.client import EndpointError, Message, Piece, Prompt, Restart
from lr.lab.endpoint.models import ServedModel, exact_ids
from lr.lab.endpoint.probe import Stops
from lr.spec.segmenters import BLANK_LINE, BlankLineSegmenter
from lr.spec.write import StepJob, StepWriter
from lr.trace import ForwardPass
from lr.types import Finish, require

LONGEST_TOKEN = 256  # Characters of a text for each token that it may have; more is cut off.
UNREADABLE = "\N{REPLACEMENT CHARACTER}"


class ServedBranch(Branch):
    """A branch without a cache of ours: only its last token is ever pending. The first `start`
    tokens, the prompt, are sent as `head`."""

    __slots__ = ("head", "start")

    def __init__(self, tokens: list[int], head: str, start: int) -> None:
        super().__init__(tokens, BlockTable(1))
        self.head, self.start = head, start

    @property
    def num_computed_tokens(self) -> int:
        return max(0, len(self.tokens) - 1)

    @property
    def pending(self) -> list[int]:
        return self.tokens[-1:]


class ServedRunner:
    """The branches of a served model; see `spec/runner.py`. There are no logits to `forward`."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model

    def open(self, tokens: Sequence[int], *, shared: bool = False) -> ServedBranch:
        require(len(tokens) > 0, "the number of tokens to open a branch with", 0, "at least one")
        if len(tokens) > (most := self.model.context):
            raise ContextError(f"{len(tokens)} tokens do not fit {self.model}, which takes {most}.")
        head = self.model.heads.get(tuple(tokens))
        text = self.model.text(tokens) if head is None else head
        return ServedBranch(list(tokens), text, len(tokens))

    def fork(self, branch: Branch) -> ServedBranch:
        assert isinstance(branch, ServedBranch)
        return ServedBranch(list(branch.tokens), branch.head, branch.start)

    def rewind(self, branch: Branch, length: int) -> None:
        del branch.tokens[length:]

    def swap(self, branch: Branch, other: Branch) -> None:
        branch.tokens = other.tokens

    def close(self, branch: Branch) -> None:
        pass

    def tag(self, branch: Branch, node: tuple[int, int, int]) -> None:
        pass

    def forward(self, branches: Sequence[Branch], logits: object = "last") -> list[Any]:
        raise ProtocolError(f"{self.model} is behind a server: it writes steps, but no logits.")


@dataclass(eq=False)
class _Writing:
    """A step in the making: since when, from which length of its branch, and what the requests so
    far have brought. `settled`, `tokens`, `kept`: text, token count and (in id mode) kept tokens of
    earlier requests; `text`: of the one in flight; `stopping`: it was sent with the stop string."""

    job: StepJob
    length: int
    started: float = field(default_factory=time.perf_counter)
    call: Future[None] | None = None
    requests: int = 0
    stopping: bool = False
    settled: str = ""
    text: str = ""
    tokens: int = 0
    kept: int = 0


@dataclass(kw_only=True)
class ServedWriter(StepWriter):
    """A served model in its role. `runner` must be its `ServedRunner`; in text mode
    `token_bytes` must read bytes as tokens."""

    here: ClassVar[bool] = False
    model: ServedModel
    bell: threading.Event = field(default_factory=threading.Event)
    _inbox: SimpleQueue[tuple[_Writing, int, Message]] = field(default_factory=SimpleQueue)
    _writing: dict[StepJob, _Writing] = field(default_factory=dict)

    def begin(self, jobs: Sequence[StepJob]) -> None:
        before, can = len(self.live), self.model.can
        super().begin(jobs)
        # the server may be told the boundary if it is a blank line and comes with the text
        stopping = isinstance(self.config.segmenter(self.token_bytes), BlankLineSegmenter) and (
            can.stops in (Stops.CUT_AFTER, Stops.OVERSHOOTS) or can.stop_is_kept
        )
        for job in self.live[before:]:
            writing = self._writing[job] = _Writing(job, len(job.branch))
            self._ask(writing, stopping=stopping)

    def cancel(self, job: StepJob) -> None:
        """Hang up. The server stops writing when it notices."""
        super().cancel(job)
        self._hang_up(job)

    def poll(self, wait: float | None = 0.0) -> None:
        """Wait until something comes, no longer than `wait` seconds unless that is None, and take
        it in. Raises what goes wrong on the server."""
        if self.live and self._inbox.empty() and wait != 0.0:
            self.bell.wait(wait)
        self.bell.clear()
        while True:
            try:
                writing, request, message = self._inbox.get_nowait()
            except Empty:
                break
            if writing.requests == request and self._writing.get(writing.job) is writing:
                self._take_in(writing, message)
        self._part_with_finished()

    def end(self) -> None:
        """Hang up on everything that is being written."""
        for job in list(self._writing):
            self._hang_up(job)
        super().end()

    def _ask(self, writing: _Writing, *, stopping: bool) -> None:
        job, branch, can = writing.job, writing.job.branch, self.model.can
        assert isinstance(branch, ServedBranch)
        number = writing.requests = writing.requests + 1
        writing.stopping, writing.text = stopping, ""
        writing.kept = len(job.tokens)
        limit = job.limit - writing.tokens
        fields = self.model.settings(self.config.sampling, limit, job.stream.key(number - 1))
        if stopping:
            fields["stop"] = [BLANK_LINE.decode()]
            if can.stops is Stops.CUT_BEFORE:
                fields["include_stop_str_in_output"] = True
        prompt: Prompt = branch.tokens
        if not self.model.ids:
            written = self.model.chain.decode(branch.tokens[branch.start :])
            prompt = branch.head + written + writing.settled

        def deliver(message: Message) -> None:
            self._inbox.put((writing, number, message))
            self.bell.set()

        writing.call = self.model.endpoint.begin(prompt, fields, deliver, stream=can.streams)

    def _take_in(self, writing: _Writing, message: Message) -> None:
        if isinstance(message, Exception):
            raise message
        if isinstance(message, Restart):
            self._start_over(writing)
            return
        (self._take_ids if self.model.ids else self._take_text)(writing, message)
        job = writing.job
        if job.finish is None and message.finish is not None:
            self._end_request(writing, message)
        if job.finish is not None:  # report the request as a forward
            self._hang_up(job)
            tokens = message.usage.completion if message.usage else len(job.tokens)
            seconds = time.perf_counter() - writing.started
            job.trace.record(ForwardPass(self.config.role, 1, tokens, seconds))

    def _start_over(self, writing: _Writing) -> None:
        """What the request in flight has brought is void. The step's segmenter is made anew, and
        reads what is settled of the step."""
        job, writing.text = writing.job, ""
        del job.tokens[writing.kept :]
        self.runner.rewind(job.branch, writing.length + writing.kept)
        job.segmenter = self.config.segmenter(self.token_bytes)
        for token in job.tokens if self.model.ids else writing.settled.encode():
            job.segmenter.feed(token)

    def _take_ids(self, writing: _Writing, piece: Piece) -> None:
        job, chain = writing.job, self.model.chain
        if piece.ids is None and piece.text:
            sent = f"text without token ids ({piece.text[:40]!r})"
            raise EndpointError(f"{self.model} sent {sent}, though it has them.")
        for token in piece.ids or ():
            if not 0 <= token < chain.vocab_size:
                raise EndpointError(
                    f"{self.model} wrote token id {token}; the tokenizer of {chain.name} has ids 0 "
                    f"to {chain.vocab_size - 1}. Name the tokenizer of the server's checkpoint."
                )
            if job.finish is None:
                job.branch.append(token)
                self._take(job, (token,))

    def _take_text(self, writing: _Writing, piece: Piece) -> None:
        """Take text up to the character with which the boundary is complete.

        A white space that does not end a blank line is left to the next step, which begins with it,
        as tokens do. Example, sentences: a server goes on with "He ran." and " Then" by itself, but
        not after "He ran. ", which ends with a lone space."""
        for place, character in enumerate(piece.text):
            if any(writing.job.segmenter.feed(byte) for byte in character.encode()):
                before = writing.settled + writing.text + piece.text[:place]
                left = character.isspace() and before.strip() and not before.endswith("\n")
                writing.text += piece.text[: place if left else place + 1]
                self._write_down(writing, Finish.BOUNDARY)
                return
        writing.text += piece.text
        if len(writing.settled + writing.text) > LONGEST_TOKEN * writing.job.limit:
            self._write_down(writing, Finish.LENGTH)  # the server does not heed max_tokens

    def _end_request(self, writing: _Writing, piece: Piece) -> None:
        """The request is over and the step has no boundary: it was cut, the text has ended, or a
        leading blank line stopped the server; then the rest is asked for."""
        job, cut = writing.job, piece.finish == "length"
        fresh = job.tokens[writing.kept :]
        text = b"".join(map(self.model.chain.token_bytes, fresh))
        text = text if self.model.ids else writing.text.encode()
        if writing.stopping and not cut and BLANK_LINE in text:
            writing.settled += writing.text
            writing.tokens += piece.usage.completion if piece.usage else max(1, len(fresh))
            if writing.tokens < job.limit:
                self._ask(writing, stopping=False)
                return
            cut = True
        if not self.model.ids:
            self._write_down(writing, Finish.LENGTH if cut else Finish.EOS)
        elif cut and job.tokens:
            job.finish = Finish.LENGTH
        else:
            job.branch.append(self._eos)
            self._take(job, (self._eos,))

    def _write_down(self, writing: _Writing, finish: Finish) -> None:
        """The step's ids, from its text; at most as many as it may have."""
        job, chain = writing.job, self.model.chain
        text = writing.settled + writing.text
        if finish is Finish.LENGTH:  # a character that the cut has torn comes again, whole
            text = text.rstrip(UNREADABLE) or UNREADABLE
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
        return own if own in self.config.eos_ids else min(self.config.eos_ids)

    def _hang_up(self, job: StepJob) -> None:
        writing = self._writing.pop(job, None)
        if writing is not None and writing.call is not None:
            writing.call.cancel()
