"""The memory that a run needs on every device, before anything is loaded.

Weights and caches are counted exactly, from config.json and options; working memory is
an upper estimate. Caches are those that the engine reserves: one per writer, one more
for a draft model that proposes tokens, one for a verifier that asks the target, and a
fixed one for the judge. The draft's weights count twice if driver "overlapped" gives
its process a copy. Needs are added up per device, since models may share one, and
compared with its free memory.

Worked example: Qwen3-32B in bf16 is 61.0 GiB. A token of its cache is 2 (k and v) * 64
layers * 8 heads * 128 * 2 bytes = 256 KiB, so 37000 tokens are 9 GiB."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from lr.engine.runner import RESERVE, num_kv_blocks_needed
from lr.errors import CheckpointError, LRError
from lr.kvcache.branch import BLOCK_SIZE
from lr.kvcache.cache import bytes_per_block
from lr.model.config import ModelConfig, read_config
from lr.model.dummy import published, shape
from lr.model.files import read_json, resolve
from lr.model.ranks import part_of
from lr.model.weights import pieces
from lr.options import GenerateOptions
from lr.registry import is_dummy
from lr.spec.verifiers.judge import JUDGE_TOKENS

GIB = 2**30
CONTEXT_BYTES = (
    GIB // 2
)  # Per process and CUDA device: context, kernels, library workspaces.
BATCH_TOKENS = 4096  # Rows of the largest forward (`ModelRunner.max_batch_tokens`).
LOGIT_BYTES = (
    24  # While a token is drawn: logit, fp32 score and probability, fp64 noise.
)
ASKS_THE_TARGET = (
    "score",
    "likelihood",
)  # Verifiers with their own cache of the target.


class MemoryShortError(LRError):
    """The models do not fit on their devices."""


@dataclass(frozen=True)
class Placed:
    """A model in `dtype` on its devices: on one, or split over several."""

    name: str
    config: ModelConfig
    dtype: torch.dtype
    devices: tuple[str, ...]


@dataclass(frozen=True)
class PlacedModels:
    """The models of a run. `verifier` as in `VerifierChoice`. `apart`: a draft worker
    has its own weights."""

    target: Placed
    draft: Placed | None = None
    judge: Placed | None = None
    verifier: str = "exact"
    apart: bool = True


@dataclass(frozen=True)
class ModelNeed:
    """The bytes that one model needs on one device. `per_token`: bytes of the cache per
    token of the longest chain; 0 if the cache does not depend on it."""

    role: str
    name: str
    weights: int
    cache: int
    working: int
    per_token: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.working


def place(
    name: str | Path, devices: tuple[str, ...], dtype: torch.dtype | None = None
) -> Placed:
    """A checkpoint by name. Needs only its config.json: reads no weights, and downloads
    nothing for a known shape.

    `dtype` None: that of config.json, or bfloat16 if it states none. Raises
    `CheckpointError`."""
    if is_dummy(name) or (published(name) is not None and not Path(name).is_dir()):
        return Placed(str(name), shape(name), dtype or torch.bfloat16, devices)
    folder = resolve(name, weights=False)
    raw = read_json(folder / "config.json")
    stated = str(raw.get("dtype") or raw.get("torch_dtype") or "bfloat16")
    found = dtype or getattr(torch, stated.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise CheckpointError(
            f"config.json of {folder} says dtype {stated!r}; expected float32, bfloat16 or "
            "the like."
        )
    return Placed(str(name), read_config(folder), found, devices)


def weight_bytes(config: ModelConfig, dtype: torch.dtype, ranks: int = 1) -> int:
    """Bytes of a model's weights on each of `ranks` devices. Raises like `part_of`."""
    shapes = (piece.shape for piece in pieces(part_of(config, ranks)))
    return dtype.itemsize * sum(map(math.prod, shapes))


def cache_bytes(
    config: ModelConfig,
    dtype: torch.dtype,
    blocks: int,
    block_size: int,
    ranks: int = 1,
) -> int:
    """Bytes of a cache of `blocks` blocks on each of `ranks` devices."""
    sizes = {"num_layers": config.num_layers, "head_dim": config.head_dim}
    k = part_of(config, ranks).num_kv_heads
    return blocks * bytes_per_block(
        **sizes, num_kv_heads=k, block_size=block_size, dtype=dtype
    )


