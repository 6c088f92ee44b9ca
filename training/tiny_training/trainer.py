"""How the tiny models are trained: data-parallel over processes, checkpointed, and
resumed bit for bit.

One step: every process takes a batch of its own, the gradients (and the sum of the loss
weights) are added up by one all-reduce of one flat buffer, and every process makes the
same update: Muon (Jordan et al., 2024, kellerjordan.github.io/posts/muon) for the
matrices of the layers, AdamW for the rest. The learning rate is a function of the share
of the token budget that is spent: warm-up, then cosine down to 2 %. The same all-reduce
carries two flags, so that all processes stop or save at the same step.

`train_tiny.py` and `train_judge.py` start the processes, evaluate and
export.
"""

from __future__ import annotations

import argparse
import math
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn import functional as F

from lr.errors import SettingError
from lr.model.codec import Codec
from lr.model.config import ModelConfig
from lr.model.layers import DecoderLayer
from lr.model.qwen import CausalLM
from lr.tiny.grammar import Style, render
from lr.tiny.language import StepKind
from lr.tiny.oracle import parse
from lr.types import Role, require
from tiny_training.evaluate import (
    BATCH,
    EvalSettings,
    Voice,
    count_right,
    draw,
    draw_number,
    solve,
)
from tiny_training.rows import NAME_WEIGHT, RESULT_WEIGHT, RowMaker

CLASSES = ("loss", "results", "names", "words")
FLAGS = 3  # slots after the gradients in the flat buffer: weight sum, stop, save
EMBEDDING_STD = 0.1
SAVE_SECONDS = 120.0
SHOW_SECONDS = 15.0


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
    return model


@dataclass(frozen=True)
class Recipe:
    """How a model is trained. `tokens` is the budget over all processes, `batch` the
    tokens of one step over all processes, `drills` the share of tokens in drills."""

    tokens: int
    batch: int = 2560
    matrix_rate: float = 0.02
    other_rate: float = 3e-3
    warmup: int = 50
    last_rate: float = 0.02
    clip: float = 1.0
    drills: float = 0.4

    def __post_init__(self) -> None:
        require(self.tokens >= 1, "tokens", self.tokens, "a whole number >= 1")
        require(self.batch >= 1, "batch", self.batch, "a whole number >= 1")

    def rate(self, step: int, spent: int) -> float:
        """The factor on the learning rates: linear warm-up, then cosine from 1 to
        `last_rate` over the budget."""
        share = min(1.0, spent / self.tokens)
        cosine = self.last_rate + (1 - self.last_rate) * 0.5 * (
            1 + math.cos(math.pi * share)
        )
        return cosine * min(1.0, (step + 1) / self.warmup)


@dataclass
class Progress:
    """Where training is: steps made, tokens spent, and each process's place in the
    data."""

    step: int = 0
    tokens: int = 0
    places: tuple[tuple[int, int], ...] = ()


