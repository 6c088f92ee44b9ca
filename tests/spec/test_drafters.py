"""What each drafter proposes, by hand and against plain definitions; and what every
drafter must keep to.
"""

from __future__ import annotations

import pytest
from drafter_kit import DRAFTERS
from hypothesis import given
from hypothesis import strategies as st
from spec_kit import random_model

from lr.engine.runner import ModelRunner
from lr.errors import SettingError
from lr.kvcache.branch import BlockTable, Branch, common_length
from lr.rng import Stream
from lr.spec.acceptance import Draws, follow
from lr.spec.drafters import (
    LookupDrafter,
    ModelDrafter,
    StepDrafter,
    SuffixDrafter,
    TreeDrafter,
)
from lr.spec.sampling import distribution, sample
from lr.spec.token_sd import Context
from lr.types import Coupling, SamplingParams

TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def context(tokens: list[int], limit: int = 9, offset: int = 0) -> Context:
    return Context(
        Branch(list(tokens), BlockTable(4)), limit, Draws(Stream.root(1), offset)
    )


def chain(
    drafter: LookupDrafter | SuffixDrafter,
    tokens: list[int],
    k: int = 4,
    limit: int = 9,
) -> tuple[int, ...]:
    [proposal] = drafter.propose([context(tokens, limit)], k)
    return proposal.tokens


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([5, 8, 9, 1, 5, 8], (9, 1, 5, 8)),
        ([5, 8, 1, 5, 8, 2, 5, 8], (2, 5, 8)),  # the most recent occurrence
        (
            [7, 8, 3, 8, 4, 7, 8],
            (3, 8, 4, 7),
        ),  # the longer n-gram wins over the more recent shorter one
        ([8, 3, 1, 2, 8], (3, 1, 2, 8)),  # falls back to one token
        ([1, 2, 3], ()),
        ([4, 4], (4,)),
        ([4], ()),
        ([256, 1, 1, 256], (1, 1, 256)),  # ids are compared whole, not by their bytes
        ([1, 256, 3, 1], (256, 3, 1)),
    ],
)
def test_lookup_table(tokens: list[int], expected: tuple[int, ...]) -> None:
    assert chain(LookupDrafter(2, 1), tokens) == expected


@given(TEXTS, st.integers(1, 4), st.integers(1, 5))
def test_lookup_against_its_definition(tokens: list[int], longest: int, k: int) -> None:
    expected: tuple[int, ...] = ()
    for n in range(min(longest, len(tokens) - 1), 0, -1):
        ends = [
            end for end in range(n, len(tokens)) if tokens[end - n : end] == tokens[-n:]
        ]
        if ends:
            expected = tuple(tokens[ends[-1] : ends[-1] + k])
            break
    assert chain(LookupDrafter(longest, 1), tokens, k) == expected


@given(TEXTS, st.integers(1, 5))
def test_suffix_against_its_definition(tokens: list[int], k: int) -> None:
    """The longest end of the text that stood earlier, and of its earlier places the
    last."""
    expected: tuple[int, ...] = ()
    for n in range(len(tokens) - 1, 0, -1):
        ends = [
            end for end in range(n, len(tokens)) if tokens[end - n : end] == tokens[-n:]
        ]
        if ends:
            expected = tuple(tokens[ends[-1] : ends[-1] + k])
            break
    assert chain(SuffixDrafter(), tokens, k) == expected


@given(TEXTS, TEXTS, TEXTS)
def test_suffix_drafts_follow_a_branch_that_grows_and_is_cut(
    first: list[int], more: list[int], other: list[int]
) -> None:
    drafter, seen = SuffixDrafter(), context(first)
    drafter.propose([seen], 3)
    for tokens in (first + more, first + other, first[: len(first) // 2 + 1]):
        seen.branch.tokens = list(tokens)
        [proposal] = drafter.propose([seen], 3)
        assert proposal.tokens == chain(SuffixDrafter(), tokens, 3)


@given(TEXTS, TEXTS)
def test_common_beginning(a: list[int], b: list[int]) -> None:
    expected = next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y),
        min(len(a), len(b)),
    )
    assert common_length(a, b) == expected
    assert common_length(a + b, a) == len(a)


