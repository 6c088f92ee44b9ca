"""From an answer to its trace, and from a trace to the same run again: where do the two
differ?

    run = reasoner.run(question, detailed=True)
    run.finish()
    save_trace("trace.jsonl", run)

    outcome = replay(read_trace("trace.jsonl"))
    outcome.difference      # None: the same; else the event, and the old and the new value

Draws are keyed, so an answer is a function of the models, the question and the
settings. For `overlapped` runs, and for answers that shared their forwards with other
answers, only output and steps are compared, not the order. Runs without models:
`virtual.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import torch

from lr import __version__
from lr.engine.engine import Run
from lr.errors import SettingError
from lr.kvcache.branch import BLOCK_SIZE
from lr.options import make_options
from lr.reasoner import Reasoner
from lr.spec.protocol import Draft, Drafted, Emit, Judge, Judged, NodeId
from lr.spec.variant import Variant
from lr.spec.verifiers.base import Pair, Requires, Verifier
from lr.trace import Ended
from lr.types import Step, Verdict, require
from lr.variants.loading import is_named, load_variant
from lr.watch.trace.compare import (
    Difference,
    Replayed,
    compare_in_order,
    compare_outputs,
)
from lr.watch.trace.file import (
    Header,
    Needs,
    TraceError,
    TraceFile,
    pieces_of,
    records_of,
    write_trace,
)

# From an answer to its trace


def header_of(run: Run) -> Header:
    """The header of an answer's trace."""
    options, models, variant = run.options, run.models, run.given
    ahead = options.looks_ahead
    names = ["target"] + ["draft"] * ahead + ["drafter"] * options.drafts_tokens
    cache = {"blocks": models.num_blocks or run.blocks, "block_size": BLOCK_SIZE}
    named = {role: models.names.get(role) for role in ("target", "draft", "judge")}
    for place in ("device", "dtype"):  # a model on a server has neither
        value = getattr(models.target, place, None)
        named[place] = None if value is None else str(value).removeprefix("torch.")
    verifier = models.names.get("verifier")
    if (
        variant.verifier is not None and variant.name is None
    ):  # a named one can be loaded again
        verifier = variant.verifier.name
    replaced = [f"{name}={getattr(part, '__name__', type(part).__name__)}"
                for name, part in vars(variant).items()
                if part and name not in ("settings", "costs", "name", "file")]  # fmt: skip
    pieces = pieces_of(run.prompt, models.codec.token_bytes)
    return Header(
        driver=options.driver if ahead else "plain", mode=options.mode, schedule=options.schedule,
        depth=options.depth, width=options.width, max_target_rows=options.max_target_rows,
        models=named, verifier=verifier if ahead else None,
        needs=_needs(run.verifier) if ahead and not isinstance(run.verifier, str) else None,
        variant=variant.name or ", ".join(replaced) or None, options=asdict(options),
        question=run.question, prompt={"tokens": list(run.prompt), "pieces": pieces},
        eos=sorted(models.codec.eos_ids), caches=dict.fromkeys(names, cache),
        alone=run.alone, detailed=run.detailed, lr=__version__,
        made=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )  # fmt: skip


def trace_of(run: Run, why: str = "") -> TraceFile:
    """The trace of an answer, as read from its file. `why`: what ended the run early,
    else ""."""
    events = list(run.trace.events)
    when = max((time for time, _ in events), default=0.0)
    events.append((when, Ended(done=not why, why=why)))
    return TraceFile(header_of(run), records_of(events, run.models.codec.token_bytes))


def save_trace(path: str | Path, run: Run, why: str = "") -> None:
    """Write the trace of an answer. Raises `TraceError` if that is impossible."""
    trace = trace_of(run, why)
    write_trace(path, trace.header, trace.records)


def _needs(verifier: Verifier) -> Needs:
    def named(needs: Requires) -> list[str]:
        return [str(one.name).lower() for one in needs]

    early = verifier.early_requires
    return Needs(named(verifier.requires), None if early is None else named(early))


# From a trace to its run


def replay(
    trace: TraceFile, *, recorded: bool = False, device: str | None = None
) -> Replayed:
    """Load the trace's models by name and run it again. `recorded`: use the trace's
    verdicts; `device`: instead of the trace's.

    Raises `TraceError` if the trace says too little, and what loading the models
    raises."""
    options = options_of(trace.header)
    with reasoner_of(trace.header, recorded=recorded, device=device) as reasoner:
        asks = recorded and make_options(**options).looks_ahead
        variant = variant_of(trace.header, reasoner) or Variant()
        if asks:
            variant = replace(variant, verifier=RecordedVerdicts(trace))
        question, detailed = trace.header.question or "", trace.header.detailed
        run = reasoner.run(question, variant=variant, detailed=detailed, **options)
        return replay_on(run, trace)


