"""What each drafter proposes, by hand and against plain definitions; and what every
drafter must keep to.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_kit import runner_on
from toy_kit import DRAFTERS, PROPOSER, UNSURE

from lr.kvcache.branch import BlockTable, Branch
from lr.rng import Stream
from lr.spec.acceptance import follow
from lr.spec.drafters import (
    LookupDrafter,
    ModelDrafter,
    TreeDrafter,
    draft_key,
)
from lr.spec.proposal import Draws
from lr.spec.sampling import distribution, sample
from lr.spec.token_sd import Context
from lr.spec.variant import Variant
from lr.types import Coupling, SamplingParams
from lr.variants.kit.check import check_parts

TEXTS = st.lists(st.sampled_from([0, 1, 256, 257]), min_size=1, max_size=40)
"""Their bytes are alike: ids are compared whole."""


def context(tokens, limit=9, offset=0):
    return Context(
        Branch(list(tokens), BlockTable(4)), limit, Draws(Stream.root(1), offset)
    )


def chain(drafter, tokens, k=4, limit=9):
    [proposal] = drafter.propose([context(tokens, limit)], k)
    return proposal.tokens


def looked_up(tokens, longest, k):
    """The definition: what followed the last place of the longest end that stood
    earlier."""
    for n in range(min(longest, len(tokens) - 1), 0, -1):
        for end in range(len(tokens) - 1, n - 1, -1):
            if tokens[end - n : end] == tokens[-n:]:
                return tuple(tokens[end : end + k])
    return ()


@given(TEXTS, st.integers(1, 4), st.integers(1, 5))
def test_lookups_against_their_definition(tokens, longest, k):
    assert chain(LookupDrafter(longest, 1), tokens, k) == looked_up(tokens, longest, k)


REFERENCE = runner_on(PROPOSER)


def law_after(text, sampling):
    """The draft's distribution [1, v] of the next token, by a forward of its own."""
    branch = REFERENCE.open(text)
    [logits] = REFERENCE.forward([branch])
    REFERENCE.close(branch)
    return distribution(logits[None], sampling)


@pytest.mark.parametrize("coupling", Coupling)
def test_a_draft_model_proposes_what_it_would_write(coupling):
    """Its q are its own distributions, its tokens the keyed draws from them, with the
    target's keys if they are shared; it catches up, one token late or many.
    """
    sampling = SamplingParams(0.8, top_p=0.9)
    drafter = ModelDrafter(runner_on(PROPOSER), sampling, coupling)
    question = context([5, 6, 7], offset=4)
    for extra in ([], [8], [9, 9, 5, 6]):
        question.branch.tokens.extend(extra)
        [proposal] = drafter.propose([question], 4)
        text = list(question.tokens)
        for i, token in enumerate(proposal.tokens):
            law = law_after(text, sampling)
            assert (proposal.q[i] - law[0]).abs().max() < 1e-12
            key = draft_key(question, i, coupling)
            shared = key == question.draws.sample_key(i)
            assert shared == (coupling is Coupling.SHARED)
            assert sample(law, [key]) == [token]
            text.append(token)


def test_a_chain_ends_where_the_draft_is_unsure():
    """The draft's own probabilities count, whatever the sampling makes of them."""
    sampling = SamplingParams(0.8, top_p=0.9)
    lengths = set()
    for first in range(4, 12):
        text = [5, 6, first]
        whole, cut = (
            ModelDrafter(runner_on(PROPOSER), sampling, confidence=confidence)
            for confidence in (0.0, UNSURE)
        )
        [expected] = whole.propose([context(text)], 6)
        unsure = [
            law_after([*text, *expected.tokens[:i]], SamplingParams(1.0)).max() < UNSURE
            for i in range(6)
        ]
        length = (*unsure, True).index(True) + 1
        [proposal] = cut.propose([context(text)], 6)
        assert proposal.tokens == expected.tokens[:length]
        lengths.add(length)
    assert len(lengths) > 1


def test_a_tree_has_the_likeliest_tokens_at_every_node():
    drafter = TreeDrafter(runner_on(PROPOSER), SamplingParams(0.0), branching=(3, 2, 1))
    [tree] = drafter.propose([context([5, 6, 7])], 8)
    sizes = [len(family) for family in tree.families()]
    assert sizes == [3, *[2] * 3, *[1] * 6, *[0] * 6]
    assert tree.q is None
    for node, family in enumerate(tree.families(), start=-1):
        text = [5, 6, 7, *(tree.tokens[i] for i in tree.path(node))]
        best = law_after(text, SamplingParams(1.0))[0].topk(len(family)).indices
        assert [tree.tokens[child] for child in family] == best.tolist()
    [cut] = drafter.propose([context([5, 6, 7], limit=2)], 8)
    assert max(cut.depths()) == 2


def test_a_shared_tree_begins_with_the_draw_itself():
    sampling = SamplingParams(1.0)
    drafter = TreeDrafter(
        runner_on(PROPOSER), sampling, Coupling.SHARED, branching=(2, 2)
    )
    question = context([5, 6, 7])
    [tree] = drafter.propose([question], 8)
    drawn = []
    for node, depth in enumerate(tree.depths(), start=-1):
        text = [5, 6, 7, *(tree.tokens[i] for i in tree.path(node))]
        key = question.draws.sample_key(depth)
        drawn += sample(law_after(text, sampling), [key])
    assert follow(tree, drawn).nodes == (0, 2)


@pytest.mark.parametrize("name", sorted(DRAFTERS.keys() - {"stubborn", "tree"}))
def test_every_drafter_keeps_the_contract(name):
    """The same that `lr check` asks of a drafter of one's own."""

    def make(setup):
        drafter = DRAFTERS[name](setup.sampling)
        if isinstance(drafter, ModelDrafter):
            drafter.runner = setup.runner
        return drafter

    [findings] = check_parts(lambda: Variant(drafter=make))
    assert findings.broken == [] and len(findings.held) >= 6