class Trainer:
    """A model with its optimisers, data and progress, in one of `world` processes."""

    def __init__(
        self, model: CausalLM, rows: RowMaker, recipe: Recipe, *, compiled: bool = False
    ) -> None:
        self.layer_of = compiled_layer() if compiled else layer_on_rows
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.model = model
        self.rows = rows
        self.recipe = recipe
        in_layers: dict[bool, list[nn.Parameter]] = {True: [], False: []}
        for name, p in model.named_parameters():
            in_layers[p.ndim == 2 and name.startswith("layers.")].append(p)
        matrices = in_layers[True]
        others = in_layers[False]
        # one buffer for all gradients, so that one all-reduce adds them up; each is a
        # view into it
        size = sum(p.numel() for p in model.parameters()) + FLAGS
        self.buffer = torch.zeros(size, device=model.device)
        at = 0
        for p in (*matrices, *others):
            p.grad = self.buffer[at : at + p.numel()].view_as(p)
            at += p.numel()
        self.muon = torch.optim.Muon(matrices, weight_decay=0.0)
        self.adam = torch.optim.AdamW(
            others, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )
        self._begin(Progress(places=tuple((rank, 0) for rank in range(self.world))))

    def _begin(self, progress: Progress) -> None:
        self.progress = progress
        budget = self.recipe.batch // self.world
        next_place = progress.places[self.rank]
        self.batches = self.rows.batches(
            next_place, self.world, budget, self.recipe.drills
        )

    def step(
        self, stop: bool = False, save: bool = False
    ) -> tuple[dict[str, float], bool, bool]:
        """One update. Returns the mean loss by class of token over all processes
        ("loss" is the weighted mean that is trained on), and whether any of them asked
        to stop or to save."""
        batch = next(self.batches)
        device = self.model.device
        tokens = batch.tokens.to(device)
        weights = batch.weights.to(device)
        labels = batch.labels.to(device)
        self.buffer.zero_()
        losses, weight_of = token_losses(
            self.model, tokens, weights, labels, self.layer_of
        )
        (losses * weight_of).sum().backward()
        self.buffer[-FLAGS:] = torch.tensor(
            [float(weights.sum()), stop, save], device=device
        )
        counts = _by_class(losses.detach(), weight_of, tokens.numel())
        if self.world > 1:
            dist.all_reduce(self.buffer)
            dist.all_reduce(counts)
        weight, stop_all, save_all = self.buffer[-FLAGS:].tolist()
        gradients = self.buffer[:-FLAGS].div_(
            max(weight, 1.0)
        )  # a batch may be all context
        gradients.mul_(
            torch.clamp(self.recipe.clip / (gradients.norm() + 1e-6), max=1.0)
        )
        rate = self.recipe.rate(self.progress.step, self.progress.tokens)
        for optimiser, full_rate in (
            (self.muon, self.recipe.matrix_rate),
            (self.adam, self.recipe.other_rate),
        ):
            for group in optimiser.param_groups:
                group["lr"] = rate * full_rate
            optimiser.step()
        places = list(self.progress.places)
        places[self.rank] = batch.place
        spent = self.progress.tokens + int(counts[-1])
        self.progress = Progress(self.progress.step + 1, spent, tuple(places))
        means = (
            counts[: len(CLASSES)] / counts[len(CLASSES) : -1].clamp(min=1)
        ).tolist()
        return dict(zip(CLASSES, means, strict=True)), stop_all > 0, save_all > 0

    def train(
        self,
        state: Path,
        say: Callable[[str], None],
        last_step: int | None = None,
        check: Callable[[], None] | None = None,
        check_every: int = 1_000_000,
    ) -> None:
        """Steps until the budget is spent or `last_step` is reached, Ctrl-C or SIGTERM
        comes. Saves to `state` every two minutes and at the end; `say` gets a line of
        progress every 15 seconds; `check` is called every so many tokens."""
        signals: list[int] = []
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, lambda number, frame: signals.append(number))
        began = saved = shown = time.perf_counter()
        first = self.progress.tokens
        means = dict[str, float]()
        stop = False
        while not stop and self.progress.tokens < self.recipe.tokens:
            if last_step is not None and self.progress.step >= last_step:
                break
            before = self.progress.tokens
            due = self.rank == 0 and time.perf_counter() - saved > SAVE_SECONDS
            losses, stop, save = self.step(stop=bool(signals), save=due)
            means = {
                n: 0.95 * means.get(n, loss) + 0.05 * loss for n, loss in losses.items()
            }
            now = time.perf_counter()
            spent = self.progress.tokens
            if self.rank == 0 and now - shown > SHOW_SECONDS:
                shown = now
                speed = (spent - first) / (now - began)
                left = (self.recipe.tokens - spent) / speed / 60
                say(
                    f"{(now - began) / 60:6.1f} min  step {self.progress.step:5d}  "
                    f"{spent / 1e6:6.3f}M tokens  "
                    + "".join(f"{name} {mean:.4f}  " for name, mean in means.items())
                    + f"{speed:.0f} tokens/s  {left:.0f} min left"
                )
            if save:
                self.save(state)
                saved = now
            if (
                check is not None
                and not stop
                and spent // check_every != before // check_every
            ):
                check()
        self.save(state)
        if check is not None and not stop:
            check()

    def save(self, path: Path) -> None:
        """Write everything that resuming needs, atomically. All processes call it; the
        first writes."""
        if self.world > 1:
            places = list(self.progress.places)
            dist.all_gather_object(places, self.progress.places[self.rank])
            self.progress.places = tuple(places)
        if self.rank == 0:
            state = {
                "model": self.model.state_dict(),
                "muon": self.muon.state_dict(),
                "adam": self.adam.state_dict(),
                "progress": asdict(self.progress),
                "recipe": asdict(self.recipe),
            }
            torch.save(state, path.with_suffix(".new"))
            path.with_suffix(".new").replace(path)

    def load(self, path: Path) -> None:
        """Go on where `save` left off. Raises SettingError if the number of processes
        differs."""
        state = torch.load(path, weights_only=True)
        progress = Progress(**state["progress"])
        progress.places = tuple((pool, at) for pool, at in progress.places)
        if len(progress.places) != self.world:
            raise SettingError(
                f"{path} was written by {len(progress.places)} processes, this is {self.world}: "
                "use as many"
            )
        for name in ("model", "muon", "adam"):
            getattr(self, name).load_state_dict(state[name])
        self._begin(progress)