def runner(seed: int = 7) -> ModelRunner:
    return ModelRunner(random_model(seed), num_blocks=200, block_size=4)


def test_a_draft_model_proposes_what_it_would_write() -> None:
    """Its q are its own distributions, its tokens the keyed draws from them; it catches
    up, one token late or many.
    """
    sampling = SamplingParams(0.8, top_p=0.9)
    drafter, reference = ModelDrafter(runner(), sampling), runner()
    seen = context([5, 6, 7])
    for extra in ([], [8], [9, 9, 5, 6]):
        seen.branch.tokens.extend(extra)
        [proposal] = drafter.propose([seen], 4)
        text = list(seen.tokens)
        assert proposal.q is not None
        for token, law in zip(proposal.tokens, proposal.q, strict=True):
            expected = distribution(
                reference.forward([reference.open(text)])[0][None], sampling
            )[0]
            assert (law - expected).abs().max() < 1e-12
            assert law[token] > 0
            text.append(token)


def test_shared_coupling_draws_with_the_targets_keys() -> None:
    sampling = SamplingParams(1.0)
    drafter, reference = (
        ModelDrafter(runner(), sampling, coupling=Coupling.SHARED),
        runner(),
    )
    seen = context([5, 6, 7], offset=4)
    [proposal] = drafter.propose([seen], 3)
    text = list(seen.tokens)
    for place, token in enumerate(proposal.tokens):
        probs = distribution(
            reference.forward([reference.open(text)])[0][None], sampling
        )
        assert sample(probs, [seen.draws.sample_key(place)]) == [token]
        text.append(token)


def test_independent_drafts_are_new_in_every_round() -> None:
    drafter = ModelDrafter(runner(), SamplingParams(3.0))
    drawn = {
        drafter.propose([context([5, 6, 7], offset=offset)], 4)[0].tokens
        for offset in range(12)
    }
    assert len(drawn) > 6


def test_an_unsure_draft_stops_and_keeps_what_it_drew() -> None:
    full = ModelDrafter(runner(), SamplingParams(1.0)).propose([context([5, 6, 7])], 8)[
        0
    ]
    assert full.q is not None
    sure = full.q.amax(-1).tolist()
    threshold = sorted(sure)[3]
    [short] = ModelDrafter(
        runner(), SamplingParams(1.0), min_confidence=threshold + 1e-9
    ).propose([context([5, 6, 7])], 8)
    expected = (
        next(i for i, confidence in enumerate(sure) if confidence < threshold + 1e-9)
        + 1
    )
    assert short.tokens == full.tokens[:expected]


def test_a_tree_has_the_shape_it_was_asked_for() -> None:
    drafter, reference = (
        TreeDrafter(runner(), SamplingParams(0.0), branching=(3, 2, 1)),
        runner(),
    )
    [tree] = drafter.propose([context([5, 6, 7])], 8)
    assert [len(family) for family in tree.families()] == [
        3,
        *[2] * 3,
        *[1] * 6,
        *[0] * 6,
    ]
    assert tree.q is None
    for node in range(-1, len(tree)):
        children = [tree.tokens[child] for child in tree.families()[node + 1]]
        text = [5, 6, 7, *(tree.tokens[i] for i in tree.path(node))]
        best = reference.forward([reference.open(text)])[0].topk(3).indices.tolist()
        assert children == best[: len(children)]
    [cut] = drafter.propose([context([5, 6, 7], limit=2)], 8)
    assert max(cut.depths()) == 2


def test_a_shared_tree_begins_with_the_draw_itself() -> None:
    drafter, reference = (
        TreeDrafter(
            runner(), SamplingParams(1.0), branching=(2, 2), coupling=Coupling.SHARED
        ),
        runner(),
    )
    seen = context([5, 6, 7])
    [tree] = drafter.propose([seen], 8)
    drawn = []
    for node in range(-1, len(tree)):
        text = [5, 6, 7, *(tree.tokens[i] for i in tree.path(node))]
        probs = distribution(
            reference.forward([reference.open(text)])[0][None], SamplingParams(1.0)
        )
        drawn += sample(probs, [seen.draws.sample_key(tree.depths()[node + 1])])
    assert follow(tree, drawn).nodes == (0, 2)


