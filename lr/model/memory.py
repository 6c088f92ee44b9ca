"""How much memory models take, before anything is loaded: weights and cache, counted exactly;
working memory, estimated from above.

Weights follow from the configuration and the dtype, the cache from its blocks; no tensor is read.
Needs are added up per device, since draft, target and judge may share one, and compared with what
is free there. What does not fit is said with the numbers of every model and what would help.

Worked example: Qwen3-32B in bf16 is 61.0 GiB. A token of its cache is 2 (k and v) * 64 layers * 8
heads * 128 * 2 bytes = 256 KiB, so 37000 tokens are 9 GiB. This module knows no options and no
placement. Read next: `engine/runners.py` (how many blocks), `commands/memory.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from lr.errors import LRError
from lr.kvcache.cache import bytes_per_block
from lr.model.config import ModelConfig
from lr.model.weights import EMBEDDING_KEY, HEAD_KEY, pieces

GIB = 2**30
CONTEXT_BYTES = GIB // 2
"""Allowed for what a process takes of a CUDA device before the first tensor: context, kernels,
library workspaces.
"""
BATCH_TOKENS = 4096
"""Rows of the largest forward; see `ModelRunner.max_batch_tokens`."""
LOGIT_BYTES = 24
"""Per logit while a token is drawn: the model's own, fp32 scores and probabilities, fp64 noise."""


class MemoryShortError(LRError):
    """The models do not fit where they are to run."""


@dataclass(frozen=True)
class ModelNeed:
    """What one model takes on one device, in bytes. `role` and `name` are for people.

    `per_token`: what each token of the longest chain costs of the cache; 0 where the cache does not
    depend on it.
    """

    role: str
    name: str
    device: str
    weights: int
    cache: int
    working: int
    per_token: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.working


