"""The engine's loop on random models: whatever stops, nothing is left behind."""

import pytest
from toy_kit import QUESTIONS, ask, emitted, require_clean, toy_engine

from lr.types import Role


@pytest.mark.parametrize("mode", ["ar", "lr"])
def test_stopping_early_gives_everything_back(mode):
    engine = toy_engine(endless=True)
    roles = [Role.TARGET] if mode == "ar" else list(Role)
    for num_steps in range(4):
        answers = [ask(engine, question, mode=mode) for question in QUESTIONS]
        serving = engine.serve(answers, concurrency=2)
        for _ in range(num_steps):
            next(serving)
        serving.close()
        begun = [answer for answer in answers if hasattr(answer, "target_side")]
        assert not any(answer.target_side.branches for answer in begun)
        if num_steps:
            assert [len(engine.runners[role].idle) for role in roles] == [1] * len(
                roles
            )
            require_clean(engine, roles)


def test_a_stopped_answer_leaves_the_others_alone():
    engine = toy_engine(endless=True)
    alone = emitted(ask(engine, QUESTIONS[1]))
    answers = [ask(engine, question) for question in QUESTIONS[:2]]
    for answer, _ in engine.serve(answers, concurrency=2):
        answers[0].stopped = answer is answers[0]
    assert len(answers[0].steps) < 4
    assert answers[1].emitted == alone
    require_clean(engine)
