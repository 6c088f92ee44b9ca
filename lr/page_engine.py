"""The page, `lr/lookahead.py`, answers a question of a reasoner.

result = page_engine.run(reasoner, question, mode="lr").finish()
"""

from contextlib import ExitStack
from functools import partial
from typing import Any

from lr.engine.answer import Answer, Steps
from lr.engine.engine import Engine
from lr.engine.question import Question
from lr.engine.runner import ModelRunner
from lr.errors import SettingError
from lr.lookahead import Lookahead, Writer
from lr.reasoner import Reasoner
from lr.spec.protocol import Emit, NodeId, Schedule
from lr.spec.verifiers.base import Requires, Verifier
from lr.trace import ForwardPass
from lr.types import EmittedStep, Role, Verdict


def run(reasoner: Reasoner, question: str, *options: Any, **changes: Any) -> Answer:
    """As `Reasoner.run`, by the page. Raises `SettingError` for settings that only the
    scheduler supports."""
    answer = reasoner.run(question, *options, **changes)
    answer.served = serve_page(reasoner.engine, answer)  # in place of the engine's loop
    return answer


def serve_page(engine: Engine, answer: Answer) -> Steps:
    """Answer by the loop of `lr/lookahead.py`. The trace records forwards and emitted
    steps."""
    question = answer.question
    options = question.options
    verifier = require_simple(question)
    with ExitStack() as stack:  # gives all runners back

        def lend(role: Role) -> ModelRunner:
            runner = engine.runners[role].lend(question.blocks)
            stack.callback(engine.runners[role].put_back, runner)
            runner.observer = lambda *forward: answer.trace.record(
                ForwardPass(role, *forward)
            )
            return runner

        def writer(role: Role, draft_runner: ModelRunner | None = None) -> Writer:
            config = question.writer_config(role, draft_runner)
            return Writer(
                runner=lend(role),
                sampling=config.sampling,
                segmenter=partial(config.segmenter, engine.codec.token_bytes),
                eos_ids=config.eos_ids,
                stream=question.role_stream(role),  # the keys of the scheduler's run
                speculation=config.speculation,
            )

        # a second cache of the draft
        draft_runner = lend(Role.DRAFT) if options.drafts_tokens else None
        draft = writer(Role.DRAFT)
        target = writer(Role.TARGET, draft_runner)
        target.runner.watch(question.watched_layer(target.speculation))
        page = Lookahead(
            prompt=question.prompt,
            draft_writer=draft,
            target_writer=target,
            verifier=verifier,
            limits=question.limits,
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


def require_simple(question: Question) -> Verifier:
    """The question's verifier. Raises `SettingError` if the page cannot answer it."""
    options = question.options
    verifier = question.verifier
    # the page has no clock
    timed = options.late_drafts != "wait" or options.driver != "lockstep"
    replaced = any(
        part.level == "steps" and part.field != "verifier"
        for part in question.variant.replaced
    )
    # the pair's two steps are enough
    compares = verifier.requires == Requires.TARGET_STEP
    if not options.looks_ahead or timed or replaced or not compares or verifier.chooses:
        raise SettingError(
            'the page has mode lr or lr+sd, driver "lockstep", late_drafts "wait" and '
            "a verifier that only compares two steps; of a variant it takes verifier, "
            "segmenter, drafter and rule. For anything else use Reasoner.run."
        )
    return verifier


def emission(emitted: EmittedStep, *verdicts: Verdict) -> Emit:
    """The `Emit` of a loop without a scheduler, where step i is written at the node
    "i:i"."""
    index = emitted.index
    return Emit(emitted, verdicts, NodeId(index, index), NodeId(index + 1, index + 1))
