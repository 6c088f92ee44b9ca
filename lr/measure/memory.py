"""The memory that models need on every device, before anything is loaded: weights and
caches, counted from config.json and the options, next to what is free.

Caches are those that the engine reserves: one per writer, one more for a draft model
that proposes tokens, one for a verifier that asks the target, and a fixed one for the
judge. The draft's weights count twice if its worker is a process of its own.

Worked example: Qwen3-32B in bf16 is 61.0 GiB. A token of its cache is 2 (k and v) * 64
layers * 8 heads * 128 * 2 bytes = 256 KiB, so 37000 tokens are 9 GiB."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from lr.engine.runner import RESERVE, num_kv_blocks_needed
from lr.errors import LRError
from lr.kvcache.branch import BLOCK_SIZE
from lr.kvcache.cache import bytes_per_block
from lr.model.config import ModelConfig
from lr.model.device import DeviceMap
from lr.model.dummy import dummy_name, published
from lr.model.ranks import part_of
from lr.model.weights import EMBEDDING_KEY, HEAD_KEY, config_of, pieces, usual_dtype
from lr.options import GenerateOptions
from lr.registry import split_weights
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
    """What models need for chains of `tokens` tokens. `free`: bytes by device, None if
    unknown."""

    models: tuple[ModelMemory, ...]
    tokens: int
    free: dict[str, int | None]

    def needed(self, device: str) -> int:
        """Bytes on a device."""
        models = [model for model in self.models if device in model.devices]
        overhead = OVERHEAD if device.startswith("cuda") else 0
        return overhead + sum(model.weights + model.cache for model in models)

    def check(self) -> None:
        """Raise `MemoryShortError` unless all devices have enough."""
        for device, free in self.free.items():
            if free is not None and self.needed(device) > free:
                raise MemoryShortError(
                    f"the models do not fit on {device}: {gib(self.needed(device))} "
                    f"are needed, {gib(free)} are free. What helps: a smaller "
                    "--max_tokens_len, draft or judge on another device "
                    "(--draft_gpu_id, --judge_gpu_id), the target over several GPUs "
                    "(--target_gpu_id 0,1), a smaller --dtype, or smaller models. "
                    "lr info --model shows what each of them needs."
                )

    def rows(self) -> list[tuple[str, ...]]:
        """For a table: device, model, weights, cache, needed, free."""
        rows: list[tuple[str, ...]] = []
        for device, free in self.free.items():
            for model in self.models:
                if device in model.devices:
                    sizes = (gib(model.weights), gib(model.cache), "", "")
                    rows.append((device, f"{model.role} {model.name}", *sizes))
            left = "not known" if free is None else gib(free)
            rows.append((device, "together", "", "", gib(self.needed(device)), left))
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
    # 1. The models.
    devices = (places.target, (places.draft,), (places.judge,))
    roles = {
        role: (name, *described(name, dtype, device[0]), device)
        for role, name, device in zip(
            ("target", "draft", "judge"), names, devices, strict=True
        )
        if name is not None and (role != "draft" or options.needs_draft)
    }
    contexts = {
        r: config.max_position_embeddings for r, (_, config, *_) in roles.items()
    }
    tokens = min(tokens, *(contexts[role] for role in contexts if role != "judge"))

    # 2. The blocks of their caches.
    each = num_blocks or share * num_kv_blocks_needed(options, tokens)
    judged = num_blocks or -(-JUDGE_TOKENS // BLOCK_SIZE)
    drafts = options.looks_ahead + options.drafts_tokens
    blocks = {"target": each, "draft": drafts * each, "judge": judged}
    if verifier.partition(":")[0] in ASKS_THE_TARGET and options.looks_ahead:
        longest = contexts["target"] + JUDGE_TOKENS
        blocks["target"] += num_blocks or -(-longest // BLOCK_SIZE)

    # 3. Their bytes.
    overlapped = options.looks_ahead and options.driver == "overlapped"
    copies = {"draft": 2 if overlapped and not places.shares_gpu else 1}
    models = tuple(
        ModelMemory(
            role,
            name,
            tuple(map(device_name, device)),
            copies.get(role, 1)
            * weight_bytes(config, kind, len(device), split_weights(name)[0]),
            cache_bytes(config, kind, blocks[role], len(device)),
        )
        for role, (name, config, kind, device) in roles.items()
    )
    free = {
        device: free_bytes(device) if free_gib is None else int(free_gib * GIB)
        for model in models
        for device in model.devices
    }
    return MemoryPlan(models, tokens, free)


def described(
    name: str, dtype: torch.dtype | None, device: torch.device
) -> tuple[ModelConfig, torch.dtype]:
    """Configuration of a checkpoint, of which only config.json is read, and its dtype on
    a device. Raises `CheckpointError`."""
    source = str(split_weights(name)[1])
    if published(source) is not None and not Path(source).is_dir():
        source = dummy_name(source)
    return config_of(source), dtype or usual_dtype(source, device)


def weight_bytes(
    config: ModelConfig,
    dtype: torch.dtype,
    ranks: int = 1,
    quantised: str | None = None,
) -> int:
    """Bytes of a model's weights on each of `ranks` devices. `quantised`: "int8" or
    "int4", in which all matrices are but the embedding; a tied head becomes one. Raises
    like `part_of`."""
    network = [(piece.key, piece.shape) for piece in pieces(part_of(config, ranks))]
    if quantised is None:
        return dtype.itemsize * sum(prod(sizes) for _, sizes in network)
    if config.tie_word_embeddings:
        network.append((HEAD_KEY, network[0][1]))
    total = 0
    for key, sizes in network:
        if len(sizes) == 1 or key == EMBEDDING_KEY:
            total += dtype.itemsize * prod(sizes)
        elif quantised == "int8":
            total += prod(sizes) + 2 * sizes[0]  # a scale of 16 bits per row
        else:  # two numbers of 16 bits for 32 weights
            total += prod(sizes) * 5 // 8
    return total


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
    if device != "cpu" or not listing.is_file():
        return None
    available = re.search(r"MemAvailable:\s+(\d+) kB", listing.read_text("utf-8"))
    return None if available is None else int(available[1]) * 1024


def gib(size: int) -> str:
    """A number of bytes in GiB or MiB."""
    return f"{size / GIB:.1f} GiB" if size >= GIB // 10 else f"{size / 2**20:.1f} MiB"
