"""The parts of a decoder layer. They know nothing of caches, sequences or batches.

x is [n, e], whichever sequences the n tokens belong to. The `attend` function that a
layer gets decides which token attends to which (`attention.py`). GLOSSARY.md has the
letters of the shapes. Read next: `attention.py`.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lr.model.config import ModelConfig

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""attend(layer, q [n, h, d], k [n, k, d], v [n, k, d]) -> [n, h, d]: store k and v,
then attend."""


# NOTE: In a tiny model, half of the time of a forward is Python's. `self.weight` is a
# search in nn.Module, and a call looks for eight kinds of hooks: both together would
# cost a fifth of the speed. So a forward looks parts up where nn.Module keeps them.


class Module(nn.Module):
    """An `nn.Module` whose call is its `forward`, unless somebody has put a hook on it.
    Hooks for all modules at once (`register_module_forward_hook`) do not run."""

    # Where nn.Module keeps what it consists of; a forward knows what it finds there.
    _modules: dict[str, Any]
    _parameters: dict[str, Any]
    _buffers: dict[str, Any]

    def __call__(self, *args: Any) -> Any:
        hooks = self._forward_hooks or self._forward_pre_hooks
        if hooks or self._backward_hooks or self._backward_pre_hooks:
            return super().__call__(*args)
        return self.forward(*args)


class Linear(Module, nn.Linear):
    """y = W x (+ b)."""

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self._parameters["weight"], self._parameters["bias"])


BFLOAT16_UNITS = ("amx_bf16", "avx512_bf16")  # the better first
ROWS_FROM_LEFT = 32
"""With more rows the arithmetic takes longer than reading the weights."""


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y = W x (+ b): x [n, columns], weight [rows, columns], bias [rows] -> [n, rows].

    Where AMX multiplies a few rows of bfloat16, it is y^T = W x^T. The left matrix of a
    product is read as it lies in memory; the right one is first put into another order.
    `F.linear` has W on the right. From 2 to 16 rows both give the same bits; one row
    `F.linear` may add in another order.
    """
    if weight.dtype is not torch.bfloat16 or not weight.is_cpu:
        return F.linear(x, weight, bias)
    n = len(x)
    if n > ROWS_FROM_LEFT or not has_amx():
        return F.linear(x, weight, bias)
    # A product with one column would be computed as F.linear computes it: take two.
    columns = x.expand(2, -1).t() if n == 1 else x.t()
    if bias is None:
        return torch.mm(weight, columns)[:, :n].t()
    return torch.addmm(bias[:, None], weight, columns)[:, :n].t()


@cache
def bfloat16_unit() -> str:
    """The instructions by which this processor multiplies bfloat16; "" if it has
    none."""
    capabilities = torch.cpu.get_capabilities()
    units = [unit for unit in BFLOAT16_UNITS if capabilities.get(unit)]
    return units[0] if units else ""


def has_amx() -> bool:
    """Whether this processor has Intel's units for products of bfloat16 matrices."""
    return bfloat16_unit() == "amx_bf16"


class Embedding(Module, nn.Embedding):
    """Rows of a table, by index."""

    def reset_parameters(self) -> None:
        # nothing to draw, and PyTorch would import its compiler to draw it: a second
        if not self.weight.is_meta:
            super().reset_parameters()


