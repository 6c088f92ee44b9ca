"""Forwards on static buffers, replayed: whatever the rows and whatever ran before, they
give what the ordinary forward gives.

The recorder is the twin without CUDA, which overwrites its result as a graph does;
attention is the kit's.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from attention_kit import TILES
from torch import Tensor

from lr.engine.readings import read
from lr.engine.runner import ModelRunner, Runners
from lr.kvcache.branch import Branch
from lr.kvcache.cache import integers
from lr.model.attention import SDPA
from lr.model.config import ModelConfig
from lr.model.graphs import Recorder, StepGraphs, record_eager
from lr.model.qwen import CausalLM
from lr.reasoner import Reasoner
from lr.trace import Warned

V = 23


def random_model(seed: int = 0) -> CausalLM:
    model = CausalLM(
        ModelConfig(V, 16, 24, 2, 4, 2, 8, 128, 1e-6, 1e4, False, True, True)
    )
    noise = torch.Generator().manual_seed(seed)
    model = model.double().requires_grad_(False).eval()
    for parameter in model.parameters():
        parameter.copy_(
            torch.randn(parameter.shape, generator=noise, dtype=torch.float64) * 0.4
        )
    model.attention = TILES
    return model


MODEL = random_model()


def replaying(
    recorder: Recorder = record_eager, rows: tuple[int, ...] = (1, 2, 4, 8)
) -> tuple:
    runner = ModelRunner(MODEL, num_blocks=80, block_size=4)
    runner.graphs = StepGraphs(MODEL, runner.cache, recorder, rows)
    return runner, runner.graphs


class Pair:
    """The same branches on two runners: one as ever, one that replays. Every forward is
    compared, hidden states too.
    """

    def __init__(self) -> None:
        plain = ModelRunner(MODEL, num_blocks=80, block_size=4)
        replays = ModelRunner(MODEL, num_blocks=80, block_size=4)
        self.runners = [plain, replays]
        for runner in self.runners:
            runner.cache.poison_freed = True
            runner.cache.keys.fill_(torch.nan)
            runner.cache.values.fill_(torch.nan)
        self.graphs = replays.graphs = StepGraphs(
            MODEL, replays.cache, record_eager, (1, 2, 4, 8)
        )
        self.branches: list[tuple[Branch, Branch]] = []

    def open(self, tokens: list[int]) -> None:
        self.branches.append(tuple(runner.open(tokens) for runner in self.runners))

    def fork(self, i: int) -> None:
        both = zip(self.runners, self.branches[i], strict=True)
        self.branches.append(tuple(runner.fork(branch) for runner, branch in both))

    def rewind(self, i: int, length: int) -> None:
        for runner, branch in zip(self.runners, self.branches[i], strict=True):
            runner.rewind(branch, length)

    def close(self, i: int) -> None:
        for runner, branch in zip(self.runners, self.branches.pop(i), strict=True):
            runner.close(branch)

    def feed(
        self, chosen: list[int], tokens: list[list[int]], wanted: list[int] | str
    ) -> None:
        for i, ids in zip(chosen, tokens, strict=True):
            for branch in self.branches[i]:
                branch.extend(ids)
        results = []
        for side, runner in enumerate(self.runners):
            branches = [self.branches[i][side] for i in chosen]
            results.append(
                read(runner, branches)
                if wanted == "read"
                else runner.forward(branches, logits=wanted)
            )  # type: ignore[arg-type]
        for plain, replayed in zip(*results, strict=True):
            torch.testing.assert_close(replayed, plain, rtol=0, atol=1e-11)


@pytest.mark.parametrize("seed", range(6))
def test_replayed_forwards_are_the_ordinary_ones(seed: int) -> None:
    """Branches open, fork, rewind and close at random between batches of every size,
    those that are too large included.
    """
    chance, pair = random.Random(seed), Pair()
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
        chosen = chance.sample(
            range(len(pair.branches)), chance.randint(1, len(pair.branches))
        )
        tokens = [
            [chance.randrange(V) for _ in range(chance.choice([1, 1, 1, 3]))]
            for _ in chosen
        ]
        pair.feed(
            chosen, tokens, chance.choice(["last", "all", "read", [1] * len(chosen)])
        )
    assert len(pair.graphs.recorded) > 2
    for i in reversed(range(len(pair.branches))):
        pair.close(i)
    assert [runner.cache.pool.num_used for runner in pair.runners] == [
        0,
        1,
    ]  # the padding block
    for _ in range(2):
        pair.runners[1].end()
    assert pair.runners[1].cache.pool.num_used == 0


def test_results_outlive_the_next_replay() -> None:
    """Logits of two forwards of one size are two tensors, with and without padding
    rows."""
    for prompts in (1, 3):
        runner, _ = replaying()
        branches = [runner.open([1 + i]) for i in range(prompts)]
        first = runner.forward(branches)
        kept = [row.clone() for row in first]
        for branch in branches:
            branch.append(9)
        runner.forward(branches)
        assert all(torch.equal(a, b) for a, b in zip(first, kept, strict=True))


def test_rows_that_were_in_use_become_padding_again() -> None:
    """Else they would write into the blocks of a sequence that is closed, and perhaps of
    another that has got them."""
    runner, _ = replaying(rows=(2,))
    stays, goes = runner.open([1]), runner.open([2])
    runner.forward([stays, goes])
    block = goes.table.blocks[0]
    runner.close(goes)
    before = runner.cache.keys[:, block].clone()
    stays.append(3)
    runner.forward([stays])
    assert torch.equal(runner.cache.keys[:, block], before)


def test_only_blocks_that_rows_lack_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those that forks share, nor those that a row had before its branch was cut
    back. That the results are right is shown above.
    """
    sent: list[int] = []

    def counted(
        values: list, device: torch.device, dtype: torch.dtype = torch.int64
    ) -> Tensor:
        made = integers(values, device, dtype)
        borders = 9  # of 8 rows
        sent.extend([made.numel()] * (dtype is torch.int32 and len(made) != borders))
        return made

    monkeypatch.setattr("lr.model.graphs.integers", counted)
    runner, _ = replaying(rows=(8,))
    trunk = runner.open([n % V for n in range(39)])
    runner.forward([trunk])  # in 10 blocks of 4; too many rows to be replayed
    branches = [trunk, runner.fork(trunk), runner.fork(trunk)]

    def feed(count: int, *order: int) -> list[int]:
        sent.clear()
        for i in order:
            branches[i].extend([3 + i] * count)
        runner.forward([branches[i] for i in order])
        return sent[:]

    # Now 40 tokens each; A, B and C differ in one block.
    assert feed(1, 0, 1, 2) == [10, 10, 10]
    assert feed(2, 0, 1, 2) == [1, 1, 1]
    assert feed(2, 0, 1, 2) == []
    for i in (2, 1, 0):
        runner.rewind(branches[i], 40)
    assert feed(2, 0, 1, 2) == []  # the same blocks again
    assert feed(2, 2, 0, 1) == [2, 2, 2]  # the rows of others with the same trunk
    assert feed(2, 2, 0, 1) == [1, 1, 1]


