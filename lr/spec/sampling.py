"""From logits to *the* distribution, and from a distribution and a key to a token.

`distribution` is the only place where temperature, top-k, top-p and min-p act; sampling and acceptance both start from what it
returns. `sample` draws with keyed noise: with one Gumbel number per token, made from (key, token id) alone, the sample is
argmax(log p + noise), which is distributed as p (Gumbel, 1954; Maddison et al., arXiv 1411.0030). So a draw does not depend on the
batch, the device or what else was drawn, and two models that hold the same key share their noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lr.rng import GOLDEN, MIX1, MIX2
from lr.types import SamplingParams


@torch.inference_mode()
def distribution(logits: Tensor, params: SamplingParams) -> Tensor:
    """Probabilities [b, v] from logits [b, v], at least fp32; one-hot at temperature 0. The input is not changed.

    The filters are those of Hugging Face in their order: temperature, top-k, top-p, min-p. Ties at the edge of top-k are all kept.
    """
    if params.greedy:
        return torch.zeros_like(logits, dtype=_at_least_fp32(logits)).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    scores = logits.to(_at_least_fp32(logits)) / params.temperature
    if 0 < params.top_k < scores.shape[-1]:
        edge = scores.topk(params.top_k, dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < edge, -torch.inf)
    probs = scores.softmax(-1)
    if params.top_p < 1:
        probs = _keep_top_p(probs, params.top_p)
    if params.min_p > 0:
        probs = probs.masked_fill(probs < params.min_p * probs.amax(-1, keepdim=True), 0.0)
        probs = probs / probs.sum(-1, keepdim=True)
    return probs


def _keep_top_p(probs: Tensor, top_p: float) -> Tensor:
    """Zero all but the smallest set of likeliest tokens that holds `top_p`, and renormalise.

    Example: probs (0.5, 0.3, 0.2), top_p 0.6: before the tokens lie 0, 0.5 and 0.8, so the first two stay: (0.625, 0.375, 0).
    """
    ordered, order = probs.sort(stable=True, dim=-1, descending=True)
    ordered[ordered.cumsum(-1) - ordered >= top_p] = 0.0
    kept = torch.zeros_like(probs).scatter_(-1, order, ordered)
    return kept / kept.sum(-1, keepdim=True)


def _at_least_fp32(logits: Tensor) -> torch.dtype:
    return torch.float64 if logits.dtype is torch.float64 else torch.float32


@torch.inference_mode()
def sample(probs: Tensor, keys: Sequence[int]) -> list[int]:
    """One token id per row of probs [b, v], drawn with the row's 64-bit key: argmax over the tokens of log p + Gumbel noise.

    Noise is made only for tokens of positive probability; after top-k and top-p they are few.
    """
    rows, ids = (probs > 0).nonzero(as_tuple=True)
    if len(ids) == len(keys):  # one candidate per row: nothing to draw
        return ids.tolist()
    words = torch.tensor([_signed(key) for key in keys], dtype=torch.int64).to(probs.device)
    scores = probs[rows, ids].to(torch.float64).log() + gumbel_noise(words[rows], ids)
    table = torch.full(probs.shape, -torch.inf, dtype=torch.float64, device=probs.device)
    table[rows, ids] = scores
    return table.argmax(-1).tolist()


@torch.inference_mode()
def perturbed(probs: Tensor, keys: Sequence[int]) -> Tensor:
    """log p + noise, fp64 [b, v]: the scores whose largest `sample` takes, for those who want the next largest too."""
    words = torch.tensor([_signed(key) for key in keys], dtype=torch.int64).to(probs.device)
    ids = torch.arange(probs.shape[-1], device=probs.device)
    return probs.to(torch.float64).log() + gumbel_noise(words[:, None], ids)


def gumbel_noise(words: Tensor, ids: Tensor) -> Tensor:
    """Standard Gumbel numbers, fp64, elementwise from 64-bit words and token ids (both int64, shapes that broadcast)."""
    bits = _mix64(words ^ _mix64((ids + 1) * _signed(GOLDEN)))
    uniform = ((bits >> 11) & ((1 << 53) - 1)).to(torch.float64).add_(0.5).mul_(2.0**-53)  # in (0, 1), never 0 or 1
    return uniform.log_().neg_().log_().neg_()


def _mix64(x: Tensor) -> Tensor:
    """`rng.mix64` on int64 tensors: wrapping products, and right shifts made logical by masking the sign's copies away."""
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * _signed(MIX1)
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * _signed(MIX2)
    return x ^ ((x >> 31) & ((1 << 33) - 1))


def _signed(word: int) -> int:
    """The int64 with the same bits as an unsigned 64-bit word."""
    return word - (1 << 64) if word >= 1 << 63 else word
