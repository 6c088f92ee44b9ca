"""The memory that models need on every device, before anything is loaded: weights and
caches, counted from config.json and the options, next to what is free.

Caches are those that the engine reserves: one per writer, one more for a draft model
that proposes tokens, one for a verifier that asks the target, and a fixed one for the
judge. A judge that is the target or the draft again shares its weights. The draft's
weights count twice if its worker is a process of its own; quantised weights count in
full, as they are while they are loaded.

Worked example: Qwen3-32B in bf16 is 61.0 GiB. A token of its cache is 2 (k and v) * 64
layers * 8 heads * 128 * 2 bytes = 256 KiB, so 37000 tokens are 9 GiB."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from lr.engine.runner import RESERVE, num_kv_blocks_needed
from lr.errors import SettingError
from lr.kvcache.branch import BLOCK_SIZE, blocks_for
from lr.measure.dummy import published
from lr.model.config import ModelConfig
from lr.model.device import DeviceMap, can_share_weights, is_one_gpu
from lr.model.ranks import part_of
from lr.model.weights import config_of, num_weights, usual_dtype
from lr.options import GenerateOptions
from lr.registry import Checkpoint
from lr.spec.verifiers.judge import JUDGE_TOKENS

GIB = 2**30
OVERHEAD = RESERVE + GIB
"""Bytes of a CUDA device that are no weights and no cache: what the engine leaves free
for activations and CUDA graphs; contexts, kernels and the workspaces of libraries."""


@dataclass(frozen=True)
class MemoryPlan:
    """`models`: device, model, and the bytes of its weights and caches there. `free`:
    bytes by device, None if unknown."""

    models: Sequence[tuple[str, str, int, int]]
    free: dict[str, int | None]

    def needed(self, device: str) -> int:
        """Bytes on a device."""
        total = OVERHEAD if device.startswith("cuda") else 0
        for place, _, weights, cache in self.models:
            if place == device:
                total += weights + cache
        return total

    def check(self) -> None:
        """Raise `SettingError` unless all devices have enough."""
        for device, free in self.free.items():
            if free is not None and self.needed(device) > free:
                raise SettingError(
                    f"the models do not fit on {device}: {gib(self.needed(device))} "
                    f"are needed, {gib(free)} are free. What helps: a smaller "
                    "--max_tokens_len, draft or judge on another device, the target "
                    "over several GPUs (--target_gpu_id 0,1), or smaller models."
                )


def plan_memory(
    names: Sequence[str | None],
    places: DeviceMap,
    dtype: torch.dtype | None,
    options: GenerateOptions,
    tokens: int,
    *,
    verifier: str = "exact",
    share: int = 1,
    num_blocks: int | None = None,
    free_gib: float | None = None,
) -> MemoryPlan:
    """The plan for target, draft and judge (None: there is none), with `share` answers
    at a time whose prompt and answer together have at most `tokens` tokens.

    Only config.json is read; nothing is downloaded for a known shape. `dtype` None: the
    usual one. `num_blocks`: as in `Reasoner`. `free_gib`: what every device has free;
    None: what it has now.
    """
    devices = {
        "target": places.target,
        "draft": (places.draft,),
        "judge": (places.judge,),
    }
    asks = options.looks_ahead and verifier.partition(":")[0] == "score"
    one_gpu = is_one_gpu(places.draft, places.target[0])
    beside = options.driver == "overlapped" and not one_gpu
    models = []
    loaded: list[tuple[str, Sequence[torch.device]]] = []  # names, and on which devices
    for (role, on), name in zip(devices.items(), names, strict=True):
        if name is None or (role == "draft" and not options.needs_draft):
            continue
        checkpoint = Checkpoint.parse(name)
        if published(checkpoint.place) is not None:
            checkpoint = replace(checkpoint, dummy=True)
        source = str(checkpoint)
        config = config_of(source)

        # 1. The blocks of its caches; no chain is longer than the target's context.
        if role != "draft":
            context = config.max_position_embeddings
        question = blocks_for(JUDGE_TOKENS + asks * context, BLOCK_SIZE)
        chain = share * num_kv_blocks_needed(options, min(tokens, context))
        blocks = num_blocks or (question if role == "judge" else chain)
        if role == "draft":
            blocks *= options.looks_ahead + options.drafts_tokens
        elif role == "target" and asks:
            blocks += num_blocks or question

        # 2. Its bytes.
        kind = dtype or usual_dtype(source, on[0])
        weights, cache = model_bytes(config, kind, blocks, ranks=len(on))
        copies = 1
        label = f"{role} {name}"
        if role == "judge" and (name, on) in loaded:
            copies = 0
            label += ", shared"
        elif role == "draft" and beside:
            shared = can_share_weights(on[0], weights)
            copies += options.looks_ahead and not shared
        models += [(str(d), label, copies * weights, cache) for d in on]
        loaded.append((name, on))
    free = {}
    for device, *_ in models:
        free[device] = free_bytes(device) if free_gib is None else int(free_gib * GIB)
    return MemoryPlan(models, free)


def model_bytes(
    config: ModelConfig, dtype: torch.dtype, blocks: int, ranks: int = 1
) -> tuple[int, int]:
    """Bytes of a model's weights, and of a cache of `blocks` blocks, on each of `ranks`
    devices. Raises as `part_of`."""
    part = part_of(config, ranks)
    cached = blocks * BLOCK_SIZE * part.cached_per_token
    return num_weights(part) * dtype.itemsize, cached * dtype.itemsize


def free_bytes(device: str) -> int | None:
    """Bytes that are free on a device now; None if unknown."""
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    listing = Path("/proc/meminfo")
    if device != "cpu" or not listing.is_file():
        return None
    available = re.search(r"MemAvailable:\s+(\d+) kB", listing.read_text("utf-8"))
    return None if available is None else int(available[1]) * 1024


def gib(size: int) -> str:
    """A number of bytes in GiB."""
    return f"{size / GIB:.1f} GiB"