def working_bytes(
    config: ModelConfig, dtype: torch.dtype, tokens: int, logit_rows: int
) -> int:
    """An upper estimate of what a forward of `tokens` rows needs besides weights and
    cache: the intermediate results of the widest layer, and the logits of `logit_rows`
    rows while tokens are drawn from them. A longer prompt is computed in pieces of
    `BATCH_TOKENS`."""
    heads = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    wide = 3 * config.intermediate_size + 4 * config.hidden_size + 2 * heads
    layer = min(tokens, BATCH_TOKENS) * wide * dtype.itemsize
    return layer + logit_rows * config.vocab_size * LOGIT_BYTES


def free_bytes(device: str | torch.device) -> int | None:
    """Bytes that are free on a device now; None if unknown."""
    place = torch.device(device)
    if place.type == "cuda":
        return int(torch.cuda.mem_get_info(place)[0])
    listing = Path("/proc/meminfo")
    if place.type == "cpu" and listing.is_file():
        for line in listing.read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def plan_run(
    roles: PlacedModels,
    options: GenerateOptions,
    tokens: int,
    *,
    share: int = 1,
    num_blocks: int | None = None,
    free: Callable[[str], int | None] | None = None,
    queues: bool = False,
) -> MemoryPlan:
    """The plan of `share` answers at a time. Prompt and answer together have at most
    `tokens` tokens, and no more than the contexts allow.

    `num_blocks`: cache blocks of 16 tokens per model; None: as many as needed. `free`:
    the free bytes of a device by name; None: `free_bytes`. `queues`: the answers come
    from one `Engine.serve`, which on CUDA waits for free memory, so one answer must fit
    there."""
    alone: MemoryPlan | None = None
    if (
        queues
        and share > 1
        and num_blocks is None
        and "cuda" in roles.target.devices[0]
    ):
        alone = plan_run(roles, options, tokens, free=free)
    target, draft, judge = (
        roles.target,
        roles.draft if options.needs_draft else None,
        roles.judge,
    )
    writers = [target] if draft is None else [target, draft]
    tokens = min(tokens, *(model.config.max_position_embeddings for model in writers))
    chains = share if num_blocks is None else 0
    each = (
        share * num_kv_blocks_needed(options, tokens)
        if num_blocks is None
        else num_blocks
    )
    by_device: dict[str, list[ModelNeed]] = {}  # in order of first use

    def add(role: str, model: Placed, held: int, rows: int, caches: int = 0, copies: int = 1,
            longest: int = tokens) -> None:  # fmt: skip
        """Add to each device: `copies` of the weights; `held` blocks, where `caches`
        caches depend on the longest chain; the logits of `rows` rows."""
        ranks, config, dtype = len(model.devices), model.config, model.dtype
        per_block = cache_bytes(config, dtype, 1, BLOCK_SIZE, ranks)
        weights = copies * weight_bytes(config, dtype, ranks)
        working = working_bytes(config, dtype, longest, rows)
        per_token = caches * chains * per_block // BLOCK_SIZE
        need = ModelNeed(
            role, model.name, weights, held * per_block, working, per_token
        )
        for device in model.devices:
            name = "cuda:0" if device == "cuda" else device  # two names, one GPU
            by_device.setdefault(name, []).append(need)

    held = each
    if roles.verifier.partition(":")[0] in ASKS_THE_TARGET and options.looks_ahead:
        context = target.config.max_position_embeddings + JUDGE_TOKENS
        held += held if num_blocks is not None else -(-context // BLOCK_SIZE)
    add("target", target, held, share * _target_rows(options), 1)
    if draft is not None:
        caches = (
            options.looks_ahead + options.drafts_tokens
        )  # writes steps, and proposes tokens
        twice = roles.apart and options.looks_ahead and options.driver == "overlapped"
        role, copies = ("draft, twice", 2) if twice else ("draft", 1)
        rows = share * options.width * (options.depth if options.looks_ahead else 1)
        add(role, draft, caches * each, rows, caches, copies)
    if judge is not None:
        held = -(-JUDGE_TOKENS // BLOCK_SIZE) if num_blocks is None else num_blocks
        add("judge", judge, held, share, longest=JUDGE_TOKENS)
    found = (
        (name, (free or free_bytes)(name), tuple(needs))
        for name, needs in by_device.items()
    )
    return MemoryPlan(tuple(DevicePlan(*one) for one in found), tokens, alone)


def _target_rows(options: GenerateOptions) -> int:
    """Rows of logits in a target pass, per answer."""
    nodes = options.nodes if options.looks_ahead else 1
    nodes = min(nodes, options.max_target_rows or nodes)
    if not options.speculates:
        return nodes
    if options.drafter == "tree":
        return nodes * math.prod(options.branching) * (len(options.branching) + 1)
    return nodes * (options.num_speculative_tokens + 1)


@dataclass(frozen=True)
class DevicePlan:
    """All needs on one device. `free` None: not known."""

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
        """The longest chain, in tokens, that fits; 0 if none does. `tokens`: the
        planned length."""
        if self.free is None or self.fits:
            return tokens
        slope = sum(need.per_token for need in self.needs)
        return max(0, tokens - -(-(self.needed - self.free) // slope)) if slope else 0

    def room(self) -> tuple[int, int] | None:
        """The bytes left for caches that grow with the chains, and the longest chain
        that fits there. None if the free memory is unknown or no cache grows."""
        growing = [need for need in self.needs if need.per_token]
        if self.free is None or not growing:
            return None
        reserve = RESERVE if self.device.startswith("cuda") else 0
        left = self.free - reserve - self.needed + sum(need.cache for need in growing)
        return max(0, left), max(0, left) // sum(need.per_token for need in growing)

    def shortage(self, tokens: int) -> str:
        """A message with all sizes and with possible remedies, the mildest first."""
        parts = "; ".join(
            f"{need.role} {need.name}: weights {gib(need.weights)}, cache {gib(need.cache)}, "
            f"working {gib(need.working)}"
            for need in self.needs
        )
        ways, longest, cuda = [], self.longest(tokens), self.device.startswith("cuda")
        if longest >= 1024:
            ways.append(
                f"--max_tokens_len {longest // 64 * 64} instead of {tokens} fits"
            )
        if len(self.needs) > 1 and cuda:
            ways.append(
                "put draft or judge on another device (--draft_gpu_id, --judge_gpu_id)"
            )
        if any(need.role == "target" for need in self.needs) and cuda:
            ways.append("split the target over several GPUs (--target_gpu_id 0,1)")
        ways.append("take a smaller --dtype or smaller models")
        return (
            f"the models do not fit on {self.device}: {gib(self.needed)} are needed, "
            f"{gib(self.free or 0)} are free. {parts}. What helps: {'; or '.join(ways)}."
        )


@dataclass(frozen=True)
class MemoryPlan:
    """The needs of all devices. `tokens`: the planned length of the longest chain.
    `alone`: the plan of a single answer, if answers wait for free memory."""

    devices: tuple[DevicePlan, ...]
    tokens: int
    alone: MemoryPlan | None = None

    @property
    def needed(self) -> int:
        """Bytes on all devices together."""
        return sum(device.needed for device in self.devices)

    def check(self) -> None:
        """Raise `MemoryShortError`, with sizes and remedies, unless the plan fits every
        device."""
        if self.alone is not None:
            self.alone.check()
            return
        short = [
            device.shortage(self.tokens) for device in self.devices if not device.fits
        ]
        if short:
            raise MemoryShortError("\n".join(short))

    def rows(self) -> list[tuple[str, ...]]:
        """Rows: device, model, weights, cache, working, total, free; with a sum per
        device."""
        found = []
        for device in self.devices:
            for need in device.needs:
                sizes = map(gib, (need.weights, need.cache, need.working, need.total))
                found.append((device.device, f"{need.role} {need.name}", *sizes, ""))
            free = "not known" if device.free is None else gib(device.free)
            left = device.room()
            most = (
                ""
                if left is None
                else f", cache up to {gib(left[0])} or {left[1]} tokens"
            )
            found.append(
                (device.device, f"together{most}", "", "", "", gib(device.needed), free)
            )
        return found


def gib(size: int) -> str:
    """A number of bytes in GiB or MiB."""
    return f"{size / GIB:.1f} GiB" if size >= GIB // 10 else f"{size / 2**20:.1f} MiB"
