"""The front door for programs: load a target and a draft once, then ask questions.

    reasoner = Reasoner()                      # the tiny family
    result = reasoner.generate(
        "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many has Ben?"
    )
    print(result.answer, result.stats.step_acceptance)

`generate` answers in one go; `run` gives the steps one by one, as they are decided. The algorithm
itself is in `lookahead.py` (to read) and `spec/scheduler.py` (which runs).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from lr.engine.engine import STEPS, Engine, Run, Steps
from lr.engine.load import load_models, use_attention
from lr.engine.runner import ModelRunner
from lr.errors import SettingError
from lr.lookahead import Lookahead, Writer
from lr.model.device import Device, DeviceMap
from lr.model.qwen import CausalLM
from lr.options import OptionArguments, make_options
from lr.result import Result
from lr.spec.protocol import Schedule
from lr.spec.variant import Variant
from lr.spec.verifiers.base import Requires, Verifier
from lr.trace import ForwardPass, emission
from lr.types import Coupling, Role, require

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from lr.lab.endpoint.address import Servers


class Reasoner:
    """A target, a draft and a verifier, ready to answer.

    `target` and `draft` are "tiny-target" and "tiny-draft" (or "plans-target" and "plans-draft"),
    directories, hub ids, or the addresses of models on a server, "openai:http://host:port/name"
    (`servers` says how to reach them, `docs/engines.md`). They share a tokenizer. `draft=None`
    leaves plain decoding only.

    `verifier` is a name ("exact", "judge", "embedding:0.95", ...; "oracle" for the tiny languages;
    `engine/load.py` has all) or a `Verifier`. None takes "judge" where there is one (a
    `judge`, or "tiny-target"), "oracle" for "plans-target", and else "exact". `judge` is the
    checkpoint of a verifier that has one: a language model for "judge", an encoder for "embedding".

    `dtype` None: float32 on the CPU, the checkpoint's own elsewhere. `device` is where the models
    run, or a mapping from "target", "draft" and "judge" to devices; what it does not name runs
    where the target does. Several devices for the target, such as ["cuda:0", "cuda:1"], spread it
    over as many processes (`model/ranks.py`). `num_blocks` cache blocks of 16 tokens per model;
    None: as many as the answers need. `attention` and `graphs`: of all three models, as
    `use_attention` takes them.

    Caches are kept from answer to answer. With driver "overlapped" a second process, which does
    not import your script, is started at the first question and kept until `close`, the end of a
    `with` block, or the end of the reasoner. Raises `CheckpointError` or `SettingError`.
    """

    def __init__(
        self,
        target: str | Path = "tiny-target",
        draft: str | Path | None = "tiny-draft",
        verifier: str | Verifier | None = "oracle",
        *,
        judge: str | Path | None = None,
        device: Device | Mapping[str, Device] | DeviceMap = "cpu",
        dtype: torch.dtype | None = None,
        num_blocks: int | None = None,
        servers: Servers | None = None,
        attention: str = "auto",
        graphs: bool = True,
    ) -> None:
        self.models, self.verifier = load_models(
            target, draft, verifier, judge, device, dtype, num_blocks, servers, attention, graphs
        )
        self.engine = Engine(self.models)
        self.codec = self.models.codec

    def generate(
        self,
        question: str,
        *,
        variant: Variant | None = None,
        detailed: bool = False,
        engine: Literal["scheduler", "page"] = "scheduler",
        **options: Unpack[OptionArguments],
    ) -> Result:
        """Answer a question. `options` are the fields of `GenerateOptions`, which says what each
        means: mode, depth, temperature, seed, max_tokens, ...

        `variant` replaces parts of the algorithm (`docs/variants_steps.md`). `detailed` records
        everything that happens, not only what statistics need (`docs/trace.md`). `engine` "page"
        runs the method as it stands on one page, `lr/lookahead.py`.
        """
        run = self.run(question, variant=variant, detailed=detailed, engine=engine, **options)
        return run.finish()

    def run(
        self,
        question: str,
        *,
        variant: Variant | None = None,
        detailed: bool = False,
        engine: Literal["scheduler", "page"] = "scheduler",
        **options: Unpack[OptionArguments],
    ) -> Run:
        """Begin to answer: iterate over the returned `Run` to get the steps as they are decided.
        The arguments are those of `generate`."""
        require(engine in ("scheduler", "page"), "engine", engine, "scheduler or page")
        made = make_options(**options)
        serve = serve_page if engine == "page" and made.looks_ahead else None
        return Run(
            self.engine, self.verifier, question, made, variant, detailed=detailed, serve=serve
        )

    def use_attention(self, name: str = "auto", *, graphs: bool = True) -> None:
        """From the next question on, target and draft run with this kind of attention: "auto",
        "flash", "triton", "sdpa" or "reference". What a verifier asks keeps the one it has.

        With `graphs`, decoding steps are replayed from CUDA graphs where there is CUDA. This is
        what a new reasoner does, with "auto". Raises SettingError for a kind that is unknown or
        cannot run (`docs/attention.md`).
        """
        use_attention(self.models, name, graphs=graphs)
        self.engine.forget_caches()

    def close(self) -> None:
        """End the draft's process, if there is one; another question would start another. A target
        that is spread over several ranks is ended too, for good."""
        if self.models.worker is not None:
            self.models.worker.close()
        self.engine.forget_caches()
        if self.models.end_ranks is not None:
            self.models.end_ranks()

    def __enter__(self) -> Reasoner:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def serve_page(run: Run) -> Steps:
    """Answer one run by the loop of `lr/lookahead.py`. The trace gets forwards and emitted
    steps. Raises `SettingError` for what the page leaves to the scheduler.
    """
    options, variant, verifier = run.options, run.variant, run.verifier
    timed = options.late_drafts != "wait" or options.driver != "lockstep"
    varied = any(getattr(variant, part) is not None for part in STEPS if part != "verifier")
    here = all(isinstance(model, CausalLM) for model in (run.models.target, run.models.draft))
    if isinstance(verifier, str) or not here or timed or varied:
        raise SettingError(
            'engine "page" runs models in this process, without a router, controller, schedule, '
            'chooser, proposer, corrector or may_follow of your own, driver "overlapped" or '
            'late_drafts "reject"; use engine "scheduler".'
        )
    if verifier.requires != Requires.TARGET_STEP or verifier.early_requires is not None:
        raise SettingError(
            f'engine "page" needs a verifier that compares two steps, and {verifier.name!r} '
            'does not, or not only; use engine "scheduler".'
        )
    with ExitStack() as stack:

        def lend(role: Role) -> ModelRunner:
            runner = run.engine.runners(role).lend(run.blocks)
            stack.callback(run.engine.runners(role).take_back, runner)
            runner.observer = lambda *seen: run.trace.record(ForwardPass(role, *seen))
            return runner

        def writer(role: Role, guesser: ModelRunner | None) -> Writer:
            how, token_bytes = run.writer_config(role, guesser), run.models.codec.token_bytes
            segmenter, stream = partial(how.segmenter, token_bytes), run.stream(role)
            return Writer(lend(role), how.sampling, segmenter, how.eos_ids, stream, how.speculation)

        guesser = lend(Role.DRAFT) if options.drafts_tokens else None
        page = Lookahead(
            run.prompt,
            writer(Role.DRAFT, None),
            writer(Role.TARGET, guesser),
            verifier,
            run.limits,
            schedule=Schedule(options.schedule),
            depth=options.depth,
            width=options.width,
            max_target_rows=options.max_target_rows,
            coupling=Coupling(options.coupling),
            draft_forwards=options.draft_ticks,
        )
        for emitted in page.steps():
            verdicts = [] if emitted.verdict is None else [emitted.verdict]
            run.trace.record(emission(emitted, *verdicts))
            yield run, run.take(emitted)
