"""`Reasoner.generate(..., engine="page")`: the page, `lr/lookahead.py`, answers a
run."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from lr.engine.engine import Run, Steps
from lr.engine.runner import ModelRunner
from lr.errors import SettingError
from lr.lookahead import Lookahead, Writer
from lr.model.qwen import CausalLM
from lr.spec.protocol import Emit, NodeId, Schedule
from lr.spec.verifiers.base import Requires, Verifier
from lr.trace import ForwardPass
from lr.types import Coupling, EmittedStep, Role, Verdict


def serve_page(run: Run) -> Steps:
    """Answer one run by the loop of `lr/lookahead.py`. The trace records forwards and
    emitted steps. Raises `SettingError` for settings that only the scheduler
    supports."""
    options, variant, verifier = run.options, run.variant, run.verifier
    timed = options.late_drafts != "wait" or options.driver != "lockstep"
    varied = any(
        part.level in ("steps", "draft") and part.field != "verifier"
        for part in variant.replaced
    )
    here = all(
        isinstance(model, CausalLM) for model in (run.models.target, run.models.draft)
    )
    if isinstance(verifier, str) or not here or timed or varied:
        raise SettingError(
            'engine "page" runs models in this process, and allows no controller, corrector, '
            'step source or draft of a variant, no driver "overlapped" and no late_drafts '
            '"reject"; use engine "scheduler".'
        )
    compares = verifier.requires == Requires.TARGET_STEP
    chooses = type(verifier).choose is not Verifier.choose
    if not compares or verifier.early_requires is not None or chooses:
        raise SettingError(
            f'engine "page" needs a verifier that only compares two steps, and {verifier.name!r} '
            'does something else; use engine "scheduler".'
        )
    with ExitStack() as stack:

        def lend(role: Role) -> ModelRunner:
            runner = run.engine.runners[role].lend(run.blocks)
            stack.callback(run.engine.runners[role].take_back, runner)
            runner.observer = lambda *seen: run.trace.record(ForwardPass(role, *seen))
            return runner

        def writer(role: Role, draft_runner: ModelRunner | None) -> Writer:
            how, token_bytes = (
                run.writer_config(role, draft_runner),
                run.models.codec.token_bytes,
            )
            segmenter, stream = partial(how.segmenter, token_bytes), run.stream(role)
            return Writer(
                lend(role),
                how.sampling,
                segmenter,
                how.eos_ids,
                stream,
                how.speculation,
            )

        draft_runner = lend(Role.DRAFT) if options.drafts_tokens else None
        page = Lookahead(
            run.prompt,
            writer(Role.DRAFT, None),
            writer(Role.TARGET, draft_runner),
            verifier,
            run.limits,
            schedule=Schedule(options.schedule),
            depth=options.depth,
            width=options.width,
            max_target_rows=options.max_target_rows,
            coupling=Coupling(options.coupling),
            draft_forwards=options.draft_forwards,
        )
        for emitted in page.steps():
            verdicts = [] if emitted.verdict is None else [emitted.verdict]
            run.trace.record(emission(emitted, *verdicts))
            yield run, run.take(emitted)


def emission(emitted: EmittedStep, *verdicts: Verdict) -> Emit:
    """The `Emit` of a loop without a scheduler, where step i is written at the node
    "i:i"."""
    index = emitted.index
    return Emit(emitted, verdicts, NodeId(index, index), NodeId(index + 1, index + 1))
