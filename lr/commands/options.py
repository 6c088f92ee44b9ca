"""The flags that commands share: which models, behind which servers, on which devices,
over how many ranks. Only this module reads the environment: the server's key and
torchrun's variables.

Each group is a dataclass. A command with a field of that type has its flags."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from lr.commands.show import console
from lr.errors import SettingError
from lr.measure.endpoint.address import Retry, Servers
from lr.model.files import resolve
from lr.registry import CHECKPOINTS, is_dummy, is_served
from lr.tiny.language import Split
from lr.tiny.languages import LANGUAGES, TinyLanguage
from lr.tiny.names import companion
from lr.types import require

if TYPE_CHECKING:
    import torch

    from lr.model.device import Torchrun
    from lr.reasoner import Reasoner
    from lr.spec.variant import Variant

DtypeName = Literal["float64", "float32", "bfloat16", "float16"]
AttentionName = Literal["auto", "triton", "sdpa", "reference"]
Names = tuple[str, str | None, str | None]  # Target, draft, verifier.
KEY = "LR_API_KEY"
TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class DeviceOptions:
    """Where models run, and in which precision."""

    device: str = (
        "auto"  # auto (CUDA, else MPS, else the CPU), or a torch device such as cuda:1.
    )
    dtype: DtypeName | None = (
        None  # None: float32 on the CPU, the checkpoint's own elsewhere.
    )
    threads: int | None = (
        None  # CPU threads; None: one for the tiny models, else torch's default.
    )

    def torch_device(self) -> torch.device:
        """The device. Raises `SettingError` if torch does not know it or this machine
        lacks it."""
        from lr.model.device import find_device

        return find_device(self.device)

    def set_threads(self, *models: str | None) -> int:
        """Set torch's number of CPU threads for these models, and return it."""
        import torch

        if self.threads is not None:
            require(0 < self.threads <= 1024, "threads", self.threads, "1 to 1024")
            torch.set_num_threads(self.threads)
        elif all(
            model is None or model in CHECKPOINTS or is_served(model)
            for model in models
        ):
            torch.set_num_threads(1)
        return torch.get_num_threads()


def torch_dtype(name: DtypeName | None, device: str = "") -> torch.dtype | None:
    """The dtype of that name. No name: float32 on the CPU, else None (the
    checkpoint's)."""
    import torch

    known = name or ("float32" if device == "cpu" else None)
    return None if known is None else getattr(torch, known)


@dataclass(frozen=True)
class Placement(DeviceOptions):
    """Where models run, and how they use their device."""

    num_blocks: int | None = (
        None  # Cache blocks of 16 tokens per model; None: as many as needed.
    )
    attention: AttentionName = "auto"
    """The attention kernel: triton (our own), sdpa, or reference (slow and plain).
    auto: the first of these that works; lr info shows which."""
    cuda_graphs: bool = True  # On CUDA, replay decoding steps from CUDA graphs.

    def reasoner(
        self, names: Names, judge: str | None, device: Any, servers: Servers
    ) -> Reasoner:
        """A reasoner with target, draft and verifier by `names`, and this dtype, cache
        and attention. Prints its warnings as notes."""
        from lr.reasoner import Reasoner

        how: dict[str, Any] = {"judge": judge, "device": device, "servers": servers}
        how |= {"dtype": torch_dtype(self.dtype), "num_blocks": self.num_blocks}
        how |= {"attention": self.attention, "graphs": self.cuda_graphs}
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")  # whatever -W says
            made = Reasoner(*names, **how)
        for one in warned:
            console(stderr=True).print(f"note: {one.message}", style="yellow")
        return made


@dataclass(frozen=True)
class ServerChoice:
    """How to reach models given by an address, openai:http://host:port/name."""

    api_key: str | None = None
    """Key sent to every such server. None: the environment variable LR_API_KEY, which
    other users of the machine cannot see as easily."""
    tokenizer: str | None = None
    """Directory or hub id of the target's tokenizer, without weights. None: the model's
    name."""
    draft_tokenizer: str | None = None  # The same for a draft behind a server.
    judge_tokenizer: str | None = None  # The same for a judge behind a server.
    server_timeout: float = (
        120.0  # Seconds of silence after which one of 5 attempts is given up.
    )
    server_budget: float = (
        60.0  # Give a server up once its failures have cost this many seconds.
    )
    judge_lost: Literal["stop", "reject"] = "stop"
    """When a judge is given up: stop the run, or go on and reject every draft step."""

    def servers(self, *, draft_alone: bool = False) -> Servers:
        """These flags as the engine takes them. `draft_alone`: the draft acts as the
        target."""
        key = (self.api_key or os.environ.get(KEY) or "").strip() or None
        target = self.draft_tokenizer if draft_alone else self.tokenizer
        retry = Retry(
            self.server_timeout, budget=self.server_budget, lost=self.judge_lost
        )
        return Servers(key, target, self.draft_tokenizer, self.judge_tokenizer, retry)


