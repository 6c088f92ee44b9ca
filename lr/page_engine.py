"""`Reasoner.generate(..., engine="page")`: the page, `lr/lookahead.py`, answers a
question."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from lr.engine.answer import Answer, Steps
from lr.engine.runner import ModelRunner
from lr.errors import SettingError
from lr.lookahead import Lookahead, Writer
from lr.spec.protocol import Emit, NodeId, Schedule
from lr.spec.verifiers.base import Requires, Verifier
from lr.trace import ForwardPass
from lr.types import EmittedStep, Role, Verdict


def serve_page(answer: Answer) -> Steps:
    """Answer a question by the loop of `lr/lookahead.py`. The trace records forwards
    and emitted steps. Raises `SettingError` for settings that only the scheduler
    supports."""
    options = answer.options
    verifier = require_simple(answer)
    engine = answer.engine
    with ExitStack() as stack:

        def lend(role: Role) -> ModelRunner:
            runner = engine.runners[role].lend(answer.blocks)
            stack.callback(engine.runners[role].take_back, runner)
            runner.observer = lambda *forward: answer.trace.record(
                ForwardPass(role, *forward)
            )
            return runner

        def writer(role: Role, draft_runner: ModelRunner | None = None) -> Writer:
            config = answer.writer_config(role, draft_runner)
            return Writer(
                runner=lend(role),
                sampling=config.sampling,
                segmenter=partial(config.segmenter, engine.codec.token_bytes),
                eos_ids=config.eos_ids,
                stream=answer.role_stream(role),
                speculation=config.speculation,
            )

        draft_runner = lend(Role.DRAFT) if options.drafts_tokens else None
        draft = writer(Role.DRAFT)
        target = writer(Role.TARGET, draft_runner)
        page = Lookahead(
            prompt=answer.prompt,
            draft=draft,
            target=target,
            verifier=verifier,
            limits=answer.limits,
            schedule=Schedule(options.schedule),
            depth=options.depth,
            width=options.width,
            max_target_rows=options.max_target_rows,
            shares_noise=options.coupling == "shared",
            draft_forwards=options.draft_forwards,
        )
        for emitted in page.steps():
            verdicts = [] if emitted.verdict is None else [emitted.verdict]
            answer.trace.record(emission(emitted, *verdicts))
            yield answer, answer.hand_over(emitted, last=not page.root.limit)


def require_simple(answer: Answer) -> Verifier:
    """The answer's verifier. Raises `SettingError` for an answer that the page cannot
    give."""
    options = answer.options
    verifier = answer.verifier
    timed = options.late_drafts != "wait" or options.driver != "lockstep"
    replaced = any(
        part.level == "steps" and part.field != "verifier"
        for part in answer.variant.replaced
    )
    compares = verifier.requires == Requires.TARGET_STEP
    if not options.looks_ahead or timed or replaced or not compares or verifier.chooses:
        raise SettingError(
            'engine "page" has mode lr or lr+sd, driver "lockstep", late_drafts "wait" and '
            "a verifier that only compares two steps; of a variant it takes verifier, "
            'segmenter, drafter and rule. For anything else use engine "scheduler".'
        )
    return verifier


def emission(emitted: EmittedStep, *verdicts: Verdict) -> Emit:
    """The `Emit` of a loop without a scheduler, where step i is written at the node
    "i:i"."""
    index = emitted.index
    return Emit(emitted, verdicts, NodeId(index, index), NodeId(index + 1, index + 1))