def weight_bytes(config: ModelConfig, dtype: torch.dtype, ranks: int = 1) -> int:
    """Bytes of a model's weights on each of `ranks` tensor-parallel devices (the fullest, where the
    vocabulary does not divide).

    Matrices are split; norms, and with fewer KV heads than ranks the k and v rows of a head, stand
    on every rank that needs them.
    """
    total = 0
    for piece in pieces(config):
        size = math.prod(piece.shape)
        if "norm" in piece.key:
            total += size
        elif ".k_proj." in piece.key or ".v_proj." in piece.key:
            total += size * max(1, config.num_kv_heads // ranks) // config.num_kv_heads
        elif piece.key in (EMBEDDING_KEY, HEAD_KEY):
            total += -(-piece.shape[0] // ranks) * piece.shape[1]
        else:
            total += size // ranks
    return total * dtype.itemsize


def cache_bytes(
    config: ModelConfig, dtype: torch.dtype, blocks: int, block_size: int, ranks: int = 1
) -> int:
    """Bytes of a cache of `blocks` blocks on each of `ranks` devices."""
    heads = max(1, config.num_kv_heads // ranks)
    return blocks * bytes_per_block(
        num_layers=config.num_layers,
        num_kv_heads=heads,
        head_dim=config.head_dim,
        block_size=block_size,
        dtype=dtype,
    )


def working_bytes(config: ModelConfig, dtype: torch.dtype, tokens: int, logit_rows: int) -> int:
    """An upper estimate of what a forward of `tokens` rows needs beside weights and cache: the
    widest layer's intermediate results, and the logits of `logit_rows` rows while tokens are drawn
    from them. A longer prompt goes in pieces of `BATCH_TOKENS`."""
    heads = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    wide = 3 * config.intermediate_size + 4 * config.hidden_size + 2 * heads
    return (
        min(tokens, BATCH_TOKENS) * wide * dtype.itemsize
        + logit_rows * config.vocab_size * LOGIT_BYTES
    )


def free_bytes(device: str | torch.device) -> int | None:
    """Bytes that can be taken on a device now; None where nobody says (the plan then cannot
    refuse).
    """
    place = torch.device(device)
    if place.type == "cuda":
        return int(torch.cuda.mem_get_info(place)[0])
    listing = Path("/proc/meminfo")
    if place.type == "cpu" and listing.is_file():
        for line in listing.read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


@dataclass(frozen=True)
class DevicePlan:
    """All that is to be on one device. `free` None: not known."""

    device: str
    free: int | None
    needs: tuple[ModelNeed, ...]

    @property
    def needed(self) -> int:
        context = CONTEXT_BYTES if self.device.startswith("cuda") else 0
        return context + sum(need.total for need in self.needs)

    @property
    def fits(self) -> bool:
        return self.free is None or self.needed <= self.free

    def longest(self, tokens: int) -> int:
        """The longest chain, in tokens, with which it fits; 0 where none does. `tokens` is the
        length that was planned.
        """
        if self.fits:
            return tokens
        assert self.free is not None
        slope = sum(need.per_token for need in self.needs)
        return max(0, tokens - -(-(self.needed - self.free) // slope)) if slope else 0


@dataclass(frozen=True)
class MemoryPlan:
    """Where everything goes; `tokens`: the longest chain that was planned for."""

    devices: tuple[DevicePlan, ...]
    tokens: int

    @classmethod
    def of(
        cls, needs: Iterable[ModelNeed], tokens: int, free: Callable[[str], int | None] = free_bytes
    ) -> MemoryPlan:
        """Add up needs per device, in the order in which devices come. `free` says what is free on
        a device.
        """
        by_device: dict[str, list[ModelNeed]] = {}
        for need in needs:
            by_device.setdefault(need.device, []).append(need)
        return cls(
            tuple(
                DevicePlan(device, free(device), tuple(found))
                for device, found in by_device.items()
            ),
            tokens,
        )

    @property
    def needed(self) -> int:
        """Bytes on all devices together."""
        return sum(device.needed for device in self.devices)

    def check(self) -> None:
        """Raise `MemoryShortError`, with all numbers and what would help, unless every device has
        room.
        """
        short = [device for device in self.devices if not device.fits]
        if short:
            raise MemoryShortError(
                "\n".join([*(_shortage(device, self.tokens) for device in short)])
            )

    def rows(self) -> list[tuple[str, ...]]:
        """For a table: device, model, weights, cache, working, total, free; one row per model, one
        per device for the sum.
        """
        found = []
        for device in self.devices:
            for need in device.needs:
                sizes = (need.weights, need.cache, need.working, need.total)
                found.append((device.device, f"{need.role} {need.name}", *map(gib, sizes), ""))
            free = "not known" if device.free is None else gib(device.free)
            found.append((device.device, "together", "", "", "", gib(device.needed), free))
        return found


def gib(size: int) -> str:
    """A number of bytes for people."""
    return f"{size / GIB:.1f} GiB" if size >= GIB // 10 else f"{size / 2**20:.1f} MiB"


def _shortage(device: DevicePlan, tokens: int) -> str:
    assert device.free is not None
    parts = "; ".join(
        f"{need.role} {need.name}: weights {gib(need.weights)}, cache {gib(need.cache)}, working "
        f"{gib(need.working)}"
        for need in device.needs
    )
    return (
        f"the models do not fit on {device.device}: {gib(device.needed)} are needed, "
        f"{gib(device.free)} are free. {parts}. "
        f"{_advice(device, tokens)}"
    )


def _advice(device: DevicePlan, tokens: int) -> str:
    """What would help, the gentlest first."""
    ways: list[str] = []
    longest = device.longest(tokens)
    if longest >= 1024:
        ways.append(f"--max_tokens_len {longest // 64 * 64} instead of {tokens} fits")
    cuda = device.device.startswith("cuda")
    if len(device.needs) > 1 and cuda:
        ways.append("put draft or judge on another device (--draft_gpu_id, --judge_gpu_id)")
    if any(need.role == "target" for need in device.needs) and cuda:
        ways.append("split the target over several GPUs (--target_gpu_id 0,1)")
    ways.append("take a smaller --dtype or smaller models")
    return "What helps: " + "; or ".join(ways) + "."