class RMSNorm(Module):
    """weight * x / sqrt(mean(x^2) + eps) over the last axis (Zhang and Sennrich, arXiv
    1910.07467).

    The mean is in fp32 for every dtype, as in Hugging Face, so that an fp64 model
    agrees with it to 1e-12.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps
        self.eps_share = torch.tensor(eps / size, dtype=torch.float32, device="cpu")

    def forward(self, x: Tensor) -> Tensor:
        """x [..., size] -> [..., size]."""
        return self.scaled(x, self._parameters["weight"])

    def scaled(self, x: Tensor, weight: Tensor) -> Tensor:
        """The formula with this weight [..., size]."""
        size = x.shape[-1]
        if x.dtype is torch.float32 and x.is_cpu:
            # Written out, which is quicker for few tokens:
            # eps + mean(x^2) = sum(eps / size + x^2 / size)
            shares = torch.addcmul(self.eps_share, x, x, value=1 / size)
            return (x * shares.sum(-1, keepdim=True).rsqrt_()).mul_(weight)
        if x.dtype is torch.float64:
            return weight * torch.rms_norm(x.float(), (size,), eps=self.eps).double()
        if weight.dim() == 1:  # one kernel on CUDA
            return torch.rms_norm(x, (size,), weight, self.eps)
        return weight * torch.rms_norm(x, (size,), eps=self.eps)


class HeadNorm(RMSNorm):
    """RMSNorm of query and key heads together; `weight` [2 d]: q_norm, k_norm of a
    checkpoint."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config.head_dim, config.rms_norm_eps)
        self.weight = nn.Parameter(torch.ones(2 * config.head_dim))
        # Which numbers of `weight` each head takes: [h + k, d]
        queries, keys = torch.arange(2 * config.head_dim, device="cpu").chunk(2)
        heads = [queries] * config.num_heads + [keys] * config.num_kv_heads
        self.register_buffer("places", torch.stack(heads), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [n, h + k, d] -> the same."""
        return self.scaled(x, self.rows())

    def rows(self) -> Tensor:
        """The weight of every head, [h + k, d]."""
        return self._parameters["weight"].take(self._buffers["places"])


class Attention(Module):
    """Attention with its projections; q, k, v are one matrix:
    [q heads | k heads | v heads]."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        self.head_dim = d = config.head_dim
        rows = (config.num_heads + 2 * config.num_kv_heads) * d
        self.qkv = Linear(config.hidden_size, rows, bias=config.qkv_bias)
        self.out = Linear(config.num_heads * d, config.hidden_size, bias=False)
        self.qk_norm = HeadNorm(config) if config.qk_norm else None

    def forward(
        self, x: Tensor, cos: Tensor, signed_sin: Tensor, attend: Attend
    ) -> Tensor:
        """x [n, e] -> [n, e]."""
        parts = self._modules
        n = x.shape[0]
        h = self.num_heads
        k = self.num_kv_heads
        heads = parts["qkv"](x).view(n, h + 2 * k, self.head_dim)
        rotated, values = heads.split_with_sizes((h + k, k), dim=1)
        norm = parts.get("qk_norm")
        if norm is not None:
            rotated = norm(rotated)
        rotated = rotate(rotated, cos, signed_sin)
        queries, keys = rotated.split_with_sizes((h, k), dim=1)
        mixed = attend(self.layer, queries, keys, values)
        return parts["out"](mixed.reshape(n, h * self.head_dim))


class MLP(Module):
    """SwiGLU (Shazeer, arXiv 2002.05202): down(silu(gate(x)) * up(x)); gate, up are one
    matrix."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.intermediate_size
        self.gate_up = Linear(config.hidden_size, 2 * width, bias=False)
        self.down = Linear(width, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [n, e] -> [n, e]."""
        parts = self._modules
        gate, up = parts["gate_up"](x).chunk(2, dim=-1)  # [n, width] each
        return parts["down"](F.silu(gate) * up)


class DecoderLayer(Module):
    """Pre-norm residual block: attention, then MLP."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attention = Attention(config, layer)
        self.mlp_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(
        self, x: Tensor, cos: Tensor, signed_sin: Tensor, attend: Attend
    ) -> Tensor:
        """x [n, e] -> [n, e]."""
        parts = self._modules
        normed = parts["attention_norm"](x)
        x = x + parts["attention"](normed, cos, signed_sin, attend)
        return x + parts["mlp"](parts["mlp_norm"](x))


# Rotary position embeddings (Su et al., arXiv 2104.09864), plain and YaRN, in the
# half-split layout of Qwen. Angles are always fp32, as in Hugging Face. No table: a
# forward makes its cosines once.


def inverse_frequencies(config: ModelConfig) -> tuple[Tensor, float]:
    """The angle per position, fp32 [d] with equal halves, and the factor on cos and
    sin. Dimensions i and i + d/2 form a rotation plane.

    YaRN (Peng et al., arXiv 2309.00071), section 3.2: fast planes keep their frequency,
    that of slow ones is divided by `factor`, with a ramp between. A plane turns r times
    over the original context if its index is d/2 * log(context / (2 pi r)) /
    log(theta); the ramp runs from the index for `beta_fast` to that for `beta_slow`
    turns. The factor on cos and sin (section 3.4: 0.1 ln(factor) + 1) scales attention
    logits by its square.
    """
    d, theta, yarn = config.head_dim, config.rope_theta, config.yarn
    powers = theta ** (torch.arange(0, d, 2).to(torch.float32) / d).repeat(2)
    if yarn is None:
        return 1.0 / powers, 1.0

    def plane_of(turns: float) -> float:
        original = yarn.original_max_position_embeddings
        return d * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    def scale(weight: float) -> float:
        return 1.0 if yarn.factor <= 1 else 0.1 * weight * math.log(yarn.factor) + 1.0

    low, high = plane_of(yarn.beta_fast), plane_of(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, d - 1)
    if low == high:
        high += 0.001  # avoids division by zero
    plane = torch.arange(d // 2, dtype=torch.float32).repeat(2)
    unscaled = 1 - ((plane - low) / (high - low)).clamp(0, 1)
    # (1 - unscaled) has one rounding more than the ramp, as in Hugging Face; far positions
    # magnify it
    frequencies = (
        1.0 / (yarn.factor * powers) * (1 - unscaled) + 1.0 / powers * unscaled
    )
    if yarn.attention_factor is not None:
        return frequencies, yarn.attention_factor
    if yarn.mscale and yarn.mscale_all_dim:
        return frequencies, scale(yarn.mscale) / scale(yarn.mscale_all_dim)
    return frequencies, scale(1.0)


class Rotary:
    """Computes cosines and signed sines, both [n, 1, d], of positions [n].
    `frequencies`: fp32 [d]. The first half of the signed sines is negated, because
    `rotate` turns (x1, x2) into (x1 cos - x2 sin, x2 cos + x1 sin) = (x1, x2) * cos +
    (x2, x1) * (-sin, sin).
    """

    def __init__(self, config: ModelConfig) -> None:
        self.frequencies, self.factor = inverse_frequencies(config)

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        if self.frequencies.device != positions.device:
            self.frequencies = self.frequencies.to(positions.device)
        angles = positions.view(-1, 1, 1) * self.frequencies  # [n, 1, d]
        cos, sin = angles.cos(), angles.sin()
        sin.narrow(-1, 0, sin.shape[-1] // 2).neg_()
        if self.factor != 1:
            cos, sin = cos * self.factor, sin * self.factor
        return cos.to(dtype), sin.to(dtype)


def rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Rotate heads x [n, heads, d] by the angles of their positions."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), signed_sin)
