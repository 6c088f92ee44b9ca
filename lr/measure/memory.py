"""The memory that models need on every device, before anything is loaded: weights and
caches, counted exactly from config.json and the options, next to what is free.

Caches are those that the engine reserves: one per writer, one more for a draft model
that proposes tokens, one for a verifier that asks the target, and a fixed one for the
judge. The draft's weights count twice if its worker is a process of its own.

Worked example: Qwen3-32B in bf16 is 61.0 GiB. A token of its cache is 2 (k and v) * 64
layers * 8 heads * 128 * 2 bytes = 256 KiB, so 37000 tokens are 9 GiB."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from lr.engine.runner import RESERVE, num_kv_blocks_needed
from lr.errors import LRError
from lr.kvcache.branch import BLOCK_SIZE
from lr.kvcache.cache import bytes_per_block
from lr.model.config import ModelConfig, read_config
from lr.model.device import DeviceMap
from lr.model.dummy import published, shape
from lr.model.files import resolve
from lr.model.ranks import part_of
from lr.model.weights import cpu_dtype, pieces, stored_dtype
from lr.options import GenerateOptions
from lr.registry import is_dummy
from lr.spec.verifiers.judge import JUDGE_TOKENS

GIB = 2**30
OVERHEAD = RESERVE + GIB
"""Bytes of a CUDA device that are no weights and no cache: what the engine leaves free
for activations and CUDA graphs; contexts, kernels and the workspaces of libraries."""
ASKS_THE_TARGET = ("score", "likelihood")  # verifiers with a cache of the target


class MemoryShortError(LRError):
    """The models do not fit on their devices."""


@dataclass(frozen=True)
class ModelMemory:
    """The bytes that a model needs on each of its devices."""

    role: str
    name: str
    devices: tuple[str, ...]
    weights: int
    cache: int


@dataclass(frozen=True)
class MemoryPlan:
    """What models need. `tokens`: the length of the longest chain; `longest`: the
    length that would fit. `free`: bytes by device, None if unknown."""

    models: tuple[ModelMemory, ...]
    tokens: int
    free: dict[str, int | None]
    longest: int

    def needed(self, device: str) -> int:
        """Bytes on a device."""
        return needed(self.models, device)

    def check(self) -> None:
        """Raise `MemoryShortError`, with sizes and remedies, unless all devices have
        enough."""
        for device, free in self.free.items():
            if free is None or self.needed(device) <= free:
                continue
            sizes = ", ".join(
                f"{model.role} {model.name}: weights {gib(model.weights)}, cache {gib(model.cache)}"
                for model in self.models
                if device in model.devices
            )
            shorter = f"--max_tokens_len {self.longest} fits; " if self.longest else ""
            raise MemoryShortError(
                f"the models do not fit on {device}: {gib(self.needed(device))} are needed, "
                f"{gib(free)} are free ({sizes}). What helps: {shorter}draft or judge on another "
                "device (--draft_gpu_id, --judge_gpu_id), the target over several GPUs "
                "(--target_gpu_id 0,1), a smaller --dtype, or smaller models."
            )

    def rows(self) -> list[tuple[str, ...]]:
        """For a table: device, model, weights, cache, needed, free."""
        rows: list[tuple[str, ...]] = []
        for device, free in self.free.items():
            for model in self.models:
                if device in model.devices:
                    sizes = (gib(model.weights), gib(model.cache), "", "")
                    rows.append((device, f"{model.role} {model.name}", *sizes))
            known = "not known" if free is None else gib(free)
            rows.append((device, "together", "", "", gib(self.needed(device)), known))
        return rows


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
    usual one. `num_blocks`: cache blocks of 16 tokens per model; None: as many
    as needed. `free_gib`: what every device has free; None: what it has now.
    """
    # 1. The models, where they are, and the weights of each device.
    devices = (places.target, (places.draft,), (places.judge,))
    roles = ("target", "draft", "judge")
    known = [
        (
            role,
            name,
            described(name, dtype, where[0].type),
            tuple(map(device_name, where)),
        )
        for role, name, where in zip(roles, names, devices, strict=True)
        if name is not None and (role != "draft" or options.needs_draft)
    ]
    overlapped = options.looks_ahead and options.driver == "overlapped"
    twice = overlapped and not places.shares_gpu
    weights = {
        role: weight_bytes(*model, len(where)) * (2 if role == "draft" and twice else 1)
        for role, _, model, where in known
    }
    writers = [config for role, _, (config, _), _ in known if role != "judge"]
    tokens = min(tokens, *(config.max_position_embeddings for config in writers))

    # 2. The caches, for chains of some length.
    def at(tokens: int) -> tuple[ModelMemory, ...]:
        each = num_blocks or share * num_kv_blocks_needed(options, tokens)
        judged = num_blocks or -(-JUDGE_TOKENS // BLOCK_SIZE)
        caches = options.looks_ahead + options.drafts_tokens  # of the draft
        blocks = {"target": each, "draft": caches * each, "judge": judged}
        if verifier.partition(":")[0] in ASKS_THE_TARGET and options.looks_ahead:
            longest = writers[0].max_position_embeddings + JUDGE_TOKENS
            blocks["target"] += num_blocks or -(-longest // BLOCK_SIZE)
        return tuple(
            ModelMemory(
                role,
                name,
                where,
                weights[role],
                cache_bytes(*model, blocks[role], len(where)),
            )
            for role, name, model, where in known
        )

    # 3. What is free, and the longest chain for which it is enough.
    free = {}
    for *_, where in known:
        for device in where:
            given = None if free_gib is None else int(free_gib * GIB)
            free[device] = free_bytes(device) if given is None else given

    def too_long(tokens: int) -> bool:
        models = at(tokens)
        return any(n is not None and n < needed(models, d) for d, n in free.items())

    longest = bisect_left(range(1, tokens + 1), True, key=too_long)
    return MemoryPlan(at(tokens), tokens, free, longest)


def needed(models: Sequence[ModelMemory], device: str) -> int:
    """Bytes of these models on a device."""
    sizes = [model.weights + model.cache for model in models if device in model.devices]
    return sum(sizes) + (OVERHEAD if device.startswith("cuda") else 0)


def described(
    name: str, dtype: torch.dtype | None, device: str
) -> tuple[ModelConfig, torch.dtype]:
    """Configuration of a checkpoint, of which only config.json is read, and its dtype on
    a kind of device. Raises `CheckpointError`."""
    if is_dummy(name) or (published(name) is not None and not Path(name).is_dir()):
        config, stored = shape(name), torch.bfloat16
    else:
        folder = resolve(name, weights=False)
        config, stored = read_config(folder), stored_dtype(folder)
    if dtype is None:
        dtype = cpu_dtype(config, stored) if device == "cpu" else stored
    return config, dtype


def weight_bytes(config: ModelConfig, dtype: torch.dtype, ranks: int = 1) -> int:
    """Bytes of a model's weights on each of `ranks` devices. Raises like `part_of`."""
    shapes = (piece.shape for piece in pieces(part_of(config, ranks)))
    return dtype.itemsize * sum(map(prod, shapes))


def cache_bytes(
    config: ModelConfig, dtype: torch.dtype, blocks: int, ranks: int = 1
) -> int:
    """Bytes of a cache of `blocks` blocks on each of `ranks` devices."""
    return blocks * bytes_per_block(
        num_layers=config.num_layers,
        num_kv_heads=part_of(config, ranks).num_kv_heads,
        head_dim=config.head_dim,
        block_size=BLOCK_SIZE,
        dtype=dtype,
    )


def device_name(device: torch.device) -> str:
    """A device by name; the first GPU has one name, not two."""
    return "cuda:0" if device == torch.device("cuda") else str(device)


def free_bytes(device: str) -> int | None:
    """Bytes that are free on a device now; None if unknown."""
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    listing = Path("/proc/meminfo")
    if device == "cpu" and listing.is_file():
        for line in listing.read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def gib(size: int) -> str:
    """A number of bytes in GiB or MiB."""
    return f"{size / GIB:.1f} GiB" if size >= GIB // 10 else f"{size / 2**20:.1f} MiB"
