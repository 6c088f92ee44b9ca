"""The network of one rank: a `CausalLM` of the part's sizes whose layers add up what all ranks
have.

Two sums a layer, behind `o` and behind `down`; one behind the embedding, of which each token is at
home on one rank; and the logits are gathered on rank 0. Between the sums the hidden states are the
same on all ranks, and so are the norms. Read next: `leader.py`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lr.kvcache.cache import PagedKVCache
from lr.model.config import ModelConfig
from lr.model.layers import DecoderLayer
from lr.model.parallel.ranks import Ranks
from lr.model.parallel.slices import part_of, rows_of_vocabulary
from lr.model.qwen import CausalLM


class SummedLinear(torch.nn.Linear):
    """y = sum over the ranks of W_r x_r: every rank has some columns of W, and the part of x that
    belongs to them.
    """

    def __init__(self, columns: int, rows: int, ranks: Ranks) -> None:
        super().__init__(columns, rows, bias=False)
        self.ranks = ranks

    def forward(self, x: Tensor) -> Tensor:
        return self.ranks.sum(F.linear(x, self.weight))


class SummedEmbedding(torch.nn.Embedding):
    """Rows of the vocabulary: a token whose row is elsewhere is zero here, and the sum over the
    ranks is its row.
    """

    def __init__(self, rows: range, width: int, ranks: Ranks) -> None:
        super().__init__(len(rows), width)
        self.first, self.ranks = rows.start, ranks

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

    def __init__(self, config: ModelConfig, ranks: Ranks) -> None:
        part = part_of(config, ranks.size)
        super().__init__(part)
        self.config, self.part, self.ranks = config, part, ranks
        rows = rows_of_vocabulary(config, ranks.rank, ranks.size)
        self.embedding = SummedEmbedding(rows, config.hidden_size, ranks)
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            layer.attention.out = SummedLinear(
                part.num_heads * part.head_dim, part.hidden_size, ranks
            )
            layer.mlp.down = SummedLinear(part.intermediate_size, part.hidden_size, ranks)

    def logits(self, hidden: Tensor) -> Tensor:
        """On rank 0 the logits [m, v] of all ranks side by side, elsewhere [m, 0]."""
        parts = self.ranks.gather(super().logits(hidden))
        return torch.cat(parts, dim=-1)[:, : self.config.vocab_size] if parts else hidden[:, :0]

    def cache_sizes(self, num_blocks: int, block_size: int) -> dict[str, Any]:
        """What `PagedKVCache` takes for this rank's KV heads."""
        part = self.part
        return {
            "num_layers": part.num_layers,
            "num_kv_heads": part.num_kv_heads,
            "head_dim": part.head_dim,
            "num_blocks": num_blocks,
            "block_size": block_size,
            "dtype": self.dtype,
            "device": self.device,
        }

    def make_cache(self, num_blocks: int, block_size: int) -> PagedKVCache:
        """A cache for this rank's KV heads."""
        return PagedKVCache(**self.cache_sizes(num_blocks, block_size))
