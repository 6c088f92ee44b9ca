"""Does a kind of attention work here? It is tried on a small batch and compared with the reference;
nothing is guessed from versions.

Which pages a kernel takes, and whether a function with the right parameters has a kernel behind it
at all, depends on the GPU, on PyTorch's build and on which FlashAttention is active. PyTorch 2.12,
for instance, has `varlen_attn(block_table=...)`, but its own FlashAttention 2 refuses the argument,
and only an activated FlashAttention 3 or 4 takes it. So: one forward of a fork of two branches and
of a prompt, in the dtype of the model, each output row within a few roundings of the same attention
in fp64. It knows nothing of names and preferences; those are in `attention_choice.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lr.kvcache.cache import PagedKVCache
from lr.kvcache.table import BlockTable, block_rows
from lr.model.attention import AttentionKind, reference_attention
from lr.model.attention_rows import RowPages
from lr.model.batch import RaggedBatch
from lr.model.layers import Attend, DecoderLayer
from lr.model.qwen import CausalLM

ROUNDINGS = 4
"""How many roundings of the dtype an output row may be off, relative to its size. A wrong page is
off by more than the row's size, a mask that is off by one key in 260 by 16 roundings of bfloat16 on
average."""
SEED = 0


@dataclass(frozen=True)
class AttentionNeeds:
    """What attention is to run on: the device and dtype of a model, and its heads (of one rank,
    where they are divided).
    """

    device: torch.device
    dtype: torch.dtype
    num_heads: int
    num_kv_heads: int
    head_dim: int

    @classmethod
    def of(cls, model: CausalLM) -> AttentionNeeds:
        """What this model asks for."""
        heads = next(layer.attention for layer in model.layers if isinstance(layer, DecoderLayer))
        return cls(model.device, model.dtype, heads.num_heads, heads.num_kv_heads, heads.head_dim)


@torch.inference_mode()
def probe(kind: AttentionKind, needs: AttentionNeeds) -> str | None:
    """Why `kind` does not work there with its block size, in a few words, or None if it does.
    Raises nothing.
    """
    try:
        return _wrong(kind, needs)
    except Exception as error:
        lines = str(error).strip().splitlines()
        return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


def _wrong(kind: AttentionKind, needs: AttentionNeeds) -> str | None:
    """As `probe`, but what the kernel raises comes through."""
    size = kind.block_size
    caches = [_cache(needs, size, dtype) for dtype in (needs.dtype, torch.float64)]
    cache, exact = caches
    tables = [_grown(cache, size + 3), _grown(cache, 5)]
    tables.insert(1, cache.fork(tables[0]))
    with cache.append(tables, [2, 1, 3]) as slots:
        batch = RaggedBatch.build(
            tables, [[0] * 2, [0], [0] * 3], slots, wanted=[1, 1, 1], device=needs.device
        )
        for old, copy in ((cache.keys, exact.keys), (cache.values, exact.values)):
            old.normal_(generator=torch.Generator(needs.device).manual_seed(SEED))
            copy.copy_(old)
        expected = _mix(reference_attention(batch, exact), needs, torch.float64)
        ways = {"ragged": kind.ragged(batch, cache)}
        if kind.rows is not None:
            ways["rows"] = kind.rows(row_pages(batch), cache)
        for name, attend in ways.items():
            off = (
                (
                    (_mix(attend, needs, needs.dtype).double() - expected).norm(dim=1)
                    / expected.norm(dim=1)
                )
                .max()
                .item()
            )
            bound = ROUNDINGS * torch.finfo(needs.dtype).eps
            if not off <= bound:  # NaN is not
                return f"wrong result ({name}): off by {off:.2g} of the row's size, {bound:.2g} are allowed"
    return None


def row_pages(batch: RaggedBatch) -> RowPages:
    """The rows of a ragged batch, each with the pages of its branch."""
    tables = [
        row
        for row, count in zip(block_rows(batch.tables), batch.counts, strict=True)
        for _ in range(count)
    ]
    blocks = torch.tensor(tables, dtype=torch.int32).to(batch.tokens.device)
    return RowPages(batch.positions, batch.slots, blocks)


def _cache(needs: AttentionNeeds, block_size: int, dtype: torch.dtype) -> PagedKVCache:
    return PagedKVCache(
        num_layers=1,
        num_kv_heads=needs.num_kv_heads,
        head_dim=needs.head_dim,
        num_blocks=8,
        block_size=block_size,
        dtype=dtype,
        device=needs.device,
    )


def _grown(cache: PagedKVCache, length: int) -> BlockTable:
    table = cache.new()
    with cache.append([table], [length]):
        return table


def _mix(attend: Attend, needs: AttentionNeeds, dtype: torch.dtype) -> Tensor:
    """The output [6, h * d] for random heads, made in the dtype of the needs, as views of one
    tensor as a layer makes them.
    """
    h, kv = needs.num_heads, needs.num_kv_heads
    noise = torch.Generator(needs.device).manual_seed(SEED + 1)
    drawn = torch.randn(
        6, h + 2 * kv, needs.head_dim, generator=noise, device=needs.device, dtype=torch.float32
    )
    q, k, v = drawn.to(needs.dtype).to(dtype).split((h, kv, kv), 1)
    return attend(0, q, k, v).flatten(1)
