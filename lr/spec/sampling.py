"""From logits to *the* distribution, and from a distribution and a key to a token.

Temperature, top-k and top-p act only in `distribution`; sampling and acceptance both
start from its result. `sample` draws with keyed noise: every token gets an
exponential number E, computed from (key, token id) alone. argmin E / p has distribution
p: of several exponential clocks with rates p, clock i rings first with probability p_i.
With g = -log E this is the Gumbel trick argmax(log p + g) (Maddison et al., arXiv
1411.0030). So a draw does not depend on the batch, the device or other draws, and two
models with the same key share their noise. Read next: `verifiers/base.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lr.errors import NumericalError
from lr.kvcache.cache import integers
from lr.rng import GOLDEN, MIX1, MIX2
from lr.types import SamplingParams

SMALL_VOCABULARY = 4096
"""Of a vocabulary of this size, looking for the likeliest tokens does not pay."""
HEAD = 64
"""How many of the likeliest tokens are tried before the whole vocabulary."""
Words = TypeVar("Words", Tensor, NDArray[np.int64])


def distribution(logits: Tensor, params: SamplingParams) -> Tensor:
    """Probabilities [b, v], at least fp32, of logits [b, v] (unchanged). One-hot at
    temperature 0.

    The filters are those of Hugging Face, in the same order: temperature, top-k, top-p.
    Ties at the edge of top-k are all kept. Raises NumericalError if the largest
    logit of a row is not finite. On CUDA that check would make the host wait: the
    probabilities become NaN instead, and `sample` raises. Top-k of a large vocabulary
    waits once even there, to see whether a tie is left out.
    """
    if not logits.is_cuda:
        require_finite(logits)
    dtype = torch.float64 if logits.dtype is torch.float64 else torch.float32
    if params.greedy:
        likeliest = logits.argmax(-1, keepdim=True)
        probs = torch.zeros_like(logits, dtype=dtype).scatter_(-1, likeliest, 1.0)
        return tainted(probs, logits) if logits.is_cuda else probs
    if 0 < params.top_k < HEAD and logits.shape[-1] > SMALL_VOCABULARY:
        top, ids = logits.topk(HEAD, dim=-1)  # far cheaper than the whole vocabulary
        if bool((top[:, -1] < top[:, params.top_k - 1]).all()):  # no tie is left out
            head = distribution(top, params)
            return head.new_zeros(logits.shape).scatter_(-1, ids, head)
    scores = logits.to(dtype) / _scalar(params.temperature, dtype, logits.device)
    best = None
    if 0 < params.top_k < scores.shape[-1]:
        values, best = scores.topk(params.top_k, dim=-1)
        scores = scores.masked_fill(scores < values[..., -1:], -torch.inf)
    probs = scores.softmax(-1)
    if params.top_p < 1:
        ordered = None if best is None else probs.gather(-1, best)
        probs = _keep_top_p(probs, params.top_p, ordered)
    return probs


@lru_cache(maxsize=64)
def _scalar(number: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number as a tensor. On the CPU, PyTorch divides by a tensor three times as
    fast."""
    with torch.inference_mode(False):  # a caller may need gradients
        return torch.tensor(number, dtype=dtype, device=device)


def _keep_top_p(probs: Tensor, top_p: float, ordered: Tensor | None) -> Tensor:
    """Zero all but the smallest set of likeliest tokens whose sum reaches `top_p`;
    renormalise. Ties at its edge are all kept. `ordered`: what top-k kept, in order
    (without ties of the last).

    Example: probs (0.5, 0.3, 0.2), top_p 0.6. The sums before each token are 0, 0.5 and
    0.8, so the first two stay: (0.625, 0.375, 0).
    """
    if ordered is None:  # the head is nearly always enough, and far cheaper than a sort
        ordered = probs.topk(min(HEAD, probs.shape[-1]), dim=-1).values
        if probs.shape[-1] > HEAD and bool((ordered.cumsum(-1)[..., -1] < top_p).any()):
            ordered = probs.sort(dim=-1, descending=True).values
    before = ordered.cumsum(-1) - ordered
    edge = ordered.masked_fill(before >= top_p, torch.inf).amin(-1, keepdim=True)
    probs = probs.masked_fill(probs < edge, 0.0)
    return probs / probs.sum(-1, keepdim=True)


def sample(probs: Tensor, keys: Sequence[int]) -> list[int]:
    """One token id per row of probs [b, v], drawn with its key: the largest `perturbed`
    score."""
    if probs.shape[-1] <= SMALL_VOCABULARY:
        tokens = perturbed(probs, keys).argmax(-1)
    else:
        ids = probs.any(0).nonzero()[:, 0]  # the tokens that some row can give
        tokens = ids[perturbed(probs[:, ids], keys, ids).argmax(-1)]
    return tokens.tolist() if probs.is_cpu else read_checked(tokens, probs)


def read_checked(tokens: Tensor, probs: Tensor) -> list[int]:
    """The tokens [b] drawn from probs, with a single transfer from the device. Raises
    NumericalError for NaN, which `distribution` does not look for on CUDA."""
    finite = probs.sum().isfinite().view(1)
    *drawn, fine = torch.cat((tokens, finite.to(torch.int64))).tolist()
    if not fine:
        raise not_finite()
    return drawn


