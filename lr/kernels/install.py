"""Runs the layers of a model on the kernels of `fused.py`.

`install` sets an attribute `forward` on each decoder layer and on the last norm, which
hides the method of that name; deleting the attribute undoes it. `layers.py` knows
nothing of it. A layer whose parts have hooks, or are of another class than in
`layers.py`, runs its own forward.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from lr.kernels import fused
from lr.model.layers import (
    MLP,
    Attend,
    Attention,
    DecoderLayer,
    HeadNorm,
    Linear,
    RMSNorm,
)


def install(layers: nn.ModuleList, norm: RMSNorm) -> None:
    """Run these layers, and the norm after them, on the kernels."""
    for layer, following in zip(layers, [*layers[1:], norm], strict=True):
        assert isinstance(layer, DecoderLayer)
        layer.forward = partial(layer_forward, layer, following)  # type: ignore
    norm.forward = partial(norm_forward, norm)  # type: ignore[method-assign]


PASSED = (RMSNorm, HeadNorm, MLP, Attention)  # parts that the kernels go past
Residual = Tensor | tuple[Tensor, Tensor]
"""The residual stream x [n, e] between two layers, or two addends of it: the next
kernel adds them where it norms them."""


def norm_forward(norm: RMSNorm, stream: Residual) -> Tensor:
    """`RMSNorm.forward` of the residual stream."""
    x, addend = stream if isinstance(stream, tuple) else (stream, None)
    return fused.add_norm(x, addend, norm.weight, norm.eps)[1]


def layer_forward(
    layer: DecoderLayer,
    following: nn.Module,
    stream: Residual,
    cos: Tensor,
    signed_sin: Tensor,
    attend: Attend,
) -> Residual:
    """`DecoderLayer.forward` of the residual stream."""
    x, addend = stream if isinstance(stream, tuple) else (stream, None)
    if not standard(layer):
        x = x if addend is None else x + addend
        return DecoderLayer.forward(layer, x, cos, signed_sin, attend)
    attention, mlp = layer.attention, layer.mlp
    first, second = layer.attention_norm, layer.mlp_norm
    if len(x) == 1 and readable(layer):  # then there is no addend
        # One kernel per matrix: it norms before, and adds the residual after.
        norms = (first.weight, first.eps), (second.weight, second.eps)
        # [1, (h + 2 k) d]
        qkv = fused.linear(x, attention.qkv.weight, attention.qkv.bias, norms[0])
        mixed = mix(attention, qkv, cos, signed_sin, attend)
        x = fused.linear(mixed, attention.out.weight, x)
        # silu(gate) * up, [1, width]
        gated = fused.linear(x, mlp.gate_up.weight, None, norms[1], gated=True)
        return fused.linear(gated, mlp.down.weight, x)
    x, normed = fused.add_norm(x, addend, first.weight, first.eps)
    qkv = attention.qkv(normed)  # [n, (h + 2 k) d]
    mixed = attention.out(mix(attention, qkv, cos, signed_sin, attend))
    x, normed = fused.add_norm(x, mixed, second.weight, second.eps)
    # the next layer adds it, and norms
    addend = mlp.down(fused.silu_mul(mlp.gate_up(normed)))
    if len(x) == 1 or hooked(layer) or hooked(following):  # others want the sum
        return x + addend
    return x, addend


def mix(
    attention: Attention, qkv: Tensor, cos: Tensor, signed_sin: Tensor, attend: Attend
) -> Tensor:
    """What an attention does between its projections: [n, (h + 2 k) d] -> [n, h d]."""
    h, k, d = attention.num_heads, attention.num_kv_heads, attention.head_dim
    n = len(qkv)
    heads = qkv.view(n, h + 2 * k, d)  # queries, keys, values
    norm = attention.qk_norm
    weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
    # queries and keys, in place
    fused.norm_rotate(heads, h, k, weight, eps, cos, signed_sin)
    queries, keys, values = heads.split_with_sizes((h, k, k), dim=1)
    return attend(attention.layer, queries, keys, values).reshape(n, h * d)


def standard(layer: DecoderLayer) -> bool:
    """Whether the parts that the kernels go past are those of `layers.py`, without
    hooks. Matrices are called as modules, so they may be anything."""
    _, *parts = (part for part in layer.modules() if not isinstance(part, Linear))
    return all(type(part) in PASSED and not hooked(part) for part in parts)


def readable(layer: DecoderLayer) -> bool:
    """Whether `fused.linear` may read the weights of all four matrices."""
    return all(
        type(matrix) is Linear and matrix.weight.is_contiguous() and not hooked(matrix)
        for matrix in layer.modules()
        if isinstance(matrix, Linear)
    )


def hooked(module: nn.Module) -> bool:
    """Whether a call of this module runs more than its forward."""
    return bool(module._forward_hooks or module._forward_pre_hooks)
