"""Who has which slice: the parts put together are the whole, each rank reads only its
own, and what cannot be divided is refused.
"""

import math
from dataclasses import replace

import pytest
import torch
from model_kit import KINDS, hf_model

from lr.errors import SettingError
from lr.measure.dummy import SHAPES
from lr.model.config import read_config
from lr.model.files import resolve
from lr.model.ranks import cuts, load_part, part_of
from lr.model.weights import load_model, pieces

CPU = torch.device("cpu")
WIDE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 250,
}
"""The eighth part of a norm is nothing beside these."""
TINY = read_config(resolve("tiny-target"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [2, 4])
def test_the_parts_are_the_whole(kind, size, tmp_path):
    untied = {"num_hidden_layers": 1, "tie_word_embeddings": False}
    hf_model(kind, **WIDE, **untied).save_pretrained(tmp_path)
    config = read_config(tmp_path)
    ranks = [load_part(tmp_path, [CPU] * size, None, rank) for rank in range(size)]
    for name, parameter in load_model(tmp_path).named_parameters():
        slices = [rank.get_parameter(name) for rank in ranks]
        if name.endswith("norm.weight"):
            assert all(torch.equal(part, parameter) for part in slices)
        elif name in ("embedding.weight", "head.weight"):
            rows = torch.cat(slices)
            assert torch.equal(rows[: config.vocab_size], parameter)
            assert not rows[config.vocab_size :].any()
        elif name.endswith(("out.weight", "down.weight")):
            assert torch.equal(torch.cat(slices, dim=1), parameter)
        else:  # q, k, v or gate, up are one matrix
            sizes = [config.intermediate_size] * 2
            if "qkv" in name:
                heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
                sizes = [count * config.head_dim for count in heads]
            parts = [part.split([n // size for n in sizes]) for part in slices]
            columns = [torch.cat(column) for column in zip(*parts, strict=True)]
            assert torch.equal(torch.cat(columns), parameter)


def test_ranks_that_outnumber_the_kv_heads_share_them():
    """8 query heads, 2 KV heads, 4 ranks: query heads 6 and 7 of rank 3 look at KV head
    1, which rank 2 has too.
    """
    config = replace(TINY, num_heads=8, num_kv_heads=2, head_dim=16)
    _, _, q, k, *_ = zip(*(cuts(config, rank, 4) for rank in range(4)), strict=True)
    rows = [
        [(cut.slices[0].start, cut.slices[0].stop) for cut in each] for each in (q, k)
    ]
    assert rows[0] == [(0, 32), (32, 64), (64, 96), (96, 128)]
    assert rows[1] == [(0, 16), (0, 16), (16, 32), (16, 32)]


@pytest.mark.parametrize("tied", [False, True])
def test_a_rank_reads_its_part_and_no_more(tied):
    """Of a large model, whose norms, which all read, are nothing beside the rest."""
    config = replace(SHAPES["Qwen3-8B"], tie_word_embeddings=tied)
    total = sum(math.prod(piece.shape) for piece in pieces(config))
    for rank in range(4):
        sizes = (
            [cut.stop - cut.start for cut in piece.slices]
            for piece in cuts(config, rank, 4)
        )
        assert sum(map(math.prod, sizes)) == pytest.approx(total / 4, rel=0.001)


@pytest.mark.parametrize(
    ("changes", "ranks", "noun"),
    [
        ({}, 3, r"query heads \(4\)"),
        ({"intermediate_size": 385}, 2, r"MLP width \(385\)"),
        ({"num_heads": 12, "num_kv_heads": 4}, 6, r"KV heads \(4\)"),
    ],
)
def test_what_cannot_be_divided_is_refused(changes, ranks, noun):
    with pytest.raises(SettingError, match=noun):
        part_of(replace(TINY, **changes), ranks)
