"""A tiny model as a Hugging Face checkpoint: weights in bf16, configuration, sampling defaults and
the tokenizer.

What is written loads with plain `transformers.AutoModelForCausalLM` and with `lr.load_model`.

The training loop of the tiny models: data-parallel over processes, checkpointed, and resumed bit
for bit.

One step: every process takes a batch of its own, the gradients (and the sum of the loss weights)
are added up by one all-reduce of one flat buffer, and every process makes the same update. The
schedule is a function of the share of the token budget that is spent: warm-up, then cosine down to
2 %. The same all-reduce carries two flags, so that all processes stop or save at the same step.

`scripts/train_tiny.py` starts the processes, evaluates and exports.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn import functional as F

from lr.errors import SettingError
from lr.model.config import ModelConfig
from lr.model.qwen import CausalLM
from lr.model.weights import save_model
from lr.tiny.dense import hidden_rows
from lr.tiny.languages import QUANTITIES, TinyLanguage
from lr.tiny.muon import Muon
from lr.tiny.rows import NAME_WEIGHT, RESULT_WEIGHT, Batch, RowMaker
from lr.tiny.vocabulary import END, PAD, build_tokenizer

SAMPLING = {"do_sample": True, "temperature": 0.6, "top_p": 1.0, "top_k": 0}


def tiny_config(layers: int, vocab_size: int, mlp: int = 384) -> ModelConfig:
    """The shape of the tiny models: width 128, 4 heads of 32 that share 2 KV heads, MLP 384 (plans:
    256), tied embedding.
    """
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=128,
        intermediate_size=mlp,
        num_layers=layers,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        qkv_bias=False,
        qk_norm=True,
        tie_word_embeddings=True,
    )


def export(model: CausalLM, folder: Path, language: TinyLanguage = QUANTITIES) -> None:
    """Write `model`, rounded to bf16, with the tokenizer of its language to `folder`. The model
    itself is not changed.
    """
    tokenizer = build_tokenizer(language)
    ids = {
        "eos_token_id": tokenizer.convert_tokens_to_ids(END),
        "pad_token_id": tokenizer.convert_tokens_to_ids(PAD),
    }
    save_model(copy.deepcopy(model).cpu().to(torch.bfloat16), folder, extra=ids)
    (folder / "model.safetensors").chmod(0o644)
    (folder / "generation_config.json").write_text(json.dumps(SAMPLING | ids, indent=2) + "\n")
    tokenizer.save_pretrained(folder)


CLASSES = ("loss", "results", "names", "words")
FLAGS = 3  # slots behind the gradients in the flat buffer: weight sum, stop, save


EMBEDDING_STD = 0.1


def fresh_model(config: ModelConfig, seed: int) -> CausalLM:
    """A model with random weights from a seed. Every layer begins as the identity: its two output
    matrices are zero.

    The embedding begins large (0.1, not the usual 0.02): with small beginnings the sixteen names,
    which look alike to the loss until they can be copied, drift together in the first steps and are
    then not told apart for millions of tokens.
    """
    torch.manual_seed(seed)
    model = CausalLM(config)
    for name, p in model.named_parameters():
        if name.endswith(("out.weight", "down.weight")):
            nn.init.zeros_(p)
        elif p.ndim == 2:
            nn.init.normal_(
                p, std=EMBEDDING_STD if name.startswith("embedding") else p.shape[1] ** -0.5
            )
    return model


@dataclass(frozen=True)
class Recipe:
    """How a model is trained. `tokens` is the budget over all processes, `batch` the tokens of one
    step over all processes.
    """

    tokens: int
    batch: int = 2560
    matrix_rate: float = 0.02
    other_rate: float = 3e-3
    warmup: int = 50
    last_rate: float = 0.02
    clip: float = 1.0
    drills: float = 0.4

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.batch < 1:
            raise SettingError(f"tokens={self.tokens}, batch={self.batch}: both must be at least 1")

    def rate(self, step: int, spent: int) -> float:
        """The factor on the learning rates: linear warm-up, then cosine from 1 to `last_rate` over
        the budget.
        """
        share = min(1.0, spent / self.tokens)
        cosine = self.last_rate + (1 - self.last_rate) * 0.5 * (1 + math.cos(math.pi * share))
        return cosine * min(1.0, (step + 1) / self.warmup)


@dataclass
class Progress:
    """Where training is: steps made, tokens spent, and each process's place in the data."""

    step: int = 0
    tokens: int = 0
    places: tuple[tuple[int, int], ...] = ()