def draw(logits: Tensor, params: SamplingParams, keys: Sequence[int]) -> list[int]:
    """`sample(distribution(logits, params), keys)`. If top-k leaves few tokens of a
    large vocabulary, only the likeliest `HEAD` are looked at."""
    k = params.top_k
    if not params.greedy and 0 < k < HEAD and logits.shape[-1] > SMALL_VOCABULARY:
        top, ids = logits.topk(HEAD, dim=-1)  # [b, HEAD], each row its own vocabulary
        probs = distribution(top, params)
        columns = perturbed(probs, keys, ids).argmax(-1, keepdim=True)
        tokens = ids.gather(1, columns)[:, 0]
        complete = top[:, -1] < top[:, k - 1]  # ties of the last one may go on
        complete = complete & probs.sum(-1).isfinite()
        drawn, sure = torch.stack((tokens, complete.to(torch.int64))).tolist()
        if all(sure):
            return drawn
    return sample(distribution(logits, params), keys)


def step_logprobs(logits: Tensor, tokens: Sequence[int]) -> tuple[float, ...]:
    """The natural log-probabilities of t `tokens`, from the logits [t, v] before each
    of them."""
    chosen = integers(tokens, logits.device)[:, None]
    dtype = torch.promote_types(logits.dtype, torch.float32)
    picked = torch.log_softmax(logits, -1, dtype=dtype).gather(-1, chosen)[:, 0]
    return tuple(picked.tolist())


def root_scaled(logprobs: Sequence[float]) -> float:
    """The sum of log-probabilities over the root of their number, in nats.

    One doubtful token in a long step is enough to change its meaning. The mean hides
    it among the sure ones; the sum counts every harmless choice of words. The root
    stands between them. NaN for no tokens.
    """
    if not logprobs:
        return math.nan
    return math.fsum(logprobs) / math.sqrt(len(logprobs))


def tainted(probs: Tensor, logits: Tensor) -> Tensor:
    """The probabilities; NaN in rows whose largest logit is not finite. The host does
    not wait."""
    return probs + 0 * logits.amax(-1, keepdim=True).to(probs.dtype)


def require_finite(logits: Tensor, model: str = "the model") -> None:
    """Raise NumericalError if the largest logit of a row of [b, v] is not finite."""
    if not all(map(math.isfinite, logits.amax(-1).tolist())):
        raise not_finite(model)


def not_finite(model: str = "the model") -> NumericalError:
    """The error for a model's logits that are NaN or infinite."""
    return NumericalError(
        f"the logits of {model} are not finite numbers: its weights are damaged, or they overflow in "
        "this dtype. Load them anew, or try dtype float32."
    )


def perturbed(probs: Tensor, keys: Sequence[int], ids: Tensor | None = None) -> Tensor:
    """The scores -E / p, fp64 [b, v]; -inf where p is 0. `sample` takes the largest.
    `ids` [v] or [b, v]: the token of each column, if not its number.

    E is a standard exponential number: draw number `id` of a SplitMix64 generator
    seeded with the key. On the CPU NumPy computes the same bits, since its calls cost
    less."""
    size = probs.shape[-1]
    if probs.is_cpu:
        steps = _steps(size) if ids is None else ids.numpy() * np.int64(STRIDE)
        seeds = np.array(keys, dtype=np.uint64).view(np.int64)
        bits = torch.from_numpy(_mixed(seeds[:, None] + steps))
    else:
        if ids is None:
            ids = torch.arange(size, device=probs.device)
        seeds = integers([_signed(key) for key in keys], probs.device)
        bits = _mixed(torch.add(seeds[:, None], ids, alpha=STRIDE))
    uniform = bits.view(torch.float64).sub_(1 - 2.0**-53)  # in (0, 1)
    return uniform.log_().div_(probs)


@cache
def _steps(size: int) -> NDArray[np.int64]:
    """What the generator adds for each token id of a vocabulary."""
    return np.arange(size) * np.int64(STRIDE)


def _mixed(x: Words) -> Words:
    """`rng.mix64` of each word, changed in place: its upper 52 bits, as the fraction of
    a float in [1, 2). Products of int64 wrap around as those of unsigned words do."""
    # An int64 shifts in its sign, which an unsigned word has not: it is masked.
    x ^= (x >> 30) & ((1 << 34) - 1)
    x *= _signed(MIX1)
    x ^= (x >> 27) & ((1 << 37) - 1)
    x *= _signed(MIX2)
    x ^= (x >> 31) & ((1 << 33) - 1)
    x >>= 12
    x &= (1 << 52) - 1
    x |= 0x3FF << 52  # the exponent of 1.0
    return x


def _signed(word: int) -> int:
    """The int64 with the same bits as an unsigned 64-bit word."""
    return word - (1 << 64) if word >= 1 << 63 else word


STRIDE = _signed(GOLDEN)
"""From one draw of a SplitMix64 generator to the next."""