def held_out_counts(model: CausalLM, codec: Codec, indices: Sequence[int]) -> list[int]:
    """[problems, right answers, steps, right steps, operation steps, right ones] of a
    model in training. The steps, one per problem, are written from true prefixes in
    mixed styles."""
    settings = EvalSettings()
    voice = Voice(Role.TARGET, model, codec, settings)
    counts = [0] * 6
    for first in range(0, len(indices), BATCH):
        batch = indices[first : first + BATCH]
        problems = draw(batch, settings)
        right = count_right(voice, problems, solve(voice, problems))
        branches = []
        wanted = []
        for i, task in zip(batch, problems, strict=True):
            rng = random.Random(i)
            at = rng.randrange(len(task.steps))
            earlier = (render(s, rng.choice(list(Style)), rng) for s in task.steps[:at])
            text = codec.encode("".join(step + "\n\n" for step in earlier))
            branches.append(voice.runner.open([*codec.chat(task.question), *text]))
            wanted.append(task.steps[at])
        written = voice.write(branches, [draw_number(task, -1) for task in problems])
        for branch in branches:
            voice.runner.close(branch)
        same = [
            parse(codec.decode(step)) == meaning
            for step, meaning in zip(written, wanted, strict=True)
        ]
        hard = [
            r
            for r, step in zip(same, wanted, strict=True)
            if step.kind is StepKind.OPERATION
        ]
        new = (len(batch), right, len(same), sum(same), len(hard), sum(hard))
        counts = [old + added for old, added in zip(counts, new, strict=True)]
    return counts


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


def _by_class(losses: Tensor, weight_of: Tensor, tokens: int) -> Tensor:
    """What to add up over the processes for the progress line: sums per class, then
    counts per class, then tokens; float64."""
    masks = [weight_of == weight for weight in (RESULT_WEIGHT, NAME_WEIGHT, 1.0)]
    sums = [(losses * weight_of).sum(), *(losses[mask].sum() for mask in masks)]
    counts = [weight_of.sum(), *(mask.sum() for mask in masks)]
    return torch.tensor(
        [*map(float, sums), *map(float, counts), tokens], dtype=torch.float64
    )


def start(
    work: Callable[[int, argparse.Namespace], None], args: argparse.Namespace
) -> None:
    """Run `work(rank, args)` in `args.processes` processes of one thread each, which
    meet in the folder `args.out`; in this one, if it is one."""
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "rendezvous").unlink(missing_ok=True)
    if args.processes == 1:
        torch.set_num_threads(1)
        work(0, args)
    else:
        mp.spawn(_join, (work, args), nprocs=args.processes)


def _join(
    rank: int, work: Callable[[int, argparse.Namespace], None], args: argparse.Namespace
) -> None:
    torch.set_num_threads(1)
    meet = f"file://{args.out.resolve()}/rendezvous"
    dist.init_process_group("gloo", meet, rank=rank, world_size=args.processes)
    work(rank, args)
    dist.destroy_process_group()
