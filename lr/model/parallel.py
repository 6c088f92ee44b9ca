"""Tensor parallelism: one model over several ranks, each with its slices of the weights and of the
KV cache (Shoeybi et al., Megatron-LM, arXiv 1909.08053). `docs/parallel.md` has the table of who
has what, and where the ranks meet.

Worked example: 8 query heads, 2 KV heads, 4 ranks. Rank 3 has the query heads 6 and 7, which look
at KV head 1, and so has rank 2. A vocabulary of 61 is padded to 64: rank 3 has the rows 48..63, of
which the checkpoint has 48..60; the others are zero, and their logits are cut off. Read next:
`ranks.py`, the processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from lr.errors import LRError, SettingError
from lr.model.config import ModelConfig
from lr.model.layers import DecoderLayer
from lr.model.qwen import CausalLM
from lr.model.weights import Piece, load_pieces, pieces


class RankLost(LRError):
    """A collective failed: another rank is gone, or did not come in time."""


@dataclass(frozen=True)
class Ranks:
    """This process among those that share a model: number `rank` of `size`, on `device`. All ranks
    make the same calls in the same order, on two groups of `torch.distributed`: for `sums`, and for
    messages. Raises `RankLost`.
    """

    rank: int
    size: int
    device: torch.device
    sums: Any = None
    messages: Any = None

    def tell(self, message: Any = None) -> Any:
        """The message of rank 0, there and on all others."""
        told = [message]
        together(dist.broadcast_object_list, told, 0, self.messages)
        return told[0]

    def sum(self, x: Tensor) -> Tensor:
        """Add up x of all ranks, in place."""
        together(dist.all_reduce, x, group=self.sums)
        return x

    def gather(self, x: Tensor) -> list[Tensor]:
        """On rank 0 the x of all ranks (equal shapes), elsewhere nothing."""
        parts = [torch.empty_like(x) for _ in range(self.size)] if self.rank == 0 else None
        together(dist.gather, x.contiguous(), parts, dst=0, group=self.sums)
        return parts or []


def together(collective: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """One collective of all ranks. Raises `RankLost`."""
    try:
        return collective(*arguments, **named)
    except RuntimeError as error:
        raise RankLost(f"this rank has lost the others: {error}") from error


def part_of(config: ModelConfig, ranks: int) -> ModelConfig:
    """The sizes of one rank's network. Raises `SettingError` if it cannot be divided so."""

    def wrong(n: int) -> str:
        k = config.num_kv_heads
        if config.num_heads % n:
            return f"query heads ({config.num_heads})"
        if config.intermediate_size % n:
            return f"MLP width ({config.intermediate_size})"
        return f"KV heads ({k})" if max(k, n) % min(k, n) else ""

    if found := wrong(ranks):
        possible = [str(n) for n in range(1, config.num_heads + 1) if not wrong(n)]
        raise SettingError(
            f"tensor_parallel is {ranks}, and this model's {found} cannot be divided among so many "
            f"ranks. Possible for it: {', '.join(possible)}."
        )
    return replace(
        config,
        num_heads=config.num_heads // ranks,
        num_kv_heads=max(1, config.num_kv_heads // ranks),
        intermediate_size=config.intermediate_size // ranks,
        vocab_size=-(-config.vocab_size // ranks),
    )


def cuts(config: ModelConfig, rank: int, ranks: int) -> list[Piece]:
    """What a rank takes of every tensor of a checkpoint. Raises as `part_of` does.

    An axis that is as long in the part as in the whole is taken whole. Else it has whole / part
    pieces, and the rank takes piece number rank * pieces // ranks: with 2 pieces (KV heads) for 4
    ranks these are 0, 0, 1, 1.
    """
    part = part_of(config, ranks)
    padded = replace(config, vocab_size=part.vocab_size * ranks)
    found = []
    for whole, long, mine in zip(pieces(config), pieces(padded), pieces(part), strict=True):
        taken = []
        for end, total, size in zip(whole.shape, long.shape, mine.shape, strict=True):
            start = rank * (total // size) // ranks * size
            taken.append(slice(min(start, end), min(start + size, end)))
        found.append(replace(whole, first=mine.first, taken=tuple(taken)))
    return found


class RankLM(CausalLM):
    """One rank's part of a model. `config` is that of the whole; only rank 0 gets logits."""

    replayable = False  # there are messages between its kernels

    def __init__(self, config: ModelConfig, ranks: Ranks) -> None:
        part = part_of(config, ranks.size)
        super().__init__(part)
        self.config, self.part, self.ranks = config, part, ranks
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            for one in (layer.attention.out, layer.mlp.down):  # y = sum over the ranks of W_r x_r
                one.register_forward_hook(lambda _, x, y: ranks.sum(y))

    @classmethod
    def load(cls, source: str | Path, ranks: Ranks, dtype: torch.dtype | None = None) -> Self:
        """This rank's part, as `load_model` has the whole: of every tensor only the slice that is
        its own is read. Raises as that does and as `part_of` does.
        """
        take = partial(cuts, rank=ranks.rank, ranks=ranks.size)
        return load_pieces(source, ranks.device, dtype, partial(cls, ranks=ranks), take)

    def embed(self, tokens: Tensor) -> Tensor:
        """Tokens [n] -> [n, e]. A token whose row is elsewhere is zero here, and the sum over the
        ranks is its row. Example: of rows 48..63, token 50 is row 2; token 7 is not here: row 0 is
        read, and put to zero.
        """
        here = tokens - self.ranks.rank * self.part.vocab_size
        elsewhere = (here < 0) | (here >= self.part.vocab_size)
        x = self.embedding(here.masked_fill(elsewhere, 0))
        return self.ranks.sum(x.masked_fill(elsewhere[:, None], 0))

    def logits(self, hidden: Tensor) -> Tensor:
        """On rank 0 the logits [m, v] of all ranks side by side, elsewhere [m, 0]."""
        parts = self.ranks.gather(super().logits(hidden))
        return torch.cat(parts, dim=-1)[:, : self.config.vocab_size] if parts else hidden[:, :0]
