"""The attention kernels that a test machine lacks, in plain PyTorch, after their documentation, and
strict about what they are given.

What a CUDA kernel would read silently wrong (an int64 table, a length beyond the pages, a page id
that does not exist, borders that do not cover the queries) is an assertion here; so an adapter that
passes a wrong argument fails on the CPU. They compute in the dtype of the queries: in fp64 the
adapters must agree with the reference to rounding. `half_only` refuses other dtypes, as the kernels
do, and `page_multiple` is their rule for the page size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor


@dataclass
class Emulated:
    """The two functions, with the rules of one installation. `calls` counts them by name."""

    half_only: bool = False
    page_multiple: int = 1
    calls: dict[str, int] = field(default_factory=dict)

    def flash_attn_varlen_func(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        block_table: Tensor | None = None,
    ) -> Tensor:
        """`flash_attn.flash_attn_varlen_func` of version 2, with a block table."""
        self._called("flash_attn_varlen_func")
        assert dropout_p == 0 and window_size == (-1, -1) and block_table is not None
        borders = self._borders(cu_seqlens_q, len(q), max_seqlen_q)
        self._index(cu_seqlens_k, q)
        ends = cu_seqlens_k.tolist()
        assert ends[0] == 0 and len(ends) == len(borders)
        lengths = [b - a for a, b in pairwise(ends)]
        assert max(lengths) <= max_seqlen_k
        return self._mix(
            q, k, v, borders, lengths, block_table, max_seqlen_k, causal=causal, scale=softmax_scale
        )

    def flash_attn_with_kvcache(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        k: Tensor | None = None,
        v: Tensor | None = None,
        cache_seqlens: Tensor | None = None,
        block_table: Tensor | None = None,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        num_splits: int = 0,
    ) -> Tensor:
        """`flash_attn.flash_attn_with_kvcache` of version 2: queries [b, c, h, d], nothing new to
        store, a block table.
        """
        self._called("flash_attn_with_kvcache")
        assert k is None and v is None, "the adapter stores keys and values itself"
        assert (
            window_size == (-1, -1)
            and num_splits == 0
            and block_table is not None
            and cache_seqlens is not None
        )
        b, c = q.shape[:2]
        span = block_table.shape[1] * k_cache.shape[1]
        lengths = self._lengths(cache_seqlens, b, span, q)
        borders = list(range(0, b * c + 1, c))
        mixed = self._mix(
            q.flatten(0, 1),
            k_cache,
            v_cache,
            borders,
            lengths,
            block_table,
            span,
            causal=causal,
            scale=softmax_scale,
        )
        return mixed.view(b, c, *mixed.shape[1:])

    def _called(self, name: str) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1

    def _index(self, index: Tensor, like: Tensor) -> None:
        assert index.dtype == torch.int32, f"index tensors are int32, this is {index.dtype}"
        assert index.device == like.device and index.stride(-1) == 1

    def _borders(self, borders: Tensor, rows: int, longest: int) -> list[int]:
        assert borders.dtype == torch.int32 and borders.dim() == 1 and borders.is_contiguous()
        found: list[int] = borders.tolist()
        assert found[0] == 0 and found[-1] == rows, f"borders {found} of {rows} rows"
        counts = [b - a for a, b in pairwise(found)]
        assert min(counts) >= 1 and max(counts) <= longest, (
            f"counts {counts}, at most {longest} are announced"
        )
        return found

    def _lengths(self, used: Tensor, branches: int, longest: int, like: Tensor) -> list[int]:
        self._index(used, like)
        assert used.shape == (branches,)
        found: list[int] = used.tolist()
        assert max(found) <= longest, f"lengths {found}, at most {longest} are announced"
        return found

    def _mix(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        borders: list[int],
        lengths: list[int],
        table: Tensor,
        longest: int,
        *,
        causal: bool,
        scale: float | None,
    ) -> Tensor:
        """Softmax attention of each branch over its pages. Causal is aligned to the bottom
        right.
        """
        h, d = q.shape[1:]
        blocks, size, kv, _ = keys.shape
        if self.half_only and not (
            q.dtype == keys.dtype and q.dtype in (torch.float16, torch.bfloat16)
        ):
            raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
        if size % self.page_multiple:
            raise RuntimeError(
                f"Paged KV cache block size must be divisible by {self.page_multiple}"
            )
        assert (
            q.dtype == keys.dtype == values.dtype
            and keys.shape == values.shape
            and keys.shape[-1] == d
        )
        assert all(tensor.stride(-1) == 1 for tensor in (q, keys, values))
        assert d % 8 == 0 and d <= 256 and h % kv == 0
        self._index(table, q)
        assert table.shape[0] == len(lengths) and table.shape[1] * size >= max(lengths)
        assert longest <= table.shape[1] * size, (
            "the pages do not hold as many keys as are announced"
        )
        assert int(table.min()) >= 0 and int(table.max()) < blocks, "a page that does not exist"
        pages = table.long()
        mixed = torch.empty_like(q)
        for i, length in enumerate(lengths):
            start, stop = borders[i], borders[i + 1]
            count = stop - start
            assert length >= count, "a branch has more queries than keys"
            read = pages[i, : -(-length // size)]
            assert keys[read].isfinite().all(), "a page that is read is not finite"
            own_keys = keys[read].flatten(0, 1)[:length].repeat_interleave(h // kv, dim=1)
            own_values = values[read].flatten(0, 1)[:length].repeat_interleave(h // kv, dim=1)
            scores = torch.einsum("chd,shd->hcs", q[start:stop], own_keys) * (
                1 / math.sqrt(d) if scale is None else scale
            )
            if causal:
                last = torch.arange(count)[:, None] + (length - count)
                scores = scores.masked_fill(torch.arange(length)[None] > last, -math.inf)
            mixed[start:stop] = torch.einsum("hcs,shd->chd", scores.softmax(-1), own_values)
        return mixed