@dataclass(frozen=True)
class ModelChoice:
    """Target, draft, judge and verifier, and where they run."""

    model: str = "tiny-target"
    """The target: tiny-target, plans-target, a directory in Hugging Face layout, a hub
    id, or openai:http://host:port/name for a model behind a server. The next two flags
    take the same."""
    draft_model: str | None = None
    """The draft; it must share the target's tokenizer. None: tiny-draft for
    tiny-target, plans-draft for plans-target."""
    judge_model: str | None = None
    """The model of the verifiers judge and embedding. None: tiny-judge for
    tiny-target."""
    verifier: str | None = None
    """How steps are compared: exact (equal tokens), judge, embedding, score,
    likelihood, random, each with :threshold; always; never; oracle (tiny languages
    only). None: judge if there is one (--judge_model or tiny-target), oracle for
    plans-target, else exact."""
    tensor_parallel: int = (
        1  # Ranks of the target: GPUs from --device on, or CPU processes.
    )
    placement: Placement = field(default_factory=Placement)
    server: ServerChoice = field(default_factory=ServerChoice)

    def drafting(self) -> str | None:
        return (
            companion(self.model, "draft")
            if self.draft_model is None
            else self.draft_model
        )

    def load(self, *, needs_draft: bool) -> Reasoner:
        """The reasoner these flags describe. Plain decoding loads no draft."""
        draft = self.drafting()
        if needs_draft and draft is None:
            if not is_served(self.model) and not is_dummy(self.model):
                resolve(
                    self.model, weights=False
                )  # a missing checkpoint is the first problem
            raise SettingError(
                f"Speculation with {self.model} needs a draft: give --draft_model (a smaller "
                "checkpoint of the same family), or decode plainly with --mode ar."
            )
        self.placement.set_threads(self.model, draft)
        devices, threads = [self.placement.torch_device()], self.placement.threads
        names = (self.model, draft if needs_draft else None, self.verifier)
        where = spread(devices, self.tensor_parallel, threads)
        return self.placement.reasoner(
            names, self.judge_model, where, self.server.servers()
        )

    @property
    def language(self) -> TinyLanguage:
        """The tiny language of these models; the first one for any other model."""
        return LANGUAGES[
            self.model.partition("-")[0] if self.model in CHECKPOINTS else "tiny"
        ]

    def sample(self, number: int = 0) -> str:
        """A sample problem of that language."""
        return self.language.problem(Split.TEST, number, 0).question

    def question(self, given: str | None) -> str:
        """What to ask: `given`, or a sample problem, which is then shown on standard
        error. Raises `SettingError` for a question outside a tiny model's language: the
        answer would be noise."""
        sample = self.sample()
        if given is None:
            note = f"no question was given; this is a sample: {sample}"
            console(stderr=True).print(note, style="dim")
            return sample
        if self.model in CHECKPOINTS and not self.language.asks(given):
            raise SettingError(
                f"{self.model} understands only the questions of its small language, "
                f"{self.language.about}, and {given!r} is not one of them. Choose another --model, "
                f"or ask, for example: {sample}"
            )
        return given


@dataclass(frozen=True)
class VariantChoice:
    """A variant that replaces parts of the method."""

    variant: str | None = None
    """The variant, as "name", "path/to/file.py:name" or "package.module:name", with
    parameters as in "name(threshold=7)". lr new variant writes one to start from."""

    def load(self, reasoner: Reasoner) -> Variant | None:
        from lr.variants.loading import load_variant

        return None if self.variant is None else load_variant(self.variant, reasoner)


def torchrun_place() -> Torchrun | None:
    """This process's rank under torchrun; None without torchrun, or if this is the only
    process."""
    if (
        not all(name in os.environ for name in TORCHRUN)
        or os.environ["WORLD_SIZE"] == "1"
    ):
        return None
    from lr.model.device import Torchrun

    try:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        local_rank = int(os.environ.get("LOCAL_RANK", rank))
    except ValueError as error:
        said = ", ".join(f"{name}={os.environ[name]!r}" for name in TORCHRUN)
        expected = f"expected numbers as torchrun sets them ({error})"
        raise SettingError(f"the environment says {said}, {expected}.") from error
    return Torchrun(rank, size, local_rank)


def spread(
    devices: Sequence[torch.device], ranks: int | None, threads: int | None = None
) -> tuple[torch.device, ...] | Torchrun:
    """The devices of the target: the first of `devices`, or one per rank.

    `ranks` None: one rank per device. With more ranks than devices: the GPUs after the
    first one, or that many processes on the CPU, which share its threads unless
    `threads` is given."""
    place = torchrun_place()
    require(ranks is None or 0 < ranks <= 1024, "tensor_parallel", ranks, "1 to 1024")
    size = place.size if place is not None else len(devices) if ranks is None else ranks
    none = f"none: torchrun has started {size} processes"
    require(place is None or ranks in (None, 1, size), "tensor_parallel", ranks, none)
    if size == 1:
        return (devices[0],)
    from lr.model.ranks import spread_over

    if devices[0].type == "cpu" and threads is None:
        import torch

        here = size if place is None else 1  # torchrun gives each process its own cores
        torch.set_num_threads(
            min(torch.get_num_threads(), max(1, (os.cpu_count() or 1) // here))
        )
    if place is not None:
        return replace(place, device=devices[0])
    return (
        tuple(devices[:size]) if size <= len(devices) else spread_over(size, devices[0])
    )
