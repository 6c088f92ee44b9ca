"""bfloat16 matrices in the order in which a processor without AMX reads them. `pack`
replaces the matrices of a loaded model; nothing else knows of it, and this file can be
deleted.

A pass of few rows costs the time of reading the weights. oneDNN multiplies by a matrix
that lies in its own order, made once, at the memory's speed; by one that lies by rows
(`F.linear`) at half of it. The bits are the same. With AMX `layers.product` does better
without another order.
"""

import torch
from torch import Tensor, nn

from lr.model.layers import Linear, has_amx
from lr.model.qwen import CausalLM


class PackedLinear(Linear):
    """y = W x (+ b); `weight` [rows, columns] is opaque to all but oneDNN."""

    def __init__(self, matrix: Linear) -> None:
        rows, columns = matrix.weight.shape
        super().__init__(columns, rows, bias=False, device="meta")
        packed = torch.ops.mkldnn._reorder_linear_weight(matrix.weight)
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.bias = matrix.bias

    def forward(self, x: Tensor) -> Tensor:
        """x [n, columns] -> [n, rows]."""
        multiply = torch.ops.mkldnn._linear_pointwise  # no activation follows: "none"
        return multiply(x, self.weight, self.bias, "none", [], "")


def can_pack(model: CausalLM) -> bool:
    """Whether packed matrices help this model on this processor."""
    is_bfloat16 = model.dtype is torch.bfloat16 and model.device.type == "cpu"
    # PyTorch built with oneDNN
    has_kernels = hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return is_bfloat16 and has_kernels and not has_amx()


@torch.no_grad()
def pack(model: CausalLM) -> None:
    """Replace the matrices of a model, one after the other, by packed ones."""
    if model.head is None:  # tied: the head becomes a copy of the embedding
        model.head = Linear(1, 1, bias=False)
        model.head.weight = model.embedding.weight
    for module in list(model.modules()):  # a list: the loop replaces some
        for name, matrix in module.named_children():
            if type(matrix) is Linear:
                setattr(module, name, PackedLinear(matrix))
