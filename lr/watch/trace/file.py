"""Trace files: JSON lines, a header and then one event per line. Make one of an answer,
write one, read one.

    answer = reasoner.run(question, detailed=True)
    answer.finish()
    write_trace("trace.jsonl", trace_of(answer))

    trace = read_trace("trace.jsonl")
    trace.header.depth, len(trace.records)
    for record in trace.records:
        print(record.number, record.time, record.kind, record.event)

A line holds the fields of the event's class (`lr/trace.py`, `spec/protocol.py`), its
time and the name of its kind (`RECORD_KINDS`); msgspec checks the types on reading.
docs/trace.md describes the format, its versions, and how a file that was cut short is
read. Any other fault raises `TraceError` with the number of the line. Imports no torch.
Read next: `state.py`."""

from __future__ import annotations

import codecs
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from lr import __version__
from lr import trace as events
from lr.engine import recorder as cache
from lr.errors import LRError
from lr.kvcache.branch import BLOCK_SIZE
from lr.spec import protocol as messages
from lr.trace import Ended, RunEvent, Stats, stats_of
from lr.types import Step

if TYPE_CHECKING:
    from lr.engine.answer import Answer

FORMAT, VERSION = "lr trace", 5
RECORD_KINDS: dict[str, type] = {
    message.__name__.lower(): message for message in get_args(messages.Message)
} | {
    "forward": events.ForwardPass,
    "written": events.StepWritten,
    "verifier": events.VerifierCall,
    "source": events.SourceCall,
    "round": events.TokenRound,
    "token": events.TokenWritten,
    "fork": cache.BranchForked,
    "grow": cache.BranchesGrew,
    "cut": cache.BranchCut,
    "close": cache.BranchClosed,
    "hold": cache.BranchHolds,
    "end": Ended,
}
KIND_OF = {event_class: name for name, event_class in RECORD_KINDS.items()}
TraceEvent = RunEvent | cache.CacheEvent
Bytes = Callable[[int], bytes]  # Maps a token to its exact bytes.


class TraceError(LRError):
    """A trace file cannot be read or written, or its content is wrong."""


@dataclass(frozen=True)
class Header:
    """The models, settings and question of a run: everything that a viewer shows about
    the run. What a driver does not have (models on a script) is None or empty.

    `unit`: of times; "turn" for a scripted run.
    `models`: by role, with device and dtype. `variant`: its name; `replaced`: the fields
    of the parts that it replaced. `options`: of a run on models. `caches`: by
    name, blocks and block_size. `lr`: the version of this program."""

    driver: Literal["plain", "lockstep", "overlapped", "scripted"]
    unit: str = "second"  # of times; a script has turns
    mode: str = "lr"
    schedule: str = "depth"
    depth: int = 1
    width: int = 1
    models: dict[str, str | None] = field(default_factory=dict)
    verifier: str | None = None  # None: nothing is judged
    variant: str | None = None
    replaced: list[str] = field(default_factory=list)  # parts that the variant brings
    options: dict[str, Any] = field(default_factory=dict)
    question: str | None = None
    caches: dict[str, dict[str, int]] = field(default_factory=dict)
    lr: str = ""


@dataclass(frozen=True)
class Record:
    """Event number `number` (from 0) of a trace, at `time` in the header's unit."""

    number: int
    time: float
    event: TraceEvent
    token_bytes: Bytes = field(repr=False, compare=False)

    @property
    def kind(self) -> str:
        """The name of its kind, see `RECORD_KINDS`."""
        return KIND_OF[type(self.event)]

    def text_of(self, tokens: Sequence[int]) -> str:
        """The text of some tokens."""
        return "".join(pieces_of(tokens, self.token_bytes))


@dataclass(frozen=True)
class TraceFile:
    """A trace: its header, its events in order, and `notes` on an incomplete file."""

    header: Header
    records: list[Record]
    notes: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether the last event exists."""
        return bool(self.records) and self.records[-1].kind == "end"

    @property
    def stats(self) -> Stats:
        """The statistics of the run, the same as in its result."""
        return stats_of([(record.time, record.event) for record in self.records])


def step_after(node: str) -> int:
    """The number of the step after a node: 3 for "0:3.1"."""
    return int(node.split(":")[1].split(".")[0])


def records_of(
    timed: Iterable[tuple[float, TraceEvent]], token_bytes: Bytes
) -> list[Record]:
    """The records of a trace in memory, in the order of their times."""
    ordered = sorted(timed, key=itemgetter(0))  # stable: equal times stay in order
    return [
        Record(number, when, event, token_bytes)
        for number, (when, event) in enumerate(ordered)
    ]


def pieces_of(tokens: Sequence[int], token_bytes: Bytes) -> list[str]:
    """The text that each token completes. Joined, the pieces are the text of all
    tokens.

    Example: "é" is C3 A9; tokens "a\\xc3" and "\\xa9b" give "a" and "éb". Bytes that
    never complete a character give U+FFFD."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    pieces = [decoder.decode(token_bytes(token)) for token in tokens]
    unfinished = decoder.decode(b"", final=True)  # U+FFFD for half a character
    if pieces:
        pieces[-1] += unfinished
    return pieces


