"""The kernel that draws from the likeliest tokens, beside `distribution` and `sample`,
in Triton's interpreter on the CPU (TRITON_INTERPRET=1); run by
`test_sampling_at_once.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch

from lr.errors import NumericalError
from lr.kernels.sampling import draw_from_head
from lr.spec.sampling import HEAD, _words, distribution, sample
from lr.types import SamplingParams


def drawn(
    logits: torch.Tensor, params: SamplingParams, keys: Sequence[int]
) -> list[int] | None:
    return draw_from_head(logits, params, _words(keys, torch.device("cpu")))


def the_head_is_enough(
    dtype: torch.dtype, top_k: int, top_p: float, min_p: float
) -> None:
    """bfloat16 has so few numbers that ties at the edge of top-k are common."""
    params = SamplingParams(temperature=0.6, top_k=top_k, top_p=top_p, min_p=min_p)
    noise = torch.Generator().manual_seed(7)
    logits = torch.randn(25, 2000, generator=noise).to(dtype)
    keys = [
        (0x9E3779B97F4A7C15 * i) % 2**64 for i in range(25)
    ]  # half of them above 2^63
    tokens = [
        drawn(row[None], params, [key]) for row, key in zip(logits, keys, strict=True)
    ]
    expected = sample(distribution(logits, params), keys)
    same = [
        one == [other]
        for one, other in zip(tokens, expected, strict=True)
        if one is not None
    ]
    assert all(same) and len(same) >= (25 if dtype is torch.float32 else 5), (
        params,
        len(same),
    )
    if None not in tokens[:5]:  # rows together
        assert drawn(logits[:5], params, keys[:5]) == expected[:5]


def ties_go_on_after_the_head() -> None:
    """All of 100 equal tokens stay in top-k, and the head has 64 of them."""
    params = SamplingParams(temperature=1.0, top_k=3)
    logits = torch.zeros(200, 150).index_fill_(1, torch.arange(100, 150), -1.0)
    assert drawn(logits, params, range(200)) is None
    logits[:, :63] += 1.0  # now the ties end before the last of the head
    assert drawn(logits, params, range(200)) == sample(
        distribution(logits, params), range(200)
    )


def top_p_alone(dtype: torch.dtype) -> None:
    """Where the head does not hold enough, or ties of the last that stays may go on
    after it, the kernel says so.
    """
    noise = torch.Generator().manual_seed(3)
    peaked = (torch.randn(25, 2000, generator=noise) * 6).to(dtype)
    for top_p, min_p in ((0.95, 0.0), (0.6, 0.1)):
        params, keys = SamplingParams(0.6, top_p, min_p=min_p), range(25)
        expected = sample(distribution(peaked, params), keys)
        for row, key, token in zip(peaked, keys, expected, strict=True):
            assert drawn(row[None], params, [key]) in ([token], None)
        enough = [drawn(row[None], params, [0]) is not None for row in peaked]
        assert sum(enough) > (20 if dtype is torch.float32 else 5), sum(enough)
    flat = torch.randn(5, 2000, generator=noise)  # 64 tokens do not hold 0.95
    assert drawn(flat, SamplingParams(1.0, 0.95), range(5)) is None
    equal = torch.zeros(5, 2000).index_fill_(1, torch.arange(2), 9.0)
    assert (
        drawn(equal, SamplingParams(1.0, 0.999), range(5)) is None
    )  # ties after the head
    params = SamplingParams(1.0, 0.5)
    assert drawn(equal, params, range(5)) == sample(
        distribution(equal, params), range(5)
    )


def a_damaged_row_is_found(bad: float) -> None:
    logits = torch.zeros(2, 150)
    logits[1] = bad if bad < 0 else logits[1].index_fill(0, torch.tensor(77), bad)
    usual = SamplingParams(1.0, top_k=3), SamplingParams(1.0, top_k=3, top_p=0.9)
    for params in (*usual, SamplingParams(1.0, top_p=0.9)):
        try:
            drawn(logits, params, [1, 2])
        except NumericalError:
            continue
        raise AssertionError(f"{bad} was not noticed")


if __name__ == "__main__":
    masses = ((1.0, 0.0), (0.95, 0.0), (0.8, 0.05), (1.0, 0.1))
    pairs = product((torch.float32, torch.bfloat16), (1, 20, HEAD - 1))
    for i, (dtype, top_k) in enumerate(
        pairs
    ):  # each dtype and each top_k meets all four
        for top_p, min_p in (masses[i % 4], masses[(i + 2) % 4]):
            the_head_is_enough(dtype, top_k, top_p, min_p)
    ties_go_on_after_the_head()
    for dtype in (torch.float32, torch.bfloat16):
        top_p_alone(dtype)
    for bad in (torch.nan, torch.inf, -torch.inf):
        a_damaged_row_is_found(bad)
