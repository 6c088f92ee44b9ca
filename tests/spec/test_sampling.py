"""The distribution against its definition and against transformers; keyed draws against
their law; what a device is asked; drawing and verifying from few columns."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from law_kit import may_be
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lr.errors import NumericalError, SettingError
from lr.rng import GOLDEN, Stream, mix64
from lr.spec import sampling
from lr.spec.acceptance import RULES
from lr.spec.proposal import Draws, Proposal
from lr.spec.sampling import (
    HEAD,
    SMALL_VOCABULARY,
    distribution,
    draw,
    perturbed,
    read_checked,
    sample,
    tainted,
)
from lr.types import SamplingParams

V = SMALL_VOCABULARY + 100
QWEN = SamplingParams(temperature=0.6, top_p=0.95, top_k=20)
SETTINGS = [
    SamplingParams(0.0),
    SamplingParams(1.0),
    QWEN,
    SamplingParams(1.5, top_p=0.9),
]
NARROW = [QWEN, SamplingParams(1.0, top_k=HEAD - 1), SamplingParams(1.5, top_k=3)]


def normal(seed, *shape, dtype=torch.float64):
    noise = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=noise) * 3).to(dtype)


# The distribution


@pytest.mark.parametrize("temperature", [0.3, 2.0])
@pytest.mark.parametrize("top_k", [0, 1, 5, 100])
@pytest.mark.parametrize("top_p", [0.2, 0.9, 1.0])
def test_filters_agree_with_transformers(temperature, top_k, top_p):
    from transformers.generation import logits_process as hf

    logits = normal(1, 6, 300)  # at temperature 2 top-p looks beyond the head
    scores = hf.TemperatureLogitsWarper(temperature)(None, logits)
    if top_k:
        scores = hf.TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = hf.TopPLogitsWarper(top_p)(None, scores)
    ours = distribution(logits, SamplingParams(temperature, top_p, top_k))
    torch.testing.assert_close(ours, scores.softmax(-1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("params", SETTINGS)
def test_logits_that_are_not_finite_are_an_error(bad, params):
    """A whole row of -inf, one entry of the others. On CUDA it is found when a token is
    drawn."""
    logits = torch.zeros(2, 5)
    logits[1, slice(None) if bad == -torch.inf else 3] = bad
    with pytest.raises(NumericalError, match="finite"):
        distribution(logits, params)
    probs = tainted(torch.full((2, 5), 0.2), logits)
    assert probs.isnan().any(-1).tolist() == [False, True]
    with pytest.raises(NumericalError, match="finite"):
        read_checked(torch.tensor([1, 2]), probs)


@given(
    seed=st.integers(0, 10**6),
    top_k=st.integers(1, HEAD),
    top_p=st.floats(0.05, 0.999),
    levels=st.integers(1, 6),
)
@settings(max_examples=60, deadline=None)
def test_ties_are_all_kept(seed, top_k, top_p, levels):
    """Logits on a few levels, so that ties at the edge of top-k go far beyond the head."""
    noise = torch.Generator().manual_seed(seed)
    logits = torch.randint(levels, (3, 300), generator=noise).double()
    probs = distribution(logits, SamplingParams(1.0, top_k=top_k))
    filtered = distribution(logits, SamplingParams(1.0, top_k=top_k, top_p=top_p))
    for row, after in zip(probs, filtered, strict=True):
        ordered = row.sort(descending=True).values
        before = ordered.cumsum(0) - ordered
        expected = torch.where(row >= ordered[before < top_p].min(), row, 0.0)
        torch.testing.assert_close(after, expected / expected.sum(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "name, value",
    [
        *(("temperature", bad) for bad in (-1, 1e-300, float("nan"), float("inf"))),
        *(("top_p", 0), ("top_p", 7), ("top_k", -1), ("top_k", 1.5)),
    ],
)
def test_impossible_settings_are_refused(name, value):
    with pytest.raises(SettingError, match=name):
        SamplingParams(**{name: value})


# Draws


def test_keyed_draws_follow_the_distribution():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -8.0, 1.5, -torch.inf]])
    probs = distribution(logits, SamplingParams(1.0)).double()
    stream = Stream.root(7).fold_in("sampling test")
    n = 20_000
    drawn = sample(probs.expand(n, -1), [stream.key(i) for i in range(n)])
    counts = torch.bincount(torch.tensor(drawn), minlength=7)
    assert may_be(counts.tolist(), probs[0].tolist())


def test_draws_depend_on_their_key_alone():
    probs = normal(3, 5, 30).softmax(-1)
    keys = [Stream.root(1).fold_in("x").key(i) for i in range(5)]
    together = sample(probs, keys)
    assert together == [sample(probs[i : i + 1], keys[i : i + 1])[0] for i in range(5)]
    assert sample(probs.flip(0), keys[::-1]) == together[::-1]


def test_the_noise_is_that_of_its_definition_on_every_device():
    """Bit for bit: NumPy on the CPU, int64 tensors elsewhere."""
    keys = [1, 2**63 + 5, 7]
    words = [[mix64(key + i * GOLDEN) for i in range(50)] for key in keys]
    middles = [[((word >> 12) + 0.5) * 2.0**-52 for word in row] for row in words]
    uniform = torch.tensor(middles, dtype=torch.float64)
    assert torch.equal(perturbed(torch.ones_like(uniform), keys), uniform.log())
    seeds = torch.tensor([sampling._signed(key) for key in keys])
    bits = sampling._mixed(seeds[:, None] + torch.arange(50) * sampling.STRIDE)
    assert torch.equal(bits.view(torch.float64) - (1 - 2.0**-53), uniform)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.one_of(st.integers(-(2**70), 2**70), st.text(max_size=3)), max_size=4),
    st.integers(0, 1000),
)
def test_streams_tell_paths_apart(path, number):
    stream = Stream.root(0).fold_in(*path)
    assert stream.key(number) == Stream.root(0).fold_in(*path).key(number)
    others = {
        stream.key(number + 1),
        stream.fold_in("").key(number),
        Stream.root(1).fold_in(*path).key(number),
    }
    assert stream.key(number) not in others


# What a device is asked


class Waits(TorchFunctionMode):
    """Counts what makes the host wait for a device: values that are read back, and
    shapes that depend on them."""

    READS = (
        *(Tensor.tolist, Tensor.item, Tensor.__float__, Tensor.__bool__),
        *(Tensor.nonzero, Tensor.masked_select, torch.equal, Tensor.equal),
    )
    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += func in self.READS
        self.count += func is Tensor.__getitem__ and isinstance(args[1], list)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("rule, count", [("reject", 2), ("match", 1)])
@pytest.mark.parametrize("certain", [True, False])
def test_a_round_waits_no_more_for_five_branches_than_for_one(rule, count, certain):
    """For p and q of all draft tokens, then for the tokens after them; rule "match"
    draws at once."""
    tables = normal(5, 5, 3, 50).softmax(-1)
    proposals = [Proposal.chain((1, 2, 3), None if certain else q) for q in tables]
    probs = normal(6, 5 * 4, 50).softmax(-1)
    draws = [Draws(Stream.root(i), 0) for i in range(5)]
    with Waits() as waits:
        RULES[rule]().verify(probs, proposals, draws)
    assert waits.count == count


@pytest.mark.parametrize("rule", ["reject", "block"])
def test_a_probability_that_is_not_finite_accepts_nothing(rule):
    """On CUDA a damaged row is first seen here."""
    probs = torch.full((3, 4), 0.25)
    probs[0] = torch.nan
    draws = [Draws(Stream.root(0), 0)]
    with pytest.raises(NumericalError, match="finite"):
        RULES[rule]().verify(probs, [Proposal.chain((1, 2))], draws)


@pytest.mark.gpu
@pytest.mark.parametrize("params", SETTINGS)
def test_a_gpu_draws_the_same_tokens_without_waiting(params):
    """The same tokens; and the device is not waited for."""
    logits = normal(1, 400, 3000, dtype=torch.float32)
    on_gpu = logits.cuda()  # this copy waits
    assert draw(on_gpu, params, range(400)) == draw(logits, params, range(400))
    if params.top_p < 1 and not params.top_k:
        return  # top-p alone may have to sort the whole vocabulary, and asks first
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        distribution(on_gpu, params)
    finally:
        torch.cuda.set_sync_debug_mode("default")


# The head of a large vocabulary


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("params", NARROW)
def test_tokens_are_drawn_as_from_the_whole_vocabulary(params, dtype):
    """bfloat16 has so few numbers that ties at the edge of top-k are common."""
    keys = [(0x9E3779B97F4A7C15 * i) % 2**64 for i in range(40)]  # half above 2^63
    logits = normal(1, 40, V, dtype=dtype)
    assert draw(logits, params, keys) == sample(distribution(logits, params), keys)


def test_ties_that_go_on_after_the_head_are_not_lost():
    """All of 100 equal tokens stay in top-k, and the head has 64 of them."""
    params = SamplingParams(1.0, top_k=3)
    logits = torch.full((200, V), -1.0)
    logits[:, :100] = 0.0
    tokens = draw(logits, params, range(200))
    assert tokens == sample(distribution(logits, params), range(200))
    assert max(tokens) > HEAD


def test_a_greedy_tie_has_one_winner_with_and_without_top_k():
    """In bfloat16 the largest logits of a large vocabulary often tie."""
    logits = normal(7, 200, 20_000, dtype=torch.float32).to(torch.bfloat16)
    winners = logits.argmax(-1)
    for top_k in (0, 20):
        params = SamplingParams(temperature=0.0, top_k=top_k)
        assert torch.equal(distribution(logits, params).argmax(-1), winners)
        assert draw(logits, params, range(200)) == winners.tolist()
