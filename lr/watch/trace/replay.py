"""From an answer to its trace, and from a trace to the same answer again.

    run = reasoner.run(question, detailed=True)
    run.finish()
    save_trace("trace.jsonl", run)

    difference = replay(read_trace("trace.jsonl"))    # None: the same tokens

Every draw is keyed, so an answer is a function of models, question and settings. A
replay therefore needs no machinery: it loads the models by name, answers again and
compares the tokens."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from lr import __version__
from lr.engine.answer import Answer
from lr.kvcache.branch import BLOCK_SIZE
from lr.options import make_options
from lr.reasoner import Reasoner
from lr.spec.protocol import Emit
from lr.spec.variant import Variant
from lr.trace import Ended
from lr.variants.loading import is_named, load_variant
from lr.watch.trace.file import (
    Header,
    TraceError,
    TraceFile,
    pieces_of,
    records_of,
    write_trace,
)

# From an answer to its trace


def header_of(answer: Answer) -> Header:
    """The header of an answer's trace."""
    options = answer.options
    engine = answer.engine
    variant = answer.variant
    ahead = options.looks_ahead
    cached = ["target"]
    cached += ["draft"] * ahead
    cached += ["drafter"] * options.drafts_tokens
    size = {"blocks": engine.num_blocks or answer.blocks, "block_size": BLOCK_SIZE}
    names: dict[str, str | None] = {
        role: _text(engine.names.get(role)) for role in ("target", "draft", "judge")
    }
    if not ahead:
        names["judge"] = None  # replaying without draft steps needs none
    names["device"] = str(engine.target.device)
    names["dtype"] = str(engine.target.dtype).removeprefix("torch.")
    verifier = _text(engine.names.get("verifier"))
    if variant.verifier is not None and variant.name is None:
        verifier = variant.verifier.name
    return Header(
        driver=options.driver if ahead else "plain",
        mode=answer.mode,
        schedule=options.schedule,
        depth=options.depth,
        width=options.width,
        max_target_rows=options.max_target_rows,
        models=names,
        verifier=verifier if ahead else None,
        variant=variant.name or _parts_of(variant),
        replaced=[part.field for part in variant.replaced],
        options=asdict(options),
        question=answer.question,
        prompt={
            "tokens": list(answer.prompt),
            "pieces": pieces_of(answer.prompt, engine.codec.token_bytes),
        },
        eos=sorted(engine.codec.eos_ids),
        caches=dict.fromkeys(cached, size),
        alone=answer.alone,
        detailed=answer.trace.detailed,
        lr=__version__,
        made=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def _text(name: str | Path | None) -> str | None:
    return None if name is None else str(name)


def _parts_of(variant: Variant) -> str | None:
    """The parts that a variant without a name replaces, such as "verifier=Moody"."""
    parts = [
        f"{part.field}={getattr(value, '__name__', type(value).__name__)}"
        for part in variant.replaced
        for value in [getattr(variant, part.field)]
    ]
    return ", ".join(parts) or None


def trace_of(answer: Answer, why: str = "") -> TraceFile:
    """The trace of an answer, as read from its file. `why`: what ended the run early,
    else ""."""
    events = list(answer.trace.events)
    last = max((time for time, _ in events), default=0.0)
    events.append((last, Ended(done=not why, why=why)))
    return TraceFile(
        header_of(answer), records_of(events, answer.engine.codec.token_bytes)
    )


def save_trace(path: str | Path, answer: Answer, why: str = "") -> None:
    """Write the trace of an answer. Raises `TraceError` if that is impossible."""
    trace = trace_of(answer, why)
    write_trace(path, trace.header, trace.records)


# From a trace to the same answer


def replay(trace: TraceFile) -> str | None:
    """Answer again. None: the same tokens; else the first step that differs, in
    words."""
    header = trace.header
    with reasoner_of(header) as reasoner:
        result = reasoner.generate(
            header.question or "",
            variant=variant_of(header, reasoner),
            **options_of(header),
        )
    recorded = [
        record.event.emitted.step.tokens
        for record in trace.records
        if isinstance(record.event, Emit)
    ]
    generated = [step.tokens for step in result.steps]
    if not trace.complete:  # cut short: only its beginning can be compared
        generated = generated[: len(recorded)]
    for index, (old, new) in enumerate(zip(recorded, generated, strict=False)):
        if old != new:
            return f"step {index} was {old}, now {new}"
    if len(recorded) != len(generated):
        return f"{len(recorded)} steps were recorded, now there are {len(generated)}"
    return None


def options_of(header: Header) -> dict[str, Any]:
    """The options of the run, with lists turned back into tuples."""
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in header.options.items()
    }


def reasoner_of(header: Header) -> Reasoner:
    """The reasoner that a header describes. Raises `TraceError` if a name is missing
    or custom code replaced a part."""
    models = header.models
    if header.clock == "virtual" or header.question is None or models["target"] is None:
        raise TraceError("this trace has no models to run again.")
    if header.variant is not None and not is_named(header.variant):
        raise TraceError(
            f"this answer was made with custom parts ({header.variant}), which cannot "
            "be loaded by name; generate it again from your own program."
        )
    needs_draft = make_options(**options_of(header)).needs_draft
    dtype = models.get("dtype")
    return Reasoner(
        models["target"],
        models["draft"] if needs_draft else None,
        header.verifier or "exact",
        judge=models.get("judge"),
        device=models.get("device") or "cpu",
        dtype=None if dtype is None else getattr(torch, dtype),
    )


def variant_of(header: Header, reasoner: Reasoner) -> Variant | None:
    """The variant that a header names, loaded again; None if the run had none."""
    return None if header.variant is None else load_variant(header.variant, reasoner)
