"""Who has which slice: the parts put together are the whole, each rank reads only its
own, and what cannot be divided is refused.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from model_kit import KINDS, edit_json, hf_model, watch_tensors

from lr.errors import CheckpointError, SettingError
from lr.model.config import read_config
from lr.model.files import resolve
from lr.model.ranks import (
    RankGroup,
    RankLM,
    Ranks,
    cuts,
    load_parallel,
    part_of,
    spread_over,
)
from lr.model.weights import load_model

CPU = torch.device("cpu")
WIDE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 250,
}
"""The eighth part of a norm is nothing beside these."""


def parts(path: Path, size: int) -> list[RankLM]:
    return [RankLM.load(path, Ranks(rank, size, CPU)) for rank in range(size)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [2, 4])
def test_the_parts_are_the_whole(kind: str, size: int, tmp_path: Path) -> None:
    hf_model(
        kind, **WIDE, num_hidden_layers=1, tie_word_embeddings=False
    ).save_pretrained(tmp_path)
    whole = dict(load_model(tmp_path).named_parameters())
    ranks = [dict(part.named_parameters()) for part in parts(tmp_path, size)]
    config = read_config(tmp_path)
    for name, parameter in whole.items():
        mine = [rank[name] for rank in ranks]
        if name.endswith("norm.weight"):
            assert all(torch.equal(one, parameter) for one in mine)
        elif name in ("embedding.weight", "head.weight"):
            rows = torch.cat(mine)
            assert torch.equal(rows[: config.vocab_size], parameter)
            assert not rows[config.vocab_size :].any()
        elif name.endswith(("out.weight", "down.weight")):
            assert torch.equal(torch.cat(mine, dim=1), parameter)
        else:
            heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
            sizes = (
                [h * config.head_dim for h in heads]
                if "qkv" in name
                else [config.intermediate_size] * 2
            )
            columns = zip(
                *(one.split([n // size for n in sizes]) for one in mine), strict=True
            )
            assert torch.equal(
                torch.cat([torch.cat(column) for column in columns]), parameter
            )


def test_ranks_that_outnumber_the_kv_heads_share_them() -> None:
    """8 query heads, 2 KV heads, 4 ranks: query heads 6 and 7 of rank 3 look at KV head
    1, which rank 2 has too.
    """
    config = read_config(resolve("tiny-target"))
    config = part_of(config, 1).__class__(
        **{**vars(config), "num_heads": 8, "num_kv_heads": 2, "head_dim": 16}
    )
    found = {}
    for rank in range(4):
        for cut in cuts(config, rank, 4):
            if cut.key.endswith(
                ("layers.0.self_attn.q_proj.weight", "layers.0.self_attn.k_proj.weight")
            ):
                found[rank, cut.key.split(".")[-2]] = (cut.taken[0], cut.first)
    assert [found[rank, "q_proj"][0] for rank in range(4)] == [
        slice(32 * r, 32 * r + 32) for r in range(4)
    ]
    assert [found[rank, "k_proj"] for rank in range(4)] == [
        (slice(0, 16), 32),
        (slice(0, 16), 32),
        (slice(16, 32), 32),
        (slice(16, 32), 32),
    ]


class CountedSlice:
    """A view of a tensor, which notes how many bytes are read through it."""

    def __init__(self, inner: Any, key: str, read: Counter[str]) -> None:
        self.inner, self.key, self.read = inner, key, read

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __getitem__(self, index: Any) -> Any:
        taken = self.inner[index]
        self.read[self.key] += taken.numel() * taken.element_size()
        return taken


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_reads_its_part_and_no_more(
    size: int, tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf_model("qwen3", **WIDE, tie_word_embeddings=tied).save_pretrained(
        tmp_path, max_shard_size="100KB"
    )
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    read: Counter[str] = Counter()
    watch_tensors(monkeypatch, lambda key, view: CountedSlice(view, key, read))
    load_model(tmp_path)
    whole, total = dict(read), sum(read.values())
    norms = sum(count for key, count in whole.items() if "norm" in key)
    assert norms < total / 50
    together = 0
    for rank in range(size):
        read.clear()
        RankLM.load(tmp_path, Ranks(rank, size, CPU))
        assert set(read) == set(whole), "every tensor is somebody's"
        assert sum(read.values()) <= 1.05 * total / size
        together += sum(read.values())
    assert together == total + (size - 1) * norms, (
        "norms are read by all, everything else once"
    )


def test_a_stored_head_that_should_be_the_embedding_is_compared_by_whoever_has_the_rows(
    tmp_path: Path,
) -> None:
    hf_model("qwen3", tie_word_embeddings=False).save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", tie_word_embeddings=True)
    with pytest.raises(CheckpointError, match="its own"):
        RankLM.load(tmp_path, Ranks(1, 2, CPU))


def test_what_cannot_be_divided_is_refused_before_anything_starts() -> None:
    for size, why in ((3, "query heads (4)"), (8, "query heads (4)")):
        with pytest.raises(SettingError, match=r"tensor_parallel is \d") as caught:
            load_parallel("tiny-target", spread_over(size, "cpu"))
        assert why in str(caught.value)
        assert "Possible for it: 1, 2, 4." in str(caught.value)
    config = read_config(resolve("tiny-target"))
    odd = {**vars(config), "intermediate_size": 385}
    with pytest.raises(SettingError, match=r"MLP width \(385\)"):
        part_of(type(config)(**odd), 2)
    heads = {**vars(config), "num_heads": 12, "num_kv_heads": 4}
    with pytest.raises(SettingError, match=r"KV heads \(4\)"):
        part_of(type(config)(**heads), 6)


@pytest.mark.parametrize(
    ("devices", "why"),
    [
        (["cpu", "cuda:0"], "cpu, cuda:0"),
        (["mps", "mps"], "CUDA devices, or cpu"),
        (["cuda:1", "cuda:1"], "its own GPU"),
    ],
)
def test_a_spread_that_cannot_be(devices: list[str], why: str) -> None:
    with pytest.raises(SettingError, match=why):
        RankGroup(tuple(map(torch.device, devices)), "tiny-target", None)
