"""Drawing and verifying from the few tokens that top-k leaves of a large vocabulary
decides exactly as with all of them.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lr.errors import NumericalError
from lr.rng import Stream
from lr.spec.acceptance import RULES, Draws, Proposal
from lr.spec.sampling import (
    HEAD,
    SMALL,
    distribution,
    draw,
    likeliest,
    narrowed,
    sample,
)
from lr.spec.token_sd import verify_narrowed
from lr.types import SamplingParams

V = SMALL + 100
QWEN = SamplingParams(temperature=0.6, top_p=0.95, top_k=20)
SETTINGS = [
    QWEN,
    SamplingParams(temperature=1.0, top_k=HEAD - 1),
    SamplingParams(temperature=1.5, top_k=3, min_p=0.1),
]


def logits_of(seed: int, rows: int, dtype: torch.dtype = torch.float64) -> Tensor:
    noise = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, V, generator=noise) * 3).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("params", SETTINGS)
def test_tokens_are_drawn_as_from_the_whole_vocabulary(
    params: SamplingParams, dtype: torch.dtype
) -> None:
    """bfloat16 has so few numbers that ties at the edge of top-k are common."""
    keys = [(0x9E3779B97F4A7C15 * i) % 2**64 for i in range(40)]  # half above 2^63
    logits = logits_of(1, 40, dtype)
    assert likeliest(logits, params) is not None
    assert draw(logits, params, keys) == sample(distribution(logits, params), keys)


@pytest.mark.parametrize("rule", ["reject", "block"])
@pytest.mark.parametrize("params", SETTINGS)
@pytest.mark.parametrize("certain", [True, False])
def test_rules_decide_as_with_the_whole_vocabulary(
    rule: str, params: SamplingParams, certain: bool
) -> None:
    """Half of the drafts come from the draft's distribution, the others from anywhere,
    mostly from tokens that top-k drops."""
    acceptance = RULES[rule]()
    accepted = 0
    for seed in range(12):
        target = logits_of(seed, 5 * 4)
        draft = (
            target[[row for row in range(20) if row % 4 < 3]] + logits_of(99, 15) / 3
        )
        q = distribution(draft, params)  # [15, v]
        tokens = sample(q, range(15))
        if seed % 2:
            tokens[seed % 15] = (7919 * seed) % V
        proposals = [
            Proposal.chain(
                tokens[3 * i : 3 * i + 3], None if certain else q[3 * i :][:3]
            )
            for i in range(5)
        ]
        draws = [Draws(Stream.root(seed).fold_in(i), i) for i in range(5)]
        dense = acceptance.verify(distribution(target, params), proposals, draws)
        assert verify_narrowed(acceptance, target, params, proposals, draws) == dense
        accepted += sum(len(decision.nodes) for decision in dense)
    assert accepted > 0


def test_a_tree_of_drafts_is_verified_in_few_columns() -> None:
    target = logits_of(3, 4)
    likely = target.topk(3, dim=-1).indices
    tokens = (int(likely[0, 0]), int(likely[0, 2]), int(likely[1, 0]))
    proposal = Proposal(tokens, (-1, -1, 0))
    rule = RULES["reject"]()
    for seed in range(20):
        draws = [Draws(Stream.root(seed), 0)]
        dense = rule.verify(distribution(target, QWEN), [proposal], draws)
        assert verify_narrowed(rule, target, QWEN, [proposal], draws) == dense


def test_few_columns_give_the_same_distribution() -> None:
    target = logits_of(5, 6)
    found = narrowed(target, QWEN, [7, 8])
    assert found is not None
    logits, ids, columns = found
    assert ids[columns].tolist() == [7, 8]
    dense = distribution(target, QWEN)
    torch.testing.assert_close(
        torch.zeros_like(dense).index_copy_(1, ids, distribution(logits, QWEN)),
        dense,
        rtol=0,
        atol=1e-15,
    )


def test_ties_that_go_on_after_the_head_are_not_lost() -> None:
    """All of 100 equal tokens stay in top-k, and the head has 64 of them."""
    params = SamplingParams(temperature=1.0, top_k=3)
    logits = torch.full((200, V), -1.0)
    logits[:, :100] = 0.0
    assert narrowed(logits, params, [1]) is None
    tokens = draw(logits, params, range(200))
    assert tokens == sample(distribution(logits, params), range(200))
    assert max(tokens) > HEAD


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_no_number_is_found(bad: float) -> None:
    logits = logits_of(0, 2)
    logits[1, 77] = bad
    with pytest.raises(NumericalError, match="finite"):
        draw(logits, QWEN, [1, 2])
    with pytest.raises(NumericalError, match="finite"):
        verify_narrowed(
            RULES["reject"](),
            logits,
            QWEN,
            [Proposal.chain((1,))],
            [Draws(Stream.root(0), 0)],
        )
