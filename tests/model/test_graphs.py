"""Forwards on static buffers, replayed: whatever the shape and whatever ran before, they give what
the ordinary forward gives.

The recorder is the twin without CUDA, which overwrites its results as a graph does. What only a GPU
can show is marked `gpu`.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from kernel_kit import Emulated
from torch import Tensor

from lr.engine.runner import ModelRunner
from lr.errors import SettingError
from lr.kvcache.branch import Branch
from lr.model.attention import SDPA, AttentionKind
from lr.model.attention_flash import FlashKernels, flash_attention
from lr.model.attention_varlen import varlen_attention
from lr.model.batch import RaggedBatch
from lr.model.config import ModelConfig
from lr.model.graphs import EagerRecorder, GraphShapes, Results, StepGraphs
from lr.model.qwen import CausalLM

V = 23
SHAPES = GraphShapes(rows=(1, 2, 4, 8), spans=(6, 16, 40), after=0)


def random_model(seed: int = 0) -> CausalLM:
    model = CausalLM(ModelConfig(V, 16, 24, 2, 4, 2, 8, 128, 1e-6, 1e4, False, True, True))
    noise = torch.Generator().manual_seed(seed)
    model = model.double().requires_grad_(False).eval()
    for parameter in model.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=noise, dtype=torch.float64) * 0.4)
    return model


MODEL = random_model()
KERNELS = Emulated()
KINDS = [
    SDPA,
    varlen_attention(KERNELS.varlen_attn, 4),
    flash_attention(
        FlashKernels(KERNELS.flash_attn_varlen_func, KERNELS.flash_attn_with_kvcache), 4
    ),
]


class Pair:
    """The same branches on two runners: one as ever, one that replays. Every forward is compared,
    hidden states too.
    """

    def __init__(self, kind: AttentionKind, shapes: GraphShapes = SHAPES) -> None:
        made = [
            ModelRunner(MODEL, num_blocks=80, block_size=4, backend=kind.ragged) for _ in range(2)
        ]
        self.runners = made
        for runner in made:
            runner.cache.poison_freed = True
            runner.cache.keys.fill_(torch.nan)
            runner.cache.values.fill_(torch.nan)
        assert kind.rows is not None
        self.graphs = StepGraphs(MODEL, made[1].cache, kind.rows, shapes, EagerRecorder())
        made[1].graphs = self.graphs
        self.branches: list[tuple[Branch, Branch]] = []

    def open(self, tokens: list[int]) -> None:
        self.branches.append(tuple(runner.open(tokens) for runner in self.runners))  # type: ignore[arg-type]

    def fork(self, i: int) -> None:
        both = zip(self.runners, self.branches[i], strict=True)
        self.branches.append(tuple(runner.fork(branch) for runner, branch in both))  # type: ignore[arg-type]

    def rewind(self, i: int, length: int) -> None:
        for runner, branch in zip(self.runners, self.branches[i], strict=True):
            runner.rewind(branch, length)

    def close(self, i: int) -> None:
        for runner, branch in zip(self.runners, self.branches.pop(i), strict=True):
            runner.close(branch)

    def feed(self, chosen: list[int], tokens: list[list[int]], wanted: list[int] | str) -> None:
        for i, ids in zip(chosen, tokens, strict=True):
            for branch in self.branches[i]:
                branch.extend(ids)
        results = []
        for side, runner in enumerate(self.runners):
            branches = [self.branches[i][side] for i in chosen]
            results.append(
                runner.read(branches) if wanted == "read" else runner.feed(branches, logits=wanted)
            )  # type: ignore[arg-type]
        for plain, replayed in zip(*results, strict=True):
            torch.testing.assert_close(replayed, plain, rtol=0, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("seed", range(4))
def test_replayed_forwards_are_the_ordinary_ones(kind: AttentionKind, seed: int) -> None:
    """Branches open, fork, rewind and close at random between batches of every size, shapes beyond
    the largest included.
    """
    chance, pair = random.Random(seed), Pair(kind)
    for _ in range(40):
        act = chance.random()
        if act < 0.25 or not pair.branches:
            pair.open([chance.randrange(V) for _ in range(chance.randint(1, 5))])
            pair.feed([len(pair.branches) - 1], [[]], "last")
        elif act < 0.4 and len(pair.branches) < 7:
            pair.fork(chance.randrange(len(pair.branches)))
        elif act < 0.5:
            pair.close(chance.randrange(len(pair.branches)))
        elif act < 0.6:
            i = chance.randrange(len(pair.branches))
            pair.rewind(i, chance.randint(1, len(pair.branches[i][0])))
        if not pair.branches:
            continue
        chosen = chance.sample(range(len(pair.branches)), chance.randint(1, len(pair.branches)))
        tokens = [[chance.randrange(V) for _ in range(chance.choice([1, 1, 1, 3]))] for _ in chosen]
        pair.feed(chosen, tokens, chance.choice(["last", "all", "read", [1] * len(chosen)]))
    assert len(pair.graphs.recorded) > 4
    for i in reversed(range(len(pair.branches))):
        pair.close(i)
    assert [runner.cache.pool.num_used for runner in pair.runners] == [0, 1]  # the inert block
    pair.graphs.close()
    assert pair.runners[1].cache.pool.num_used == 0


def test_results_outlive_the_next_replay() -> None:
    """Logits of two forwards of one shape are two tensors, with and without inert rows."""
    for prompts in (1, 3):
        pair = Pair(SDPA)
        runner = pair.runners[1]
        branches = [runner.open([1 + i]) for i in range(prompts)]
        first = runner.feed(branches)
        kept = [row.clone() for row in first]
        for branch in branches:
            branch.append(9)
        runner.feed(branches)
        assert all(torch.equal(a, b) for a, b in zip(first, kept, strict=True))


class Counting(EagerRecorder):
    """Counts what is recorded and what is replayed."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def record(self, compute: Callable[[], Results]) -> Callable[[], Results]:
        self.recorded += 1
        replay = super().record(compute)

        def counted() -> Results:
            self.replayed += 1
            return replay()

        return counted


