"""Run again what a trace tells of, on the same models with the same settings, and say where the two
part, if anywhere.

    outcome = replay(read_trace("answer.jsonl"))
    outcome.difference      # None: the same; else the event, the value, what was expected and what came

Draws are keyed, so an answer is a function of the models, the question and the settings: every
event of `lockstep` and of plain decoding comes again in the same order, every token bit for bit. Of
`overlapped` runs, and of answers that shared their forwards with others, the output and the steps
are compared, not the order. The run stops at the first difference. With `recorded` the trace's own
verdicts are given again, for verifiers that do not say the same twice. Runs without models are
replayed by `virtual_replay.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lr.engine.answer import Run
from lr.errors import SettingError
from lr.lab.trace.compare import Difference, compare_in_order, compare_outputs
from lr.lab.trace.file import Record, TraceError, TraceFile, records_of
from lr.lab.trace.header import Header
from lr.lab.trace.traced import trace_of
from lr.lab.trace.verdicts import RecordedVerdicts
from lr.options import make_options
from lr.reasoner import Reasoner
from lr.spec.seams import Variant
from lr.spec.verifiers.base import Requires, Verifier
from lr.types import require


@dataclass(frozen=True)
class Replayed:
    """What came of a replay. `compared`: events that were found the same; `ordered`: whether their
    order counted.
    """

    compared: int
    difference: Difference | None
    ordered: bool = True


def replay(trace: TraceFile, *, recorded: bool = False, device: str | None = None) -> Replayed:
    """Load the trace's models by name and run it again. `device`: another one than the trace's.

    Raises `TraceError` for a trace that says too little, and what loading the models raises.
    """
    header = trace.header
    reasoner = reasoner_of(header, recorded=recorded, device=device)
    with reasoner:
        verifier = (
            recorded_verifier(trace)
            if recorded and make_options(**_options(header)).looks_ahead
            else None
        )
        options = _options(header)
        run = reasoner.run(
            header.question or "",
            variant=Variant(verifier=verifier),
            detailed=header.detailed,
            **options,
        )
        return replay_on(run, trace)


def reasoner_of(header: Header, *, recorded: bool = False, device: str | None = None) -> Reasoner:
    """The reasoner that a header describes. `recorded`: its verifier will not be asked, so none is
    loaded.

    Raises `TraceError` where a name is missing or a part was replaced by code of one's own.
    """
    if header.variant is not None:
        raise TraceError(
            f"this answer was made with parts of one's own ({header.variant}), which no name brings back. Make the run yourself, with "
            "detailed=True, and give it to lr.lab.trace.replay.replay_on."
        )
    if header.driver not in ("plain", "lockstep", "overlapped") or header.question is None:
        raise TraceError(
            "this trace has no models to run again (see lr.lab.trace.virtual_replay for scripts and simulations)."
        )
    import torch

    models, options = header.models, make_options(**_options(header))
    dtype = getattr(torch, models["dtype"]) if models.get("dtype") else None
    return Reasoner(
        models["target"],
        models["draft"] if options.needs_draft else None,
        "never" if recorded else header.verifier or "exact",
        judge=None if recorded else models.get("judge"),
        device=device or models.get("device") or "cpu",
        dtype=dtype,
    )


def replay_on(run: Run, trace: TraceFile) -> Replayed:
    """Finish `run`, which was just begun (with `detailed` as the trace has it), and compare step by
    step; stops at the first difference.
    """
    header = trace.header
    require(
        run.detailed == header.detailed,
        "detailed",
        run.detailed,
        f"{header.detailed}, as in the trace",
    )
    expected, got = header.prompt["tokens"], list(run.prompt)
    if expected != got:
        place = next(
            (i for i, pair in enumerate(zip(expected, got, strict=False)) if pair[0] != pair[1]), -1
        )
        return Replayed(0, Difference(-1, f"the prompt's token {place}", expected, got))
    if header.driver == "overlapped" or not header.alone:
        run.finish()
        found = compare_outputs(trace.records, trace_of(run).records)
        return Replayed(len(trace.records), found, ordered=False)
    return _step_by_step(run, trace)


def _step_by_step(run: Run, trace: TraceFile) -> Replayed:
    """Compare what is new after every step of the output."""
    done, steps = 0, iter(run)
    while True:
        over = next(steps, None) is None
        new = trace_of(run).records[done:] if over else _since(run, done)
        found = compare_in_order(
            trace.records, [replace(one, number=i) for i, one in enumerate(new)], done
        )
        if found is not None:
            return Replayed(found.number, found)
        done += len(new)
        if over:
            break
    if done < len(trace.records):
        return Replayed(done, Difference(done, "event", trace.records[done].data, None))
    return Replayed(done, None)


def _since(run: Run, done: int) -> list[Record]:
    return records_of(run.trace.events[done:], run.models.codec.token_bytes)


def _options(header: Header) -> dict[str, Any]:
    """The options, with lists as the tuples they were."""
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in header.options.items()
    }


def recorded_verifier(trace: TraceFile) -> Verifier:
    """The verdicts of a trace as a verifier that asks for the same as the original did."""
    needs = trace.header.needs
    if needs is None:
        raise SettingError(
            "this trace does not say what its verifier needed, so its verdicts cannot be given again."
        )
    verifier: Any = RecordedVerdicts(trace)
    verifier.requires = _need(needs["judge"])
    if needs["glance"] is not None:
        verifier.early_requires = _need(needs["glance"])
    made: Verifier = verifier
    return made


def _need(names: list[str]) -> Requires:
    need = Requires.NOTHING
    for name in names:
        need |= Requires[name.upper()]
    return need
