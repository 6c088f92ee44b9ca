"""Triton kernels for a layer's small operations: norm and rotation of the heads,
addition and norm, the gate of the MLP, the store into the cache. Each replaces two to
eight kernels. `linear`, a matrix times a single row, includes the small operations
before and after it.

Decoding a token reads every weight once, which takes a GPU some microseconds per
matrix. A small kernel between two matrices takes about two microseconds whatever it
computes, so fewer kernels are faster. `layers.py` does the same in plain PyTorch where
these kernels cannot run, and a test compares the two. All is computed in fp32 and
rounded once. `attention_choice.py` enables them.

`linear` stays although lookahead's target, which reads several rows, cannot use it:
plain decoding of one answer and a draft that writes one step only make passes of one
row, and those of Qwen3-32B take 16.4 ms with it and 18.4 with cuBLAS (H200).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PART = 1024  # columns of the MLP that one program computes
# `linear` reads a row of a matrix in pieces of BLOCK numbers, UNROLL pieces at a time
ROW_LAUNCH = {"BLOCK": 1024, "UNROLL": 2, "num_warps": 4}


def chained(x: Tensor) -> dict[str, bool]:
    """Launch options of a kernel that calls `begin`. For a single row, from sm_90 on,
    it starts while the previous kernel still runs (programmatic dependent launch).
    """
    nvidia = x.is_cuda and torch.version.hip is None
    early = (
        len(x) == 1 and nvidia and torch.cuda.get_device_capability(x.device) >= (9, 0)
    )
    return {"EARLY": True, "launch_pdl": True} if early else {"EARLY": False}


@triton.jit
def begin(EARLY: tl.constexpr):  # type: ignore[no-untyped-def]
    """Let the next kernel start, and wait until all results of earlier kernels are
    written."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def _read(at, inside):  # type: ignore[no-untyped-def]
    """The numbers at some addresses in fp32; zero where they are not inside."""
    return tl.load(at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _norm_rotate(  # type: ignore[no-untyped-def]
    heads, weight, cos, signed_sin, eps, row_stride,
    H: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, HALF)
    inside = i < D // 2
    at = heads + row * row_stride + head * D + i
    x1 = _read(at, inside)
    x2 = _read(at + D // 2, inside)
    if weight is not None:
        w = weight + (head >= H) * D + i  # [query weight | key weight]
        scale = tl.rsqrt((tl.sum(x1 * x1) + tl.sum(x2 * x2)) / D + eps)
        x1 = x1 * scale * _read(w, inside)
        x2 = x2 * scale * _read(w + D // 2, inside)
    c = _read(cos + row * D + i, inside)
    s = _read(signed_sin + row * D + D // 2 + i, inside)
    tl.store(at, x1 * c - x2 * s, mask=inside)
    tl.store(at + D // 2, x2 * c + x1 * s, mask=inside)


def norm_rotate(
    heads: Tensor,
    h: int,
    k: int,
    weight: Tensor | None,
    eps: float,
    cos: Tensor,
    sin: Tensor,
) -> None:
    """In heads [n, h + 2 k, d], norm (RMSNorm with `weight` [2 d], if given) queries
    and keys, then rotate them by cos and signed sin [n, 1, d]; all in place. The values
    stay as they are.
    """
    n, _, d = heads.shape
    with torch.cuda.device_of(heads):  # Triton launches on the current device
        _norm_rotate[n, h + k](
            heads, weight, cos, sin, eps, heads.stride(0),
            H=h, D=d, HALF=triton.next_power_of_2(d // 2), num_warps=1, **chained(heads),
        )  # fmt: skip


@triton.jit
def _add_norm(  # type: ignore[no-untyped-def]
    x, y, weight, total, normed, eps, E: tl.constexpr, BLOCK: tl.constexpr
):
    i = tl.arange(0, BLOCK)
    at, inside = tl.program_id(0).to(tl.int64) * E + i, i < E
    wide = _read(x + at, inside)
    if y is not None:
        wide += _read(y + at, inside)
        rounded = wide.to(total.dtype.element_ty)  # the norm is that of the rounded sum
        tl.store(total + at, rounded, mask=inside)
        wide = rounded.to(tl.float32)
    scaled = wide * tl.rsqrt(tl.sum(wide * wide) / E + eps)
    tl.store(normed + at, scaled * _read(weight + i, inside), mask=inside)


def add_norm(
    x: Tensor, y: Tensor | None, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """x + y and its RMSNorm, both [n, e], of contiguous x and y [n, e]; y None: x and
    its norm."""
    n, e = x.shape
    total, normed = x if y is None else torch.empty_like(x), torch.empty_like(x)
    with torch.cuda.device_of(x):
        block = triton.next_power_of_2(e)
        _add_norm[n,](x, y, weight, total, normed, eps, E=e, BLOCK=block, num_warps=8)
    return total, normed


@triton.jit
def _silu_mul(  # type: ignore[no-untyped-def]
    gate_up, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < WIDTH
    gate = _read(gate_up + row * 2 * WIDTH + i, inside)
    up = _read(gate_up + row * 2 * WIDTH + WIDTH + i, inside)
    tl.store(out + row * WIDTH + i, gate / (1.0 + tl.exp(-gate)) * up, mask=inside)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up `[n, width]` of contiguous gate | up `[n, 2 * width]`."""
    n, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(n, width)
    with torch.cuda.device_of(gate_up):
        _silu_mul[n, triton.cdiv(width, PART)](gate_up, out, WIDTH=width, BLOCK=PART)
    return out


@triton.jit
def _input(x, norm, i, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """x at the places i, times the norm's weight if there is one; and the squares."""
    value = _read(x + i, i < SIZE)
    square = value * value
    if norm is not None:
        value *= _read(norm + i, i < SIZE)
    return value, square


@triton.jit
def _weight(weight, row, i, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The numbers i of a row of the matrix; none is read twice."""
    at = weight + row * SIZE + i
    return tl.load(at, mask=i < SIZE, other=0.0, eviction_policy="evict_first").to(
        tl.float32
    )


@triton.jit
def _linear(  # type: ignore[no-untyped-def]
    x, weight, norm, plus, out, n, eps, SIZE: tl.constexpr, GATED: tl.constexpr,
    BLOCK: tl.constexpr, UNROLL: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)  # of the matrix
    i = tl.arange(0, BLOCK)
    # The weights depend on no earlier kernel: load the first of them before waiting.
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    total = _weight(weight, row, i, SIZE)
    ups = _weight(weight, row + n, i, SIZE) if GATED else total
    if EARLY:
        tl.extra.cuda.gdc_wait()
    value, squares = _input(x, norm, i, SIZE)
    total *= value
    ups *= value
    for start in tl.range(BLOCK, SIZE, BLOCK, loop_unroll_factor=UNROLL):
        value, square = _input(x, norm, start + i, SIZE)
        squares += square
        total += _weight(weight, row, start + i, SIZE) * value
        if GATED:
            ups += _weight(weight, row + n, start + i, SIZE) * value
    result, up = tl.sum(total), tl.sum(ups)
    if norm is not None:  # its factor is the same for all of x, so it can come last
        factor = tl.rsqrt(tl.sum(squares) / SIZE + eps)
        result *= factor
        up *= factor
    if GATED:
        result = result / (1.0 + tl.exp(-result)) * up
    if plus is not None:
        result += tl.load(plus + row).to(tl.float32)
    tl.store(out + row, result)


def linear(
    x: Tensor,
    weight: Tensor,
    plus: Tensor | None,
    norm: tuple[Tensor, float] | None = None,
    *,
    gated: bool = False,
) -> Tensor:
    """W x [1, width] of a row x [1, e] and W [width, e], plus `plus` [width] (a bias or
    residual). `norm`: x is normed first, with this weight [e] and eps. `gated`: W
    [2 width, e] is [gate | up], and the result is silu(gate x) * (up x). One program
    computes one number.
    """
    n, size = weight.shape[0] // (1 + gated), weight.shape[1]
    norm_weight, eps = norm or (None, 0.0)
    out = x.new_empty(1, n)
    with torch.cuda.device_of(x):
        _linear[n,](
            x, weight, norm_weight, plus, out, n, eps,
            SIZE=size, GATED=gated, **ROW_LAUNCH, **chained(x),
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize_on_alignment=["slots"])
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
    """Write k and v [n, k, d], whose rows are contiguous, into the `pages` of a layer,
    [nb, block_size, k, d], at slots [n], as `PagedKVCache.write` does.
    """
    size, d = k.shape[1] * k.shape[2], k.shape[2]
    with torch.cuda.device_of(k):
        _store[len(slots),](
            k, v, *pages, slots, k.stride(0), v.stride(0), *pages[0].stride()[1:3],
            SIZE=size, D=d, BLOCK=triton.next_power_of_2(size), **chained(k),
        )  # fmt: skip
