"""How the trace of an answer on models is made.

    answer = reasoner.run(question, detailed=True)
    answer.finish()
    save_trace("trace.jsonl", answer)

Imports no torch."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from lr import __version__
from lr.kvcache.branch import BLOCK_SIZE
from lr.trace import Ended
from lr.watch.trace.file import Header, TraceFile, records_of, write_trace

if TYPE_CHECKING:
    from lr.engine.answer import Answer


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


def save_trace(path: str | Path, answer: Answer, failure: str = "") -> None:
    """Write the trace of an answer. Raises `TraceError` if that is impossible."""
    write_trace(path, trace_of(answer, failure))
