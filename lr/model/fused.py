"""A layer's small steps as Triton kernels, one each in the place of two to eight: rotation and norm
of the heads, addition and norm, the gate of the MLP, the store into the cache. And a matrix times a
single row, which takes the small steps before and after it along.

Decoding one token reads every weight once, which takes a GPU some microseconds per matrix. A small
kernel between two matrices takes about two, whatever it computes, so their number is what counts.
`layers.py` has the same in plain PyTorch, which runs wherever these do not and which a test holds
them equal to; here everything is computed in fp32 and rounded once. `attention_choice.py` gives
them to a model. Letters: n tokens, e hidden size, h query heads, k KV heads, d head size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PART = 1024
"""Numbers of the MLP's width that one program computes."""
ROW = {"BLOCK": 1024, "UNROLL": 2, "num_warps": 4}
"""How `linear` reads a row of a matrix: in pieces of BLOCK numbers, UNROLL pieces in flight."""


def chained(x: Tensor) -> dict[str, bool]:
    """Launch options of a kernel that calls `begin`. For a single row, since sm_90, it is launched
    while the previous kernel still runs (programmatic dependent launch)."""
    nvidia = x.is_cuda and torch.version.hip is None
    early = len(x) == 1 and nvidia and torch.cuda.get_device_capability(x.device) >= (9, 0)
    return {"EARLY": True, "launch_pdl": True} if early else {"EARLY": False}


@triton.jit
def begin(EARLY: tl.constexpr):  # type: ignore[no-untyped-def]
    """Let the next kernel start, and wait until all that the kernels before write is there."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def _norm_rotate(  # type: ignore[no-untyped-def]
    heads, weight, cos, signed_sin, eps, row_stride,
    H: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, HALF)
    inside = i < D // 2
    at = heads + row * row_stride + head * D + i
    x1 = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    x2 = tl.load(at + D // 2, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        w = weight + (head >= H) * D + i  # [query weight | key weight]
        scale = tl.rsqrt((tl.sum(x1 * x1) + tl.sum(x2 * x2)) / D + eps)
        x1 = x1 * scale * tl.load(w, mask=inside, other=0.0).to(tl.float32)
        x2 = x2 * scale * tl.load(w + D // 2, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(cos + row * D + i, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(signed_sin + row * D + D // 2 + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, x1 * c - x2 * s, mask=inside)
    tl.store(at + D // 2, x2 * c + x1 * s, mask=inside)


def norm_rotate(
    heads: Tensor, h: int, k: int, weight: Tensor | None, eps: float, cos: Tensor, sin: Tensor
) -> None:
    """In place, in heads [n, h + 2 k, d]: the RMSNorm of queries and keys with `weight` [2 d] (or
    none), then their rotation by cos and signed sin [n, 1, d]. The values stay.
    """
    n, _, d = heads.shape
    half, stride = triton.next_power_of_2(d // 2), heads.stride(0)
    given = heads if weight is None else weight
    with torch.cuda.device_of(heads):
        _norm_rotate[n, h + k](
            heads, given, cos, sin, eps, stride,
            H=h, D=d, HALF=half, NORM=weight is not None, num_warps=1, **chained(heads),
        )  # fmt: skip


@triton.jit
def _add_norm(x, y, weight, total, normed, eps, E: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.arange(0, BLOCK)
    at, inside = tl.program_id(0).to(tl.int64) * E + i, i < E
    wide = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if y is not None:
        wide += tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
        both = wide.to(total.dtype.element_ty)  # what is normed is what is kept, rounded
        tl.store(total + at, both, mask=inside)
        wide = both.to(tl.float32)
    scaled = wide * tl.rsqrt(tl.sum(wide * wide) / E + eps)
    w = tl.load(weight + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + at, scaled * w, mask=inside)


def add_norm(x: Tensor, y: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x + y and its RMSNorm, both [n, e], of contiguous x and y [n, e]; y None: x and its norm."""
    n, e = x.shape
    total, normed = x if y is None else torch.empty_like(x), torch.empty_like(x)
    with torch.cuda.device_of(x):
        block = triton.next_power_of_2(e)
        _add_norm[n,](x, y, weight, total, normed, eps, E=e, BLOCK=block, num_warps=8)
    return total, normed


