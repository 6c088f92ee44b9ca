"""The flags that commands share: which models, behind which servers, and where they run."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from lr.commands.ranks import spread
from lr.errors import SettingError
from lr.lab.endpoint.address import is_address
from lr.tiny.names import CHECKPOINTS, companion

if TYPE_CHECKING:
    import torch

    from lr.lab.endpoint.settings import Servers
    from lr.reasoner import Reasoner

KEY = "LR_API_KEY"


@dataclass(frozen=True)
class ServerChoice:
    """How models are reached that are named by an address, openai:http://host:port/name."""

    api_key: str | None = None
    """Sent to every such server. None: what the environment variable LR_API_KEY says; there it is
    safer from other people's eyes.
    """
    tokenizer: str | None = None
    """The checkpoint (directory or hub id) that the target's server has loaded; None: the model's
    name there. Weights are not needed.
    """
    draft_tokenizer: str | None = None
    """The same for a draft behind a server."""
    judge_tokenizer: str | None = None
    """The same for a judge behind a server."""
    server_timeout: float = 120.0
    """Seconds of silence after which a request is tried again; after five times in a row the run
    ends.
    """

    def servers(self, *, draft_alone: bool = False) -> Servers:
        """These flags as the engine takes them. `draft_alone`: the draft takes the target's
        place.
        """
        from lr.lab.endpoint.http import Patience
        from lr.lab.endpoint.settings import Servers

        return Servers(
            self.api_key or os.environ.get(KEY) or None,
            self.draft_tokenizer if draft_alone else self.tokenizer,
            self.draft_tokenizer,
            self.judge_tokenizer,
            Patience(silence=self.server_timeout),
        )

    def tokenizers(self) -> dict[str, str]:
        """The tokenizers that were named, by flag: all that an answer can depend on."""
        names = ("tokenizer", "draft_tokenizer", "judge_tokenizer")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def judge_address(port: int, model: str | None) -> str:
    """The judge at a port of this machine, as the official tool means it. `model` None: the only
    one that is served there.
    """
    if not 1 <= port <= 65535:
        raise SettingError(f"judge_port is {port}, expected a number from 1 to 65535.")
    return f"openai:http://localhost:{port}/{model or ''}"


DtypeName = Literal["float64", "float32", "bfloat16", "float16"]
AttentionName = Literal["auto", "flash", "triton", "sdpa", "reference"]


@dataclass(frozen=True)
class Placement:
    """Where and in which precision models run."""

    device: str = "auto"
    """auto (CUDA, else MPS, else the CPU), or a torch device such as cuda:1."""
    dtype: DtypeName | None = None
    """None: float32 on the CPU, the checkpoint's own elsewhere."""
    threads: int | None = None
    """CPU threads; None: one for the tiny models (more only get in their way), torch's default for
    others.
    """
    num_blocks: int | None = None
    """Cache blocks of 16 tokens per model; None: as many as the answer can need."""
    attention: AttentionName = "auto"
    """The kind of attention: flash (the package flash-attn), triton (our own kernel), sdpa, or
    reference (slow and plain). auto: the first of these that works; lr info says which."""
    cuda_graphs: bool = True
    """Replay decoding steps from CUDA graphs, on CUDA."""

    def torch_device(self) -> torch.device:
        """The device. Raises SettingError for one that torch does not know or this machine does not
        have.
        """
        from lr.model.device import find_device

        return find_device(self.device)

    def torch_dtype(self) -> torch.dtype | None:
        import torch

        found: torch.dtype | None = None if self.dtype is None else getattr(torch, self.dtype)
        return found

    def attend(self, reasoner: Reasoner) -> Reasoner:
        """Give a new reasoner the attention that was asked for; it is closed where that cannot
        run.
        """
        if self.attention != "auto" or not self.cuda_graphs:
            try:
                reasoner.use_attention(self.attention, graphs=self.cuda_graphs)
            except BaseException:
                reasoner.close()
                raise
        return reasoner

    def set_threads(self, *models: str | None) -> int:
        """Set torch's CPU threads for these models; returns how many."""
        import torch

        from lr.types import require

        if self.threads is not None:
            require(self.threads > 0, "threads", self.threads, "a whole number > 0")
            torch.set_num_threads(self.threads)
        elif all(model is None or model in CHECKPOINTS or is_address(model) for model in models):
            torch.set_num_threads(1)
        return torch.get_num_threads()


@dataclass(frozen=True)
class ModelChoice:
    """Which models, which verifier, and where they run."""

    model: str = "tiny-target"
    """The target: tiny-target, plans-target, a directory in Hugging Face layout, a hub id, or
    openai:http://host:port/name for a model behind a server; so also below."""
    draft_model: str | None = None
    """The draft; None: tiny-draft for tiny-target, plans-draft for plans-target. It must share the
    target's tokenizer.
    """
    judge_model: str | None = None
    """The model of verifiers that have one of their own (judge, embedding); None: tiny-judge for
    tiny-target.
    """
    verifier: str | None = None
    """How steps are compared: exact (equal tokens), judge, embedding, score, likelihood, random,
    each with :threshold; always; never; oracle (tiny languages only). None: judge where there is
    one (--judge_model, or tiny-target), oracle for plans-target, else exact."""
    tensor_parallel: int = 1
    """Ranks over which the target is spread: GPUs from --device on, or processes on the CPU."""
    placement: Placement = Placement()
    server: ServerChoice = field(default_factory=ServerChoice)

    def drafting(self) -> str | None:
        return companion(self.model, "draft") if self.draft_model is None else self.draft_model

    def load(self, *, needs_draft: bool) -> Reasoner:
        """The reasoner these flags describe; no draft is loaded for plain decoding."""
        from lr.errors import SettingError
        from lr.model.dummy import is_dummy
        from lr.model.files import resolve
        from lr.reasoner import Reasoner

        if needs_draft and self.drafting() is None:
            if not is_address(self.model) and not is_dummy(self.model):
                resolve(self.model, weights=False)  # what is missing first is said first
            raise SettingError(
                f"Speculation with {self.model} needs a draft: give --draft_model (a smaller checkpoint of the same "
                "family), or decode plainly with --mode ar."
            )
        self.placement.set_threads(self.model, self.drafting())
        reasoner = Reasoner(
            self.model,
            self.drafting() if needs_draft else None,
            self.verifier,
            judge=self.judge_model,
            device=spread(
                [self.placement.torch_device()], self.tensor_parallel, self.placement.threads
            ),
            dtype=self.placement.torch_dtype(),
            num_blocks=self.placement.num_blocks,
            servers=self.server.servers(),
        )
        return self.placement.attend(reasoner)
