"""Tensor parallelism: one model over several ranks, each with its slices of the weights and of the
KV cache (Shoeybi et al., Megatron-LM, arXiv 1909.08053).

    q, k, v, gate, up     by rows (each rank makes its heads, its part of the MLP), biases too
    o, down               by columns (each rank reads what it has made; then all are summed)
    embedding, head       by rows of the vocabulary, padded to a multiple of the ranks
    norms                 whole, on every rank

Two sums a layer, after `o` and after `down`; one after the embedding, where each token's row is on
one rank; and rank 0 gathers the logits. Query heads and the width of the MLP must be divisible. KV
heads are divided where there are at least as many as ranks; where there are fewer, several ranks
have the same one.

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
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from lr.errors import LRError, SettingError
from lr.kvcache.cache import PagedKVCache
from lr.model.config import ModelConfig, read_config
from lr.model.dummy import is_dummy, shape
from lr.model.files import open_tensors, resolve
from lr.model.layers import DecoderLayer, Linear
from lr.model.qwen import CausalLM
from lr.model.weights import account, checkpoint_dtype, fill_dummy, pieces


class RankLost(LRError):
    """A collective failed: another rank is gone, or did not come in time."""


@dataclass(frozen=True)
class Ranks:
    """This process among those that share a model: number `rank` of `size`. All ranks make the same
    calls in the same order, on the default group of `torch.distributed`. Raises `RankLost`.
    """

    rank: int
    size: int

    def sum(self, x: Tensor) -> Tensor:
        """Add up x of all ranks, in place."""
        together(dist.all_reduce, x)
        return x

    def gather(self, x: Tensor) -> list[Tensor]:
        """On rank 0 the x of all ranks (equal shapes), elsewhere nothing."""
        parts = [torch.empty_like(x) for _ in range(self.size)] if self.rank == 0 else None
        together(dist.gather, x.contiguous(), parts, dst=0)
        return [] if parts is None else parts


def together(collective: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """One collective of all ranks. Raises `RankLost`."""
    try:
        return collective(*arguments, **named)
    except RuntimeError as error:
        raise RankLost(f"this rank has lost the others: {error}") from error


@dataclass(frozen=True)
class Cut:
    """Rows `rows` (and columns `columns`; None: all, or there are none) of tensor `key` make the
    rows from `first` on of `parameter`.
    """

    key: str
    parameter: str
    first: int
    rows: range
    columns: range | None


def part_of(config: ModelConfig, ranks: int) -> ModelConfig:
    """The sizes of one rank's network. Raises `SettingError` if this network cannot be divided
    among so many ranks.
    """

    def wrong(n: int) -> tuple[str, int] | None:
        k = config.num_kv_heads
        for name, size in (
            ("query heads", config.num_heads),
            ("MLP width", config.intermediate_size),
        ):
            if size % n:
                return name, size
        return ("KV heads", k) if max(k, n) % min(k, n) else None

    if (found := wrong(ranks)) is not None:
        possible = [str(n) for n in range(1, config.num_heads + 1) if wrong(n) is None]
        raise SettingError(
            f"tensor_parallel is {ranks}, and this model's {found[0]} ({found[1]}) cannot be "
            f"divided among so many ranks. Possible for it: {', '.join(possible)}."
        )
    return replace(
        config,
        num_heads=config.num_heads // ranks,
        num_kv_heads=max(1, config.num_kv_heads // ranks),
        intermediate_size=config.intermediate_size // ranks,
        vocab_size=-(-config.vocab_size // ranks),
    )


def cuts(config: ModelConfig, rank: int, ranks: int) -> list[Cut]:
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
        for total, size in zip(long.shape, mine.shape, strict=True):
            start = rank * (total // size) // ranks * size
            taken.append(range(start, start + size))
        rows = range(*(min(end, whole.shape[0]) for end in (taken[0].start, taken[0].stop)))
        columns = taken[1] if len(taken) == 2 and len(taken[1]) < whole.shape[1] else None
        found.append(Cut(mine.key, mine.parameter, mine.first, rows, columns))
    return found


class RowParallelLinear(Linear):
    """y = sum over the ranks of W_r x_r: every rank has some columns of W, and the part of x that
    belongs to them.
    """

    def __init__(self, columns: int, rows: int, ranks: Ranks) -> None:
        super().__init__(columns, rows, bias=False)
        self.ranks = ranks

    def forward(self, x: Tensor) -> Tensor:
        return self.ranks.sum(F.linear(x, self.weight))


class VocabParallelEmbedding(nn.Embedding):
    """Rows of the vocabulary: a token whose row is elsewhere is zero here, and the sum over the
    ranks is its row.
    """

    def __init__(self, first: int, table: Tensor, ranks: Ranks) -> None:
        super().__init__(table.shape[0], table.shape[1], _weight=table)
        self.first, self.ranks = first, ranks

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [n] -> [n, e]. Example: rows 48..63, token 50 is row 2; token 7 is not here: row 0
        is read, and put to zero.
        """
        here = tokens - self.first
        elsewhere = (here < 0) | (here >= self.num_embeddings)
        x = F.embedding(here.masked_fill(elsewhere, 0), self.weight)
        return self.ranks.sum(x.masked_fill(elsewhere[:, None], 0))


