"""What each drafter proposes, by hand and against plain definitions; and what every
drafter must keep to.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from drafter_kit import DRAFTERS
from hypothesis import given
from hypothesis import strategies as st
from spec_kit import random_model

from lr.engine.runner import ModelRunner
from lr.errors import SettingError
from lr.kvcache.branch import BlockTable, Branch
from lr.rng import Stream
from lr.spec.acceptance import follow
from lr.spec.drafters import (
    LookupDrafter,
    ModelDrafter,
    OwnBranches,
    StepDrafter,
    SuffixDrafter,
    TreeDrafter,
)
from lr.spec.proposal import Draws
from lr.spec.sampling import distribution, sample
from lr.spec.token_sd import Context, Drafter, DrafterSetup
from lr.spec.variant import Variant
from lr.types import Coupling, SamplingParams
from lr.variants.kit.check import check_parts

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
        ([7, 8, 3, 8, 4, 7, 8], (3, 8, 4, 7)),  # the longer n-gram wins
        ([8, 3, 1, 2, 8], (3, 1, 2, 8)),  # falls back to one token
        ([1, 2, 3], ()),
        ([4], ()),
        ([256, 1, 1, 256], (1, 1, 256)),  # ids are compared whole, not by their bytes
    ],
)
def test_lookup_table(tokens: list[int], expected: tuple[int, ...]) -> None:
    assert chain(LookupDrafter(2, 1), tokens) == expected


def looked_up(tokens: list[int], longest: int, k: int) -> tuple[int, ...]:
    """The definition: what followed the last place of the longest end that stood
    earlier."""
    for n in range(min(longest, len(tokens) - 1), 0, -1):
        places = range(n, len(tokens))
        ends = [end for end in places if tokens[end - n : end] == tokens[-n:]]
        if ends:
            return tuple(tokens[ends[-1] : ends[-1] + k])
    return ()


@given(TEXTS, st.integers(1, 4), st.integers(1, 5))
def test_lookups_against_their_definition(
    tokens: list[int], longest: int, k: int
) -> None:
    assert chain(LookupDrafter(longest, 1), tokens, k) == looked_up(tokens, longest, k)
    assert chain(SuffixDrafter(), tokens, k) == looked_up(tokens, len(tokens), k)


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


@pytest.mark.parametrize("name", [n for n in DRAFTERS if n != "stubborn"])
def test_every_drafter_keeps_the_contract(name: str) -> None:
    """The same that `lr check` asks of a drafter of one's own."""

    def make(setup: DrafterSetup) -> Drafter:
        drafter = DRAFTERS[name](setup.sampling)
        if isinstance(drafter, OwnBranches):
            drafter.runner = setup.runner  # type: ignore[assignment]
        return drafter

    [findings] = check_parts(lambda: Variant(drafter=make))
    assert findings.broken == [] and len(findings.held) >= 6


@pytest.mark.parametrize(
    "make",
    [
        lambda: LookupDrafter(2, 0),
        lambda: LookupDrafter(1, 2),
        lambda: ModelDrafter(runner(), SamplingParams(), min_confidence=2),
        lambda: TreeDrafter(runner(), SamplingParams(), branching=()),
        lambda: TreeDrafter(runner(), SamplingParams(), branching=(2, 0)),
    ],
)
def test_impossible_drafters_are_refused(make: Callable[[], Drafter]) -> None:
    with pytest.raises(SettingError):
        make()
