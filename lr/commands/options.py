"""The flags that commands share: which models, on which devices, over how many ranks,
and where the judge is. Only this module reads the environment: the key of the judge's
server.

Each group is a dataclass. A command with a field of that type has its flags. The
settings of an answer are the fields of `lr.options.GenerateOptions`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from lr.commands.show import console
from lr.errors import SettingError
from lr.model.files import resolve
from lr.options import GenerateOptions
from lr.registry import Checkpoint, require_readable
from lr.tiny import CHECKPOINTS
from lr.types import require

if TYPE_CHECKING:
    import torch

    from lr.engine.answer import Answer
    from lr.measure.memory import MemoryPlan
    from lr.model.device import DeviceMap
    from lr.model.weights import LoadProgress
    from lr.reasoner import Reasoner
    from lr.spec.variant import Variant
    from lr.spec.verifiers.base import Verifier

WeightsName = Literal["int8", "int4"]
DtypeName = Literal["float64", "float32", "bfloat16", "float16"]
AttentionName = Literal["auto", "flash", "triton", "sdpa", "reference"]
KEY = "LR_API_KEY"


@dataclass(frozen=True)
class Placement:
    """Where models run, in which precision, and how they use their device."""

    device: str = "auto"
    """auto (CUDA, else MPS, else the CPU), or a torch device such as cuda:1."""
    dtype: DtypeName | None = None
    """None: the checkpoint's own; on a CPU what lr info says."""
    threads: int | None = None
    """CPU threads; None: one for the tiny models, else torch's default."""
    num_blocks: int | None = None
    """Cache blocks of 16 tokens per model; None: as many as needed."""
    attention: AttentionName = "auto"
    """The attention kernel: triton (our own), sdpa, or reference (slow and plain).
    auto: the first of these that works; lr info shows which."""
    cuda_graphs: bool = True  # On CUDA, replay decoding steps from CUDA graphs.

    def set_threads(self, *models: str | None) -> int:
        """Set torch's number of CPU threads for these models, and return it."""
        import torch

        if self.threads is not None:
            require(0 < self.threads <= 1024, "threads", self.threads, "1 to 1024")
            torch.set_num_threads(self.threads)
        elif all(m is None or Checkpoint.parse(m).place in CHECKPOINTS for m in models):
            torch.set_num_threads(1)
        return torch.get_num_threads()


def torch_dtype(name: DtypeName | None) -> torch.dtype | None:
    """The dtype of that name; None: none is asked for."""
    import torch

    return None if name is None else getattr(torch, name)


