"""Writes steps on a server: a `StepWriter` whose forwards are requests (see
docs/engines.md).

The segmenter finds the boundary of a step here, because a step needs a visible
character before it, and most segmenters have no stop string. The server gets a stop
string only if it returns it with the text. Only `poll` with a wait blocks: `begin`
sends a request, `cancel` closes it. Branches are lists of tokens: the server's prefix
cache is the cache. In text mode steps end at characters, not tokens, so a step never
has text after its boundary."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar

from lr.errors import ContextError, ProtocolError
from lr.kvcache.branch import BlockTable, Branch
from lr.measure.endpoint.client import (
    EndpointError,
    Prompt,
    RequestNews,
    Restart,
    StreamPiece,
)
from lr.measure.endpoint.probe import Stops
from lr.model.codec import Codec
from lr.spec.write import BLANK_LINE, BlankLineSegmenter, StepJob, StepWriter
from lr.trace import ForwardPass
from lr.types import Finish, require

if TYPE_CHECKING:
    from lr.measure.endpoint.models import ServedModel

LONGEST_TOKEN = 256  # Bytes of text per allowed token; more is cut off.
UNREADABLE = "\N{REPLACEMENT CHARACTER}"


class ServedBranch(Branch):
    """A branch whose cache is the server's: only the last token is ever uncomputed.
    Requests send `head` for its first `start` tokens, the prompt."""

    __slots__ = ("head", "start")

    def __init__(self, tokens: list[int], head: str, start: int) -> None:
        super().__init__(tokens, BlockTable(1))
        self.head, self.start = head, start

    @property
    def num_computed_tokens(self) -> int:
        return max(0, len(self.tokens) - 1)


class ServedRunner:
    """The branches of a served model; see `spec/runner.py`. `forward` raises: it has no
    logits."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model

    def open(self, tokens: Sequence[int], *, shared: bool = False) -> ServedBranch:
        require(
            len(tokens) > 0,
            "the number of tokens to open a branch with",
            0,
            "at least one",
        )
        if len(tokens) > (most := self.model.context):
            raise ContextError(
                f"{len(tokens)} tokens do not fit {self.model}, which takes {most}."
            )
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
        raise ProtocolError(
            f"{self.model} is on a server: it writes steps, but gives no logits."
        )


@dataclass(eq=False)
class _Writing:
    """An unfinished step. `units`: what has arrived, token ids or, in text mode, bytes (byte i as
    -1 - i). The first `settled` units came with an earlier request, which cost `spent` tokens.
    `stopping`: the request has the stop string."""

    job: StepJob
    stopping: bool
    units: list[int] = field(default_factory=list)
    settled: int = 0
    spent: int = 0
    started: float = field(default_factory=time.perf_counter)
    call: Future[None] | None = None