class Trainer:
    """A model with its optimisers, data and progress, in one of `world` processes."""

    def __init__(self, model: CausalLM, rows: RowMaker, recipe: Recipe) -> None:
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.model, self.rows, self.recipe = model, rows, recipe
        matrices = [
            p for name, p in model.named_parameters() if p.ndim == 2 and name.startswith("layers.")
        ]
        others = [
            p
            for name, p in model.named_parameters()
            if p.ndim != 2 or not name.startswith("layers.")
        ]
        self.buffer = _flatten_gradients([*matrices, *others])
        self.muon = Muon(matrices)
        self.adam = torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
        self.progress = Progress(places=tuple((rank, 0) for rank in range(self.world)))
        self.batches = self._batches()

    def _batches(self) -> Iterator[Batch]:
        place = self.progress.places[self.rank]
        return self.rows.batches(
            place, self.world, self.recipe.batch // self.world, self.recipe.drills
        )

    def step(self, stop: bool = False, save: bool = False) -> tuple[dict[str, float], bool, bool]:
        """One update. Returns the mean loss by class of token over all processes ("loss" is the
        weighted mean that is trained on), and whether any of them asked to stop or to save."""
        batch = next(self.batches)
        tokens, weights = batch.tokens.to(self.model.device), batch.weights.to(self.model.device)
        self.buffer.zero_()
        labels = tokens if batch.labels is None else batch.labels.to(self.model.device)
        losses, weight_of = token_losses(self.model, tokens, weights, labels)
        (losses * weight_of).sum().backward()
        total = torch.tensor(
            [weights.sum(), stop, save], dtype=torch.float32, device=self.buffer.device
        )
        self.buffer[-FLAGS:] = total
        counts = _by_class(losses.detach(), weight_of, tokens.numel())
        if self.world > 1:
            dist.all_reduce(self.buffer)
            dist.all_reduce(counts)
        weight, stop_all, save_all = self.buffer[-FLAGS:].tolist()
        gradients = self.buffer[:-FLAGS].div_(weight)
        norm = gradients.norm()
        gradients.mul_(torch.clamp(self.recipe.clip / (norm + 1e-6), max=1.0))
        rate = self.recipe.rate(self.progress.step, self.progress.tokens)
        self.muon.step(rate * self.recipe.matrix_rate)
        for group in self.adam.param_groups:
            group["lr"] = rate * self.recipe.other_rate
        self.adam.step()
        places = list(self.progress.places)
        places[self.rank] = batch.place
        self.progress = Progress(
            self.progress.step + 1, self.progress.tokens + int(counts[-1]), tuple(places)
        )
        means = (counts[: len(CLASSES)] / counts[len(CLASSES) : -1].clamp(min=1)).tolist()
        return dict(zip(CLASSES, means, strict=True)), stop_all > 0, save_all > 0

    def save(self, path: Path) -> None:
        """Write everything that resuming needs, atomically. All processes call it; the first
        writes.
        """
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
        """Go on where `save` left off. Raises SettingError if the number of processes differs."""
        state = torch.load(path, weights_only=True)
        places = tuple(tuple(place) for place in state["progress"]["places"])
        if len(places) != self.world:
            raise SettingError(
                f"{path} was written by {len(places)} processes, this is {self.world}: use as many"
            )
        self.model.load_state_dict(state["model"])
        self.muon.load_state_dict(state["muon"])
        self.adam.load_state_dict(state["adam"])
        self.progress = Progress(state["progress"]["step"], state["progress"]["tokens"], places)
        self.batches = self._batches()


def token_losses(
    model: CausalLM, tokens: Tensor, weights: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Cross-entropy [m] of the m places of rows [r, t] that carry weight, given the tokens before
    them, and their weights [m].

    `labels` [r, t] are what is to be predicted at each place: in a language model the tokens
    themselves.

    Matrix products in bf16, everything else in fp32.
    """
    chosen = weights[:, 1:].flatten().nonzero()[:, 0]
    with torch.autocast(tokens.device.type, torch.bfloat16):
        hidden = hidden_rows(model, tokens)[:, :-1].flatten(0, 1)[chosen]
        logits = model.logits(hidden).float()
    losses = F.cross_entropy(logits, labels[:, 1:].flatten()[chosen], reduction="none")
    return losses, weights[:, 1:].flatten()[chosen]


def _by_class(losses: Tensor, weight_of: Tensor, tokens: int) -> Tensor:
    """What to add up over the processes for the progress line: sums per class, then counts per
    class, then tokens; float64.
    """
    masks = [weight_of == weight for weight in (RESULT_WEIGHT, NAME_WEIGHT, 1.0)]
    sums = [(losses * weight_of).sum(), *(losses[mask].sum() for mask in masks)]
    counts = [weight_of.sum(), *(mask.sum() for mask in masks)]
    return torch.tensor([*map(float, sums), *map(float, counts), tokens], dtype=torch.float64)


def _flatten_gradients(parameters: list[nn.Parameter]) -> Tensor:
    """One buffer for all gradients, so that one all-reduce adds them up; each `grad` is a view into
    it.
    """
    buffer = torch.zeros(sum(p.numel() for p in parameters) + FLAGS, device=parameters[0].device)
    at = 0
    for p in parameters:
        p.grad = buffer[at : at + p.numel()].view_as(p)
        at += p.numel()
    return buffer


def start(work: Callable[[int, argparse.Namespace], None], args: argparse.Namespace) -> None:
    """Run `work(rank, args)` in `args.processes` processes, which meet in the folder `args.out`; in
    this one, if it is one.
    """
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "rendezvous").unlink(missing_ok=True)
    if args.processes == 1:
        work(0, args)
    else:
        mp.spawn(work, (args,), nprocs=args.processes)