class Counting:
    """Notes the numbers of rows that are recorded and replayed."""

    def __init__(self) -> None:
        self.recorded: list[int] = []
        self.replayed: list[int] = []

    def __call__(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        replay = record_eager(compute)
        rows = len(replay())
        self.recorded.append(rows)

        def counted() -> Tensor:
            self.replayed.append(rows)
            return replay()

        return counted


def decode(runner: ModelRunner, steps: int, rows: int = 1) -> list[Tensor]:
    branches, found = [runner.open([i]) for i in range(rows)], []
    for token in range(steps):
        found += runner.forward(branches)
        for branch in branches:
            branch.append(token)
    return found


def test_a_batch_takes_the_smallest_recording_that_holds_it() -> None:
    """Three rows take the recording for four, whatever their length."""
    recorder = Counting()
    runner, graphs = replaying(recorder)
    assert (recorder.recorded, graphs.recorded) == ([8, 4, 2, 1], [1, 2, 4, 8])
    plain = decode(ModelRunner(MODEL, num_blocks=80, block_size=4), 12, rows=3)
    torch.testing.assert_close(decode(runner, 12, rows=3), plain, rtol=0, atol=1e-11)
    assert recorder.replayed == [4] * 12
    assert len(recorder.recorded) == 4


def test_what_cannot_be_recorded_is_said_and_goes_the_ordinary_way() -> None:
    """Nothing is replayed then, nor tried again, though the first size was recorded."""
    recorder = Counting()

    def fails(compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        if recorder.recorded:
            raise RuntimeError(
                "operation not permitted when stream is capturing\nand more"
            )
        return recorder(compute)

    why = "recording 4 rows failed: operation not permitted when stream is capturing"
    with pytest.warns(RuntimeWarning, match=why):
        runner, graphs = replaying(fails)
    assert (graphs.failure, graphs.recorded) == (why, [])
    plain = decode(ModelRunner(MODEL, num_blocks=80, block_size=4), 5)
    torch.testing.assert_close(decode(runner, 5), plain, rtol=0, atol=1e-12)
    assert (recorder.recorded, recorder.replayed) == ([8], [])


def test_the_trace_says_that_decoding_is_slower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(device: torch.device) -> Recorder:
        def record(compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
            raise RuntimeError("out of memory")

        return record

    question = "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many has Ben?"
    monkeypatch.setattr("lr.model.graphs.recorder_for", fails)
    with Reasoner(draft=None, dtype=torch.float64) as reasoner:
        expected = reasoner.generate(question, mode="ar", max_tokens=9)
        reasoner.engine.target.attention = TILES
        reasoner.engine.forget_caches()
        monkeypatch.setattr(CausalLM, "replayable", True)
        with pytest.warns(RuntimeWarning, match="decoding will be slower"):
            slow = reasoner.generate(question, mode="ar", max_tokens=9)
    assert slow.tokens == expected.tokens
    [warned] = [event for _, event in slow.trace.events if isinstance(event, Warned)]
    assert re.fullmatch(
        r"target: recording \d+ rows failed: out of memory", warned.what
    )
    assert not [
        event for _, event in expected.trace.events if isinstance(event, Warned)
    ]


def test_a_runner_keeps_the_attention_it_was_made_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its graphs contain that one; an idle runner with another is not lent again."""
    model = random_model(1)
    runners = Runners(model)
    runner = runners.lend(4)
    branch = runner.open([1, 2, 3])
    model.attention = SDPA
    assert runner.kind is TILES
    plain = ModelRunner(model, num_blocks=4)
    [expected] = plain.forward([plain.open([1, 2, 3])])
    torch.testing.assert_close(
        runner.forward([branch])[0], expected, rtol=0, atol=1e-12
    )
    runner.close(branch)
    runners.take_back(runner)
    assert runners.idle == [runner] and runners.lend(4) is not runner


def test_the_block_for_padding_rows_is_not_lent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CausalLM, "replayable", True)
    monkeypatch.setattr("lr.model.graphs.recorder_for", lambda device: record_eager)
    runners = Runners(MODEL)
    small = runners.lend(4)
    runners.take_back(small)
    large = runners.lend(5)
    assert large is not small
    assert large.cache.pool.num_free == 5
    runners.take_back(large)
    assert runners.lend(5) is large


FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "pin_memory")
"""What a CUDA graph may not contain: reading a value back, shapes that depend on
values, copies from the host."""


class Seen(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes every operation."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> object:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_what_is_recorded_can_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is in the buffers, the model issues the same operations, and none that
    asks the device for a value.
    """
    lists: list[list[str]] = []

    def watch(compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        compute()  # warms up

        def replay() -> Tensor:
            with Seen() as seen:
                logits = compute()
            lists.append(seen.names)
            return logits

        return replay

    kind = replace(TILES, tiles=lambda tiles, cache: lambda layer, q, k, v: q)
    monkeypatch.setattr(MODEL, "attention", kind)
    runner, _ = replaying(watch, rows=(4,))
    decode(runner, 4, rows=2)
    assert len(lists) == 4
    assert all(operations == lists[0] for operations in lists)
    assert not [name for name in lists[0] for word in FORBIDDEN if word in name]
