"""Which models `lr run` takes and where they run: the official tool's flags and defaults, and a
tiny family where those cannot run.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from lr.commands.options import Placement, ServerChoice, judge_address, spread, torch_dtype
from lr.errors import SettingError
from lr.model.dummy import DUMMY_NOTE, dummy_name
from lr.options import DRAFT_MODEL_DRAFTERS, LOOKAHEAD, GenerateOptions
from lr.registry import CHECKPOINTS, is_served
from lr.types import require

if TYPE_CHECKING:
    import torch

    from lr.engine.memory import MemoryPlan
    from lr.model.ranks import Spread
    from lr.reasoner import Reasoner

OFFICIAL = ("Qwen/Qwen3-32B", "Qwen/Qwen3-1.7B", "Qwen/Qwen2.5-7B-Instruct")
"""Target, draft, judge: the defaults of the official tool."""
TINY = ("tiny-target", "tiny-draft", "tiny-judge")
PLANS = ("plans-target", "plans-draft", None)
"""There is no judge for plans: the oracle judges."""
GPU_IDS = ("target_gpu_id", "draft_gpu_id", "judge_gpu_id")


@dataclass(frozen=True)
class RunModels:
    """Models and devices. What is not said is the official tool's choice; for tiny:N and plans:N,
    and where there is no CUDA device, it is a tiny family's."""

    model: str | None = None
    """The target. None: Qwen/Qwen3-32B; tiny-target for data set tiny:N and where there is no CUDA
    device; plans-target for plans:N."""
    draft_model: str | None = None
    """The draft. None: Qwen/Qwen3-1.7B, or tiny-draft beside tiny-target, plans-draft beside
    plans-target."""
    judge_model: str | None = None
    """The judge, or the encoder of verifier embedding. None: Qwen/Qwen2.5-7B-Instruct, or
    tiny-judge beside tiny-target."""
    verifier: str | None = None
    """judge, exact, embedding, score, likelihood, random, each with :threshold; oracle for the tiny
    languages. None: judge; for plans-target, which has none, oracle."""
    judge_port: int | None = None
    """The port of an OpenAI-compatible server on this machine that has the judge; --judge_model is
    then its name there."""
    target_gpu_id: str = "0,1"
    """With --device auto: CUDA devices of the target, by number."""
    draft_gpu_id: str = "2"
    """With --device auto: CUDA device of the draft."""
    judge_gpu_id: str = "3"
    """With --device auto: CUDA device of the judge."""
    tensor_parallel: int | None = None
    """Ranks over which the target is spread. None: one for each GPU of --target_gpu_id that is
    there; on the CPU 1."""
    load_format: Literal["auto", "dummy"] = "auto"
    """dummy: random weights in the shape of each model (a published name, or a directory with a
    config.json): for measuring only."""
    placement: Placement = field(default_factory=Placement)
    server: ServerChoice = field(default_factory=ServerChoice)

    def check(self) -> None:
        """Refuse what cannot be, before anything is loaded."""
        if self.judge_port is not None:
            judge_address(self.judge_port, None)
            if is_served(self.judge_model):
                raise SettingError(
                    f"judge_port is {self.judge_port} and judge_model {self.judge_model!r}, an "
                    "address with a port of its own; give one."
                )
        for name in GPU_IDS:
            value = getattr(self, name)
            numbers = all(part.strip().isdecimal() for part in value.split(","))
            require(numbers, name, value, "numbers of CUDA devices such as 0 or 0,1")

    def chosen(self, dataset: str) -> tuple[RunModels, str | None]:
        """These settings with every model named, and a note where that is not what the official
        tool would take."""
        import torch

        note, model = None, self.model
        if model is None:
            family = dataset.partition(":")[0]
            model = {"tiny": TINY[0], "plans": PLANS[0]}.get(family, OFFICIAL[0])
            if model == OFFICIAL[0] and not torch.cuda.is_available():
                note = (
                    f"no CUDA device here: the models are {TINY[0]}, {TINY[1]} and {TINY[2]} "
                    f"instead of {OFFICIAL[0]} and its kin"
                )
                model = TINY[0]
        _, draft, judge = {TINY[0]: TINY, PLANS[0]: PLANS}.get(model, OFFICIAL)
        draft = draft if self.draft_model is None else self.draft_model
        if self.judge_port is not None:
            judge = judge_address(self.judge_port, self.judge_model)
            verifier = self.verifier or "judge"
        else:
            none = judge is None and self.judge_model is None
            verifier = self.verifier or ("oracle" if none else "judge")
            usual = judge if verifier.partition(":")[0] == "judge" else None
            judge = usual if self.judge_model is None else self.judge_model
        if self.load_format == "dummy":
            model, draft, note = dummy_name(model), dummy_name(draft), DUMMY_NOTE
            if judge is not None and not is_served(judge):
                judge = dummy_name(judge)
        made = replace(self, model=model, draft_model=draft, judge_model=judge, verifier=verifier)
        return made, note

    def used_in(self, mode: str, drafter: str) -> RunModels:
        """The models that a mode uses, of settings that were `chosen`; None for the others. Mode
        draft has the draft alone."""
        judges = mode in LOOKAHEAD
        drafts = mode not in ("ar", "sd") or (mode == "sd" and drafter in DRAFT_MODEL_DRAFTERS)
        return replace(
            self,
            model=None if mode == "draft" else self.model,
            draft_model=self.draft_model if drafts else None,
            judge_model=self.judge_model if judges else None,
            verifier=self.verifier if judges else None,
        )

    def settings(self) -> dict[str, Any]:
        """All that an answer, or its speed, can depend on: neither keys nor ports."""
        server = {
            name: value
            for name, value in asdict(self.server).items()
            if name.endswith("tokenizer") and value is not None
        }
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ("judge_port", "placement", "server"):
            del own[name]
        return own | asdict(self.placement) | server

    def load(self) -> Reasoner:
        """The reasoner, of settings from `used_in`."""
        from lr.reasoner import Reasoner

        target, draft = self._writers()
        self.placement.set_threads(target, draft)
        _, draft_device, judge_device = self.devices()
        reasoner = Reasoner(
            target,
            draft,
            self.verifier or "exact",
            judge=self.judge_model,
            device={"target": self.target_device(), "draft": draft_device, "judge": judge_device},
            dtype=self.placement.torch_dtype(),
            num_blocks=self.placement.num_blocks,
            servers=self.server.servers(draft_alone=self.model is None),
        )
        return self.placement.attend(reasoner)

    def _writers(self) -> tuple[str, str | None]:
        """Target and draft; a draft that is alone takes the target's place."""
        if self.model is None:
            assert self.draft_model is not None, "made by used_in"
            return self.draft_model, None
        return self.model, self.draft_model

    def target_device(self) -> torch.device | Spread:
        """Where the target goes, over several ranks if there are several devices for it."""
        import torch

        place = self.devices()[0 if self.model is not None else 1]
        devices = [torch.device(place)]
        if place.startswith("cuda") and self.placement.device == "auto" and self.model is not None:
            usual = self.target_gpu_id == RunModels.target_gpu_id
            numbers = [int(part) for part in self.target_gpu_id.split(",")]
            if self.model in CHECKPOINTS and usual:
                numbers = numbers[:1]
            there = [torch.device("cuda", n) for n in numbers if n < torch.cuda.device_count()]
            devices = there or devices
            needed = len(numbers) if self.tensor_parallel is None else self.tensor_parallel
            if len(devices) < needed and not usual:
                raise SettingError(
                    f"target_gpu_id is {self.target_gpu_id!r}, of which {len(devices)} are in this "
                    f"machine; {needed} are needed (tensor_parallel: {self.tensor_parallel}). "
                    "Name as many GPUs as there shall be ranks."
                )
        return spread(devices, self.tensor_parallel, self.placement.threads)

    def devices(self) -> tuple[str, str, str]:
        """Where target, draft and judge run. A default device that the machine does not have is
        replaced by the last one it has; one that was asked for is refused."""
        import torch

        if self.placement.device != "auto" or not torch.cuda.is_available():
            return (str(self.placement.torch_device()),) * 3
        count, places = torch.cuda.device_count(), []
        for name in GPU_IDS:
            value = getattr(self, name)
            first = int(value.split(",")[0])
            if first >= count and value != getattr(RunModels, name):
                raise SettingError(
                    f"{name} is {value!r}, and this machine has {count} CUDA devices, numbered "
                    "from 0."
                )
            places.append(f"cuda:{min(first, count - 1)}")
        return places[0], places[1], places[2]

    def memory(self, options: GenerateOptions, tokens: int, share: int) -> MemoryPlan | None:
        """What a run with these models (from `used_in`) takes of every device; None where the
        target is behind a server."""
        import torch

        from lr.engine.memory import Cast, place, plan_run
        from lr.model.device import DeviceMap
        from lr.model.ranks import Spread

        target, draft = self._writers()
        if is_served(target):
            return None
        where = self.target_device()
        devices = where.devices if isinstance(where, Spread) else (where,)
        _, draft_device, judge_device = self.devices()
        dtype = torch_dtype(self.placement.dtype, str(devices[0]))
        judge = self.judge_model if (self.verifier or "").startswith("judge") else None
        drafting, judging = (
            None if name is None or is_served(name) else place(name, (device,), dtype)
            for name, device in ((draft, draft_device), (judge, judge_device))
        )
        layout = DeviceMap(tuple(devices), torch.device(draft_device), torch.device(judge_device))
        cast = Cast(
            place(target, tuple(map(str, devices)), dtype),
            drafting,
            judging,
            self.verifier or "exact",
            not layout.shares_gpu,
        )
        return plan_run(cast, options, tokens, share=share, num_blocks=self.placement.num_blocks)
