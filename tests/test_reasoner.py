"""The API for programs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from reasoner_kit import write_checkpoint, write_foreign_checkpoint

from lr.errors import CheckpointError, ContextError, LRError, OutOfBlocks, SettingError
from lr.reasoner import Reasoner
from lr.spec.verifiers.base import Pair, Verifier
from lr.types import Origin, Role, Verdict

DRAFTERS = ("ngram", "suffix", "draft", "tree", "step")
QUESTION = "How many coins does Ann have?"


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    return write_checkpoint(folder / "target", seed=1, layers=2), write_checkpoint(
        folder / "draft", seed=2, padding=13
    )


@pytest.fixture(scope="module")
def exact(checkpoints: tuple[Path, Path]) -> Reasoner:
    return Reasoner(*checkpoints, "exact", dtype=torch.float64)


class Coin(Verifier):
    """Accepts every other pair."""

    name = "coin"

    def __init__(self) -> None:
        self.asked = 0

    def judge(self, pairs: list[Pair]) -> list[Verdict]:
        self.asked += len(pairs)
        return [Verdict((self.asked + i) % 2 == 0, "coin") for i in range(len(pairs))]


@pytest.mark.parametrize("temperature", [None, 0.0, 1.0])
@pytest.mark.parametrize("schedule", ["sync", "paper", "depth"])
@pytest.mark.parametrize(("depth", "width"), [(1, 1), (4, 1), (2, 2)])
def test_exact_lookahead_is_plain_decoding(
    exact: Reasoner, temperature: float | None, schedule: str, depth: int, width: int
) -> None:
    """Draft and target differ in the padding of their vocabularies, which changes
    nothing."""
    how = {"temperature": temperature, "max_tokens": 60, "max_step_tokens": 20}
    plain = exact.generate(QUESTION, mode="ar", **how)
    assert (
        exact.generate(
            QUESTION, schedule=schedule, depth=depth, width=width, **how
        ).tokens
        == plain.tokens
    )


@pytest.mark.parametrize(
    ("mode", "drafter"),
    [(m, d) for m in ("sd", "lr+sd") for d in DRAFTERS if (m, d) != ("sd", "step")],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_matching_at_both_levels_is_plain_decoding(
    exact: Reasoner, mode: str, drafter: str, temperature: float
) -> None:
    how = {"temperature": temperature, "max_tokens": 40, "max_step_tokens": 20}
    plain = exact.generate(QUESTION, mode="ar", **how)
    shared = {
        "drafter": drafter,
        "acceptance": "match",
        "coupling": "shared",
        "branching": (2, 1),
    }
    assert exact.generate(QUESTION, mode=mode, **how, **shared).tokens == plain.tokens


def test_a_result_says_who_wrote_what(checkpoints: tuple[Path, Path]) -> None:
    reasoner = Reasoner(*checkpoints, Coin())
    result = reasoner.generate(
        QUESTION, max_tokens=300, temperature=1.2, ignore_half_sentence=False
    )
    assert result.text == reasoner.codec.decode(result.tokens)
    for step in result.steps:
        assert step.author is (
            Role.DRAFT if step.origin is Origin.ACCEPTED else Role.TARGET
        )
        assert (step.rejected is not None) == (step.origin is Origin.CORRECTION)
        assert (step.verdict is not None) == (
            step.origin in (Origin.ACCEPTED, Origin.CORRECTION)
        )
    stats = result.stats
    assert stats.tokens == len(result.tokens)
    assert stats.steps == len(result.steps)
    assert stats.target_passes > 0 < stats.draft_passes
    assert stats.seconds > 0
    assert stats.target_seconds + stats.draft_seconds <= stats.seconds


def test_same_seed_same_answer_another_sample_another(exact: Reasoner) -> None:
    def answer(**changes: int) -> tuple[int, ...]:
        return exact.generate(
            QUESTION, max_tokens=40, **{"temperature": 1.5, **changes}
        ).tokens

    assert answer() == answer()
    assert answer() != answer(seed=1)
    assert answer() != answer(sample=1)


def test_run_yields_the_steps_of_the_result(exact: Reasoner) -> None:
    run = exact.run(QUESTION, max_tokens=50)
    steps = list(run)
    assert (
        tuple(steps)
        == run.finish().steps
        == exact.generate(QUESTION, max_tokens=50).steps
    )


def test_sampling_defaults_come_from_the_checkpoint(exact: Reasoner) -> None:
    sampling = exact.run(QUESTION).sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.7, 30, 1.0)
    assert exact.run(QUESTION, top_k=0, temperature=0.0).sampling.greedy


def test_the_context_bounds_the_answer(checkpoints: tuple[Path, Path]) -> None:
    reasoner = Reasoner(*checkpoints, "exact")
    words = " coins" * 400
    result = reasoner.generate(words, temperature=1.0, seed=3, max_step_tokens=30)
    assert len(result.prompt) + len(result.tokens) <= 512
    assert result.finished or len(result.prompt) + len(result.tokens) == 512
    with pytest.raises(ContextError, match="the context is 512"):
        reasoner.generate(words * 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 0}, "depth is 0"),
        ({"depth": 2.5}, "depth is 2.5"),
        ({"mode": "fast"}, "mode is 'fast', expected one of ar, sd, lr"),
        ({"drafter": "oracle"}, "drafter is 'oracle', expected one of ngram"),
        ({"acceptance": "hope"}, "acceptance is 'hope'"),
        ({"coupling": "tight"}, "coupling is 'tight'"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens is 0"),
        ({"prompt_lookup_min": 3}, "prompt_lookup_max .* is 2"),
        ({"branching": ()}, r"branching is \(\)"),
        (
            {"mode": "sd", "drafter": "tree", "acceptance": "block"},
            "rule 'block' verifies chains only",
        ),
        ({"width": 0}, "width is 0"),
        ({"width": 4, "depth": 6}, "depth and width is"),
        ({"schedule": "soon"}, "schedule is 'soon'"),
        ({"mode": "sd", "drafter": "step"}, "'step' needs the draft steps"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_step_tokens": -1}, "max_step_tokens is -1"),
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"seed": "x"}, "seed is 'x'"),
        ({"depht": 3}, "no option depht; the options are drafter"),
    ],
)
def test_impossible_options_are_refused(
    exact: Reasoner, options: dict[str, object], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        exact.generate(QUESTION, **options)


def test_verifiers_that_make_no_sense_are_refused(
    checkpoints: tuple[Path, Path], tmp_path: Path
) -> None:
    assert Reasoner(*checkpoints, "oracle").verifier.name == "oracle"  # type: ignore[union-attr]
    with pytest.raises(
        SettingError,
        match="there is no verifier 'oracel'",
    ):
        Reasoner(*checkpoints, "oracel")
    foreign = write_foreign_checkpoint(tmp_path / "foreign")
    with pytest.raises(
        SettingError,
        match="tiny language",
    ):
        Reasoner(foreign, foreign, "oracle")
    with pytest.raises(SettingError, match="uses no judge model"):
        Reasoner(*checkpoints, "exact", judge=checkpoints[0])


def test_results_name_the_coupling(exact: Reasoner) -> None:
    settings = {"max_tokens": 12, "drafter": "step"}
    named = [
        exact.generate(
            "How many?", mode=mode, acceptance=acceptance, coupling=coupling, **settings
        ).coupling  # type: ignore[arg-type]
        for mode, acceptance, coupling in (
            ("lr", "reject", "independent"),
            ("lr", "reject", "shared"),
            ("lr+sd", "reject", "independent"),
            ("lr+sd", "match", "shared"),
        )
    ]
    assert named == ["independent", "shared", "proposal", "shared"]


def test_values_of_a_wrong_kind_are_refused(exact: Reasoner) -> None:
    for wrong in (
        {"top_p": "x"},
        {"branching": 3},
        {"min_confidence": "a"},
        {"temperature": "warm"},
    ):
        with pytest.raises(SettingError, match=next(iter(wrong))):
            exact.generate("How many?", **wrong)


def test_an_unknown_device_is_refused(checkpoints: tuple[Path, Path]) -> None:
    with pytest.raises(SettingError, match="device is 'x', expected auto, cpu"):
        Reasoner(*checkpoints, "exact", device="x")


def test_different_tokenizers_are_refused(
    checkpoints: tuple[Path, Path], tmp_path: Path
) -> None:
    foreign = write_foreign_checkpoint(tmp_path / "foreign")
    with pytest.raises(SettingError, match="different vocabularies"):
        Reasoner(checkpoints[0], foreign, "exact")


def test_without_a_draft_there_is_plain_decoding(
    checkpoints: tuple[Path, Path],
) -> None:
    reasoner = Reasoner(checkpoints[0], None)
    assert reasoner.generate(QUESTION, mode="ar", max_tokens=5).tokens
    assert reasoner.generate(QUESTION, mode="sd", drafter="ngram", max_tokens=5).tokens
    for options in ({}, {"mode": "sd"}, {"mode": "lr+sd", "drafter": "ngram"}):
        with pytest.raises(SettingError, match="needs a draft"):
            reasoner.generate(QUESTION, **options)


def test_what_is_no_question_or_checkpoint_is_refused(
    exact: Reasoner, checkpoints: tuple[Path, Path]
) -> None:
    for question in (None, b"abc", "\udc80"):
        with pytest.raises(SettingError, match="question"):
            exact.generate(question)  # type: ignore[arg-type]
    for name in (None, 3):
        with pytest.raises(CheckpointError, match="no checkpoint"):
            Reasoner(name)  # type: ignore[arg-type]
    for verifier in (3, object()):
        with pytest.raises(LRError, match="verifier"):
            Reasoner(*checkpoints, verifier)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="num_blocks is 0"):
        Reasoner(*checkpoints, "exact", num_blocks=0).generate(QUESTION)
    assert Reasoner(*checkpoints, None).verifier.name == "exact"  # type: ignore[union-attr]


def test_too_few_blocks_say_so(checkpoints: tuple[Path, Path]) -> None:
    with pytest.raises(OutOfBlocks, match="of 2 are free"):
        Reasoner(*checkpoints, "exact", num_blocks=2).generate(QUESTION, max_tokens=100)


def test_every_error_of_ours_is_one_kind() -> None:
    assert all(
        issubclass(kind, LRError) for kind in (ContextError, OutOfBlocks, SettingError)
    )
