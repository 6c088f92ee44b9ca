"""Branches and ragged forwards: whatever shares a batch, a branch gets what it would
get alone; nothing is ever half done.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lr.engine.runner import ModelRunner
from lr.errors import ContextError, OutOfBlocks, ProtocolError, SettingError
from lr.kvcache.branch import Branch
from lr.model.attention import REFERENCE, SDPA, AttentionKind
from lr.model.config import ModelConfig
from lr.model.qwen import CausalLM

KINDS = [REFERENCE, SDPA]
V = 23


def random_model(context: int = 128) -> CausalLM:
    model = CausalLM(
        ModelConfig(V, 16, 24, 2, 4, 2, 4, context, 1e-6, 1e4, False, True, True)
    )
    noise = torch.Generator().manual_seed(0)
    model = model.double().requires_grad_(False).eval()
    for parameter in model.parameters():
        parameter.copy_(
            torch.randn(parameter.shape, generator=noise, dtype=torch.float64) * 0.4
        )
    return model


MODEL = random_model()


def runner(attention: AttentionKind = SDPA, **settings: int) -> ModelRunner:
    MODEL.attention = attention
    made = ModelRunner(MODEL, **{"num_blocks": 64, "block_size": 4, **settings})
    made.cache.keys.fill_(
        torch.nan
    )  # whoever reads memory that was never written will show it
    made.cache.values.fill_(torch.nan)
    return made


def tokens(count: int, seed: int) -> list[int]:
    return torch.randint(
        V, (count,), generator=torch.Generator().manual_seed(seed)
    ).tolist()


def alone(ids: list[int]) -> torch.Tensor:
    """Logits [t, v] of one sequence in a fresh runner."""
    fresh = runner(REFERENCE)
    return fresh.forward([fresh.open(ids)], logits="all")[0]


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("attention", KINDS)
@given(
    counts=st.lists(
        st.tuples(st.integers(0, 13), st.integers(1, 9)), min_size=1, max_size=5
    )
)
@settings(max_examples=25, deadline=None)
def test_a_ragged_batch_gives_what_each_branch_gives_alone(
    attention: AttentionKind, counts: list[tuple[int, int]]
) -> None:
    """m tokens cached, then c more, for several branches of different m and c in one
    forward, against one prefill each.
    """
    made = runner(attention)
    branches = []
    for i, (m, c) in enumerate(counts):
        ids = tokens(m + c, i)
        branch = made.open(ids[: m or 1])
        if m:
            made.forward([branch])
        branch.tokens = list(ids)
        branches.append(branch)
    uncomputed = [len(branch.uncomputed) for branch in branches]
    for branch, rows, count in zip(
        branches, made.forward(branches, logits="all"), uncomputed, strict=True
    ):
        assert close(rows, alone(branch.tokens)[-count:])


@pytest.mark.parametrize("attention", KINDS)
def test_forks_share_the_past_and_part_ways(attention: AttentionKind) -> None:
    made = runner(attention)
    root = made.open(tokens(10, 0))
    made.forward([root])
    used = made.cache.pool.num_used
    twins = [made.fork(root) for _ in range(3)]
    assert made.cache.pool.num_used == used  # forking costs no block
    for i, twin in enumerate(twins):
        twin.extend(tokens(i + 1, i + 1))
    rows = made.forward(twins)
    for twin, row in zip(twins, rows, strict=True):
        assert close(row, alone(twin.tokens)[-1])
    assert (
        made.cache.copied_blocks == 3
    )  # one partly filled block each; the root still holds the original
    root.append(5)
    assert close(made.forward([root])[0], alone(root.tokens)[-1])


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 9])
def test_rewinding_forgets(length: int) -> None:
    made = runner()
    branch = made.open(tokens(9, 0))
    made.forward([branch])
    made.rewind(branch, length)
    assert (len(branch), branch.num_computed_tokens, branch.uncomputed) == (
        length,
        length,
        [],
    )
    branch.extend(tokens(6, 7))
    assert close(made.forward([branch])[0], alone(branch.tokens)[-1])


def test_rewinding_pending_tokens_leaves_the_cache_alone() -> None:
    made = runner()
    branch = made.open(tokens(5, 0))
    made.forward([branch])
    branch.extend([1, 2, 3])
    made.rewind(branch, 6)
    assert (branch.num_computed_tokens, branch.uncomputed) == (5, [1])


def test_last_is_the_last_row_of_all() -> None:
    made, other = runner(), runner()
    branches = [made.open(tokens(n, n)) for n in (3, 1, 7)]
    others = [other.open(tokens(n, n)) for n in (3, 1, 7)]
    for last, rows in zip(
        made.forward(branches), other.forward(others, logits="all"), strict=True
    ):
        assert close(last, rows[-1])


@pytest.mark.parametrize("logits", ["last", "all"])
@pytest.mark.parametrize("limit", [1, 3, 5, 8])
def test_long_prompts_go_in_pieces(limit: int, logits: str) -> None:
    whole, pieces = runner(), runner(max_batch_tokens=limit)
    made = [
        r.forward([r.open(tokens(11, 1)), r.open(tokens(2, 2))], logits=logits)
        for r in (whole, pieces)
    ]  # type: ignore[arg-type]
    for a, b in zip(*made, strict=True):
        assert close(a, b)


def test_padded_rows_of_the_vocabulary_never_appear() -> None:
    made = runner(vocab_size=20)
    assert made.forward([made.open([1, 2])])[0].shape == (20,)
    with pytest.raises(SettingError, match="token id is 20"):
        made.open([20])


def test_several_runners_do_not_disturb_each_other() -> None:
    one, two = runner(), ModelRunner(random_model(), num_blocks=8, block_size=2)
    a, b = one.open([1, 2, 3]), two.open([1, 2, 3])
    assert close(one.forward([a])[0], two.forward([b])[0])
    one.close(a)
    assert one.cache.pool.num_used == 0
    assert two.cache.pool.num_used == 2


def test_blocks_have_the_size_that_is_asked_for() -> None:
    assert ModelRunner(MODEL, num_blocks=4).cache.block_size == 16
    assert ModelRunner(MODEL, num_blocks=4, block_size=128).cache.block_size == 128


def test_the_observer_hears_of_every_forward() -> None:
    heard: list[tuple[int, int]] = []
    made = ModelRunner(
        MODEL, num_blocks=8, block_size=4, observer=lambda b, n, s: heard.append((b, n))
    )
    branches = [made.open([1, 2, 3]), made.open([4])]
    made.forward(branches)
    assert heard == [(2, 4)]


def state(made: ModelRunner, branches: list[Branch]) -> object:
    return [
        (list(b.tokens), list(b.table.blocks), b.table.length) for b in branches
    ], made.cache.pool.num_free


def test_out_of_blocks_changes_nothing() -> None:
    made = runner(num_blocks=3)
    first, second = made.open(tokens(8, 0)), made.open(tokens(8, 1))
    made.forward([first])
    second.extend([1])
    before = state(made, [first, second])
    with pytest.raises(OutOfBlocks, match="3 more blocks are needed, 1 of 3 are free"):
        made.forward([second])
    assert state(made, [first, second]) == before
    made.close(first)
    assert close(made.forward([second])[0], alone(second.tokens)[-1])


def test_a_failing_forward_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = runner()
    branch = made.open(tokens(6, 0))
    made.forward([branch])
    branch.extend([1, 2, 3])
    before = state(made, [branch])
    with monkeypatch.context() as patch:
        patch.setattr(made, "kind", replace(SDPA, ragged=lambda batch, cache: 1 / 0))
        with pytest.raises(ZeroDivisionError):
            made.forward([branch])
    assert state(made, [branch]) == before
    assert close(made.forward([branch])[0], alone(branch.tokens)[-1])


def test_misuse_is_refused() -> None:
    made = runner()
    branch = made.open([1, 2])
    made.forward([branch])
    with pytest.raises(ProtocolError, match="computed already"):
        made.forward([branch])
    with pytest.raises(SettingError, match="rewind to is 3"):
        made.rewind(branch, 3)
    with pytest.raises(SettingError, match="at least one"):
        made.open([])
    with pytest.raises(
        ContextError, match="129 tokens do not fit the model's context of 128"
    ):
        made.open([1] * 129)
    branch.extend([1] * 127)
    with pytest.raises(ContextError, match="context of 128"):
        made.forward([branch])
    made.rewind(branch, 3)
    with pytest.raises(ProtocolError, match="cannot be swapped with itself"):
        made.swap(branch, branch)
    branch.append(V)
    with pytest.raises(SettingError, match=f"a token id is {V}"):
        made.forward([branch])
    made.rewind(branch, 2)
    branch.append(1)
    with pytest.raises(SettingError, match="the length of logits is 2"):
        made.forward([branch], logits=[1, 1])
    assert made.forward([]) == []
    made.close(branch)
    with pytest.raises(ProtocolError):
        made.forward([branch])
    for bad in (
        {"num_blocks": 0},
        {"max_batch_tokens": 0},
        {"known_tokens": 0},
        {"vocab_size": V + 1},
        {"block_size": 0},
    ):
        with pytest.raises(SettingError):
            runner(**bad)
