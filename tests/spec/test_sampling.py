"""The distribution against its definition and against transformers; keyed draws against
their law.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from lr.errors import NumericalError, SettingError
from lr.rng import Stream, mix64
from lr.spec.sampling import (
    HEAD,
    _mix64,
    _signed,
    distribution,
    draw,
    perturbed,
    sample,
    tainted,
)
from lr.types import SamplingParams

FALSE_ALARM = 1e-6


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("top_k", [0, 1, 5, 100])
@pytest.mark.parametrize("top_p", [0.2, 0.9, 1.0])
@pytest.mark.parametrize("min_p", [0.0, 0.3])
def test_filters_agree_with_transformers(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    from transformers.generation import logits_process as hf

    logits = (
        torch.randn(
            6, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
        )
        * 3
    )
    scores = hf.TemperatureLogitsWarper(temperature)(None, logits)
    if top_k:
        scores = hf.TopKLogitsWarper(min(top_k, 40))(None, scores)
    if top_p < 1:
        scores = hf.TopPLogitsWarper(top_p)(None, scores)
    if min_p:
        scores = hf.MinPLogitsWarper(min_p)(None, scores)
    ours = distribution(logits, SamplingParams(temperature, top_p, top_k, min_p))
    torch.testing.assert_close(ours, scores.softmax(-1), rtol=0, atol=1e-12)


def test_the_input_is_not_changed() -> None:
    logits = torch.randn(2, 9)
    before = logits.clone()
    distribution(logits, SamplingParams(0.7, 0.5, 3, 0.1))
    distribution(logits, SamplingParams(0.0))
    assert torch.equal(logits, before)


def test_greedy_is_one_hot_and_takes_the_likeliest() -> None:
    probs = distribution(
        torch.tensor([[0.0, 3.0, 1.0], [5.0, 3.0, 1.0]]), SamplingParams(0.0)
    )
    assert probs.tolist() == [[0, 1, 0], [1, 0, 0]]
    assert sample(probs, [1, 2]) == [1, 0]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_logits_that_are_no_numbers_are_an_error(
    bad: float, temperature: float
) -> None:
    logits = torch.zeros(2, 5)
    logits[1, 3] = bad
    with pytest.raises(NumericalError, match="try dtype float32"):
        distribution(logits, SamplingParams(temperature))


@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_a_row_that_allows_no_token_is_an_error(temperature: float) -> None:
    """Beside a row that is fine."""
    logits = torch.zeros(2, 5)
    logits[1] = -torch.inf
    with pytest.raises(NumericalError, match="not finite"):
        distribution(logits, SamplingParams(temperature))
    assert tainted(torch.eye(2, 5), logits).isnan().any(-1).tolist() == [False, True]


def test_masked_logits_are_never_drawn() -> None:
    logits = torch.zeros(1, 8)
    logits[0, 4:] = -torch.inf
    probs = distribution(logits, SamplingParams(1.0))
    assert {sample(probs, [key])[0] for key in range(400)} == {0, 1, 2, 3}


def test_keyed_draws_follow_the_distribution() -> None:
    probs = distribution(
        torch.tensor([[2.0, 1.0, 0.0, -1.0, -8.0, 1.5]]), SamplingParams(1.0)
    )
    stream, n = Stream.root(7).fold_in("sampling test"), 20_000
    drawn = sample(probs.expand(n, -1), [stream.key(i) for i in range(n)])
    counts = torch.bincount(torch.tensor(drawn), minlength=6).double()
    assert (
        chisquare(
            counts.numpy(), (probs[0].double() / probs[0].double().sum() * n).numpy()
        ).pvalue
        > FALSE_ALARM
    )


def test_draws_depend_on_their_key_alone() -> None:
    probs = torch.rand(5, 30, generator=torch.Generator().manual_seed(3)).softmax(-1)
    keys = [Stream.root(1).fold_in("x").key(i) for i in range(5)]
    together = sample(probs, keys)
    assert together == [sample(probs[i : i + 1], keys[i : i + 1])[0] for i in range(5)]
    order = [3, 0, 4, 1, 2]
    assert sample(probs[order], [keys[i] for i in order]) == [
        together[i] for i in order
    ]


def test_equal_keys_share_their_noise() -> None:
    """Two models with similar distributions and one key agree far more often than with
    two keys."""
    p = distribution(
        torch.randn(2000, 50, generator=torch.Generator().manual_seed(5)),
        SamplingParams(1.0),
    )
    q = distribution(
        p.log()
        + 0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(6)),
        SamplingParams(1.0),
    )
    keys = [Stream.root(2).key(i) for i in range(2000)]
    others = [Stream.root(3).key(i) for i in range(2000)]
    mine = sample(p, keys)
    shared = sum(a == b for a, b in zip(mine, sample(q, keys), strict=True))
    independent = sum(a == b for a, b in zip(mine, sample(q, others), strict=True))
    assert shared > 5 * independent


def test_few_candidates_in_a_large_vocabulary_have_the_same_clocks() -> None:
    """Whether noise is made for all tokens or for the likely ones only cannot be seen
    in the draw.
    """
    probs = torch.rand(8, 5000, generator=torch.Generator().manual_seed(4))
    few = torch.where(probs > 0.98, probs, 0.0)
    keys = [Stream.root(4).key(i) for i in range(8)]
    assert 8 < int((few > 0).sum()) < few.numel() / 4
    assert sample(few, keys) == perturbed(few, keys).argmax(-1).tolist()


def test_a_distribution_has_gradients_where_they_are_asked_for() -> None:
    """Also at a temperature at which something was drawn in inference mode before."""
    params, logits = SamplingParams(0.77), torch.zeros(1, 5)
    with torch.inference_mode():
        draw(logits, params, [1])
    wanted = logits.clone().requires_grad_()
    distribution(wanted, params)[0, 0].backward()
    assert wanted.grad is not None and wanted.grad[0, 0] > 0


@pytest.mark.parametrize("sharpness", [0.1, 3.0])
def test_top_p_of_a_large_vocabulary(sharpness: float) -> None:
    """Flat rows need the whole vocabulary, steep ones a few tokens; both are the
    smallest set that holds top_p.
    """
    logits = (
        torch.randn(
            3, 1000, dtype=torch.float64, generator=torch.Generator().manual_seed(8)
        )
        * sharpness
    )
    plain = distribution(logits, SamplingParams(1.0))
    kept = distribution(logits, SamplingParams(1.0, 0.9)) > 0
    for row, members in zip(plain, kept, strict=True):
        size = int(members.sum())
        ordered = row.sort(descending=True).values
        assert bool(row[members].min() == ordered[size - 1])
        assert ordered[: size - 1].sum() < 0.9 <= ordered[:size].sum()
    assert (kept.sum(-1) > HEAD).all() == (sharpness < 1)


def test_ties_at_the_edge_of_top_p_are_all_kept() -> None:
    assert (
        distribution(
            torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]]), SamplingParams(1.0, 0.7)
        )[0, 1:].count_nonzero()
        == 3
    )


@given(st.integers(0, 2**64 - 1))
def test_the_vectorised_mixer_is_the_scalar_one(word: int) -> None:
    assert _mix64(torch.tensor([_signed(word)])).item() == _signed(mix64(word))


@given(
    st.lists(st.one_of(st.integers(-(2**70), 2**70), st.text(max_size=3)), max_size=4),
    st.integers(0, 1000),
)
def test_streams_tell_paths_apart(path: list[int | str], number: int) -> None:
    stream = Stream.root(0).fold_in(*path)
    assert stream.key(number) == Stream.root(0).fold_in(*path).key(number)
    assert stream.key(number) != stream.key(number + 1)
    assert stream.key(number) != stream.fold_in("").key(number)
    assert stream.key(number) != Stream.root(1).fold_in(*path).key(number)


def test_numbers_and_their_names_are_different_paths() -> None:
    parts = [0, 1, -1, 2**63, -(2**63), 2**64, 2**64 + 1, "0", "1", "", "a"]
    assert len({Stream.root(0).fold_in(part).state for part in parts}) == len(parts)
    assert len({Stream.root(0).fold_in(*[0] * depth).state for depth in range(5)}) == 5


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -1},
        {"temperature": 1e-300},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_p": 0},
        {"top_p": 7},
        {"top_k": -1},
        {"top_k": 1.5},
        {"min_p": 1.1},
    ],
)
def test_impossible_settings_are_refused_with_their_value(
    bad: dict[str, float],
) -> None:
    [(name, value)] = bad.items()
    with pytest.raises(SettingError, match=rf"{name} is {value}"):
        SamplingParams(**bad)  # type: ignore[arg-type]
