"""Is every kind of attention right on a device, and how fast; and what does replaying forwards as
CUDA graphs save?

`check_attention` computes a few scenes, from one decoding row to a mixed batch with forks, with
each kind that works there, and compares every output row with the same attention in fp64.
`check_graphs` decodes with and without recorded graphs and compares the next-token distributions,
not tokens: in bfloat16 two correct ways part at the first near-tie. Both run on the CPU too, where
the graphs are their twin. For `scripts/gpu_check.sh`; nothing is printed here.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lr.engine.runner import ModelRunner
from lr.kvcache.branch import Branch
from lr.kvcache.cache import PagedKVCache
from lr.kvcache.table import BlockTable
from lr.lab.bench.roofline import timed
from lr.model.attention import AttentionKind, reference_attention
from lr.model.attention_choice import ROUNDINGS, AttentionNeeds, candidates
from lr.model.batch import RaggedBatch
from lr.model.graphs import Recorder, StepGraphs
from lr.model.qwen import CausalLM

DISTANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 0.01, torch.bfloat16: 0.05}
"""How far two next-token distributions of the same model may be apart (total variation), computed
in two ways in that dtype.
"""


@dataclass(frozen=True)
class Scene:
    """A batch: by branch how many tokens are cached and how many are new. `forks` of the first
    branch join it, with one token each.
    """

    name: str
    cached: tuple[int, ...]
    new: tuple[int, ...]
    forks: int = 0


SCENES = (
    Scene("decode 1 at 2048", (2048,), (1,)),
    Scene("decode 8 at 300 to 3000", (300, 700, 1100, 1500, 1900, 2300, 2700, 3000), (1,) * 8),
    Scene("verify 8 x 5 at 1000", (1000,) * 8, (5,) * 8),
    Scene("7 forks at 2000", (2000,), (1,), forks=7),
    Scene("prompt of 1024", (0,), (1024,)),
    Scene("mixed", (0, 513, 90, 1), (200, 1, 7, 33), forks=2),
)


@dataclass(frozen=True)
class AttentionRow:
    """What a kind of attention did in a scene. `off`: the worst output row's distance from fp64,
    relative to its size; at most `bound`.

    Where the kind cannot be used, `why` says so and there are no figures.
    """

    kind: str
    scene: str
    why: str = ""
    block_size: int = 0
    off: float = 0.0
    bound: float = 0.0
    seconds: float = 0.0

    @property
    def ok(self) -> bool | None:
        """Whether the result is within the bound; None where there is none."""
        return None if self.why else self.off <= self.bound


def check_attention(
    device: torch.device,
    dtype: torch.dtype = torch.bfloat16,
    heads: tuple[int, int, int] = (32, 8, 128),
    scenes: Sequence[Scene] = SCENES,
    repeats: int = 20,
) -> list[AttentionRow]:
    """A row for every kind and scene, the kinds that cannot be used included. `heads`: query heads,
    KV heads, head dim.
    """
    rows = []
    for found in candidates(AttentionNeeds(device, dtype, *heads)):
        if found.kind is None:
            rows.append(AttentionRow(found.name, "", found.why))
        else:
            rows += [
                _in_scene(found.kind, scene, device, dtype, heads, repeats) for scene in scenes
            ]
    return rows


@torch.inference_mode()
def _in_scene(
    kind: AttentionKind,
    scene: Scene,
    device: torch.device,
    dtype: torch.dtype,
    heads: tuple[int, int, int],
    repeats: int,
) -> AttentionRow:
    h, kv, d = heads
    noise = torch.Generator(device).manual_seed(0)
    tables, cache = _grown(kind, scene, device, dtype, (kv, d))
    cache.keys.normal_(generator=noise)
    cache.values.normal_(generator=noise)
    counts = [*scene.new, *[1] * scene.forks]
    with cache.append(tables, counts) as slots:
        batch = RaggedBatch.build(
            tables, [[0] * c for c in counts], slots, wanted=counts, device=device
        )
        drawn = torch.randn(len(slots), h + 2 * kv, d, generator=noise, device=device).to(dtype)
        parts = drawn.split((h, kv, kv), 1)
        mixed = kind.ragged(batch, cache)(0, *parts).double()
        exact = _in_fp64(batch, cache, parts)
        attend = kind.ragged(batch, cache)
        seconds = timed(lambda: attend(0, *parts), device, repeats)
    off = ((mixed - exact).flatten(1).norm(dim=1) / exact.flatten(1).norm(dim=1)).max().item()
    bound = ROUNDINGS * torch.finfo(dtype).eps
    return AttentionRow(kind.name, scene.name, "", kind.block_size, off, bound, seconds)


def _grown(
    kind: AttentionKind,
    scene: Scene,
    device: torch.device,
    dtype: torch.dtype,
    heads: tuple[int, int],
) -> tuple[list[BlockTable], PagedKVCache]:
    """The branches of a scene in a cache of one layer, grown in turns so that their blocks lie
    mixed.
    """
    lengths = [a + b + kind.block_size for a, b in zip(scene.cached, scene.new, strict=True)]
    cache = PagedKVCache(
        num_layers=1,
        num_kv_heads=heads[0],
        head_dim=heads[1],
        num_blocks=sum(length // kind.block_size + 2 for length in lengths) + 2 * scene.forks,
        block_size=kind.block_size,
        dtype=dtype,
        device=device,
    )
    tables, chance = [cache.new() for _ in scene.cached], random.Random(0)
    left = dict(enumerate(scene.cached))
    while any(left.values()):
        i = chance.choice([i for i, count in left.items() if count])
        count = min(left[i], kind.block_size)
        with cache.append([tables[i]], [count]):
            left[i] -= count
    return [*tables, *(cache.fork(tables[0]) for _ in range(scene.forks))], cache


def _in_fp64(batch: RaggedBatch, cache: PagedKVCache, parts: Sequence[Tensor]) -> Tensor:
    """The reference on an fp64 copy of the cache."""
    exact = PagedKVCache(
        num_layers=1,
        num_kv_heads=cache.num_kv_heads,
        head_dim=cache.head_dim,
        num_blocks=cache.num_blocks,
        block_size=cache.block_size,
        dtype=torch.float64,
        device=cache.keys.device,
    )
    exact.keys.copy_(cache.keys)
    exact.values.copy_(cache.values)
    return reference_attention(batch, exact)(0, *(part.double() for part in parts))


@dataclass(frozen=True)
class GraphRow:
    """Decoding `rows` branches behind `length` tokens: seconds per step the ordinary way and
    replayed, and the worst distance between the next-token distributions of the two (total
    variation), at most `bound`. `failure`: why nothing could be recorded."""

    attention: str
    rows: int
    length: int
    plain: float
    replayed: float
    distance: float
    bound: float
    failure: str | None

    @property
    def ok(self) -> bool:
        return self.failure is None and self.distance <= self.bound


def check_graphs(
    model: CausalLM,
    rows: Sequence[int] = (1, 4, 8),
    length: int = 1000,
    steps: int = 20,
    recorder: Recorder | None = None,
) -> list[GraphRow]:
    """A row per number of branches, for a model with its kind of attention (`equip`), which must be
    one that can be recorded. `recorder`: in the place of CUDA's, for tests.
    """
    assert model.attention.rows is not None
    before, results = model.graphs, []
    try:
        for count in rows:
            results.append(_decoded(model, count, length, steps, recorder))
    finally:
        model.graphs = before
    return results


def _decoded(
    model: CausalLM, rows: int, length: int, steps: int, recorder: Recorder | None
) -> GraphRow:
    prompts = [
        [(7 * i + 3 * j + 1) % model.config.vocab_size for i in range(length)] for j in range(rows)
    ]
    seconds, laws, failure = [], [], None
    for graphs in (False, True):
        model.graphs = graphs
        blocks = rows * ((length + steps + 8) // model.attention.block_size + 2)
        runner = ModelRunner(model, num_blocks=blocks + 1)
        if graphs and recorder is not None:  # in the place of CUDA's
            runner.graphs = StepGraphs(model, runner.cache, recorder)
        runner.prepare(rows)
        branches = [runner.open(prompt) for prompt in prompts]
        runner.feed(branches)

        def step(runner: ModelRunner = runner, branches: list[Branch] = branches) -> list[Tensor]:
            for branch in branches:
                branch.append(len(branch) % model.config.vocab_size)
            return runner.feed(branches)

        laws.append([torch.stack(step()).float().softmax(-1) for _ in range(3)])
        seconds.append(timed(step, model.device, steps))
        if runner.graphs is not None:
            failure = runner.graphs.failure or (
                None if runner.graphs.recorded else "no recording holds so many rows"
            )
    distance = max(0.5 * (a - b).abs().sum(-1).max().item() for a, b in zip(*laws, strict=True))
    plain, replayed = seconds
    return GraphRow(
        model.attention.name,
        rows,
        length,
        plain,
        replayed,
        distance,
        DISTANCE[model.dtype],
        failure,
    )
