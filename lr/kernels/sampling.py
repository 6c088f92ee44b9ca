"""Drawing one of the likeliest tokens in a single Triton kernel, for models on CUDA.

`sampling.py` defines the computation, in thirty small kernels, about as many as two
layers of a model launch. Its `draw` calls this module if top-k or top-p leaves few
tokens. Probabilities are fp32; noise and scores are fp64.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lr.rng import GOLDEN, MIX1, MIX2
from lr.spec.sampling import HEAD, not_finite
from lr.types import SamplingParams

STEP, FIRST, SECOND = tl.constexpr(GOLDEN), tl.constexpr(MIX1), tl.constexpr(MIX2)


@triton.jit
def _without(probs, edge):  # type: ignore[no-untyped-def]
    """Zero tokens below `edge` and renormalise. NaN stays NaN."""
    kept = tl.where(probs < edge, 0.0, probs)
    return kept / tl.sum(kept)


@triton.jit(do_not_specialize=["rows", "top_k"])
def _draw(  # type: ignore[no-untyped-def]
    scores, ids, words, totals, told, rows, temperature, top_k, top_p, min_p, SIZE: tl.constexpr
):  # fmt: skip
    row, i = tl.program_id(0), tl.arange(0, SIZE)
    score = (
        tl.load(scores + row * SIZE + i).to(tl.float32) / temperature
    )  # the likeliest first
    edge = tl.where(
        top_k > 0, tl.sum(tl.where(i == top_k - 1, score, 0.0)), -float("inf")
    )
    probs = tl.where(score < edge, 0.0, tl.exp(score - tl.max(score)))
    probs = probs / tl.where(top_k > 0, tl.sum(probs), tl.load(totals + row))
    whole = (
        tl.min(score) < edge
    )  # the head holds all that top-k leaves, including ties of the last
    if top_p < 1:
        before = tl.cumsum(probs) - probs
        least = tl.min(tl.where(before < top_p, probs, 1.0))
        whole = whole | (
            (top_k == 0) & (tl.min(probs) < least)
        )  # the same for top-p alone
        probs = _without(probs, least)
    if min_p > 0:
        probs = _without(probs, min_p * tl.max(probs))

    total = tl.sum(probs)
    fine = total - total == 0  # false for NaN
    probs = tl.where(fine, probs, 1.0)
    token = tl.load(ids + row * SIZE + i)
    bits = tl.load(words + row).to(tl.uint64, bitcast=True) + token.to(tl.uint64) * STEP
    bits = (bits ^ (bits >> 30)) * FIRST
    bits = (bits ^ (bits >> 27)) * SECOND
    bits = (bits ^ (bits >> 31)) >> 12
    noise = tl.log((bits.to(tl.float64) + 0.5) * 2.220446049250313e-16)  # 2^-52
    best = tl.argmax(noise / probs, 0)
    tl.store(told + row, tl.sum(tl.where(i == best, token, 0)))
    tl.store(told + rows + row, fine.to(tl.int64))
    tl.store(told + 2 * rows + row, whole.to(tl.int64))


def draw_from_head(
    logits: Tensor, params: SamplingParams, words: Tensor
) -> list[int] | None:
    """One token per row of logits [b, v], drawn from its HEAD likeliest tokens with the
    noise of its key (`words` [b], int64). None if top-k (without it: top-p) may leave
    other tokens too. Raises NumericalError.
    """
    top, ids = logits.topk(HEAD, dim=-1)  # [b, HEAD] each, the likeliest first
    rows, told, totals = len(top), ids.new_empty(3, len(top)), top
    if not params.top_k:  # sum over v of exp(score - the largest score), [b]
        above = (logits.float() - top[:, :1].float()) / params.temperature
        totals = above.exp_().sum(-1)
    with torch.cuda.device_of(top):
        _draw[rows,](
            top, ids, words, totals, told, rows, params.temperature, params.top_k, params.top_p,
            params.min_p, SIZE=HEAD, num_warps=2,
        )  # fmt: skip
    tokens: list[int]
    tokens, fine, whole = told.tolist()
    if not all(fine):
        raise not_finite()
    return tokens if all(whole) else None
