"""Self-speculation: the draft is the target itself, made cheaper.

    lr generate --variant "self_draft(layers=12)"
    lr generate --variant "quantised_draft(weights='int4')"

One part: a draft, made from the target, which needs no second checkpoint. It writes
tokens (mode sd), as in the papers, or steps (`--mode lr`).

`self_draft`, after LayerSkip (arXiv 2404.16710): the target's first layers, with its
norm and head, no weight copied. Different: the paper lets draft and target share one
cache, and trains the target for it; here each model has its own, so the draft reads the
text once more. The tiny target was not trained to be cut off: its first layers agree
with it rarely.

`quantised_draft`, after QSpec (arXiv 2410.11305): a copy of the target with weights in 8
or 4 bits, which agrees with it nearly always. Different: the paper quantises
activations too, and lets both share one cache."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

from lr.model.quantize import quantize
from lr.model.qwen import CausalLM
from lr.reasoner import Reasoner
from lr.spec.variant import Variant
from lr.types import require


def first_layers(target: CausalLM, layers: int) -> CausalLM:
    """The first layers of a model, with its norm and head; no weight is copied."""
    expected = f"1 to {target.config.num_layers}"
    require(0 < layers <= target.config.num_layers, "layers", layers, expected)
    draft = target.twin()
    draft._modules = target._modules | {"layers": target.layers[:layers]}
    draft.config = replace(target.config, num_layers=layers)
    draft.part = replace(target.part, num_layers=layers)
    return draft


def self_draft(reasoner: Reasoner, *, layers: int | None = None) -> Variant:
    """The first `layers` of the target (None: half of them) draft for it."""

    def draft(target: CausalLM) -> CausalLM:
        return first_layers(target, layers or target.config.num_layers // 2)

    return Variant(draft=draft, settings={"mode": "sd"})


def quantised_draft(reasoner: Reasoner, *, weights: str = "int8") -> Variant:
    """A copy of the target with weights "int8" or "int4" drafts for it."""

    def draft(target: CausalLM) -> CausalLM:
        copy = deepcopy(target)
        quantize(copy, weights)
        return copy

    return Variant(draft=draft, settings={"mode": "sd"})
