"""The API for programs."""

from functools import partial

import pytest
import torch
from model_kit import write_checkpoint, write_foreign_checkpoint

import lr
from lr import lookahead as page
from lr import page_engine
from lr.errors import (
    CheckpointError,
    ContextError,
    LRError,
    NumericalError,
    OutOfBlocks,
    SettingError,
)
from lr.reasoner import Reasoner
from lr.types import Origin, Role

QUESTION = "How many coins does Ann have?"
LR = {"mode": "lr"}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    target = write_checkpoint(folder / "target", seed=1, layers=2, mode=None)
    return target, write_checkpoint(folder / "draft", seed=2, padding=13)


@pytest.fixture(scope="module")
def exact(checkpoints):
    return Reasoner(*checkpoints, dtype=torch.float64)


# What is there unless the user says otherwise


def test_a_real_checkpoint_alone_decodes_plainly(checkpoints):
    reasoner = Reasoner(checkpoints[0])
    assert reasoner.generate(QUESTION, max_tokens=5).mode == "ar"
    ngram = reasoner.generate(QUESTION, mode="sd", drafter="ngram", max_tokens=5)
    assert ngram.tokens
    for options in (LR, {"mode": "sd"}, {"mode": "lr+sd", "drafter": "ngram"}):
        with pytest.raises(SettingError, match="draft"):
            reasoner.generate(QUESTION, **options)


def test_the_tiny_target_names_draft_verifier_and_mode():
    reasoner = Reasoner()
    assert reasoner.engine.draft_model is not None
    assert reasoner.verifier.name == "oracle"
    with pytest.raises(SettingError, match="begins with"):
        reasoner.generate("What is 2 + 2?")
    result = reasoner.generate(page.SAMPLE_QUESTION, max_tokens=5, schedule="async")
    assert result.mode == "lr" and "mode lr, " in repr(result)
    assert {*dir(lr)} == {*lr.__all__, "__version__"}


def test_a_judge_is_the_verifier_if_it_is_given():
    assert Reasoner(judge="tiny-judge").verifier.name == "judge"


def test_sampling_defaults_come_from_the_checkpoint(exact):
    sampling = exact.run(QUESTION).question.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.7, 30, 1.0)
    assert exact.run(QUESTION, top_k=0, temperature=0.0).question.sampling.greedy


def test_options_are_given_as_one_object_or_as_changes(exact):
    options = lr.GenerateOptions(mode="lr", depth=3, max_tokens=12)
    options = exact.run(QUESTION, options, max_tokens=7).question.options
    assert (options.depth, options.max_tokens) == (3, 7)
    assert exact.run(QUESTION, mode="lr", depth=3).question.options.depth == 3


# Answers


def test_a_result_says_who_wrote_what(checkpoints):
    reasoner = Reasoner(*checkpoints, "random:0.5")
    result = reasoner.generate(
        QUESTION, **LR, max_tokens=300, temperature=1.2, ignore_half_sentence=False
    )
    for step in result.steps:
        by_draft = step.origin is Origin.ACCEPTED
        corrected = step.origin is Origin.CORRECTION
        assert step.author is (Role.DRAFT if by_draft else Role.TARGET)
        assert (step.rejected is not None) == corrected
        assert (step.verdict is not None) == (by_draft or corrected)
    stats = result.stats
    assert stats.tokens == len(result.tokens)
    assert stats.steps == len(result.steps)
    assert stats.target_passes > 0 < stats.draft_passes
    assert 0 < stats.target_seconds + stats.draft_seconds <= stats.seconds


def test_a_run_yields_the_steps_of_the_result(exact):
    answer = exact.run(QUESTION, **LR, max_tokens=50)
    steps = tuple(answer)
    assert steps == answer.result.steps == answer.finish().steps
    assert steps == exact.generate(QUESTION, **LR, max_tokens=50).steps


def test_same_seed_same_answer_another_sample_another(exact):
    def tokens(**changes):
        settings = {"temperature": 1.5, "max_tokens": 40, **LR}
        return exact.generate(QUESTION, **(settings | changes)).tokens

    assert tokens() == tokens()
    assert len({tokens(), tokens(seed=1), tokens(sample=1)}) == 3


