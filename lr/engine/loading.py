"""How the models of an engine are loaded, as data that can be sent to the draft's
process."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from lr.engine.runner import Runners
from lr.errors import SettingError
from lr.model.attention_choice import equip
from lr.model.codec import Codec
from lr.model.device import find_device
from lr.model.pack import can_pack, pack
from lr.model.qwen import CausalLM
from lr.model.weights import LoadProgress, load_model, usual_dtype


@dataclass(frozen=True)
class Loader:
    """`dtype` None: the usual one on its device (`usual_dtype`). `attention`, `graphs` and
    `progress`: as in `Reasoner`."""

    dtype: torch.dtype | None = None
    attention: str = "auto"
    graphs: bool = True
    progress: LoadProgress | None = None

    def load(self, name: str | Path, *devices: str | torch.device) -> CausalLM:
        """A model, ready to run, split over several processes if there are several
        devices. Raises `CheckpointError` and `SettingError`."""
        first, *others = map(find_device, devices)
        dtype = self.dtype or usual_dtype(name, first)  # float32 on most CPUs
        if others:
            from lr.model.ranks import load_parallel  # torch.distributed

            model: CausalLM = load_parallel(name, [first, *others], dtype)
        else:
            model = load_model(name, device=first, dtype=dtype, progress=self.progress)
            if can_pack(model):
                pack(model)
        equip(model, self.attention, graphs=self.graphs)
        return model

    def load_draft(
        self, name: str | Path, device: torch.device, codec: Codec
    ) -> CausalLM:
        """A draft for the target with this `codec`."""
        model = self.load(name, device)
        rows = model.config.vocab_size  # of its embedding
        if rows < codec.vocab_size:
            raise SettingError(
                f"draft {name} has embeddings for {rows} token ids, but target {codec.name} can "
                f"write {codec.vocab_size}. Choose a draft with an embedding for each of them."
            )
        return model


@dataclass(frozen=True)
class DraftCheckpoint:
    """The draft of a process. `model`: the one loaded here, whose weights both read; None:
    the process loads the checkpoint for itself. `pieces`: the bytes of each token."""

    loader: Loader
    name: str | Path
    device: torch.device
    model: CausalLM | None = None
    pieces: tuple[bytes, ...] = ()
    known_tokens: int | None = None  # of the draft's tokenizer
    num_blocks: int | None = None

    def __call__(self) -> tuple[Runners, Callable[[int], bytes]]:
        # the weights are shared on a CPU
        model = self.model or self.loader.load(self.name, self.device)
        # caches of this process
        runners = Runners(model, len(self.pieces), self.known_tokens, self.num_blocks)
        return runners, self.pieces.__getitem__
