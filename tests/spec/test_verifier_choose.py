"""Verifiers by name: what there is, what is refused and how, and what they are made
of."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from reasoner_kit import write_checkpoint, write_foreign_checkpoint
from verifier_kit import codec, model

from lr.errors import SettingError
from lr.model.codec import Codec
from lr.reasoner import Reasoner
from lr.spec.verifiers.base import Requires, Verifier
from lr.spec.verifiers.judge import JUDGE_PROMPT, TINY_JUDGE_PROMPT, JudgeVerifier
from lr.spec.verifiers.named import (
    THRESHOLDS,
    NormalisedMatch,
    VerifierChoice,
    parse_verifier,
)


def parse(text: str, *, speaks_tiny: bool = True) -> tuple[str, float | None]:
    return parse_verifier(text, speaks_tiny=speaks_tiny, checkpoint="some/model")


def make(text: str, monkeypatch: pytest.MonkeyPatch) -> Verifier:
    """On the tiny target and its judge, with an encoder to which all texts are
    alike."""
    monkeypatch.setattr(
        "lr.spec.verifiers.named.load_encoder",
        lambda name, device: lambda texts: torch.ones(len(texts), 1),
    )
    judge = "some/encoder" if text.startswith("embedding") else None
    return VerifierChoice(text, codec(), judge).build(model(1))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("exact", ("exact", None)),
        ("oracle", ("oracle", None)),
        ("judge", ("judge", 0.5)),
        ("judge:0.8", ("judge", 0.8)),
        ("embedding:0.85", ("embedding", 0.85)),
        ("score:9", ("score", 9.0)),
        ("likelihood:-0.5", ("likelihood", -0.5)),
        ("random:0.3", ("random", 0.3)),
    ],
)
def test_names(text: str, name: tuple[str, float | None]) -> None:
    assert parse(text) == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "",
            "there is no verifier ''; choose one of: exact, oracle, judge:0.5, embedding:0.95",
        ),
        ("guess", "there is no verifier 'guess'"),
        ("Judge", "there is no verifier 'Judge'"),
        ("exact:1", "exact takes no number"),
        ("judge:", "'' is not a number. Say for example 'judge:0.5'"),
        ("score:high", "'high' is not a number"),
    ],
)
def test_names_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        parse(text)


def test_a_foreign_checkpoint_has_no_oracle() -> None:
    with pytest.raises(
        SettingError,
        match=r"some/model speaks none of them\. .* choose one of: exact, judge:0\.5",
    ):
        parse("oracle", speaks_tiny=False)
    assert parse("judge", speaks_tiny=False)[0] == "judge"


@pytest.mark.parametrize("kind", [*THRESHOLDS, "exact", "oracle", "always", "never"])
def test_every_kind_can_be_made(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    verifier = make(kind, monkeypatch)
    expected = {"always": "random:1", "never": "random:0", "random": "random:0.5"}.get(
        kind, kind
    )
    assert verifier.name == expected
    needs = {"score": Requires.NOTHING, "likelihood": Requires.TARGET_LOGPROBS}
    assert verifier.requires is needs.get(kind, Requires.TARGET_STEP)
    assert isinstance(verifier, NormalisedMatch) == (kind in ("judge", "embedding"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("judge:1.5", "threshold is 1.5, expected a probability"),
        ("embedding:7", "threshold is 7.0, expected a cosine"),
        ("score:10", "threshold is 10.0, expected a score"),
        ("likelihood:1", "threshold is 1.0, expected a mean log-probability"),
        ("random:-1", "rho is -1.0"),
        ("random:nan", "rho is nan"),
        ("judge:nan", "threshold is nan"),
    ],
)
def test_impossible_thresholds(
    text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingError, match=message):
        make(text, monkeypatch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def tiny(folder: Path) -> Path:
    return write_checkpoint(folder / "tiny", seed=1)


@pytest.fixture(scope="module")
def foreign(folder: Path) -> Path:
    return write_foreign_checkpoint(folder / "foreign")


def test_a_judge_for_targets_of_every_language(tiny: Path, foreign: Path) -> None:
    """A judge that speaks tiny gets the short prompt, another one the long one,
    whatever the target speaks.
    """
    for judge, prompt in ((tiny, TINY_JUDGE_PROMPT), (foreign, JUDGE_PROMPT)):
        folded = Reasoner(tiny, tiny, "judge:0.7", judge=judge).verifier
        assert isinstance(folded, NormalisedMatch) and isinstance(
            folded.verifier, JudgeVerifier
        )
        assert folded.verifier.prompt is prompt
        assert folded.verifier.threshold == 0.7


def test_a_checkpoint_of_its_own_is_asked_for(foreign: Path, tiny: Path) -> None:
    VerifierChoice("judge", Codec.load(tiny))  # tiny-judge, by default
    for name in ("judge", "embedding"):
        with pytest.raises(
            SettingError, match=r"needs its own checkpoint: give judge .*--judge_model"
        ):
            VerifierChoice(name, Codec.load(foreign))
    with pytest.raises(SettingError, match="uses no judge model; omit judge"):
        VerifierChoice("score", Codec.load(foreign), tiny)


@pytest.mark.parametrize(
    "verifier", ["judge", "score:4", "likelihood:-6", "random:0.5", "always", "never"]
)
def test_whole_answers_with_every_verifier(tiny: Path, verifier: str) -> None:
    """The same answer twice, the second time by a verifier that has kept what it
    computed for the first.
    """
    judge = tiny if verifier == "judge" else None
    reasoner = Reasoner(tiny, tiny, verifier, judge=judge, dtype=torch.float64)
    first, again = (
        reasoner.generate("How many?", max_tokens=60, max_step_tokens=20, seed=2)
        for _ in range(2)
    )
    assert first.tokens == again.tokens
    reasons = [step.verdict.why for step in first.steps if step.verdict is not None]
    assert not [why for why in reasons if "failed" in why]