@pytest.mark.parametrize(
    "mode, engine", [("ar", "scheduler"), ("lr", "scheduler"), ("lr", "page")]
)
def test_half_a_character_is_left_to_the_next_step(
    checkpoints, monkeypatch, mode, engine
):
    """Every token is half a character, and steps have three tokens."""
    reasoner = Reasoner(*checkpoints, "always")
    codec = reasoner.codec
    halves = "é".encode()
    monkeypatch.setattr(
        codec, "_bytes", [halves[i % 2 : i % 2 + 1] for i in range(500)]
    )
    steps = {"segmenter": "fixed", "segment_tokens": 3}
    run = partial(page_engine.run, reasoner) if engine == "page" else reasoner.run
    result = run(QUESTION, mode=mode, max_tokens=40, **steps).finish()
    assert result.text == codec.decode(result.tokens)
    assert len(result.steps) > 5


def test_the_context_bounds_the_answer(checkpoints):
    reasoner = Reasoner(*checkpoints)
    words = " coins" * 400
    result = reasoner.generate(words, temperature=1.0, seed=3, max_step_tokens=30)
    length = len(result.prompt) + len(result.tokens)
    assert length <= 512
    assert result.finished or length == 512
    with pytest.raises(ContextError, match="512"):
        reasoner.generate(words * 2)


# Refusals


IMPOSSIBLE = {
    "depth": 0,
    "mode": "fast",
    "drafter": "oracle",
    "acceptance": "hope",
    "num_speculative_tokens": 0,
    "branching": (),
    "schedule": "soon",
    "max_tokens": 0,
    "temperature": "warm",
    "seed": "x",
    "draft_floor": 1.0,
}


@pytest.mark.parametrize(
    "options, noun",
    [
        *(({name: value}, name) for name, value in IMPOSSIBLE.items()),
        ({"prompt_lookup_min": 3}, "prompt_lookup_max"),
        ({"branching": (99, 99, 99, 99)}, "branching"),
        ({"mode": "sd", "drafter": "tree", "acceptance": "block"}, "chains"),
        ({"mode": "sd", "acceptance": "block", "coupling": "shared"}, "noise"),
        ({"width": 4, "depth": 6}, "width"),
        ({"schedule": "sync", "late_drafts": "reject"}, "late_drafts"),
        ({"depht": 3}, "did you mean depth"),
        ({"schedule": "asink"}, "async is its other name"),
        ({"draft_floor": float("nan")}, "draft_floor"),
    ],
)
def test_impossible_options_are_refused(exact, options, noun):
    with pytest.raises(SettingError, match=noun):
        exact.generate(QUESTION, **options)


def test_impossible_models_are_refused(checkpoints, tmp_path):
    foreign = write_foreign_checkpoint(tmp_path / "foreign")
    target, draft = checkpoints
    refused = [
        ((target, foreign), {}, "vocabularies"),
        ((target, draft, "oracel"), {}, "oracel"),
        ((foreign, foreign, "oracle"), {}, "language"),
        ((target, draft, "exact"), {"judge": target}, "judge"),
        ((target, draft), {"device": "x"}, "device"),
        ((target, draft), {"num_blocks": 0}, "num_blocks"),
        ((target, draft), {"attention": "quick"}, "attention"),
        ((target, draft, object()), {}, "verifier"),
    ]
    for models, settings, noun in refused:
        with pytest.raises(LRError, match=noun):
            Reasoner(*models, **settings)
    with pytest.raises(CheckpointError, match="checkpoint"):
        Reasoner(3)


def test_what_is_no_question_is_refused(exact):
    for question in (None, b"abc", "\udc80", " "):
        with pytest.raises(SettingError, match="question"):
            exact.generate(question)


def test_too_few_blocks_say_so(checkpoints):
    with pytest.raises(OutOfBlocks, match="blocks"):
        Reasoner(*checkpoints, num_blocks=2).generate(QUESTION, max_tokens=100)


def test_logits_that_are_not_finite_name_the_model(tmp_path):
    for broken in range(2):
        paths = [
            write_checkpoint(tmp_path / f"{name} of {broken}", seed=1)
            for name in ("target", "draft")
        ]
        reasoner = Reasoner(*paths, "exact")
        models = reasoner.engine.target_model, reasoner.engine.draft_model
        models[broken].norm.weight.fill_(torch.nan)
        for options in ({"mode": "lr"}, {"mode": "sd", "drafter": "draft"}):
            with pytest.raises(NumericalError, match=paths[broken].name):
                reasoner.generate(QUESTION, **options)