class RankLM(CausalLM):
    """One rank's part of a model. `config` is that of the whole; only rank 0 gets logits."""

    graphs = False

    def __init__(self, config: ModelConfig, ranks: Ranks) -> None:
        part = part_of(config, ranks.size)
        super().__init__(part)
        self.config, self.part, self.ranks = config, part, ranks
        first = ranks.rank * part.vocab_size
        self.embedding = VocabParallelEmbedding(first, self.embedding.weight, ranks)
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            e, inner = part.hidden_size, part.intermediate_size
            layer.attention.out = RowParallelLinear(part.num_heads * part.head_dim, e, ranks)
            layer.mlp.down = RowParallelLinear(inner, e, ranks)

    def logits(self, hidden: Tensor) -> Tensor:
        """On rank 0 the logits [m, v] of all ranks side by side, elsewhere [m, 0]."""
        parts = self.ranks.gather(super().logits(hidden))
        return torch.cat(parts, dim=-1)[:, : self.config.vocab_size] if parts else hidden[:, :0]

    def cache_sizes(self, num_blocks: int, block_size: int) -> dict[str, Any]:
        """What `PagedKVCache` takes for this rank's KV heads."""
        return {
            "num_layers": self.part.num_layers,
            "num_kv_heads": self.part.num_kv_heads,
            "head_dim": self.part.head_dim,
            "num_blocks": num_blocks,
            "block_size": block_size,
            "dtype": self.dtype,
            "device": self.device,
        }

    def make_cache(self, num_blocks: int, block_size: int) -> PagedKVCache:
        """A cache for this rank's KV heads."""
        return PagedKVCache(**self.cache_sizes(num_blocks, block_size))


Part = TypeVar("Part", bound=RankLM)


def config_of(source: str | Path) -> ModelConfig:
    """The sizes of the whole model. Raises `CheckpointError`."""
    return shape(source) if is_dummy(source) else read_config(resolve(source))


def load_part(
    source: str | Path,
    ranks: Ranks,
    device: torch.device,
    dtype: torch.dtype | None,
    network: Callable[[ModelConfig, Ranks], Part],
) -> Part:
    """The part of this rank, frozen and in eval mode: of every tensor only the slice that is its
    own is read. `source` and `dtype` as in `load_model`; raises as it does, and `SettingError` if
    the model cannot be divided among so many ranks.
    """
    config = config_of(source)
    listed, make = cuts(config, ranks.rank, ranks.size), partial(network, config, ranks)
    if is_dummy(source):
        model = RankLM.materialised(make, dtype or torch.bfloat16, device)
        fill_dummy(model)
        return model
    directory = resolve(source)
    with open_tensors(directory) as tensors, torch.no_grad():
        size = part_of(config, ranks.size).vocab_size
        start, stop = (min(n * size, config.vocab_size) for n in (ranks.rank, ranks.rank + 1))
        account(config, tensors, directory, slice(start, stop))
        model = RankLM.materialised(make, dtype or checkpoint_dtype(directory, tensors), device)
        parameters = dict(model.named_parameters())
        unfilled = {name: parameter.shape[0] for name, parameter in parameters.items()}
        for cut in listed:
            parameter, stored = parameters[cut.parameter], tensors.slice(cut.key)
            end = cut.first + len(cut.rows)
            if cut.rows:
                rows = slice(cut.rows.start, cut.rows.stop)
                if cut.columns is None:
                    parameter[cut.first : end] = stored[rows]
                else:
                    parameter[cut.first : end] = stored[rows, cut.columns.start : cut.columns.stop]
            unfilled[cut.parameter] -= len(cut.rows)
            if cut.parameter in ("embedding.weight", "head.weight"):
                parameter[end:] = 0  # rows that no file has: padding
                unfilled[cut.parameter] -= parameter.shape[0] - end
    assert not any(unfilled.values()), f"rows without a source: {unfilled}"
    return model
