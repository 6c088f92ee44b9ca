"""Which models `lr run` takes and where they run: the official tool's flags and defaults, and the
tiny family where those cannot run.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from lr.commands.models import AttentionName, DtypeName, Placement
from lr.commands.ranks import spread
from lr.commands.servers import ServerChoice, judge_address
from lr.errors import SettingError
from lr.lab.endpoint.address import is_address
from lr.model.shapes import DUMMY_NOTE, dummy_name
from lr.tiny.names import CHECKPOINTS

if TYPE_CHECKING:
    import torch

    from lr.model.parallel.start import Spread
    from lr.reasoner import Reasoner

OFFICIAL = ("Qwen/Qwen3-32B", "Qwen/Qwen3-1.7B", "Qwen/Qwen2.5-7B-Instruct")
"""Target, draft, judge: the defaults of the official tool."""
TINY = ("tiny-target", "tiny-draft", "tiny-judge")
PLANS = ("plans-target", "plans-draft", None)
"""There is no judge for plans: the oracle judges."""


@dataclass(frozen=True)
class RunModels:
    """Models and devices. What is not said is the official tool's choice; for tiny:N and plans:N,
    and where there is no CUDA device, it is a tiny family's."""

    model: str | None = None
    """The target. None: Qwen/Qwen3-32B; tiny-target for data set tiny:N and where there is no CUDA
    device; plans-target for plans:N.
    """
    draft_model: str | None = None
    """The draft. None: Qwen/Qwen3-1.7B, or tiny-draft beside tiny-target, plans-draft beside
    plans-target.
    """
    judge_model: str | None = None
    """The judge, or the encoder of verifier embedding. None: Qwen/Qwen2.5-7B-Instruct, or
    tiny-judge beside tiny-target.
    """
    verifier: str | None = None
    """judge, exact, embedding, score, likelihood, random, each with :threshold; oracle for the tiny
    languages. None: judge; for plans-target, which has none, oracle."""
    judge_port: int | None = None
    """The port of an OpenAI-compatible server on this machine that has the judge; --judge_model is
    then its name there.
    """
    target_gpu_id: str = "0,1"
    """CUDA devices of the target, by number."""
    draft_gpu_id: str = "2"
    """CUDA device of the draft."""
    judge_gpu_id: str = "3"
    """CUDA device of the judge."""
    tensor_parallel: int | None = None
    """Ranks over which the target is spread. None: one for each GPU of --target_gpu_id that is
    there; on the CPU 1.
    """
    device: str = "auto"
    """auto: the CUDA devices above where there are any, else MPS, else the CPU. Anything else is
    where all models run.
    """
    dtype: DtypeName | None = None
    """None: float32 on the CPU, the checkpoint's own elsewhere."""
    threads: int | None = None
    """CPU threads; None: one for the tiny models, torch's default for others."""
    num_blocks: int | None = None
    """Cache blocks of 16 tokens per model; None: as many as the answers can need."""
    load_format: Literal["auto", "dummy"] = "auto"
    """dummy: random weights in the shape of each model (a published name, or a directory with a
    config.json): for measuring only.
    """
    attention: AttentionName = "auto"
    """varlen, flash, sdpa or reference; auto: the first that works. lr info says which."""
    cuda_graphs: bool = True
    """Replay decoding steps from CUDA graphs, on CUDA."""
    server: ServerChoice = field(default_factory=ServerChoice)

    def check(self) -> None:
        """Refuse what cannot be, before anything is loaded."""
        if self.judge_port is not None:
            judge_address(self.judge_port, None)
            if is_address(self.judge_model):
                raise SettingError(
                    f"judge_port is {self.judge_port} and judge_model {self.judge_model!r}, an address with a port of its own; give one."
                )
        for name in ("target_gpu_id", "draft_gpu_id", "judge_gpu_id"):
            value = getattr(self, name)
            if not all(part.strip().isdecimal() for part in value.split(",")):
                raise SettingError(
                    f"{name} is {value!r}, expected numbers of CUDA devices such as 0 or 0,1."
                )

    def chosen(self, dataset: str) -> tuple[RunModels, str | None]:
        """These settings with every model named, and a note where that is not what the official
        tool would take.
        """
        import torch

        note = None
        model = self.model
        if model is None:
            family = dataset.partition(":")[0]
            model = {"tiny": TINY[0], "plans": PLANS[0]}.get(family, OFFICIAL[0])
            if model == OFFICIAL[0] and not torch.cuda.is_available():
                note = f"no CUDA device here: the models are {TINY[0]}, {TINY[1]} and {TINY[2]} instead of {OFFICIAL[0]} and its kin"
                model = TINY[0]
        _, draft, judge = {TINY[0]: TINY, PLANS[0]: PLANS}.get(model, OFFICIAL)
        usual = "oracle" if judge is None and self.judge_model is None else "judge"
        verifier = usual if self.verifier is None else self.verifier
        if self.judge_model is None and verifier.partition(":")[0] != "judge":
            judge_model = None
        else:
            judge_model = judge if self.judge_model is None else self.judge_model
        if self.judge_port is not None:
            judge_model, verifier = (
                judge_address(self.judge_port, self.judge_model),
                self.verifier or "judge",
            )
        draft_model = draft if self.draft_model is None else self.draft_model
        if self.load_format == "dummy":
            model, draft_model, note = dummy_name(model), dummy_name(draft_model), DUMMY_NOTE
            judge_model = (
                judge_model
                if judge_model is None or is_address(judge_model)
                else dummy_name(judge_model)
            )
        return replace(
            self, model=model, draft_model=draft_model, judge_model=judge_model, verifier=verifier
        ), note

    def load(self, mode: str, *, needs_draft: bool, judges: bool) -> Reasoner:
        """The reasoner for a mode, from settings that were `chosen`. Nothing is loaded that the
        mode does not use.
        """
        from lr.reasoner import Reasoner

        assert self.model is not None and self.draft_model is not None
        target = self.draft_model if mode == "draft" else self.model
        draft = self.draft_model if needs_draft else None
        placement = Placement(
            self.device, self.dtype, self.threads, self.num_blocks, self.attention, self.cuda_graphs
        )
        placement.set_threads(target, draft)
        places = self.devices()
        reasoner = Reasoner(
            target,
            draft,
            self.verifier if judges else "exact",
            judge=self.judge_model if judges else None,
            device={"target": self.target_device(mode), "draft": places[1], "judge": places[2]},
            dtype=placement.torch_dtype(),
            num_blocks=self.num_blocks,
            servers=self.server.servers(draft_alone=mode == "draft"),
        )
        return placement.attend(reasoner)

    def target_device(self, mode: str) -> torch.device | Spread:
        """Where the target goes, over several ranks if there are several devices for it. In mode
        draft it is the draft.
        """
        import torch

        place = self.devices()[1 if mode == "draft" else 0]
        devices = [torch.device(place)]
        if place.startswith("cuda") and self.device == "auto" and mode != "draft":
            tiny = self.model in CHECKPOINTS and self.target_gpu_id == RunModels.target_gpu_id
            numbers = [int(part) for part in self.target_gpu_id.split(",")][: 1 if tiny else None]
            devices = [
                torch.device("cuda", n) for n in numbers if n < torch.cuda.device_count()
            ] or devices
            asked = len(numbers) if self.tensor_parallel is None else self.tensor_parallel
            if len(devices) < asked and self.target_gpu_id != RunModels.target_gpu_id:
                raise SettingError(
                    f"target_gpu_id is {self.target_gpu_id!r}, of which {len(devices)} are in this machine; {asked} are needed "
                    f"(tensor_parallel: {self.tensor_parallel}). Name as many GPUs as there shall be ranks."
                )
        return spread(devices, self.tensor_parallel, self.threads)

    def devices(self) -> tuple[str, str, str]:
        """Where target, draft and judge run. A device that the machine does not have is replaced by
        the last one it has if it stands there by default; if it was asked for, it is refused."""
        import torch

        if self.device != "auto" or not torch.cuda.is_available():
            return (str(Placement(self.device).torch_device()),) * 3
        count, places = torch.cuda.device_count(), []
        for name in ("target_gpu_id", "draft_gpu_id", "judge_gpu_id"):
            number = int(getattr(self, name).split(",")[0])
            if number >= count and getattr(self, name) != getattr(RunModels, name):
                raise SettingError(
                    f"{name} is {getattr(self, name)!r}, and this machine has {count} CUDA devices, numbered from 0."
                )
            places.append(f"cuda:{min(number, count - 1)}")
        return places[0], places[1], places[2]
