"""The yardstick for what paging costs: greedy decoding with a static cache, written as directly as
PyTorch allows.

A rectangle of b rows that all stand at the same position, one tensor of keys and one of values of
the full length, positions as Python numbers, no blocks, no branches, no ragged batch. It computes
what `CausalLM` computes, from the same weights, with the same norm and rotation, so what differs in
time is the cache and the bookkeeping. It knows no tokenizer and no sampling.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from lr.model.layers import DecoderLayer, RMSNorm, rotate, rotation
from lr.model.qwen import CausalLM


@dataclass(frozen=True)
class _Layer:
    """The weights of a layer as plain tensors, and its norms."""

    attention_norm: RMSNorm
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: RMSNorm | None
    k_norm: RMSNorm | None
    out: Tensor
    mlp_norm: RMSNorm
    gate_up: Tensor
    down: Tensor


class BareLoop:
    """b rows of at most `length` tokens: `step` feeds one token to each and gives the logits of the
    next.
    """

    def __init__(self, model: CausalLM, rows: int, length: int) -> None:
        config = model.config
        self.h, self.kv, self.d = config.num_heads, config.num_kv_heads, config.head_dim
        self.embedding = model.embedding.weight
        self.head = self.embedding if model.head is None else model.head.weight
        self.norm = model.norm
        self.layers = [_plain(layer) for layer in model.layers if isinstance(layer, DecoderLayer)]
        shape = (config.num_layers, rows, self.kv, length, self.d)
        self.keys = torch.zeros(shape, dtype=model.dtype)
        self.values = torch.zeros(shape, dtype=model.dtype)
        self.cos, self.sin = rotation(
            torch.arange(length), model.frequencies, model.rotation_factor, model.dtype
        )
        self.length = 0

    def step(self, tokens: Tensor) -> Tensor:
        """Feed tokens [b], one per row, at the next position; logits [b, v] of the tokens after
        them.
        """
        at, b, h, kv, d = self.length, len(tokens), self.h, self.kv, self.d
        self.length = end = at + 1
        cos, sin = self.cos[at], self.sin[at]  # [1, d]
        x = self.embedding.index_select(0, tokens)
        for layer, keys, values in zip(
            self.layers, self.keys.unbind(0), self.values.unbind(0), strict=True
        ):
            heads = F.linear(layer.attention_norm(x), layer.qkv, layer.qkv_bias).view(b, -1, d)
            q, k, v = heads.split_with_sizes((h, kv, kv), 1)
            if layer.q_norm is not None and layer.k_norm is not None:
                q, k = layer.q_norm(q), layer.k_norm(k)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            keys[:, :, at], values[:, :, at] = k, v
            mixed = F.scaled_dot_product_attention(
                q.unsqueeze(2), keys[:, :, :end], values[:, :, :end], enable_gqa=True
            )
            x = x + F.linear(mixed.view(b, -1), layer.out)
            gate, up = F.linear(layer.mlp_norm(x), layer.gate_up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, layer.down)
        return F.linear(self.norm(x), self.head)


def _plain(layer: DecoderLayer) -> _Layer:
    attention, mlp = layer.attention, layer.mlp
    return _Layer(
        layer.attention_norm,
        attention.qkv.weight,
        attention.qkv.bias,
        attention.q_norm,
        attention.k_norm,
        attention.out.weight,
        layer.mlp_norm,
        mlp.gate_up.weight,
        mlp.down.weight,
    )
