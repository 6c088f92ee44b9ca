"""FlashAttention over the paged cache through PyTorch itself:
`torch.nn.attention.varlen.varlen_attn` with a block table.

The function takes queries end to end, [n, h, d], with the borders of the branches in `cu_seq_q`;
with `block_table`, keys and values are the whole pool of pages, [blocks, block_size, kv, d], and
`seqused_k` says how many places of each branch are valid. A window of (-1, 0) is causal, aligned to
the bottom right: the last of a branch's c queries sees all its keys, the first all but c - 1. All
index tensors are int32 and on the device. Whether the installed kernels take a block table at all,
and which page size, depends on the FlashAttention that is active (2, 3 or 4): `attention_probe.py`
finds out by trying.

Example, blocks of 4, branches of 6 and 3 tokens in blocks (9, 2) and (5) that bring 2 and 1 tokens:
cu_seq_q (0, 2, 3), seqused_k (6, 3), block_table ((9, 2), (5, 5)), max_q 2, max_k 6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from lr.kvcache.cache import PagedKVCache
from lr.kvcache.table import block_rows
from lr.model.attention import AttentionKind
from lr.model.attention_rows import RowPages
from lr.model.batch import RaggedBatch, integers
from lr.model.layers import Attend

Kernel = Callable[..., Any]
"""Gives the mixed values [n, h, d], as nothing else is asked for."""
CAUSAL = (-1, 0)
NEEDED = ("window_size", "enable_gqa", "seqused_k", "block_table")
"""The parameters of `varlen_attn` that are used here; PyTorch has had the function longer than
these.
"""


def varlen_attention(kernel: Kernel, block_size: int, active: str | None = None) -> AttentionKind:
    """The kind of attention that calls `kernel`, which is `varlen_attn` or behaves like it, on
    pages of `block_size` tokens.

    `active`: the FlashAttention that PyTorch must use for it ("FA3", "FA4"; None: whichever it
    uses). What is returned can be sent to another process.
    """
    call = _Call(kernel, active)
    return AttentionKind(
        "varlen", block_size, partial(_ragged, call), partial(_rows, call), strict=True
    )


@dataclass(frozen=True)
class _Call:
    """The kernel and the FlashAttention behind it."""

    kernel: Kernel
    active: str | None

    def prepare(self) -> None:
        """Make that FlashAttention the one that PyTorch uses, in this process."""
        if (
            self.active is not None
            and torch.nn.attention.current_flash_attention_impl() != self.active
        ):
            torch.nn.attention.activate_flash_attention_impl(self.active)


def _ragged(call: _Call, batch: RaggedBatch, cache: PagedKVCache) -> Attend:
    borders, used, table = paging(batch)
    longest, span = max(batch.counts), max(batch.lengths)
    return _attend(call, cache, batch.slots, (borders, longest, span, used, table))


def _rows(call: _Call, pages: RowPages, cache: PagedKVCache) -> Attend:
    n, w = pages.blocks.shape
    borders = torch.arange(n + 1, dtype=torch.int32, device=pages.blocks.device)
    used = (pages.positions + 1).to(torch.int32)
    return _attend(call, cache, pages.slots, (borders, 1, w * cache.block_size, used, pages.blocks))


def paging(batch: RaggedBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Borders [b + 1] of the branches among the rows, their lengths [b] and their pages [b, w],
    int32: one transfer, three views.
    """
    tables = block_rows(batch.tables)
    b = len(tables)
    flat = [0, *accumulate(batch.counts), *batch.lengths]
    for table in tables:
        flat += table
    packed = integers(flat, batch.tokens.device, torch.int32)
    return packed[: b + 1], packed[b + 1 : 2 * b + 1], packed[2 * b + 1 :].view(b, -1)


def _attend(
    call: _Call, cache: PagedKVCache, slots: Tensor, at: tuple[Tensor, int, int, Tensor, Tensor]
) -> Attend:
    """`at`: borders, most queries of a branch, most keys of a branch, lengths, pages."""
    borders, longest, span, used, table = at
    call.prepare()

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cache.write(layer, slots, k, v)
        keys, values = cache.pages(layer)
        mixed: Tensor = call.kernel(
            q,
            keys,
            values,
            borders,
            None,  # the pages say where the keys begin
            longest,
            span,
            window_size=CAUSAL,
            enable_gqa=q.shape[1] != k.shape[1],
            seqused_k=used,
            block_table=table,
        )
        return mixed

    return attend