def decode(
    recorder: EagerRecorder, shapes: GraphShapes, steps: int
) -> tuple[list[Tensor], StepGraphs]:
    runner = ModelRunner(MODEL, num_blocks=40, block_size=4)
    assert SDPA.rows is not None
    runner.graphs = graphs = StepGraphs(MODEL, runner.cache, SDPA.rows, shapes, recorder)
    branch, rows = runner.open([3]), []
    for token in range(steps):
        rows += runner.feed([branch])
        branch.append(token)
    return rows, graphs


def test_a_shape_is_recorded_when_it_pays() -> None:
    """Twelve tokens decoded one by one: the fourth time is recorded and replayed; from token 9 on
    the span is another shape.
    """
    recorder = Counting()
    rows, graphs = decode(recorder, GraphShapes(rows=(1,), spans=(8, 40), after=3), 12)
    assert graphs.recorded == [(1, 8), (1, 40)]
    assert (recorder.recorded, recorder.replayed) == (2, 5 + 1)
    plain, _ = decode(Counting(), GraphShapes(rows=(1,), spans=(1,)), 12)
    torch.testing.assert_close(rows, plain, rtol=0, atol=1e-11)


def test_shapes_are_recorded_beforehand() -> None:
    """Three rows that will grow to 16 tokens: the shapes of 4 rows up to 6 and up to 16 tokens, and
    none while decoding.
    """
    recorder = Counting()
    runner = ModelRunner(MODEL, num_blocks=40, block_size=4)
    assert SDPA.rows is not None
    runner.graphs = StepGraphs(MODEL, runner.cache, SDPA.rows, SHAPES, recorder)
    runner.prepare(3, 16)
    assert runner.graphs.recorded == [(4, 6), (4, 16)]
    branches = [runner.open([i]) for i in range(3)]
    plain = ModelRunner(MODEL, num_blocks=40, block_size=4)
    twins = [plain.open([i]) for i in range(3)]
    for token in range(12):
        for ours, expected in zip(runner.feed(branches), plain.feed(twins), strict=True):
            torch.testing.assert_close(ours, expected, rtol=0, atol=1e-11)
        for branch in (*branches, *twins):
            branch.append(token)
    assert (recorder.recorded, recorder.replayed) == (2, 12)


