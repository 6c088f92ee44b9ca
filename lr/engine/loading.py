"""How the models of an engine are loaded, as data that can be sent to the draft's
process."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from lr.engine.runner import IdleRunners
from lr.model.attention_choice import equip
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


def load_parts(
    loader: Loader,
    name: str | Path,
    device: torch.device,
    model: CausalLM | None,
    pieces: tuple[bytes, ...],
    known_tokens: int | None,
    num_blocks: int | None,
) -> tuple[IdleRunners, Callable[[int], bytes]]:
    """What the draft's process works with. `model`: the one loaded there, whose weights
    both read; None: this process loads the checkpoint for itself. `pieces`: the bytes of
    each token; the draft's tokenizer knows only ids below `known_tokens`."""
    model = model or loader.load(name, device)
    # caches of this process
    runners = IdleRunners(model, len(pieces), known_tokens, num_blocks)
    return runners, pieces.__getitem__
