"""The decoder itself: embedding, layers, norm, head. Qwen3 and Qwen2 differ in two flags.

`CausalLM.forward(batch, cache)` gets all it needs as arguments: a ragged batch of tokens with their
positions and slots, and the cache that holds what came before. `trunk` is the same network for any
other rule of who attends to whom (training uses plain causal rows). To see hidden states, register
forward hooks: on `model.norm` for the final ones [n, e], on `model.layers[i]` for a layer's. What
is replayed from a CUDA graph runs no Python, so no hooks of the parts of a model. Read next:
`layers.py`, `attention.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lr.kvcache.cache import PagedKVCache
from lr.model.attention import SDPA, AttentionKind, RaggedBatch
from lr.model.config import ModelConfig
from lr.model.layers import Attend, DecoderLayer, Embedding, Module, RMSNorm, Rotary

Network = TypeVar("Network", bound="CausalLM")
Replay = Callable[[RaggedBatch], Tensor | None]


class Askers(WeakSet[Any]):
    """The runners of those who ask a model beside an answer; a copy of the model has none."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Askers, ()


class CausalLM(Module):
    """A dense Qwen decoder with weights of one dtype on one device: of a checkpoint
    (`lr.load_model`), or random. `attention` is how it attends (`attention_choice.py`); `graphs`:
    whether CUDA graphs may be used.
    """

    __call__ = nn.Module.__call__  # with arguments by name, too
    attention: AttentionKind = SDPA
    graphs: bool = True

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = self.part = config
        self.asked = Askers()
        v, e = config.vocab_size, config.hidden_size
        table = torch.empty(v, e)
        if not table.is_meta:  # drawing there would import PyTorch's compiler, which takes seconds
            nn.init.normal_(table)
        self.embedding = Embedding(v, e, _weight=table)
        self.layers = nn.ModuleList(DecoderLayer(config, l) for l in range(config.num_layers))
        self.norm = RMSNorm(e, config.rms_norm_eps)
        self.head = None if config.tie_word_embeddings else nn.Linear(e, v, bias=False)
        with torch.device("cpu"):  # in no checkpoint, so made for a "meta" model too
            self.rotary = Rotary(config)

    @classmethod
    def materialised(
        cls, make: Callable[[], Network], dtype: torch.dtype, device: torch.device
    ) -> Network:
        """What `make` makes, frozen and in eval mode; its weights have no values yet."""
        with torch.device("meta"):  # without storage first, so that nothing is held twice
            model = make().to(dtype)
        # `to_empty` would import PyTorch's compiler
        model._apply(lambda one: torch.empty(one.shape, dtype=one.dtype, device=device))
        return model.requires_grad_(False).eval()

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    @property
    def replayable(self) -> bool:
        """Whether its small forwards are to be replayed from CUDA graphs (`graphs.py`)."""
        return self.graphs and self.device.type == "cuda" and self.attention.rows is not None

    def close(self) -> None:
        """End the other processes over which it is spread (`ranks.py`): none here."""

    def trunk(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Final hidden states [n, e] of tokens [n] at positions [n]."""
        cos, signed_sin = self.rotary(positions, self.dtype)
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, cos, signed_sin, attend)
        hidden: Tensor = self.norm(x)
        return hidden

    def embed(self, tokens: Tensor) -> Tensor:
        """The rows [n, e] of tokens [n]."""
        rows: Tensor = self.embedding(tokens)
        return rows

    def logits(self, hidden: Tensor) -> Tensor:
        """Unnormalised log-probabilities [m, v] of the token after each hidden state [m, e]."""
        return F.linear(hidden, self.embedding.weight if self.head is None else self.head.weight)

    def forward(
        self,
        batch: RaggedBatch,
        cache: PagedKVCache,
        attention: AttentionKind | None = None,
        replay: Replay | None = None,
    ) -> Tensor:
        """Feed a ragged batch: its K/V go into the cache at the batch's slots, the logits [m, v] of
        its logit rows come back. `attention`: in the place of the model's own. `replay`: asked
        first, gives the logits if it has a recording for that many rows.
        """
        if replay is not None and (replayed := replay(batch)) is not None:
            return replayed
        attend = (attention or self.attention).ragged(batch, cache)
        hidden = self.trunk(batch.tokens, batch.positions, attend)
        return self.logits(hidden if batch.logit_rows is None else hidden[batch.logit_rows])

    def recording(self, graphs: Any, rows: Sequence[int]) -> AbstractContextManager[object]:
        """What these `StepGraphs` record inside of: other ranks record the same."""
        return nullcontext()

    def agreed(self, failure: str | None) -> str | None:
        """Why a recording failed, here or on another rank (`ranks.py`)."""
        return failure

    def make_cache(self, num_blocks: int, block_size: int) -> PagedKVCache:
        """An empty cache that fits this model. Raises `SettingError` for a size below 1."""
        sizes = {"num_blocks": num_blocks, "block_size": block_size, **self.cache_shape}
        return PagedKVCache(**sizes, device=self.device)

    @property
    def cache_shape(self) -> dict[str, Any]:
        """Layers, KV heads (of one rank, where it is divided), head size and dtype of its cache."""
        names = ("num_layers", "num_kv_heads", "head_dim")
        return {name: getattr(self.part, name) for name in names} | {"dtype": self.dtype}
