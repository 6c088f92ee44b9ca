"""What every verifier keeps to: one verdict per pair, in order, each by its own pair
alone; it says what it needs, and needs no more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from spec_kit import random_model
from verifier_kit import (
    ADD,
    ADD_OTHERWISE,
    ADD_WRONG,
    GIVEN,
    Watched,
    codec,
    letters,
    pair,
)

from lr.errors import ProtocolError
from lr.spec.verifiers.base import ExactVerifier, Pair, Requires, Verifier, verdicts_of
from lr.spec.verifiers.judge import TINY_JUDGE_PROMPT, JudgeVerifier, PromptedModel
from lr.spec.verifiers.named import (
    EmbeddingVerifier,
    LikelihoodVerifier,
    NormalisedMatch,
    RandomVerifier,
    ScoreVerifier,
    TimedVerifier,
)
from lr.tiny.oracle import OracleVerifier
from lr.types import Verdict
from lr.variants.confidence_cascade import Cascade


class HiddenVerifier(Verifier):
    """A variant as somebody might add it: looks at the target's hidden states of the
    draft step alone.
    """

    name = "hidden"
    requires = Requires.HIDDEN

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        means = [float(pair.hidden.mean()) for pair in pairs if pair.hidden is not None]
        assert len(means) == len(pairs)
        return [Verdict(mean > 0, f"mean {mean:.2f}", mean) for mean in means]


def judge() -> JudgeVerifier:
    return JudgeVerifier(
        Watched().asked, codec().decode, prompt=TINY_JUDGE_PROMPT, least_mass=0.0
    )


MAKERS: dict[str, Callable[[], Verifier]] = {
    "exact": ExactVerifier,
    "oracle": lambda: OracleVerifier(codec().decode),
    "random": lambda: RandomVerifier(0.5, seed=3),
    "random, no step": lambda: RandomVerifier(0.5, seed=3, requires=Requires.NOTHING),
    "judge": judge,
    "folded judge": lambda: NormalisedMatch(judge(), codec().decode),
    "score": lambda: ScoreVerifier(Watched(1).asked, threshold=4.5, least_mass=0.0),
    "likelihood": lambda: LikelihoodVerifier(-5.0),
    "likelihood, computed": lambda: LikelihoodVerifier(-5.0, Watched(2).runner),
    "embedding": lambda: EmbeddingVerifier(letters, codec().decode, threshold=0.9),
    "cascade": lambda: Cascade(LikelihoodVerifier(-5.0), judge(), low=-5.5, high=-4.5),
    "timed": lambda: TimedVerifier(judge(), 60.0),
    "hidden": HiddenVerifier,
}

TEXTS = [
    (ADD, ADD),
    (ADD_OTHERWISE, ADD),
    (ADD_WRONG, ADD),
    (GIVEN, ADD),
    (ADD, ADD_OTHERWISE),
    ("ann", "Ann"),
]


def full_pairs() -> list[Pair]:
    """Pairs that hold everything that can be needed."""
    noise = torch.Generator().manual_seed(1)
    pairs = [
        pair(draft, target, prefix=f"Question {i}:")
        for i, (draft, target) in enumerate(TEXTS)
    ]
    return [
        replace(
            one,
            logprobs=tuple(
                (torch.rand(len(one.draft.tokens), generator=noise) * -10).tolist()
            ),
            hidden=torch.randn(len(one.draft.tokens), 8, generator=noise),
        )
        for one in pairs
    ]


def without(one: Pair, need: Requires) -> Pair:
    """The pair with nothing but what `need` names."""
    return Pair(
        one.prefix,
        one.draft,
        one.target if Requires.TARGET_STEP in need else None,
        one.logprobs if Requires.TARGET_LOGPROBS in need else None,
        one.hidden if Requires.HIDDEN in need else None,
    )


def agree(a: Sequence[Verdict], b: Sequence[Verdict]) -> None:
    assert [(v.aligned, v.score is None) for v in a] == [
        (v.aligned, v.score is None) for v in b
    ]
    assert [v.score or 0.0 for v in a] == pytest.approx(
        [v.score or 0.0 for v in b], abs=1e-9
    )


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Callable[[], Verifier]:
    return MAKERS[request.param]


def test_one_verdict_per_pair_each_with_a_reason(make: Callable[[], Verifier]) -> None:
    verifier = make()
    assert verifier.name
    verdicts = verifier.judge(full_pairs())
    assert isinstance(verdicts, list) and len(verdicts) == len(TEXTS)
    assert all(
        isinstance(v, Verdict) and isinstance(v.aligned, bool) and v.why
        for v in verdicts
    )
    assert not [v.why for v in verdicts if "failed" in v.why]
    assert verifier.judge([]) == []


def test_a_verdict_depends_on_its_own_pair_alone(make: Callable[[], Verifier]) -> None:
    pairs = full_pairs()
    together = make().judge(pairs)
    agree(together, [verdict for one in pairs for verdict in make().judge([one])])
    agree(together[::-1], make().judge(pairs[::-1]))
    verifier = make()
    agree(together, verifier.judge(pairs))
    agree(
        together, verifier.judge(pairs)
    )  # asked again, with what it kept from the first time
    agree([together[2]] * 3, verifier.judge([pairs[2]] * 3))


def test_what_it_needs_is_enough(make: Callable[[], Verifier]) -> None:
    pairs = full_pairs()
    agree(
        make().judge(pairs),
        make().judge([without(one, make().requires) for one in pairs]),
    )


@pytest.mark.parametrize(
    "name", ["exact", "oracle", "judge", "folded judge", "embedding", "likelihood"]
)
def test_a_pair_without_what_is_needed_is_an_error_that_says_so(name: str) -> None:
    verifier, bare = MAKERS[name](), without(full_pairs()[1], Requires.NOTHING)
    with pytest.raises(ProtocolError, match="`requires`"):
        verdicts_of(verifier, [bare])


def test_needs_add_up() -> None:
    assert Requires.NOTHING | Requires.TARGET_STEP is Requires.TARGET_STEP
    assert (
        MAKERS["cascade"]().requires == Requires.TARGET_STEP | Requires.TARGET_LOGPROBS
    )
    assert (
        NormalisedMatch(LikelihoodVerifier(), codec().decode).requires
        == Requires.TARGET_STEP | Requires.TARGET_LOGPROBS
    )
    assert MAKERS["score"]().requires is Requires.NOTHING

    class Silent(Verifier):
        name = "silent"

        def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
            return [Verdict(True, "") for _ in pairs]

    assert Silent().requires is Requires.TARGET_STEP  # type: ignore[arg-type]


NOT_EVEN_NUMBERS = {
    "judge": lambda: JudgeVerifier(broken(), codec().decode, prompt=TINY_JUDGE_PROMPT),
    "score": lambda: ScoreVerifier(broken()),
    "likelihood": lambda: LikelihoodVerifier(runner=broken().runner),
    "embedding": lambda: EmbeddingVerifier(
        lambda texts: letters(texts) * torch.nan, codec().decode
    ),
}


def broken() -> PromptedModel:
    """A model whose weights are not numbers."""
    watched = Watched()
    watched.runner.model = random_model(0, vocab_size=codec().vocab_size)
    watched.runner.model.embedding.weight.fill_(torch.nan)
    return watched.asked


@pytest.mark.parametrize("name", NOT_EVEN_NUMBERS)
def test_what_is_not_a_number_rejects(name: str) -> None:
    [verdict] = NOT_EVEN_NUMBERS[name]().judge([pair(ADD, ADD)])
    assert (
        not verdict.aligned and verdict.score is None and "not numbers" in verdict.why
    )