@dataclass(kw_only=True)
class ServedWriter(StepWriter):
    """Writes with a served model. `runner` must be its `ServedRunner`; in text mode
    `token_bytes` must map -1 - i to byte i."""

    here: ClassVar[bool] = False
    model: ServedModel
    _inbox: SimpleQueue[tuple[_Writing, RequestNews]] = field(
        default_factory=SimpleQueue
    )
    _writing: dict[StepJob, _Writing] = field(default_factory=dict)

    def begin(self, jobs: Sequence[StepJob]) -> None:
        before, can = len(self.live), self.model.can
        super().begin(jobs)
        # the server gets the boundary if it is a blank line, and if it returns it with
        # the text
        stopping = isinstance(
            self.config.segmenter(self.token_bytes), BlankLineSegmenter
        ) and (can.stops in (Stops.CUT_AFTER, Stops.OVERSHOOTS) or can.stop_is_kept)
        for job in self.live[before:]:
            self._writing[job] = _Writing(job, stopping)
            self._ask(self._writing[job])

    def cancel(self, job: StepJob) -> None:
        """Close the request. The server stops writing when it notices."""
        super().cancel(job)
        self._hang_up(job)

    def poll(self, wait: float | None = 0.0) -> None:
        """Wait for news, at most `wait` seconds (None: for ever), and process it.
        Raises the errors of the requests."""
        wait = wait if self.live else 0.0
        with suppress(Empty):
            while True:
                writing, message = self._inbox.get(wait != 0.0, wait)
                wait = 0.0
                if self._writing.get(writing.job) is writing:
                    self._take_in(writing, message)
        self._part_with_finished()

    def end(self) -> None:
        """Close all requests."""
        for job in list(self._writing):
            self._hang_up(job)
        super().end()

    def _ask(self, writing: _Writing) -> None:
        job, branch, can = writing.job, writing.job.branch, self.model.can
        assert isinstance(branch, ServedBranch)
        limit, key = job.limit - writing.spent, job.stream.key(int(writing.settled > 0))
        fields = self.model.settings(self.config.sampling, limit, key)
        if writing.stopping:
            fields["stop"] = [BLANK_LINE.decode()]
            if can.stops is Stops.CUT_BEFORE:
                fields["include_stop_str_in_output"] = True
        prompt: Prompt = [*branch.tokens, *writing.units]
        if not self.model.ids:
            written = self.model.chain.decode(branch.tokens[branch.start :])
            prompt = branch.head + written + self._bytes(writing.units).decode()

        writing.call = self.model.endpoint.begin(
            prompt,
            fields,
            lambda message: self._inbox.put((writing, message)),
            stream=can.streams,
        )

    def _take_in(self, writing: _Writing, message: RequestNews) -> None:
        job = writing.job
        if isinstance(message, Exception):
            raise message
        if isinstance(
            message, Restart
        ):  # discard what the request in flight has brought
            del writing.units[writing.settled :]
            job.segmenter = self.config.segmenter(self.token_bytes)
            for unit in (*job.tokens, *writing.units):
                job.segmenter.feed(unit)
            return
        finish = self._read(writing, message)
        if finish is None and message.finish is not None:
            finish = self._end_request(writing, message)
        if finish is not None:  # report the request as a forward
            self._write_down(writing, finish)
            self._hang_up(job)
            tokens = message.usage.completion if message.usage else len(job.tokens)
            seconds = time.perf_counter() - writing.started
            job.trace.record(ForwardPass(self.config.role, 1, tokens, seconds))

    def _read(self, writing: _Writing, piece: StreamPiece) -> Finish | None:
        """Take in a piece, up to the unit that ends the step, if any."""
        job, chain, ids = writing.job, self.model.chain, self.model.ids
        if ids and piece.ids is None and piece.text:
            sent = f"text without token ids ({piece.text[:40]!r})"
            raise EndpointError(
                f"{self.model} sent {sent}, though it returned them before."
            )
        units = (piece.ids or ()) if ids else [~byte for byte in piece.text.encode()]
        unknown = [unit for unit in units if ids and not 0 <= unit < chain.vocab_size]
        if unknown:
            raise EndpointError(
                f"{self.model} wrote token id {unknown[0]}; the tokenizer of {chain.name} has ids "
                f"0 to {chain.vocab_size - 1}. Name the tokenizer of the server's checkpoint."
            )
        most = (job.limit - len(job.tokens)) * (1 if ids else LONGEST_TOKEN)
        for place, unit in enumerate(units, start=1):
            writing.units.append(unit)
            if ids and unit in self.config.eos_ids:
                return Finish.EOS
            if job.segmenter.feed(unit):
                while not ids and place < len(units) and ~units[place] & 0xC0 == 0x80:
                    writing.units.append(
                        units[place]
                    )  # the rest of a character's bytes
                    place += 1
                return Finish.BOUNDARY
            if len(writing.units) >= most:
                return Finish.LENGTH  # of a text: the server ignores max_tokens
        return None

    def _end_request(self, writing: _Writing, piece: StreamPiece) -> Finish | None:
        """Handle a request that ended without a boundary: the step was cut, the text
        has ended, or a leading blank line stopped the server. In the last case request
        the rest, return None."""
        fresh, cut = writing.units[writing.settled :], piece.finish == "length"
        if writing.stopping and not cut and BLANK_LINE in self._bytes(fresh):
            writing.settled, writing.stopping = len(writing.units), False
            counted = len(fresh) if self.model.ids else 1
            writing.spent = piece.usage.completion if piece.usage else counted
            if writing.spent < writing.job.limit:
                self._ask(writing)
                return None
            cut = True
        nothing = self.model.ids and not writing.units
        return Finish.LENGTH if cut and not nothing else Finish.EOS

    def _write_down(self, writing: _Writing, finish: Finish) -> None:
        """Finish the step with its ids, cut at its limit.

        In text mode, final white space that does not end a blank line goes to the next
        step, since tokens begin with a space. Example, sentences: a model continues "He
        ran." with " Then", but rarely continues "He ran. ", which ends with a lone
        space."""
        job, chain, ids = writing.job, self.model.chain, writing.units
        if not self.model.ids:
            text = self._bytes(ids).decode(errors="replace")
            before = text[:-1]
            if (
                finish is Finish.LENGTH
            ):  # the next step repeats a character that the cut split
                text = text.rstrip(UNREADABLE) or UNREADABLE
            elif finish is Finish.BOUNDARY and text[-1].isspace() and before.strip():
                text = text if before.endswith("\n") else before
            ids = exact_ids(chain, text)
        if finish is Finish.EOS and self.config.eos_ids.isdisjoint(ids[-1:]):
            own = chain.tokenizer.eos_token_id
            ids.append(own if own in self.config.eos_ids else min(self.config.eos_ids))
        most = job.limit - len(job.tokens)
        if len(ids) > most:
            ids, finish = ids[:most], Finish.LENGTH
            while len(ids) > 1 and chain.decode(ids).endswith(UNREADABLE):
                ids.pop()
        job.tokens += ids
        job.branch.extend(ids)
        job.finish = finish

    def _bytes(self, units: Sequence[int]) -> bytes:
        return b"".join(map(self.token_bytes, units))

    def _hang_up(self, job: StepJob) -> None:
        writing = self._writing.pop(job, None)
        if writing is not None and writing.call is not None:
            writing.call.cancel()


def exact_ids(codec: Codec, text: str) -> list[int]:
    """Ids that spell `text` byte for byte: its encoding if that decodes to the text,
    else character by character.

    A tokenizer may change a text (Qwen's composes "e" and an accent into one
    character), or take the name of a special token in it for that token. Raises
    `EndpointError` if it has no tokens for some character."""
    ids = codec.encode(text)
    if codec.decode(ids) == text:
        return ids
    single = {
        codec.token_bytes(token): token for token in reversed(range(codec.vocab_size))
    }
    ids = []
    for character in text:
        own, pieces = (
            codec.encode(character),
            [bytes([byte]) for byte in character.encode()],
        )
        if codec.decode(own) != character:
            own = [single[piece] for piece in pieces if piece in single]
            if len(own) < len(pieces):
                wrote = f"{character!r}, which a server wrote"
                raise EndpointError(
                    f"the tokenizer of {codec.name} has no tokens for {wrote}."
                )
        ids += own
    return ids