@triton.jit
def _silu_mul(gate_up, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < WIDTH
    gate = tl.load(gate_up + row * 2 * WIDTH + i, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * WIDTH + WIDTH + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + i, gate / (1.0 + tl.exp(-gate)) * up, mask=inside)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up [n, width] of contiguous [gate | up] [n, 2 width]."""
    n, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(n, width)
    with torch.cuda.device_of(gate_up):
        _silu_mul[n, triton.cdiv(width, PART)](gate_up, out, WIDTH=width, BLOCK=PART)
    return out


@triton.jit
def _linear(  # type: ignore[no-untyped-def]
    x, weight, norm, plus, out, n, eps, SIZE: tl.constexpr, GATED: tl.constexpr,
    BLOCK: tl.constexpr, UNROLL: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    row = tl.program_id(0).to(tl.int64)  # of the matrix
    total, ups = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, SIZE, BLOCK, loop_unroll_factor=UNROLL):
        i = start + tl.arange(0, BLOCK)
        inside = i < SIZE
        given = tl.load(x + i, mask=inside, other=0.0).to(tl.float32)
        if norm is not None:
            squares += given * given
            given *= tl.load(norm + i, mask=inside, other=0.0).to(tl.float32)
        at = weight + row * SIZE + i
        w = tl.load(at, mask=inside, other=0.0, eviction_policy="evict_first")
        total += w.to(tl.float32) * given
        if GATED:
            w = tl.load(at + n * SIZE, mask=inside, other=0.0, eviction_policy="evict_first")
            ups += w.to(tl.float32) * given
    made, up = tl.sum(total), tl.sum(ups)
    if norm is not None:  # the norm's factor is the same for all of x, so it can come last
        scale = tl.rsqrt(tl.sum(squares) / SIZE + eps)
        made, up = made * scale, up * scale
    if GATED:
        made = made / (1.0 + tl.exp(-made)) * up
    if plus is not None:
        made += tl.load(plus + row).to(tl.float32)
    tl.store(out + row, made)


def linear(
    x: Tensor,
    weight: Tensor,
    plus: Tensor | None,
    norm: tuple[Tensor, float] | None = None,
    *,
    gated: bool = False,
) -> Tensor:
    """W x [1, width] of a row x [1, e] and W [width, e], plus `plus` [width] (a bias, or what the
    layer adds to). `norm`: x is normed first, with this weight [e] and eps. `gated`: W [2 width, e]
    is [gate | up], and silu(gate x) * (up x) comes back. One program makes one number.
    """
    n, size = weight.shape[0] // (1 + gated), weight.shape[1]
    by, eps = norm or (None, 0.0)
    out, how = x.new_empty(1, n), ROW | chained(x)
    with torch.cuda.device_of(x):
        _linear[n,](x, weight, by, plus, out, n, eps, SIZE=size, GATED=gated, **how)
    return out


@triton.jit
def _store(  # type: ignore[no-untyped-def]
    k, v, keys, values, slots, k_row, v_row, kv_slot, kv_head,
    SIZE: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside, head = i < SIZE, (i // D).to(tl.int64)
    to = tl.load(slots + row).to(tl.int64) * kv_slot + head * kv_head + i % D
    tl.store(keys + to, tl.load(k + row * k_row + i, mask=inside), mask=inside)
    tl.store(values + to, tl.load(v + row * v_row + i, mask=inside), mask=inside)


def store(pages: tuple[Tensor, Tensor], slots: Tensor, k: Tensor, v: Tensor) -> None:
    """What `PagedKVCache.write` does: k and v [n, k, d], each row in one piece, into the `pages` of
    a layer, [nb, block_size, k, d], at slots [n].
    """
    size, d = k.shape[1] * k.shape[2], k.shape[2]
    with torch.cuda.device_of(k):
        _store[len(slots),](
            k, v, *pages, slots, k.stride(0), v.stride(0), *pages[0].stride()[1:3],
            SIZE=size, D=d, BLOCK=triton.next_power_of_2(size), **chained(k),
        )  # fmt: skip