class Failing(EagerRecorder):
    def record(self, compute: Callable[[], Results]) -> Callable[[], Results]:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")


def test_what_cannot_be_recorded_goes_the_ordinary_way() -> None:
    rows, graphs = decode(Failing(), SHAPES, 5)
    assert (
        graphs.failure
        == "recording 1 rows of up to 6 tokens failed: operation not permitted when stream is capturing"
    )
    plain, _ = decode(Counting(), GraphShapes(rows=(1,), spans=(1,)), 5)
    torch.testing.assert_close(rows, plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("rows", "span", "expected"),
    [
        (1, 1, (1, 6)),
        (3, 6, (4, 6)),
        (8, 7, (8, 16)),
        (5, 40, (8, 40)),
        (9, 1, None),
        (1, 41, None),
    ],
)
def test_the_smallest_shape(rows: int, span: int, expected: tuple[int, int] | None) -> None:
    assert SHAPES.smallest(rows, span) == expected
    limited = GraphShapes(SHAPES.rows, SHAPES.spans, 0, largest=128)
    assert limited.smallest(rows, span) == (
        expected if expected is None or expected[0] * expected[1] <= 128 else None
    )


@pytest.mark.parametrize(
    "wrong", [{"rows": ()}, {"rows": (2, 1)}, {"spans": (0, 4)}, {"after": -1}]
)
def test_shapes_that_make_no_sense(wrong: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(SettingError, match=f"{next(iter(wrong))} is"):
        GraphShapes(**wrong)  # type: ignore[arg-type]


class Forbidden(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes what a CUDA graph may not contain: reading a value back, shapes that depend on values,
    copies from the host.
    """

    WORDS = (
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "unique",
        "is_nonzero",
        "_to_copy.device",
        "pin_memory",
    )

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> object:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Watched(EagerRecorder):
    """Lists the operations of two forwards of the same shape."""

    def __init__(self) -> None:
        self.lists: list[list[str]] = []

    def record(self, compute: Callable[[], Results]) -> Callable[[], Results]:
        compute()  # the norms keep their stacked weights from here on

        def replay() -> Results:
            with Forbidden() as mode:
                results = compute()
            self.lists.append(mode.seen)
            return results

        return replay


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_what_is_recorded_can_be_recorded(dtype: torch.dtype) -> None:
    """The same operations every time, whatever is in the buffers, and none that asks the device for
    a value.
    """
    model = random_model().to(dtype)
    recorder = Watched()
    runner = ModelRunner(model, num_blocks=40, block_size=4)
    assert SDPA.rows is not None
    runner.graphs = StepGraphs(
        model, runner.cache, SDPA.rows, GraphShapes((4,), (40,), 0), recorder
    )
    branches = [runner.open([1, 2, 3]), runner.open([4])]
    for token in (5, 6, 7, 8):
        runner.feed(branches)
        for branch in branches:
            branch.append(token)
    assert len(recorder.lists) == 4
    assert all(operations == recorder.lists[0] for operations in recorder.lists)
    bad = [name for name in recorder.lists[0] for word in Forbidden.WORDS if word in name]
    assert not bad


def test_ordinary_batches_are_left_alone() -> None:
    """A prompt longer than the largest shape has rows goes the ordinary way."""
    graphs = Pair(SDPA).graphs
    cache = graphs.cache
    table = cache.new()
    with cache.append([table], [9]) as slots:
        batch = RaggedBatch.build([table], [[1] * 9], slots, wanted=[1], device=torch.device("cpu"))
        assert graphs.run(batch) is None
    assert graphs.recorded == []
