"""Self-speculation: the draft is the target itself, cut off early (after LayerSkip, arXiv
2404.16710).

    lr generate --variant "self_draft(layers=12)" --mode sd

One part: a draft, made from the target. It writes tokens in mode sd and steps in mode
lr. The first layers share their weights with the target, with its norm and head.

Different: the paper lets draft and target share one cache, and trains the target for
it; here each model has its own, so the draft reads the text once more. The tiny target
was not trained to be cut off: its first layers agree with it rarely."""

from __future__ import annotations

from dataclasses import replace

import torch

from lr.model.qwen import CausalLM
from lr.reasoner import Reasoner
from lr.spec.variant import Variant
from lr.types import require


def first_layers(target: CausalLM, layers: int) -> CausalLM:
    """The first layers of a model, with its norm and head; no weight is copied."""
    expected = f"1 to {target.config.num_layers}"
    require(0 < layers <= target.config.num_layers, "layers", layers, expected)
    with torch.device("meta"):
        draft = CausalLM(replace(target.config, num_layers=layers))
    draft.embedding = target.embedding
    draft.layers = target.layers[:layers]
    draft.norm = target.norm
    draft.head = target.head
    draft.rotary = target.rotary
    draft.attention = target.attention
    draft.graphs = target.graphs
    return draft.requires_grad_(False).eval()


def self_draft(reasoner: Reasoner, *, layers: int | None = None) -> Variant:
    """The first `layers` of the target (None: half of them) draft for it."""

    def draft(target: CausalLM) -> CausalLM:
        return first_layers(target, layers or target.config.num_layers // 2)

    return Variant(draft=draft)
