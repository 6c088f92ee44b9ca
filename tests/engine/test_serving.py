"""Problems that are worked on together get the answers that each gets alone (fp64), in
every mode and with either driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lr.errors import OutOfBlocks
from lr.measure.datasets import Item, Task
from lr.measure.grading import Grader
from lr.measure.running import Evaluation
from lr.measure.store import AnswerKey, Store
from lr.options import make_options
from lr.reasoner import Reasoner
from lr.tiny.language import Split, problem
from lr.types import Role

QUESTIONS = [problem(Split.TEST, i).question for i in range(2)]


@pytest.fixture(scope="module")
def reasoner() -> Iterator[Reasoner]:
    with Reasoner("tiny-draft", "tiny-draft", "oracle", dtype=torch.float64) as made:
        yield made


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "ar"},
        {"mode": "sd", "drafter": "ngram"},
        {"mode": "sd", "drafter": "draft"},
        {"mode": "lr"},
        {"mode": "lr", "schedule": "sync", "width": 2},
        {"mode": "lr+sd", "drafter": "suffix"},
        {"mode": "lr", "driver": "overlapped"},
    ],
)
def test_together_as_alone(reasoner: Reasoner, options: dict) -> None:
    settings = options | {"seed": 5, "max_tokens": 80, "acceptance": "match"}
    alone = {
        question: reasoner.generate(question, **settings) for question in QUESTIONS
    }
    made = make_options(**settings)
    asked = [reasoner.run(question, made) for question in QUESTIONS]
    finished = [run for run, _ in reasoner.engine.serve(asked, 2) if run.done]
    assert sorted(one.question for one in finished) == sorted(QUESTIONS)
    for one in finished:
        single = alone[one.question]
        assert one.result.tokens == single.tokens
        assert [step.origin for step in one.steps] == [
            step.origin for step in single.steps
        ]
        stats = one.result.stats
        assert (stats.tokens, stats.accepted, stats.judged) == (
            single.stats.tokens,
            single.stats.accepted,
            single.stats.judged,
        )
        assert 0 < stats.target_seconds <= stats.seconds
        events = one.result.trace.events
        assert events == sorted(events, key=lambda pair: pair[0])


def test_leaving_early_gives_everything_back(reasoner: Reasoner) -> None:
    """The conservation law of the caches is checked after every test."""
    made = make_options(mode="lr", max_tokens=60)
    runs = [reasoner.run(question, made) for question in QUESTIONS]
    running = reasoner.engine.serve(runs, 3)
    next(running)
    running.close()


def test_samples_differ_and_are_numbered(reasoner: Reasoner, tmp_path: Path) -> None:
    made = [
        make_options(mode="ar", sample=sample, max_tokens=60) for sample in range(2)
    ]
    asked = [reasoner.run(QUESTIONS[0], one) for one in made]
    first, second = [
        r.result.tokens for r, _ in reasoner.engine.serve(asked, 2) if r.done
    ]
    assert first != second
    items = [Item(4, "?", Task.FREE), Item(5, "?", Task.FREE)]
    kept = Store(tmp_path), Grader()
    assert Evaluation(reasoner, *kept, items, "ar", made[0], samples=range(2)).keys == [
        AnswerKey(4),
        AnswerKey(4, 1),
        AnswerKey(5),
        AnswerKey(5, 1),
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "ar"},
        {"mode": "sd", "drafter": "tree"},
        {"mode": "lr", "depth": 2, "width": 2},
        {"mode": "lr+sd", "drafter": "draft", "detailed": True},
        {"mode": "lr+sd", "drafter": "step"},
    ],
)
def test_caches_are_kept_from_answer_to_answer(options: dict) -> None:
    """They come back empty, so a later answer has the same runners, and the same
    answer."""
    with Reasoner("tiny-draft", "tiny-draft", "oracle") as made:
        settings = {"seed": 3, "max_tokens": 30, **options}
        first = made.generate(QUESTIONS[0], **settings)
        roles = [Role.TARGET] + [Role.DRAFT] * (options["mode"] != "ar")
        runners = {role: list(made.engine.runners[role].idle) for role in roles}
        assert all(runners.values())
        assert made.generate(QUESTIONS[0], **settings).tokens == first.tokens
        for role in roles:
            assert set(made.engine.runners[role].idle) == set(runners[role])


def test_an_answer_that_never_fits_is_refused_and_others_wait_for_room() -> None:
    with Reasoner("tiny-draft", "tiny-draft", "oracle") as made:
        options = make_options(mode="lr", max_tokens=60, depth=2)
        runs = [made.run(question, options) for question in QUESTIONS]
        room = max(run.blocks for run in runs)
    for blocks, fits in ((room, True), (room // 2, False)):
        with Reasoner("tiny-draft", "tiny-draft", "oracle", num_blocks=blocks) as made:
            runs = [made.run(question, options) for question in QUESTIONS]
            if fits:  # one at a time, whatever the concurrency
                assert sum(run.done for run, _ in made.engine.serve(runs, 2)) == len(
                    runs
                )
                assert all(run.result.tokens for run in runs)
            else:
                with pytest.raises(OutOfBlocks, match=f"of {blocks} are free"):
                    list(made.engine.serve(runs, 2))
                assert not runs[0].steps
