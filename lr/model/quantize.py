"""Weights in 8 or 4 bits, for a draft that costs less. `replace_matrices` replaces the
matrices of a model before `weights.fill` brings their rows; `load_pieces` alone imports
this file.

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
ROWS_AT_A_TIME = 256
"""The rows that are quantised at a time, so that intermediate results stay small."""


class Quantised(Linear):
    """y = W x (+ b), W [rows, columns] in few bits: `weight`, and their `scale`. It is
    empty until `take` has brought all rows."""

    scale: Tensor
    axis = 0  # of `scale`: the rows

    def __init__(self, rows: int, columns: int, bias: nn.Parameter | None) -> None:
        super().__init__(columns, rows, bias=False, device="meta")
        numbers, scale = self.quantised(torch.zeros(16, columns))
        numbers = numbers.new_empty(rows, *numbers.shape[1:])
        shape = list(scale.shape)
        shape[self.axis] = rows
        self.weight = nn.Parameter(numbers, requires_grad=False)
        self.register_buffer("scale", scale.new_empty(shape))
        if bias is not None:
            self.bias = bias

    @torch.no_grad()
    def quantise_rows(self, first: int, weight: Tensor) -> None:
        """Quantise rows first, first + 1, ... of W. `first`: a multiple of
        `ROWS_AT_A_TIME`, because the kernel packs rows in blocks."""
        for rows in weight.split(ROWS_AT_A_TIME):
            numbers, scale = self.quantised(rows.float().contiguous())
            self.weight[first : first + len(rows)] = numbers
            self.scale.narrow(self.axis, first, len(rows)).copy_(scale)
            first += len(rows)

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

    axis = 1

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
        return packed, torch.stack((scale.t(), zero.t()), dim=2)

    def product(self, x: Tensor) -> Tensor:
        return torch._weight_int4pack_mm_for_cpu(x, self.weight, GROUP, self.scale)


QUANTISED_KINDS: dict[str, type[Quantised]] = {"int8": Int8Linear, "int4": Int4Linear}


@torch.no_grad()
def quantize(model: CausalLM, weights: str) -> dict[str, Quantised]:
    """As `replace_matrices`, for a model whose weights are there: the new matrices take
    them."""
    parameters = dict(model.named_parameters())
    matrices = replace_matrices(model, weights)
    for name, matrix in matrices.items():
        matrix.quantise_rows(0, parameters[name])
    return matrices


def replace_matrices(model: CausalLM, weights: str) -> dict[str, Quantised]:
    """Replace the matrices of a model by empty quantised ones, the head included, as far
    as the kernels can read their shape. By the name of the weight that each has to
    `take` ("layers.0.mlp.down.weight"); a tied head takes the embedding. Raises
    `SettingError` without kernels."""
    possible = model.device.type == "cpu" and type(model) is CausalLM
    expected = "none: only one process on a CPU computes with quantised weights"
    require(possible, "weights", weights, expected)
    matrices = {}
    for path, matrix in list(model.named_modules()):
        owner, _, attribute = path.rpartition(".")
        name = f"{path}.weight"
        if matrix is model.embedding and model.head is None:
            owner, attribute = "", "head"
        elif type(matrix) is not Linear:
            continue
        rows, columns = matrix.weight.shape
        if rows % 16 == 0 and columns % GROUP == 0:
            bias = matrix.bias if type(matrix) is Linear else None
            matrices[name] = QUANTISED_KINDS[weights](rows, columns, bias)
            setattr(model.get_submodule(owner), attribute, matrices[name])
    return matrices