def _tokens(value: Any) -> Iterator[int]:
    """All tokens in an event."""
    if isinstance(value, Step):
        yield from value.tokens
    elif isinstance(value, tuple):
        for item in value:
            yield from _tokens(item)
    elif is_dataclass(value):
        for member in fields(value):
            content = getattr(value, member.name)
            if member.name == "token":  # a single one; others are in steps
                yield content
            else:
                yield from _tokens(content)


# Of an answer on models


def header_of(answer: Answer) -> Header:
    """The header of an answer's trace."""
    question = answer.question
    options = question.options
    caches = ["target"]  # their names, as the recorder gives them
    caches += ["draft"] * options.looks_ahead
    overlaps = options.driver == "overlapped"
    if options.drafts_tokens and (overlaps or not options.looks_ahead):
        caches.append("drafter")
    size = {"blocks": question.num_blocks or question.blocks, "block_size": BLOCK_SIZE}
    facts = ["target", "device", "dtype"]
    facts += ["draft"] * bool(options.needs_draft)
    facts += ["judge"] * options.looks_ahead
    models: dict[str, str | None] = {
        key: value for key, value in question.models.items() if key in facts
    }
    variant = question.variant
    return Header(
        driver=options.driver if options.looks_ahead else "plain",
        mode=question.mode,
        schedule=options.schedule,
        depth=options.depth,
        width=options.width,
        models=models,
        verifier=question.models.get("verifier") if options.looks_ahead else None,
        variant=variant.name,
        replaced=[part.field for part in variant.replaced],
        options=asdict(options),
        question=question.text,
        caches=dict.fromkeys(caches, size),
        lr=__version__,
    )


def trace_of(answer: Answer, failure: str = "") -> TraceFile:
    """The trace of an answer, as read from its file. `failure`: what ended the run early,
    else ""."""
    events = list(answer.trace.events)
    last = max((time for time, _ in events), default=0.0)  # when the answer ended
    events.append((last, Ended(done=not failure, why=failure)))
    records = records_of(events, answer.question.codec.token_bytes)
    return TraceFile(header_of(answer), records)


# Writing


def trace_lines(trace: TraceFile) -> Iterator[str]:
    """The lines of a trace file, without line ends."""
    texts: dict[int, str] = {}  # base64 of the bytes of each token
    for record in trace.records:
        for token in _tokens(record.event):
            if token not in texts:
                texts[token] = b64encode(record.token_bytes(token)).decode()
    header: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    header |= msgspec.to_builtins(trace.header)
    yield json.dumps(header | {"texts": texts}, ensure_ascii=False)  # the first line
    for record in trace.records:
        line = {"time": record.time, "event": record.kind}
        line |= msgspec.to_builtins(record.event)
        yield json.dumps(line, ensure_ascii=False, separators=(",", ":"))


def write_text(path: str | Path, text: str) -> None:
    """Write a text file. Raises `TraceError` if that is impossible."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise TraceError(
            f"{path} cannot be written: {error}. Choose another place."
        ) from error


def write_trace(path: str | Path, trace: TraceFile) -> None:
    """Write a trace file. Raises `TraceError` if that is impossible."""
    write_text(path, "\n".join(trace_lines(trace)) + "\n")


# Reading


def read_trace(path: str | Path) -> TraceFile:
    """Read and check a trace file. Raises `TraceError` with the line and the fault."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"the trace {path} cannot be read: {error}.") from error
    lines = [line for line in text.split("\n") if line]
    return parse_trace(lines, str(path))


def parse_trace(lines: Sequence[str], name: str = "trace") -> TraceFile:
    """A trace from its lines; `name` is for messages. Raises `TraceError`."""
    number = 1  # of the line, for messages
    records: list[Record] = []
    notes = []
    try:
        # 1. The header, and the bytes of each token.
        if not lines:
            raise ValueError("the file is empty")
        content = json.loads(lines[0])
        if (content["format"], content["version"]) != (FORMAT, VERSION):
            raise ValueError(f"{content['format']}, version {content['version']}")
        header = msgspec.convert(content, Header)
        encoded = msgspec.convert(content["texts"], dict[int, str], strict=False)
        texts = {token: b64decode(text) for token, text in encoded.items()}

        def token_bytes(token: int) -> bytes:
            return texts.get(token, b"")

        # 2. The events.
        for number, line in enumerate(lines[1:], start=2):
            try:
                content = json.loads(line)
            except ValueError:
                if number < len(lines):  # only the last line may be half written
                    raise
                notes.append(
                    f"line {number}, the last one, is incomplete and left out: the "
                    "program was killed while writing"
                )
                break
            when = msgspec.convert(content["time"], float)
            event: TraceEvent = msgspec.convert(content, RECORD_KINDS[content["event"]])
            records.append(Record(len(records), when, event, token_bytes))
    except (
        LookupError,
        TypeError,
        ValueError,
        RecursionError,
    ) as error:
        raise TraceError(
            f"{name}, line {number}: {error}. Expected a line of {FORMAT!r}, version "
            f"{VERSION}, as made by --trace."
        ) from error
    trace = TraceFile(header, records, notes)
    if not trace.complete:
        notes.append("the trace was cut short: its last event (end) is missing")
    return trace