@contextmanager
def loading_bars() -> Iterator[LoadProgress]:
    """A bar for each model while it is loaded, on standard error."""
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    out = console(stderr=True)
    with Bars(console=out, transient=True, disable=not out.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def progress(checkpoint: str, done: int, total: int) -> None:
            if checkpoint not in tasks:
                tasks[checkpoint] = bars.add_task(f"loading {checkpoint}")
            bars.update(tasks[checkpoint], completed=done, total=total)

        yield progress


@dataclass(frozen=True)
class JudgeServer:
    """A judge behind an OpenAI-compatible server. Its key is the environment variable
    LR_API_KEY."""

    judge_port: int | None = None
    """The port of a server on this machine that runs the judge; --judge_model is then
    its name there (None: the server's only model)."""
    judge_url: str | None = None  # Its address elsewhere, such as http://host:8000.
    judge_timeout: float = 60.0
    """Seconds of silence, times the attempts, after which a pair is rejected. A silent
    server is not asked again: it may still be working."""
    judge_attempts: int = 3  # How often a question is sent before its pair is rejected.
    judge_lost: Literal["stop", "reject"] = "stop"
    """When three pairs in a row fail: stop the run, or go on and reject every draft
    step."""

    def __post_init__(self) -> None:
        if self.judge_url is not None:
            from lr.measure.judge_server import checked_url

            checked_url(self.judge_url)  # before run.json holds it

    def address(self) -> str | None:
        """The server's address; None: there is no server."""
        port = self.judge_port
        if port is None:
            return self.judge_url
        require(1 <= port <= 65535, "judge_port", port, "a number from 1 to 65535")
        expected = "none, since judge_url has a port; give one of them"
        require(self.judge_url is None, "judge_port", port, expected)
        return f"http://localhost:{port}"

    def verifier(self, name: str | None, judge: str | None, target: str) -> Verifier:
        """The served judge, for the verifier of that name."""
        from lr.measure.judge_server import ServedJudge
        from lr.model.codec import Codec

        if name not in (None, "judge"):
            raise SettingError(
                f"verifier is {name!r}, but a judge on a server is asked in words and "
                "gives no score; expected judge, without a threshold."
            )
        address = self.address()
        assert address is not None
        return ServedJudge(
            address,
            Codec.load(target).decode,
            model=judge,
            timeout=self.judge_timeout,
            attempts=self.judge_attempts,
            lost=self.judge_lost,
            api_key=os.environ.get(KEY),
        )


@dataclass(frozen=True)
class ModelChoice:
    """Target, draft, judge and verifier, and where they run."""

    model: str = "tiny-target"
    """The target: tiny-target, a directory in Hugging Face layout, or a hub id. The
    next two flags take the same."""
    draft_model: str | None = None
    """The draft; it must share the target's tokenizer. None: tiny-draft for
    tiny-target."""
    judge_model: str | None = None
    """The model of the verifiers judge and embedding. None: tiny-judge for
    tiny-target."""
    weights: WeightsName | None = None
    """Quantise the target's matrices, on a CPU. It is another target then: its answers
    differ."""
    draft_weights: WeightsName | None = None
    """Quantise the draft's matrices, on a CPU: a draft that costs less and agrees a
    little less often. With --draft_model equal to --model, the target drafts for
    itself."""
    verifier: str | None = None
    """How steps are compared: exact (equal tokens), judge, embedding, numbers, score,
    likelihood, random, each with :threshold; fitted:FILE.json; always; never; oracle
    (tiny models only); FILE.py:NAME, your own. None: judge if there is one (--judge_model or
    tiny-target), else exact."""
    tensor_parallel: int | None = None
    """Ranks of the target: GPUs from --device on, or CPU processes. None: one."""
    draft_device: str | None = None  # Another device for the draft.
    judge_device: str | None = None  # Another device for the judge.
    placement: Placement = field(default_factory=Placement)
    server: JudgeServer = field(default_factory=JudgeServer)

    def draft(self) -> str | None:
        """The draft's name; None: there is none."""
        if self.draft_model is None and self.model == "tiny-target":
            return "tiny-draft"
        return self.draft_model

    def required_draft(self) -> str:
        """The draft's name. Raises `SettingError` if there is none."""
        draft = self.draft()
        if draft is None:
            if not Checkpoint.parse(self.model).dummy:
                # a missing checkpoint is the first problem
                resolve(self.model, weights=False)
            raise SettingError(
                f"Speculation with {self.model} needs a draft: give --draft_model (a "
                "smaller checkpoint of the same family), or decode plainly with --mode ar."
            )
        return draft

    def settings(self) -> dict[str, Any]:
        """Everything that an answer or its speed can depend on, so no ports."""
        settings = vars(self) | asdict(self.placement)
        settings["served_judge"] = self.server.address() is not None
        return {n: v for n, v in settings.items() if n not in ("placement", "server")}

    def devices(self) -> DeviceMap:
        """The devices of all three models."""
        from lr.model.device import DeviceMap, find_device

        device = find_device(self.placement.device)
        target = spread([device], self.tensor_parallel, self.placement.threads)
        draft = self.draft_device or device
        judge = self.judge_device or device
        return DeviceMap.of({"target": target, "draft": draft, "judge": judge})

    def memory(self, options: GenerateOptions, tokens: int, share: int) -> MemoryPlan:
        """The memory that these models need, with `share` answers at a time."""
        from lr.measure.memory import plan_memory

        judges = (self.verifier or "").startswith("judge") and not self.server.address()
        draft = self.draft()
        names = (
            str(Checkpoint.parse(self.model, self.weights)),
            None if draft is None else str(Checkpoint.parse(draft, self.draft_weights)),
            self.judge_model if judges else None,
        )
        places = self.devices()
        waits = places.target[0].type == "cuda"  # for free memory, answer by answer
        return plan_memory(
            names,
            places,
            torch_dtype(self.placement.dtype),
            options,
            tokens,
            share=1 if waits else share,
            num_blocks=self.placement.num_blocks,
            verifier=self.verifier or "exact",
        )

    def load(self, *, needs_draft: bool | None) -> Reasoner:
        """The reasoner these flags describe. Plain decoding loads no draft;
        `needs_draft` None: load one if it is there."""
        draft = self.required_draft() if needs_draft else self.draft()
        return self.reasoner(self.model, None if needs_draft is False else draft)

    def reasoner(self, target: str, draft: str | None) -> Reasoner:
        """A reasoner with these two, and the verifier and devices of the flags. Prints
        its warnings as notes."""
        from lr.reasoner import Reasoner

        self.placement.set_threads(target, draft)
        target = str(Checkpoint.parse(target, self.weights))
        if draft is not None:
            draft = str(Checkpoint.parse(draft, self.draft_weights))
        verifier: str | Verifier | None = self.verifier
        judge = self.judge_model
        if draft is None:
            verifier = self.verifier or "exact"
            judge = None
        elif self.server.address() is not None:
            verifier = self.server.verifier(self.verifier, judge, target)
            judge = None
        elif verifier is None and target in CHECKPOINTS:
            verifier = "judge"
        with loading_bars() as bars, warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")  # whatever -W says
            loaded = Reasoner(
                target,
                draft,
                verifier,
                judge=judge,
                device=self.devices(),
                dtype=torch_dtype(self.placement.dtype),
                num_blocks=self.placement.num_blocks,
                attention=self.placement.attention,
                graphs=self.placement.cuda_graphs,
                progress=bars,
            )
        for warning in warned:
            console(stderr=True).print(f"note: {warning.message}", style="yellow")
        return loaded

    def question(self, text: str | None) -> str:
        """What to ask: `text`, or a sample problem, which is then shown on standard
        error. Raises `SettingError` for a question outside a tiny model's language: the
        answer would be noise."""
        from lr.registry import SAMPLE_QUESTION

        if text is None:
            note = f"no question was given; this is a sample: {SAMPLE_QUESTION}"
            console(stderr=True).print(note, style="dim", soft_wrap=False)
            return SAMPLE_QUESTION
        require_readable(self.model, text)
        return text


@dataclass(frozen=True)
class AnswerOptions(GenerateOptions):
    """The settings of an answer; --max_depth is the official tool's name of --depth."""

    depth: Annotated[int, tyro.conf.arg(aliases=["--max_depth"])] = 4
    """How many draft steps to write ahead (gamma in the paper)."""


@dataclass(frozen=True)
class AnswerFlags:
    """Which models answer, with which settings, in which variant of the method."""

    models: ModelChoice = field(default_factory=ModelChoice)
    generation: AnswerOptions = field(default_factory=AnswerOptions)
    variant: str | None = None
    """A variant that replaces parts of the method, as NAME or FILE.py:NAME, with
    parameters as in "NAME(threshold=7)"."""

    def load_variant(self, reasoner: Reasoner) -> Variant:
        """The variant, loaded anew; without one the method as it is."""
        from lr.spec.variant import Variant
        from lr.variants.loading import load_variant

        if self.variant is None:
            return Variant()
        return load_variant(self.variant, reasoner, anew=True)

    def ask(self, question: str | None, *, detailed: bool) -> Answer:
        """An answer to the question, or to a sample problem, not begun."""
        reasoner = self.models.load(needs_draft=self.generation.needs_draft)
        return reasoner.run(
            self.models.question(question),
            self.generation,
            variant=self.load_variant(reasoner),
            detailed=detailed,
        )


def spread(
    devices: Sequence[torch.device], ranks: int | None, threads: int | None = None
) -> tuple[torch.device, ...]:
    """The devices of the target: the first of `devices`, or one per rank.

    `ranks` None: one rank per device. With more ranks than devices: the GPUs after the
    first one, or that many processes on the CPU, which share its threads unless
    `threads` is given."""
    require(ranks is None or 0 < ranks <= 1024, "tensor_parallel", ranks, "1 to 1024")
    size = len(devices) if ranks is None else ranks
    if size <= len(devices):
        return tuple(devices[:size])
    first = devices[0]
    if first.type == "cuda":
        from lr.model.device import find_device

        return tuple(find_device(f"cuda:{first.index + i}") for i in range(size))
    if first.type == "cpu" and threads is None:
        import torch

        share = max(1, (os.cpu_count() or 1) // size)
        torch.set_num_threads(min(torch.get_num_threads(), share))
    return (first,) * size
