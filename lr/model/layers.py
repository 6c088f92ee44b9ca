"""The pieces of a decoder layer: norm, attention projections, gated MLP. They know nothing of
caches, branches or batches.

Tokens come flat: x is [n, e] whatever sequences the n rows belong to. Who attends to whom is the
business of the `attend` callable that the layer is handed (see `attention.py`). Axis letters: n
tokens, e hidden size, h query heads, k KV heads, d head dim.
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
"""attend(layer, q [n, h, d], k [n, kv, d], v [n, kv, d]) -> [n, h, d]: store k and v where they
belong, and attend.
"""


class RMSNorm(Direct):
    """weight * x / sqrt(mean(x^2) + eps) over the last axis (Zhang and Sennrich, arXiv 1910.07467),
    in fp32 as Hugging Face does.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps
        self._place_eps()

    def forward(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """x [..., e] -> [..., e]. A `weight` that is given takes the place of the module's own: one
        per head, for instance.
        """
        weight = self.weight if weight is None else weight
        if (
            x.dtype is torch.float32
        ):  # the same in fewer calls, which on small models are what costs: eps + mean is one sum
            mean_square = torch.addcmul(self.eps_share, x, x, value=1 / x.shape[-1]).sum(
                -1, keepdim=True
            )
            return (x * mean_square.rsqrt_()).mul_(weight)
        if x.is_cuda and x.dtype in (
            torch.bfloat16,
            torch.float16,
        ):  # the same again, in two kernels for eight
            return weight * F.rms_norm(x, x.shape[-1:], eps=self.eps)
        x32 = x.to(torch.float32)
        x32 = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + self.eps)
        return weight * x32.to(x.dtype)

    def _place_eps(self) -> None:
        """A tensor beside the weight; a Python number would be made one on every call."""
        self.eps_share = torch.full(
            (), self.eps / len(self.weight), dtype=torch.float32, device=self.weight.device
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RMSNorm:
        super()._apply(fn, recurse)
        self._place_eps()
        return self


class Attention(Direct):
    """Projections around attention. q, k and v come from one fused matrix: rows [q heads | k heads
    | v heads].
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.num_heads, self.num_kv_heads, self.head_dim = (
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
        )
        rows = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        self.qkv = Linear(config.hidden_size, rows, bias=config.qkv_bias)
        self.out = Linear(config.num_heads * config.head_dim, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else None
        self._kept: tuple[Tensor, Tensor, int, int, Tensor] | None = None  # see `_head_weights`

    def forward(self, x: Tensor, cos: Tensor, signed_sin: Tensor, attend: Attend) -> Tensor:
        n, h, kv = x.shape[0], self.num_heads, self.num_kv_heads
        heads = self.qkv(x).view(n, -1, self.head_dim)
        qk, v = heads.split_with_sizes((h + kv, kv), 1)
        if (
            self.q_norm is not None and self.k_norm is not None
        ):  # q and k heads in one go, each with its weight
            qk = self.q_norm(qk, self._head_weights(self.q_norm.weight, self.k_norm.weight))
        q, k = rotate(qk, cos, signed_sin).split_with_sizes((h, kv), 1)
        mixed = attend(self.layer, q, k, v)
        return self.out(mixed.reshape(n, h * self.head_dim))

    def _head_weights(self, q: nn.Parameter, k: nn.Parameter) -> Tensor:
        """The weight [h + kv, d] of the norm of each head, kept from call to call until one of the
        two changes or moves.
        """
        if not torch.is_grad_enabled():
            kept = self._kept
            if (
                kept is not None
                and kept[0] is q
                and kept[1] is k
                and kept[2] == q._version
                and kept[3] == k._version
            ):
                return kept[4]
        stacked = torch.stack((q,) * self.num_heads + (k,) * self.num_kv_heads)
        if not (
            torch.is_grad_enabled() or q.is_inference() or k.is_inference()
        ):  # those have no count of their changes
            self._kept = (q, k, q._version, k._version, stacked)
        return stacked

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Attention:
        super()._apply(fn, recurse)
        self._kept = None
        return self


class MLP(Direct):
    """SwiGLU (Shazeer, arXiv 2002.05202): down(silu(gate(x)) * up(x)), gate and up fused into one
    matrix.
    """

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
