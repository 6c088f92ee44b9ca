"""How tokens are drawn on CUDA, where every question to the device makes the host wait:
the same tokens, and one question.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from lr.errors import NumericalError
from lr.rng import Stream
from lr.spec.acceptance import RULES, Draws, Proposal
from lr.spec.sampling import HEAD, distribution, draw, sample, sample_at_once, tainted
from lr.types import SamplingParams

SETTINGS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.6, top_p=0.95, top_k=20),
    SamplingParams(temperature=1.5, top_p=0.9),
    SamplingParams(temperature=0.8, min_p=0.2),
]


@pytest.mark.parametrize("params", SETTINGS)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_the_same_tokens(params: SamplingParams, seed: int) -> None:
    noise = torch.Generator().manual_seed(seed)
    probs = distribution(
        torch.randn(5, 200, generator=noise, dtype=torch.float64) * 3, params
    )
    keys = torch.randint(2**62, (5,), generator=noise).tolist()
    assert sample_at_once(probs, keys) == sample(probs, keys)


@given(
    seed=st.integers(0, 10**6),
    top_k=st.integers(1, HEAD),
    top_p=st.floats(0.05, 0.999),
    levels=st.integers(1, 6),
)
@settings(max_examples=60, deadline=None)
def test_top_p_after_top_k_needs_no_second_look(
    seed: int, top_k: int, top_p: float, levels: int
) -> None:
    """Logits on a few levels, so that ties at the edge of top-k go far beyond the
    tokens that top-p looks at first.
    """
    noise = torch.Generator().manual_seed(seed)
    logits = torch.randint(levels, (3, 300), generator=noise).double()
    both = distribution(
        logits, SamplingParams(temperature=1.0, top_k=top_k, top_p=top_p)
    )
    kept = distribution(logits, SamplingParams(temperature=1.0, top_k=top_k))
    for row, after in zip(kept, both, strict=True):
        order = row.sort(descending=True)
        before = order.values.cumsum(0) - order.values
        edge = order.values[before < top_p].min()
        expected = torch.where(row >= edge, row, 0.0)
        torch.testing.assert_close(after, expected / expected.sum(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("params", SETTINGS)
def test_what_is_no_number_is_found_when_a_token_is_drawn(
    bad: float, params: SamplingParams
) -> None:
    logits = torch.randn(2, 100, generator=torch.Generator().manual_seed(0))
    assert torch.equal(tainted(logits.softmax(-1), logits), logits.softmax(-1))
    assert (
        tainted(logits.softmax(-1), torch.full_like(logits, -torch.inf)).isnan().all()
    )
    logits[1, 7] = bad
    with pytest.raises(NumericalError, match="not finite"):
        sample_at_once(tainted(torch.ones(2, 100), logits), [1, 2])
    with pytest.raises(NumericalError, match="not finite"):
        sample_at_once(logits.softmax(-1), [1, 2])
    with pytest.raises(NumericalError, match="not finite"):
        distribution(logits, params)


class Looks(TorchDispatchMode):
    """Counts the operations that read a value back, or whose result has a shape that
    depends on values.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> object:
        self.count += any(
            word in str(func)
            for word in ("_local_scalar_dense", "nonzero", "equal", "masked_select")
        )
        return func(*args, **(kwargs or {}))


def test_nothing_is_asked_of_the_device_before_the_ids() -> None:
    """`tolist` is no operation, so nothing at all may be counted; the ordinary way asks
    how many rows are not zero, and for which.
    """
    probs = distribution(
        torch.randn(3, 5000), SamplingParams(temperature=0.6, top_p=0.95, top_k=20)
    )
    with Looks() as looks:
        sample_at_once(probs, [1, 2, 3])
    assert looks.count == 0
    with Looks() as looks:
        sample(probs, [1, 2, 3])
    assert looks.count > 0


@pytest.mark.parametrize(("rule", "questions"), [("reject", 2), ("match", 1)])
@pytest.mark.parametrize("certain", [True, False])
def test_a_round_asks_no_more_for_five_branches_than_for_one(
    rule: str, questions: int, certain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """p and q of all draft tokens, then the tokens after them; rule "match" draws at
    once."""
    noise, n, v = torch.Generator().manual_seed(5), 3, 50
    tables = [torch.randn(n, v, generator=noise).softmax(-1) for _ in range(5)]
    drafts = torch.randint(v, (5, n), generator=noise).tolist()
    proposals = [
        Proposal.chain(tokens, None if certain else q)
        for tokens, q in zip(drafts, tables, strict=True)
    ]
    probs = torch.randn(5 * (n + 1), v, generator=noise).softmax(-1)
    asked, tolist = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda x: asked.append(x) or tolist(x))
    monkeypatch.setattr("lr.spec.acceptance.sample", sample_at_once)
    draws = [Draws(Stream.root(i), 0) for i in range(5)]
    with Looks() as looks:
        RULES[rule]().verify(probs, proposals, draws)
    assert len(asked) == questions and looks.count == 0


@pytest.mark.parametrize("rule", ["reject", "block"])
def test_a_probability_that_is_no_number_accepts_nothing(rule: str) -> None:
    """On CUDA a damaged row is first seen here."""
    probs = torch.full((3, 4), 0.25)
    probs[0] = torch.nan
    with pytest.raises(NumericalError, match="not finite"):
        RULES[rule]().verify(
            probs, [Proposal.chain((1, 2))], [Draws(Stream.root(0), 0)]
        )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("params", SETTINGS)
def test_the_device_is_not_asked_on_cuda(params: SamplingParams) -> None:
    if params.top_p < 1 and not params.top_k:
        pytest.skip("top-p alone may have to sort the whole vocabulary, and asks first")
    logits = torch.randn(3, 500, device="cuda")
    distribution(logits, params)  # what is loaded at the first call is loaded
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        distribution(logits, params)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("params", SETTINGS)
def test_tokens_drawn_on_cuda(params: SamplingParams) -> None:
    logits = torch.randn(400, 3000, generator=torch.Generator().manual_seed(1))
    assert draw(logits.cuda(), params, range(400)) == draw(logits, params, range(400))
