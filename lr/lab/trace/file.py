"""Trace files: JSON lines, a header and then one event per line. Write one, read one.

    trace = read_trace("trace.jsonl")
    trace.header.depth, len(trace.records)
    for record in trace.records:
        print(record.number, record.time, record.kind, record.data)

A `Record` is one event as it stands in the file, tokens with their texts, so whoever shows it needs
no tokenizer; `event` is the same as an object of `events.py` or `details.py`. `records_of` makes
them of a trace in memory, without a file.

A file whose last line is torn (the program was killed while it wrote) is read up to there; `notes`
says so. Everything else that is wrong raises `TraceError` with the number of the line. Read next:
`state.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from lr.errors import LRError
from lr.lab.trace.fields import Bytes
from lr.lab.trace.header import Header, fault_of_header
from lr.lab.trace.lines import fault_of, known, read_event, write_event
from lr.tracing.stats import Stats, stats_of


class TraceError(LRError):
    """A trace file cannot be read, or is not what it should be."""


@dataclass(frozen=True)
class Record:
    """Event number `number` (from 0) of a trace, at `time` in the header's unit. `data`: all that
    stands in its line.
    """

    number: int
    data: dict[str, Any]

    @property
    def time(self) -> float:
        return float(self.data["time"])

    @property
    def kind(self) -> str:
        """The name of its kind, see `schema.KINDS`."""
        return str(self.data["event"])

    @cached_property
    def event(self) -> object:
        """The event itself; None for a kind that this version does not know."""
        return read_event(self.data) if known(self.data) else None


@dataclass(frozen=True)
class TraceFile:
    """A trace: its header, its events in order, and what a reader should know (`notes`; none for a
    whole file).
    """

    header: Header
    records: list[Record]
    notes: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether the last event is there."""
        return bool(self.records) and self.records[-1].kind == "end"

    @property
    def stats(self) -> Stats:
        """The statistics of the run: those that it had itself."""
        return stats_of([(record.time, record.event) for record in self.records])


def no_bytes(token: int) -> bytes:
    """Tokens without texts."""
    return b""


def records_of(events: Iterable[tuple[float, object]], token_bytes: Bytes) -> list[Record]:
    """The records of a trace in memory, in the order of their times."""
    ordered = sorted(events, key=lambda pair: pair[0])  # stable: equal times stay in order
    return [
        Record(i, write_event(when, event, token_bytes)) for i, (when, event) in enumerate(ordered)
    ]


def trace_lines(header: Header, records: Iterable[Record]) -> Iterator[str]:
    """The lines of a trace file, without line ends."""
    yield json.dumps(header.to_json(), ensure_ascii=False)
    for record in records:
        yield json.dumps(record.data, ensure_ascii=False, separators=(",", ":"))


def write_trace(path: str | Path, header: Header, records: Iterable[Record]) -> None:
    """Write a trace file. Raises `TraceError` if the file cannot be written."""
    try:
        with Path(path).open("w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in trace_lines(header, records))
    except OSError as error:
        raise TraceError(
            f"the trace {path} cannot be written: {error}. Choose another place."
        ) from error


def require_writable(path: str | Path) -> None:
    """Raise `TraceError` now if a trace cannot be written there later. A file that is there already
    is not touched.
    """
    try:
        existed = Path(path).exists()
        with Path(path).open("a", encoding="utf-8"):
            pass
        if not existed:
            Path(path).unlink()
    except OSError as error:
        raise TraceError(
            f"the trace {path} cannot be written: {error}. Choose another place."
        ) from error


def read_trace(path: str | Path) -> TraceFile:
    """Read and check a trace file. Raises `TraceError`, naming the line and what is wrong with
    it.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise TraceError(f"the trace {path} cannot be read: {error}.") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path} is no trace: it is not UTF-8 text ({error}).") from error
    return parse_trace(text.split("\n"), str(path))


def parse_trace(lines: Sequence[str], name: str = "trace") -> TraceFile:
    """A trace from its lines; `name` is for messages. Raises `TraceError`."""
    last = max((i for i, line in enumerate(lines) if line.strip()), default=-1)
    if last < 0:
        raise TraceError(f"{name} is empty; expected a trace, as made by --trace.")
    first = _object(lines[0], name, 1)
    if (fault := fault_of_header(first)) is not None:
        raise TraceError(f"{name}, line 1: {fault}")
    records: list[Record] = []
    notes: list[str] = []
    for number, line in enumerate(lines[1 : last + 1], start=2):
        try:
            content = _object(line, name, number)
        except TraceError:
            if number != last + 1:
                raise
            notes.append(
                f"line {number}, the last one, is torn and left out: the program was killed while it wrote"
            )
            break
        if (fault := fault_of(content)) is not None:
            raise TraceError(f"{name}, line {number}: {fault}")
        records.append(Record(len(records), content))
    return _checked(TraceFile(Header.from_json(first), records, notes), name)


def _checked(trace: TraceFile, name: str) -> TraceFile:
    """The order of times, kinds that are not known, and the end."""
    for before, after in zip(trace.records, trace.records[1:], strict=False):
        if after.time < before.time:
            raise TraceError(
                f"{name}, line {after.number + 2}: time {after.time} is before {before.time}, that of the line above; "
                "events stand in the order of their times"
            )
    unknown = sorted({record.kind for record in trace.records if not known(record.data)})
    if unknown:
        trace.notes.append(
            f"kinds of event that this version does not know are left out: {', '.join(unknown)}"
        )
    if not trace.complete:
        trace.notes.append("the trace was cut short: its last event (end) is not there")
    return trace


def _object(line: str, name: str, number: int) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except ValueError as error:
        raise TraceError(f"{name}, line {number}: not JSON ({error}): {line[:80]!r}") from error
    if not isinstance(content, dict):
        raise TraceError(f"{name}, line {number}: expected an object {{...}}, found {line[:80]!r}")
    return content
