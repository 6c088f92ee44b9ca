"""What a run takes of every device: its models, their caches, and its options, turned into a memory
plan before anything is loaded.

It counts what the engine does reserve: a cache per writer, one more for a draft model that guesses
tokens, one for a verifier that asks the target, a fixed one for the judge; and the draft's weights
twice where driver "overlapped" gives its process a copy of its own. Read next:
`lr/model/memory.py`, `runners.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import torch

from lr.engine.load import JUDGE_TOKENS
from lr.engine.runners import BLOCK_SIZE, blocks_for
from lr.errors import CheckpointError
from lr.model.attention_choice import AttentionNeeds, choose_attention
from lr.model.config import ModelConfig, read_config
from lr.model.dummy import is_dummy, published, shape
from lr.model.files import read_json, resolve
from lr.model.memory import (
    MemoryPlan,
    ModelNeed,
    cache_bytes,
    free_bytes,
    weight_bytes,
    working_bytes,
)
from lr.options import GenerateOptions

ASKS_THE_TARGET = ("score", "likelihood")
"""The verifiers that keep a cache of their own of the target."""


@dataclass(frozen=True)
class Placed:
    """A model and where it is to be: on one device, or split over several (`devices`), in `dtype`;
    its cache in blocks of `block_size`.
    """

    name: str
    config: ModelConfig
    dtype: torch.dtype
    devices: tuple[str, ...]
    block_size: int = BLOCK_SIZE

    def blocks(self, sixteens: int) -> int:
        """So many blocks of 16 tokens, in blocks of this size."""
        return -(-sixteens * BLOCK_SIZE // self.block_size)


@dataclass(frozen=True)
class Cast:
    """The models of a run. `verifier` as `choose_verifier` takes it; `apart`: the draft's worker is
    a process, with weights of its own.
    """

    target: Placed
    draft: Placed | None = None
    judge: Placed | None = None
    verifier: str = "exact"
    apart: bool = True


def place(name: str | Path, devices: tuple[str, ...], dtype: torch.dtype | None = None) -> Placed:
    """A checkpoint by name, found by its config.json alone: no weights are read, and none are
    downloaded for a shape that is known.

    `dtype` None: what config.json says, bfloat16 where it says nothing. Raises `CheckpointError`.
    """
    if is_dummy(name) or (published(name) is not None and not Path(name).is_dir()):
        config = shape(name)
        found: torch.dtype | None = dtype or torch.bfloat16
    else:
        folder = resolve(name, weights=False)
        raw = read_json(folder / "config.json")
        stated = str(raw.get("dtype") or raw.get("torch_dtype") or "bfloat16").removeprefix(
            "torch."
        )
        config = read_config(folder)
        found = dtype or getattr(torch, stated, None)
        if not isinstance(found, torch.dtype):
            raise CheckpointError(
                f"config.json of {folder} says dtype {stated!r}; expected float32, bfloat16 or the like."
            )
    assert found is not None
    return Placed(str(name), config, found, devices, _block_size(config, found, devices))


def _block_size(config: ModelConfig, dtype: torch.dtype, devices: tuple[str, ...]) -> int:
    """That of the attention which the model will get, where the GPU is here to try it; 16, the
    least, elsewhere.
    """
    first = torch.device(devices[0])
    if first.type != "cuda" or (first.index or 0) >= torch.cuda.device_count():
        return BLOCK_SIZE
    heads = (
        config.num_heads // len(devices),
        max(1, config.num_kv_heads // len(devices)),
        config.head_dim,
    )
    return choose_attention("auto", AttentionNeeds(first, dtype, *heads)).block_size


def plan_run(
    cast: Cast,
    options: GenerateOptions,
    tokens: int,
    *,
    share: int = 1,
    num_blocks: int | None = None,
    free: Callable[[str], int | None] | None = None,
) -> MemoryPlan:
    """The plan of `share` answers at a time, prompt and answer together at most `tokens` (and what
    the contexts allow) long.

    `num_blocks`: cache blocks per model where they are given. `free`: bytes that are free on a
    device, by its name; None: asks.
    """
    used = [cast.target, *([cast.draft] if cast.draft is not None and options.needs_draft else [])]
    tokens = min(tokens, *(model.config.max_position_embeddings for model in used))
    work = _Work(options, tokens, share, num_blocks)
    needs = list(_target(cast, work))
    if cast.draft is not None and options.needs_draft:
        needs += _draft(cast.draft, cast.apart, work)
    if cast.judge is not None:
        room = cast.judge.blocks(
            -(-JUDGE_TOKENS // BLOCK_SIZE) if num_blocks is None else num_blocks
        )
        needs += _on_devices("judge", cast.judge, room, JUDGE_TOKENS, share)
    return MemoryPlan.of(needs, tokens, free or free_bytes)


@dataclass(frozen=True)
class _Work:
    """What the models are to do."""

    options: GenerateOptions
    tokens: int
    share: int
    num_blocks: int | None

    def blocks(self, model: Placed) -> int:
        """Of one cache."""
        if self.num_blocks is not None:
            return model.blocks(self.num_blocks)
        return blocks_for(self.options, self.tokens, self.share, model.block_size)

    @property
    def chains(self) -> int:
        """How many chains of the longest length a cache was counted for."""
        return self.share if self.num_blocks is None else 0


def _target(cast: Cast, work: _Work) -> Iterator[ModelNeed]:
    target = cast.target
    blocks = work.blocks(target)
    if cast.verifier.partition(":")[0] in ASKS_THE_TARGET and work.options.looks_ahead:
        context = target.config.max_position_embeddings + JUDGE_TOKENS
        blocks += target.blocks(-(-context // BLOCK_SIZE)) if work.num_blocks is None else blocks
    yield from _on_devices(
        "target", target, blocks, work.tokens, work.share * _rows(work.options), work.chains
    )


def _draft(draft: Placed, apart: bool, work: _Work) -> Iterator[ModelNeed]:
    """Its caches: one as the writer of steps, one as the guesser of tokens. Its weights: once more
    in a process of its own.
    """
    options = work.options
    lookahead, guesses = options.looks_ahead, options.drafts_tokens
    caches = lookahead + guesses
    twice = apart and lookahead and options.driver == "overlapped"
    rows = work.share * options.width * (options.depth if lookahead else 1)
    blocks = caches * work.blocks(draft)
    for need in _on_devices("draft", draft, blocks, work.tokens, rows, caches * work.chains):
        yield replace(need, role="draft, twice", weights=2 * need.weights) if twice else need


def _on_devices(
    role: str, model: Placed, blocks: int, tokens: int, logit_rows: int, chains: int = 0
) -> Iterator[ModelNeed]:
    """The need on each device of a model. `chains`: how many chains of the longest length the cache
    was counted for.
    """
    ranks, config, dtype = len(model.devices), model.config, model.dtype
    per_block = cache_bytes(config, dtype, 1, model.block_size, ranks)
    for device in model.devices:
        yield ModelNeed(
            role=role,
            name=model.name,
            device="cuda:0" if device == "cuda" else device,  # two names, one GPU
            weights=weight_bytes(config, dtype, ranks),
            cache=blocks * per_block,
            working=working_bytes(config, dtype, tokens, logit_rows),
            per_token=chains * per_block // model.block_size,
        )


def _rows(options: GenerateOptions) -> int:
    """Rows of logits of a pass of the target for one answer."""
    nodes = options.nodes if options.looks_ahead else 1
    nodes = min(nodes, options.max_target_rows or nodes)
    if not options.speculates:
        return nodes
    leaves = prod(options.branching) if options.drafter == "tree" else 1
    deep = len(options.branching) if options.drafter == "tree" else options.num_speculative_tokens
    return nodes * leaves * (deep + 1)
