"""Rotary position embeddings (Su et al., arXiv 2104.09864), plain and YaRN, in the half-split
layout of the Qwen checkpoints.

Angles are computed in fp32 whatever the dtype of the model, as Hugging Face does; only so do fp64
models agree with it to 1e-12. There is no table and no state: the cosines of a batch are made from
its positions, once per forward, for all layers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lr.model.config import ModelConfig, YarnScaling


def inverse_frequencies(config: ModelConfig) -> tuple[Tensor, float]:
    """The angular step per position of each of the d/2 rotation planes, fp32 [d/2], and the factor
    on cos and sin.
    """
    d = config.head_dim
    exponents = torch.arange(0, d, 2, dtype=torch.int64).to(torch.float32) / d
    if config.yarn is None:
        return 1.0 / config.rope_theta**exponents, 1.0
    return _yarn_frequencies(config.yarn, config.rope_theta, d)


def _yarn_frequencies(yarn: YarnScaling, theta: float, d: int) -> tuple[Tensor, float]:
    """YaRN, section 3.2: planes that turn often keep their frequency, slow ones are divided by
    `factor`, a ramp between.

    A plane turns `r` times over the original context when its index is d/2 * log(context / (2 pi
    r)) / log(theta); the ramp runs from the index for `beta_fast` turns to the index for
    `beta_slow` turns.
    """

    def plane_of(turns: float) -> float:
        return (
            d
            * math.log(yarn.original_max_position_embeddings / (turns * 2 * math.pi))
            / (2 * math.log(theta))
        )

    low, high = plane_of(yarn.beta_fast), plane_of(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, d - 1)
    if low == high:
        high += 0.001  # a ramp of no width would divide by zero
    powers = theta ** (torch.arange(0, d, 2).to(torch.float32) / d)
    kept = 1 - ((torch.arange(d // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    # (1 - kept) is rounded once more than the ramp itself; Hugging Face computes it so, and far
    # positions magnify the difference
    frequencies = 1.0 / (yarn.factor * powers) * (1 - kept) + 1.0 / powers * kept
    return frequencies, _yarn_attention_factor(yarn)


def _yarn_attention_factor(yarn: YarnScaling) -> float:
    """The factor on cos and sin, which scales attention logits by its square (YaRN, section 3.4:
    0.1 ln(factor) + 1).
    """
    if yarn.attention_factor is not None:
        return yarn.attention_factor

    def scale(weight: float) -> float:
        return 1.0 if yarn.factor <= 1 else 0.1 * weight * math.log(yarn.factor) + 1.0

    if yarn.mscale and yarn.mscale_all_dim:
        return scale(yarn.mscale) / scale(yarn.mscale_all_dim)
    return scale(1.0)


def rotation(
    positions: Tensor, frequencies: Tensor, factor: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosines [n, 1, d] and signed sines [n, 1, d] of positions [n], for `rotate`.

    The first half of the signed sines is negated: rotating (x1, x2) gives (x1 cos - x2 sin, x2 cos
    + x1 sin), which is (x1, x2) * cos + (x2, x1) * (-sin, sin).
    """
    angles = positions.to(torch.float32).view(-1, 1, 1) * frequencies
    cos, sin = angles.cos(), angles.sin()
    if factor != 1:
        cos, sin = cos * factor, sin * factor
    return torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)


def rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Rotate heads x [n, heads, d] by the angles of their positions."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), signed_sin)
