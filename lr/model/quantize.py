"""Weights in 8 or 4 bits, for a draft that costs less. `quantize` replaces the matrices
of a loaded model; nothing else knows of it, and this file can be deleted.

A pass of one row costs the time of reading the weights, so it gets quicker as they get
smaller. The kernels are PyTorch's, for CPUs. Their cost grows with the rows: up to
about eight rows they are quicker than bfloat16 (AMD EPYC, PyTorch 2.13). So they suit a
draft better than a target that checks many tokens at once.

**int8**: w = scale * q, q from -127 to 127, a scale for each row of the matrix.
**int4**: w = scale * (q - 8) + zero, q from 0 to 15, both numbers for 32 weights of a
row at a time. With the numbers in bfloat16 that is 5 bits for a weight.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lr.model.layers import Linear, bfloat16_unit
from lr.model.qwen import CausalLM
from lr.types import require

GROUP = 32
"""The weights of a row that share a scale and a zero."""
FEW_ROWS = 16
"""With more, as in a prompt, the kernel for int8 takes longer than it takes to write the
matrix out in bfloat16 and multiply by that."""
ROWS_AT_A_TIME = 2048
"""The rows that are quantised at a time, so that intermediate results stay small."""


class Quantised(Linear):
    """y = W x (+ b), W [rows, columns] in few bits: `weight`, and their `scale`."""

    scale: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        rows, columns = weight.shape
        super().__init__(columns, rows, bias=False, device="meta")
        parts = [
            self.quantised(rows.float().contiguous())
            for rows in weight.split(ROWS_AT_A_TIME)
        ]
        numbers, scales = zip(*parts, strict=True)
        self.weight = nn.Parameter(torch.cat(numbers), requires_grad=False)
        self.register_buffer("scale", torch.cat(scales))
        if bias is not None:
            self.bias = nn.Parameter(bias, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [n, columns] -> [n, rows]."""
        y = self.product(x.bfloat16().contiguous()).to(x.dtype)
        return y if self.bias is None else y + self.bias

    @staticmethod
    def quantised(rows: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers and scale of some rows of W."""
        raise NotImplementedError

    def product(self, x: Tensor) -> Tensor:
        """W x of x [n, columns], both bfloat16."""
        raise NotImplementedError


class Int8Linear(Quantised):
    """`weight` [rows, columns], `scale` [rows]."""

    @staticmethod
    def quantised(rows: Tensor) -> tuple[Tensor, Tensor]:
        scale = (rows.abs().amax(1).clamp(min=1e-8) / 127).bfloat16()
        numbers = (rows / scale[:, None]).round_().clamp_(-127, 127)
        return numbers.to(torch.int8), scale

    def product(self, x: Tensor) -> Tensor:
        if len(x) > FEW_ROWS and bfloat16_unit():
            return F.linear(x, self.weight.bfloat16()) * self.scale
        return torch._weight_int8pack_mm(x, self.weight, self.scale)


class Int4Linear(Quantised):
    """`weight` two in a byte, in the kernel's order; `scale` [groups, rows, 2]: scales
    and zeros."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        self.scale = self.scale.transpose(0, 1).contiguous()

    @staticmethod
    def quantised(rows: Tensor) -> tuple[Tensor, Tensor]:
        groups = rows.unflatten(1, (-1, GROUP))  # [rows, groups, GROUP]
        low = groups.amin(2)
        high = groups.amax(2)  # with the line above ten times as fast as `aminmax`
        scale = ((high - low).clamp(min=1e-8) / 15).bfloat16()  # [rows, groups]
        zero = (low + 8 * scale).bfloat16()
        numbers = (groups - zero[..., None]).div_(scale[..., None]).round_().add_(8)
        numbers = numbers.clamp_(0, 15).int().flatten(1)
        packed = torch._convert_weight_to_int4pack_for_cpu(numbers, 1)
        return packed, torch.stack((scale, zero), dim=2)

    def product(self, x: Tensor) -> Tensor:
        return torch._weight_int4pack_mm_for_cpu(x, self.weight, GROUP, self.scale)


QUANTISED_KINDS: dict[str, type[Quantised]] = {"int8": Int8Linear, "int4": Int4Linear}


def quantize(model: CausalLM, weights: str) -> None:
    """Replace the matrices of a model by quantised ones, the head included, as far as
    the kernels can read their shape. Raises `SettingError` without kernels."""
    for name in dict(model.named_parameters()):
        quantize_matrix(model, weights, name)


@torch.no_grad()
def quantize_matrix(model: CausalLM, weights: str, name: str) -> None:
    """Replace the matrix with the weight `name` ("layers.0.mlp.down.weight"), if the
    kernels can read its shape. A tied head becomes a quantised copy of the embedding.
    Raises `SettingError` without kernels."""
    possible = model.device.type == "cpu" and type(model) is CausalLM
    expected = "none: only one process on a CPU computes with quantised weights"
    require(possible, "weights", weights, expected)
    path, _, kind = name.rpartition(".")
    matrix = model.get_submodule(path)
    if matrix is model.embedding and model.head is None:
        owner: nn.Module = model
        attribute = "head"
    elif type(matrix) is Linear and kind == "weight":
        parent, _, attribute = path.rpartition(".")
        owner = model.get_submodule(parent)
    else:
        return
    rows, columns = matrix.weight.shape
    if rows % 16 == 0 and columns % GROUP == 0:
        bias = matrix.bias if type(matrix) is Linear else None
        setattr(owner, attribute, QUANTISED_KINDS[weights](matrix.weight, bias))
