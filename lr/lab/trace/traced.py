"""From an answer to its trace file: the header, and the events with their texts.

    run = reasoner.run(question, detailed=True)
    run.finish()
    save_trace("trace.jsonl", run)

Read next: `lab/trace/file.py`; `replay.py`, which runs it again.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from lr import __version__
from lr.engine.answer import Asked, Run
from lr.lab.trace.fields import pieces_of
from lr.lab.trace.file import Record, TraceFile, records_of, write_trace
from lr.lab.trace.header import Header
from lr.spec.seams import Variant
from lr.spec.verifiers.base import Requires, Verifier
from lr.tracing.details import Ended
from lr.types import Role


def header_of(asked: Asked) -> Header:
    """What the first line of the trace of an answer says."""
    options, models = asked.options, asked.models
    ahead = options.looks_ahead
    guesser = options.drafts_tokens
    names = ["target"] + ["draft"] * ahead + ["guesser"] * guesser
    plan = asked.cache_plan(Role.TARGET)
    where: dict[str, Any] = {
        "device": _of(models.target, "device"),
        "dtype": _of(models.target, "dtype"),
    }
    return Header(
        driver=options.driver if ahead else "plain",
        mode=options.mode,
        schedule=options.schedule,
        depth=options.depth,
        width=options.width,
        max_target_rows=options.max_target_rows,
        models={role: models.names.get(role) for role in ("target", "draft", "judge")} | where,
        verifier=_verifier(asked) if ahead else None,
        needs=_needs(asked.verifier) if ahead and not isinstance(asked.verifier, str) else None,
        variant=_variant(asked.variant),
        options=asdict(options),
        question=asked.question,
        prompt={
            "tokens": list(asked.prompt),
            "pieces": pieces_of(asked.prompt, models.codec.token_bytes),
        },
        eos=sorted(models.codec.eos_ids),
        caches={name: {"blocks": plan.num_blocks, "block_size": plan.block_size} for name in names},
        alone=isinstance(asked, Run),
        detailed=asked.detailed,
        lr=__version__,
        made=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def _needs(verifier: Verifier) -> dict[str, Any]:
    """What a verifier asks for, by the names of `Requires`."""
    names = ("TARGET_STEP", "TARGET_LOGPROBS", "HIDDEN")

    def said(need: Requires) -> list[str]:
        return [name.lower() for name in names if Requires[name] & need]

    early = verifier.early_requires
    glance = None if early is None else said(early)
    return {"judge": said(verifier.requires), "glance": glance}


def _of(model: object, name: str) -> str | None:
    """Where or in which precision a model is; None for one that a server has."""
    value = getattr(model, name, None)
    return None if value is None else str(value).removeprefix("torch.")


def _variant(variant: Variant) -> str | None:
    """Which parts were replaced, by the names of their classes."""
    parts = {one.name: getattr(variant, one.name) for one in fields(variant)}
    used = [
        f"{name}={getattr(part, '__name__', type(part).__name__)}"
        for name, part in parts.items()
        if part
    ]
    return ", ".join(used) or None


def _verifier(asked: Asked) -> str | None:
    if asked.variant.verifier is not None:
        return asked.variant.verifier.name
    return asked.models.names.get("verifier")


def records_of_answer(asked: Asked, why: str = "") -> list[Record]:
    """The events of an answer, closed by `end`. `why`: what ended it, if not the chain itself."""
    events = list(asked.trace.events)
    when = max((time for time, _ in events), default=0.0)
    events.append((when, Ended(done=not why, why=why)))
    return records_of(events, asked.models.codec.token_bytes)


def trace_of(asked: Asked, why: str = "") -> TraceFile:
    """The trace of an answer, as it would be read from its file."""
    return TraceFile(header_of(asked), records_of_answer(asked, why))


def save_trace(path: str | Path, asked: Asked, why: str = "") -> None:
    """Write the trace of an answer. Raises `TraceError` if it cannot be written."""
    write_trace(path, header_of(asked), records_of_answer(asked, why))
