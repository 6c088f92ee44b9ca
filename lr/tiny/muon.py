"""The optimiser of the tiny models: Muon for the matrices, AdamW for the rest.

Muon (Jordan et al., 2024, kellerjordan.github.io/posts/muon) replaces the momentum of a matrix by
the nearest matrix with orthonormal rows or columns, found by five Newton-Schulz steps: all
directions of a layer learn at one rate. Matrices of one shape are stacked and worked on together;
with several processes each does its share of every stack and they exchange the updates.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

MOMENTUM = 0.95
QUINTIC = (3.4445, -4.7750, 2.0315)


def orthogonalise(stack: Tensor, steps: int = 5) -> Tensor:
    """The nearest semi-orthogonal matrices, roughly (singular values in about 0.7..1.2), of a stack
    [m, rows, columns].
    """
    a, b, c = QUINTIC
    wide = stack.shape[-2] <= stack.shape[-1]
    x = stack if wide else stack.mT
    x = (x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)).to(
        torch.bfloat16
    )  # the iteration forgives rounding
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x if wide else x.mT).to(stack.dtype)


class Muon:
    """Muon over matrices of a model, grouped by shape. `step(rate)` reads their gradients and
    changes them in place.
    """

    def __init__(self, matrices: list[nn.Parameter]) -> None:
        shapes = sorted({tuple(matrix.shape) for matrix in matrices})
        self.groups = [
            [matrix for matrix in matrices if tuple(matrix.shape) == shape] for shape in shapes
        ]
        self.momenta = [
            torch.zeros(len(group), *group[0].shape, device=group[0].device)
            for group in self.groups
        ]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        world = dist.get_world_size() if dist.is_initialized() else 1
        rank = dist.get_rank() if dist.is_initialized() else 0
        for group, momentum in zip(self.groups, self.momenta, strict=True):
            gradient = torch.stack([matrix.grad for matrix in group if matrix.grad is not None])
            momentum.lerp_(gradient, 1 - MOMENTUM)
            nesterov = gradient.lerp_(momentum, MOMENTUM)
            update = _shared(nesterov, rank, world)
            rows, columns = momentum.shape[-2:]
            scale = rate * max(1.0, rows / columns) ** 0.5
            for matrix, change in zip(group, update, strict=True):
                matrix.sub_(change, alpha=scale)

    def state_dict(self) -> list[Tensor]:
        return self.momenta

    def load_state_dict(self, momenta: list[Tensor]) -> None:
        for mine, saved in zip(self.momenta, momenta, strict=True):
            mine.copy_(saved)


def _shared(stack: Tensor, rank: int, world: int) -> Tensor:
    """`orthogonalise(stack)`, the stack split over the processes. Worked example: 5 matrices, 2
    processes: 3 each, the last padded.
    """
    if world == 1:
        return orthogonalise(stack)
    share = -(-len(stack) // world)
    mine = stack[rank * share : (rank + 1) * share]
    if len(mine) < share:
        mine = torch.cat((mine, torch.zeros(share - len(mine), *stack.shape[1:])))
    parts = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(parts, orthogonalise(mine).contiguous())
    return torch.cat(parts)[: len(stack)]
