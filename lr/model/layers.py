"""The pieces of a decoder layer: norm, attention projections, gated MLP. They know nothing of caches, branches or batches.

Tokens come flat: x is [n, e] whatever sequences the n rows belong to. Who attends to whom is the business of the `attend`
callable that the layer is handed (see `attention.py`). Axis letters: n tokens, e hidden size, h query heads, k KV heads, d head dim.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lr.model.config import ModelConfig
from lr.model.module import Direct, Linear
from lr.model.rope import rotate

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""attend(layer, q [n, h, d], k [n, kv, d], v [n, kv, d]) -> [n, h, d]: store k and v where they belong, and attend."""


class RMSNorm(Direct):
    """Root-mean-square norm over the last axis, with a weight per channel."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = torch.tensor(
            eps, dtype=torch.float32, device="cpu"
        )  # a Python number would be made a tensor again on every call

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


def rms_norm(x: Tensor, weight: Tensor, eps: Tensor) -> Tensor:
    """weight * x / sqrt(mean(x^2) + eps) (Zhang and Sennrich, arXiv 1910.07467), computed in fp32 as Hugging Face does.

    The mean is over the last axis, `weight` is anything that broadcasts over x.
    """
    if x.dtype is torch.float32:  # the same in fewer calls: on small models calls are what costs
        mean_square = torch.add(eps, x.square().sum(-1, keepdim=True), alpha=1 / x.shape[-1])
        return (x * mean_square.rsqrt_()).mul_(weight)
    x32 = x.to(torch.float32)
    x32 = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    return weight * x32.to(x.dtype)


class Attention(Direct):
    """Projections around attention. q, k and v come from one fused matrix: rows [q heads | k heads | v heads]."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        rows = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        self.qkv = Linear(config.hidden_size, rows, bias=config.qkv_bias)
        self.out = Linear(config.num_heads * config.head_dim, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else None

    def forward(self, x: Tensor, cos: Tensor, signed_sin: Tensor, attend: Attend) -> Tensor:
        n, h, kv = x.shape[0], self.num_heads, self.num_kv_heads
        heads = self.qkv(x).view(n, -1, self.head_dim)
        qk, v = heads.split_with_sizes((h + kv, kv), 1)
        if self.q_norm is not None and self.k_norm is not None:  # q and k heads in one go, each with its weight
            weight = torch.cat((self.q_norm.weight.expand(h, -1), self.k_norm.weight.expand(kv, -1)))
            qk = rms_norm(qk, weight, self.q_norm.eps)
        q, k = rotate(qk, cos, signed_sin).split_with_sizes((h, kv), 1)
        mixed = attend(self.layer, q, k, v)
        return self.out(mixed.reshape(n, h * self.head_dim))


class MLP(Direct):
    """SwiGLU (Shazeer, arXiv 2002.05202): down(silu(gate(x)) * up(x)), gate and up fused into one matrix."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up = Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down = Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class DecoderLayer(Direct):
    """Pre-norm residual block: attention, then MLP."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attention = Attention(config, layer)
        self.mlp_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cos: Tensor, signed_sin: Tensor, attend: Attend) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, signed_sin, attend)
        return x + self.mlp(self.mlp_norm(x))
