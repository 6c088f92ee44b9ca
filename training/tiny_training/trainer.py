"""How the tiny models are trained: checkpointed, and resumed bit for bit.

A step takes a batch of rows and updates the matrices of the layers with Muon (Jordan et
al., 2024, kellerjordan.github.io/posts/muon), the rest with AdamW. The learning rate is
a function of the share of the token budget that is spent: warm-up, then cosine down to
2 %. `train_tiny.py` and `train_judge.py` make the model and the rows, and export.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lr.model.config import ModelConfig
from lr.model.layers import DecoderLayer
from lr.model.qwen import CausalLM
from lr.model.weights import load_model
from tiny_training.rows import RowMaker

EMBEDDING_STD = 0.1
SAVE_SECONDS = 120.0
SHOW_SECONDS = 15.0
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def fresh_model(config: ModelConfig, seed: int) -> CausalLM:
    """A model with random weights from a seed. Every layer begins as the identity: its
    two output matrices are zero.

    The embedding begins large (0.1, not the usual 0.02): with small beginnings the
    sixteen names, which look alike to the loss until they can be copied, drift together
    in the first steps and are then not told apart for millions of tokens."""
    torch.manual_seed(seed)
    model = CausalLM(config)
    for name, p in model.named_parameters():
        if name.endswith(("out.weight", "down.weight")):
            nn.init.zeros_(p)
        elif p.ndim == 2:
            embedding = name.startswith("embedding")
            nn.init.normal_(p, std=EMBEDDING_STD if embedding else p.shape[1] ** -0.5)
    return model.to(DEVICE)


def first_layers(name: str, count: int) -> CausalLM:
    """A model made of the first layers of a checkpoint, in fp32."""
    larger = load_model(name, dtype=torch.float32)
    model = CausalLM(replace(larger.config, num_layers=count))
    state = larger.state_dict()
    model.load_state_dict({key: state[key] for key in model.state_dict()})
    return model.to(DEVICE)


@dataclass(frozen=True)
class Recipe:
    """How a model is trained. `tokens` is the budget, `batch` the tokens of one step,
    `drills` the share of tokens in drills."""

    tokens: int
    batch: int = 2560
    matrix_rate: float = 0.02
    other_rate: float = 3e-3
    warmup: int = 50
    last_rate: float = 0.02
    clip: float = 1.0
    drills: float = 0.1

    def rate(self, step: int, spent: int) -> float:
        """The factor on the learning rates: linear warm-up, then cosine from 1 to
        `last_rate` over the budget."""
        share = min(1.0, spent / self.tokens)
        cosine = 0.5 * (1 + math.cos(math.pi * share))
        decay = self.last_rate + (1 - self.last_rate) * cosine
        return decay * min(1.0, (step + 1) / self.warmup)


@dataclass(frozen=True)
class Progress:
    """Where training is: steps made, tokens spent, and the place in the data."""

    step: int = 0
    tokens: int = 0
    place: tuple[int, int] = (0, 0)


class Trainer:
    """A model with its optimisers, data and progress."""

    def __init__(
        self, model: CausalLM, rows: RowMaker, recipe: Recipe, *, compiled: bool = False
    ) -> None:
        self.layer_of = compiled_layer() if compiled else layer_on_rows
        self.model = model
        self.rows = rows
        self.recipe = recipe
        matrices: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, p in model.named_parameters():
            matrix = p.ndim == 2 and name.startswith("layers.")
            (matrices if matrix else others).append(p)
        self.muon = torch.optim.Muon(matrices, weight_decay=0.0)
        self.adam = torch.optim.AdamW(
            others, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )
        self._begin(Progress())

    def _begin(self, progress: Progress) -> None:
        self.progress = progress
        recipe = self.recipe
        self.batches = self.rows.batches(progress.place, recipe.batch, recipe.drills)

    def step(self) -> float:
        """One update. Returns the weighted mean loss."""
        # 1. The gradients of the weighted mean, clipped.
        batch = next(self.batches)
        device = self.model.device
        weights = batch.weights.to(device)
        losses, weight_of = token_losses(
            self.model,
            batch.tokens.to(device),
            weights,
            batch.labels.to(device),
            self.layer_of,
        )
        # A batch may be all context.
        loss = (losses * weight_of).sum() / max(float(weights.sum()), 1.0)
        self.model.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        # 2. The update.
        progress = self.progress
        rate = self.recipe.rate(progress.step, progress.tokens)
        for optimiser, full_rate in (
            (self.muon, self.recipe.matrix_rate),
            (self.adam, self.recipe.other_rate),
        ):
            for group in optimiser.param_groups:
                group["lr"] = rate * full_rate
            optimiser.step()
        spent = progress.tokens + batch.tokens.numel()
        self.progress = Progress(progress.step + 1, spent, batch.place)
        return float(loss.detach())

    def train(
        self, state: Path, last_step: int | None = None, *, resume: bool = False
    ) -> None:
        """Steps until the budget is spent, `last_step` is reached, or Ctrl-C or SIGTERM
        comes. Saves to `state` every two minutes and at the end, and prints a line of
        progress every 15 seconds. `resume`: goes on from `state`."""
        if resume:
            self.load(state)
        signals: list[int] = []
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, lambda number, frame: signals.append(number))
        began = saved = shown = time.perf_counter()
        first = self.progress.tokens
        mean = 0.0
        while not signals and self.progress.tokens < self.recipe.tokens:
            if self.progress.step == last_step:
                break
            loss = self.step()
            mean = 0.95 * mean + 0.05 * loss if mean else loss
            now = time.perf_counter()
            spent = self.progress.tokens
            if now - shown > SHOW_SECONDS:
                shown = now
                speed = (spent - first) / (now - began)
                left = (self.recipe.tokens - spent) / speed / 60
                print(
                    f"step {self.progress.step}, {spent / 1e6:.3f}M tokens, loss "
                    f"{mean:.4f}, {speed:.0f} tokens/s, {left:.0f} min left",
                    flush=True,
                )
            if now - saved > SAVE_SECONDS:
                self.save(state)
                saved = now
        self.save(state)

    def save(self, path: Path) -> None:
        """Write everything that resuming needs, atomically."""
        state = {
            "model": self.model.state_dict(),
            "muon": self.muon.state_dict(),
            "adam": self.adam.state_dict(),
            "progress": asdict(self.progress),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    def load(self, path: Path) -> None:
        """Go on where `save` left off."""
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.muon.load_state_dict(state["muon"])
        self.adam.load_state_dict(state["adam"])
        progress = state["progress"]
        pool, position = progress["place"]
        self._begin(Progress(progress["step"], progress["tokens"], (pool, position)))


def layer_on_rows(
    x: Tensor, weights: tuple[Tensor, ...], cos: Tensor, signed_sin: Tensor, eps: float
) -> Tensor:
    """A decoder layer on rows of hidden states [r, t, e], each token seeing its row up
    to itself: what `DecoderLayer` computes, for training. `weights`: those of
    `weights_of`. Matrix products in bf16, everything else in fp32.

    It is a pure function of tensors so that `torch.compile` makes a few loops of it.
    Attention is written with matrix products, since on a CPU the backward of fused
    attention is several times slower than these in bf16: the query heads that share a
    KV head are stacked, so k and v are never repeated, and each quarter of the queries
    meets only the keys up to its end."""
    before, qkv, for_heads, out, after, gate_up, down = weights
    (r, t, _) = x.shape
    d = for_heads.shape[-1]
    heads = out.shape[1] // d
    kv = for_heads.shape[0] - heads

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight

    def product(x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x.to(torch.bfloat16), weight.to(torch.bfloat16))

    qk, v = (
        product(norm(x, before), qkv)
        .view(r, t, -1, d)
        .split_with_sizes((heads + kv, kv), 2)
    )
    qk = norm(qk.float(), for_heads)
    qk = qk * cos + torch.cat((qk[..., d // 2 :], qk[..., : d // 2]), -1) * signed_sin
    q, k = qk.split_with_sizes((heads, kv), 2)
    q = (q * d**-0.5).to(torch.bfloat16).transpose(1, 2)  # [r, heads, t, d]
    k, v = (y.to(torch.bfloat16).transpose(1, 2).reshape(r * kv, t, d) for y in (k, v))
    mixed = []
    quarter = -(-t // 4)
    share = heads // kv
    for begin in range(0, t, quarter):
        end = min(t, begin + quarter)
        scores = (
            q[:, :, begin:end].reshape(r * kv, share * (end - begin), d) @ k[:, :end].mT
        )
        places = torch.arange(end, device=x.device)
        later = places[None, :] > places[begin:, None]
        scores = scores.view(r * kv, share, end - begin, end).masked_fill(
            later, float("-inf")
        )
        p = scores.softmax(-1, dtype=torch.float32).to(torch.bfloat16)
        part = p.view(r * kv, share * (end - begin), end) @ v[:, :end]
        mixed.append(part.view(r, heads, end - begin, d))
    x = x + product(torch.cat(mixed, 2).transpose(1, 2).reshape(r, t, heads * d), out)
    gate, up = product(norm(x, after), gate_up).chunk(2, dim=-1)
    return x + product(F.silu(gate.float()) * up.float(), down)


def weights_of(layer: DecoderLayer) -> tuple[Tensor, ...]:
    """The weights of a layer as `layer_on_rows` takes them."""
    attention = layer.attention
    mlp = layer.mlp
    assert attention.qk_norm is not None
    return (
        layer.attention_norm.weight,
        attention.qkv.weight,
        attention.qk_norm.rows(),
        attention.out.weight,
        layer.mlp_norm.weight,
        mlp.gate_up.weight,
        mlp.down.weight,
    )


def compiled_layer() -> Callable[..., Tensor]:
    """`layer_on_rows` compiled for the shapes that it meets. On a CPU it takes half the
    time; the first row of each shape takes some ten seconds."""
    torch._dynamo.config.recompile_limit = 256
    return torch.compile(layer_on_rows, dynamic=False)


def hidden_rows(
    model: CausalLM, tokens: Tensor, layer_of: Callable[..., Tensor] = layer_on_rows
) -> Tensor:
    """Final hidden states [r, t, e] of rows of tokens [r, t]."""
    places = torch.arange(tokens.shape[1], device=tokens.device)
    cos, signed_sin = model.rotary(places, torch.float32)
    x = model.embedding(tokens)
    for layer in model.layers:
        assert isinstance(layer, DecoderLayer)
        x = layer_of(x, weights_of(layer), cos, signed_sin, model.config.rms_norm_eps)
    hidden: Tensor = model.norm(x)
    return hidden


def token_losses(
    model: CausalLM,
    tokens: Tensor,
    weights: Tensor,
    labels: Tensor,
    layer_of: Callable[..., Tensor] = layer_on_rows,
) -> tuple[Tensor, Tensor]:
    """Cross-entropy [m] of the m places of rows [r, t] that carry weight, given the
    tokens before them, and their weights [m]. `labels` [r, t] are what is to be
    predicted at each place: in a language model the tokens themselves. The products
    with the embedding are in bf16."""
    chosen = weights[:, 1:].flatten().nonzero()[:, 0]
    hidden = hidden_rows(model, tokens, layer_of)[:, :-1].flatten(0, 1)[chosen]
    with torch.autocast(tokens.device.type, torch.bfloat16):
        logits = model.logits(hidden).float()
    losses = F.cross_entropy(logits, labels[:, 1:].flatten()[chosen], reduction="none")
    return losses, weights[:, 1:].flatten()[chosen]
