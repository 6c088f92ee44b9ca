"""What answers share: caches, verifier and writers. (`tests/test_random_answers.py`:
together they are what each is alone.)
"""

import pytest
import torch

from lr.errors import SettingError
from lr.reasoner import Reasoner
from lr.spec.variant import Variant
from lr.spec.verifiers.base import ExactVerifier
from lr.tiny.language import Split, problem
from lr.types import Role

QUESTIONS = [problem(Split.TEST, i).question for i in range(2)]


@pytest.fixture(scope="module")
def reasoner():
    with Reasoner(
        "tiny-draft", "tiny-draft", "oracle", dtype=torch.float64
    ) as reasoner:
        yield reasoner


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.1},
        {"depth": 2},
        {"drafter": "tree"},
        {"driver": "overlapped"},
        {"variant": Variant(ExactVerifier())},
    ],
)
def test_unlike_answers_are_not_served_together(reasoner, changes):
    """They share one verifier and one writer for each model: those of the first."""
    usual = {"mode": "lr+sd", "max_tokens": 20}
    answers = [reasoner.run(QUESTIONS[0], **usual, **more) for more in ({}, changes)]
    for order in (answers, answers[::-1]):
        with pytest.raises(SettingError, match="answers"):
            next(reasoner.engine.serve(order, 2))
    own = {"seed": 3, "sample": 1, "max_tokens": 9, "system": "Count."}
    alike = [reasoner.run(QUESTIONS[1], **usual | more) for more in ({}, own)]
    for _ in reasoner.engine.serve(alike, 2):
        pass
    assert len(alike[1].result.tokens) <= 9


@pytest.mark.parametrize(
    "options", [{"mode": "ar"}, {"mode": "lr+sd", "drafter": "draft", "detailed": True}]
)
def test_caches_are_kept_from_answer_to_answer(options):
    """They come back empty, so a later answer has the same runners, and the same
    answer."""
    with Reasoner("tiny-draft", "tiny-draft", "oracle") as reasoner:
        settings = {"seed": 3, "max_tokens": 30, **options}
        first = reasoner.generate(QUESTIONS[0], **settings)
        roles = [Role.TARGET] + [Role.DRAFT] * (options["mode"] != "ar")
        runners = {role: list(reasoner.engine.runners[role].idle) for role in roles}
        assert all(runners.values())
        assert reasoner.generate(QUESTIONS[0], **settings).tokens == first.tokens
        for role in roles:
            assert set(reasoner.engine.runners[role].idle) == set(runners[role])