def options_of(header: Header) -> dict[str, Any]:
    """The options of the run, with lists turned back into tuples."""
    return {name: tuple(value) if isinstance(value, list) else value
            for name, value in header.options.items()}  # fmt: skip


def reasoner_of(
    header: Header, *, recorded: bool = False, device: str | None = None
) -> Reasoner:
    """The reasoner that a header describes. `recorded`: load no verifier, since none
    will be asked.

    Raises `TraceError` if a name is missing or custom code replaced a part."""
    if header.variant is not None and not is_named(header.variant):
        raise TraceError(
            f"this answer was made with custom parts ({header.variant}), which cannot be loaded by "
            "name. Make the run yourself, with detailed=True, and give it to "
            "lr.watch.trace.replay.replay_on."
        )
    models = header.models
    if header.clock == "virtual" or header.question is None or models["target"] is None:
        raise TraceError(
            "this trace has no models to run again (scripts: lr.watch.trace.virtual)."
        )
    options, dtype = make_options(**options_of(header)), models.get("dtype")
    return Reasoner(
        models["target"],
        models["draft"] if options.needs_draft else None,
        "never" if recorded else header.verifier or "exact",
        judge=None if recorded else models.get("judge"),
        device=device or models.get("device") or "cpu",
        dtype=None if dtype is None else getattr(torch, dtype),
    )


def variant_of(header: Header, reasoner: Reasoner) -> Variant | None:
    """The variant that a header names, loaded again; None if the run had none."""
    return None if header.variant is None else load_variant(header.variant, reasoner)


def replay_on(run: Run, trace: TraceFile) -> Replayed:
    """Finish a run that was just begun, compare it step by step, and stop at the first
    difference. `run.detailed` must be as in the trace."""
    header, records = trace.header, trace.records
    expected = f"{header.detailed}, as in the trace"
    require(run.detailed == header.detailed, "detailed", run.detailed, expected)
    was, now = header.prompt["tokens"], list(run.prompt)
    if was != now:
        place = next(
            (i for i, (a, b) in enumerate(zip(was, now, strict=False)) if a != b), -1
        )
        return Replayed(0, Difference(-1, f"the prompt's token {place}", was, now))
    if header.driver == "overlapped" or not header.alone:
        run.finish()
        found = compare_outputs(records, trace_of(run).records)
        return Replayed(len(records), found, ordered=False)
    done, steps, over = 0, iter(run), False
    while not over:  # compare what is new after every step of the output
        over = next(steps, None) is None
        new = records_of(run.trace.events[done:], run.models.codec.token_bytes)
        new = trace_of(run).records[done:] if over else new
        found = compare_in_order(records, new, done, whole=over)
        if found is not None:
            return Replayed(found.number, found)
        done += len(new)
    return Replayed(done, None)


PairKey = tuple[tuple[int, ...], Step, Step | None]


class RecordedVerdicts(Verifier):
    """A verifier that gives the verdicts of a trace, with the requirements of the
    original one. A pair that is not in the trace is rejected with that reason, so the
    replay reports it."""

    def __init__(self, trace: TraceFile) -> None:
        needs = trace.header.needs
        if needs is None:
            raise SettingError(
                "this trace does not say what its verifier needed; ask it again."
            )
        self.name = trace.header.verifier or "recorded"
        self.requires = _requires(needs.judge)
        self.early_requires = (
            None if needs.judge_early is None else _requires(needs.judge_early)
        )
        self.verdicts = recorded_verdicts(trace)

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        unknown = Verdict(False, "this pair is not in the trace")
        return [
            self.verdicts.get((one.prefix, one.draft, one.target), unknown)
            for one in pairs
        ]

    def judge_early(self, pairs: Sequence[Pair]) -> list[Verdict | None]:
        """The verdicts on draft steps alone, where the trace has them."""
        return [self.verdicts.get((one.prefix, one.draft, None)) for one in pairs]


def _requires(names: list[str]) -> Requires:
    return reduce(or_, (Requires[name.upper()] for name in names), Requires.NOTHING)


def recorded_verdicts(trace: TraceFile) -> dict[PairKey, Verdict]:
    """All verdicts of a trace, by prefix, draft step and target step."""
    prefixes = {NodeId(0, 0): tuple(trace.header.prompt["tokens"])}
    asked: dict[NodeId, PairKey] = {}
    found: dict[PairKey, Verdict] = {}
    for record in trace.records:
        match record.event:
            case Draft(node, children):
                prefixes |= dict.fromkeys(children, prefixes[node])
            case Drafted(node, Step(tokens)):
                prefixes[node] += tokens
            case Judge(node, parent, draft, target):
                asked[node] = (prefixes[parent], draft, target)
            case Judged(node, Verdict() as verdict):
                found[asked[node]] = verdict
            case Emit(emitted, _, node, root) if root is not None and root != node:
                prefixes[root] = prefixes[node] + emitted.step.tokens
    return found