def offered(tokens: list[int]) -> tuple[StepDrafter, Context]:
    """A branch with `tokens`, to which the step 5 6 7 8 from position 10 on was
    offered."""
    drafter, seen = StepDrafter(), context(tokens)
    drafter.offer(seen.branch, 10, (5, 6, 7, 8))
    return drafter, seen


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ([], (5, 6, 7, 8)),
        ([5, 6], (7, 8)),
        ([5, 6, 7, 8], ()),  # all of it is written
        ([5, 9], ()),  # they have parted
        ([5, 9, 7], ()),  # and never meet again
        ([5, 6, 7, 8, 1], ()),
    ],
)
def test_the_draft_step_is_proposed_as_long_as_the_target_agrees(
    written: list[int], expected: tuple[int, ...]
) -> None:
    drafter, seen = offered([1] * 10 + written)
    [proposal] = drafter.propose([seen], 9)
    assert proposal.tokens == expected and proposal.q is None
    assert drafter.propose([seen], 1)[0].tokens == expected[:1]
    assert drafter.propose([context(seen.tokens)], 9)[0].tokens == (), (
        "another branch has no offer"
    )


def test_a_new_offer_replaces_the_old_and_a_closed_branch_has_none() -> None:
    drafter, seen = offered([1] * 10 + [5])
    drafter.offer(seen.branch, 11, (2, 3))
    assert drafter.propose([seen], 9)[0].tokens == (2, 3)
    drafter.forget([seen.branch, context([1]).branch])
    assert drafter.propose([seen], 9)[0].tokens == ()


# The contract: whoever adds a drafter adds it to DRAFTERS in drafter_kit.py, and these
# must pass.


@pytest.mark.parametrize("name", DRAFTERS)
def test_contract(name: str) -> None:
    drafter = DRAFTERS[name](SamplingParams(0.8))
    contexts = [
        context([5, 6, 7, 5, 6]),
        context([8], limit=0),
        context([8], limit=1),
        context([9, 9, 9, 9], limit=30),
    ]
    before = [list(c.tokens) for c in contexts]
    for k in (1, 2, 5):
        proposals = drafter.propose(contexts, k)
        assert len(proposals) == len(contexts)
        assert [list(c.tokens) for c in contexts] == before
        for seen, proposal in zip(contexts, proposals, strict=True):
            assert max(proposal.depths()) <= max(0, min(k, seen.limit))
            assert all(0 <= token < 12 for token in proposal.tokens)
            if proposal.q is not None:
                assert proposal.q.shape == (len(proposal), 12)
                assert all(
                    proposal.q[i, token] > 0 for i, token in enumerate(proposal.tokens)
                )
                assert (proposal.q.sum(-1) - 1).abs().max() < 1e-12
    assert [
        p.tokens for p in DRAFTERS[name](SamplingParams(0.8)).propose(contexts[::-1], 5)
    ][::-1] == [
        p.tokens for p in DRAFTERS[name](SamplingParams(0.8)).propose(contexts, 5)
    ]
    drafter.forget([c.branch for c in contexts])
    own = getattr(drafter, "runner", None)
    assert own is None or own.cache.pool.num_used == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LookupDrafter(2, 0), "prompt_lookup_min is 0"),
        (lambda: LookupDrafter(1, 2), "prompt_lookup_max is 1"),
        (
            lambda: ModelDrafter(runner(), SamplingParams(), min_confidence=2),
            "min_confidence is 2",
        ),
        (
            lambda: TreeDrafter(runner(), SamplingParams(), branching=()),
            r"branching is \(\)",
        ),
        (
            lambda: TreeDrafter(runner(), SamplingParams(), branching=(2, 0)),
            r"branching is \(2, 0\)",
        ),
    ],
)
def test_impossible_drafters_are_refused(make, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make()
