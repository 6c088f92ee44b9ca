"""The decoder: embedding, layers, norm, head. Qwen3 and Qwen2 differ in two flags.

`CausalLM.forward` computes a ragged batch on a cache. `trunk` is the same network with
any rule of which token attends to which (training uses plain causal rows). To see
hidden states, register forward hooks: on `model.norm` for the final ones [n, e], on
`model.layers[i]` for a layer's. A pass that is replayed from a CUDA graph runs no
Python, so no hooks. Read next: `layers.py`, `attention.py`.
"""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from lr.kvcache.cache import PagedKVCache
from lr.model.attention import SDPA, AttentionKind, RaggedBatch
from lr.model.config import ModelConfig
from lr.model.layers import (
    Attend,
    DecoderLayer,
    Embedding,
    Linear,
    Module,
    RMSNorm,
    Rotary,
    product,
)

Network = TypeVar("Network", bound="CausalLM")


class CausalLM(Module):
    """A dense Qwen decoder, all weights in one dtype on one device, random or from a
    checkpoint (`lr.load_model`). `attention`: its kind (`attention_choice.py`);
    `graphs`: allow CUDA graphs. `source`: which checkpoint it is. `spread`: over the
    processes of several ranks (`ranks.py`), so this object is only a part.
    """

    attention: AttentionKind = SDPA
    graphs: bool = True
    source: str = "without a checkpoint"
    spread: bool = False

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = self.rank_config = config
        v, e = config.vocab_size, config.hidden_size
        self.embedding = Embedding(v, e)
        self.layers = nn.ModuleList(
            DecoderLayer(config, l) for l in range(config.num_layers)
        )
        self.norm = RMSNorm(e, config.rms_norm_eps)
        self.head = None if config.tie_word_embeddings else Linear(e, v, bias=False)
        with torch.device("cpu"):  # no checkpoint has it: never "meta"
            self.rotary = Rotary(config)

    @classmethod
    def materialised(
        cls, make: Callable[[], Network], dtype: torch.dtype, device: torch.device
    ) -> Network:
        """The model that `make` returns, frozen, in eval mode, with uninitialised
        weights in the order in memory that is quickest to multiply by."""
        with torch.device("meta"):  # no storage until the dtype is right
            model = make().to(dtype)
        # On a CPU, a matrix of float32 or float64 is multiplied quicker if it lies in
        # memory by columns, one of bfloat16 or float16 by rows. Measured for a head of
        # 152k rows, one token, one thread of an AMD EPYC, PyTorch 2.13: float32 33 ms
        # by columns, 49 by rows; bfloat16 27 ms by rows, 42 by columns.
        by_columns = device.type == "cpu" and dtype in (torch.float32, torch.float64)

        def fill(tensor: Tensor) -> Tensor:
            if not tensor.is_meta:
                return tensor.to(device)
            shape = tuple(tensor.shape)
            if by_columns and len(shape) == 2:
                return torch.empty(shape[::-1], dtype=dtype, device=device).t()
            return torch.empty(shape, dtype=dtype, device=device)

        model._apply(fill)  # `to_empty` would import PyTorch's compiler
        return model.requires_grad_(False).eval()

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    @property
    def replayable(self) -> bool:
        """Whether small forwards should be replayed from CUDA graphs (`graphs.py`)."""
        return (
            self.graphs
            and self.device.type == "cuda"
            and self.attention.tiles is not None
        )

    def close(self) -> None:
        """End the processes of the other ranks (`ranks.py`); here there are none."""

    def trunk(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """The final hidden states [n, e] of tokens [n] at positions [n]."""
        x = self.embed(tokens)
        cos, signed_sin = self.rotary(positions, x.dtype)
        for layer in self.layers:
            x = layer(x, cos, signed_sin, attend)
        return self.norm(x)

    def embed(self, tokens: Tensor) -> Tensor:
        """The embeddings [n, e] of tokens [n]."""
        return self.embedding(tokens)

    def logits(self, hidden: Tensor) -> Tensor:
        """Unnormalised log-probabilities [m, v] of the token after each hidden state
        [m, e]."""
        if self.head is None:
            return product(hidden, self.embedding.weight)
        return self.head(hidden)

    def forward(self, batch: RaggedBatch, cache: PagedKVCache) -> Tensor:
        """Write the K/V of a ragged batch into the cache, at the batch's slots, and
        return the logits [m, v] of its logit rows."""
        attend = self.attention.ragged(batch, cache)
        hidden = self.trunk(batch.tokens, batch.positions, attend)
        return self.logits(hidden.index_select(0, batch.logit_rows))

    def make_cache(self, num_blocks: int, block_size: int) -> PagedKVCache:
        """An empty cache for this model, or this rank. Raises `SettingError` for a size below 1."""
        config = self.rank_config  # the cache holds the heads of this rank
        return PagedKVCache(
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            num_blocks=num_blocks,
            block_size=block_size,
            dtype=self.dtype,
            device=self.device,
        )
