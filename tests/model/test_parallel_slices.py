"""Who has which slice: each rank reads only its own, and what cannot be divided is
refused. (`test_parallel.py`: together they compute what one rank computes.)
"""

import math
from dataclasses import replace

import pytest
import torch

from lr.errors import SettingError
from lr.measure.dummy import SHAPES
from lr.model.config import read_config
from lr.model.files import resolve
from lr.model.ranks import cuts, part_of
from lr.model.weights import pieces

CPU = torch.device("cpu")
TINY = read_config(resolve("tiny-target"))


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
    "changes, ranks, noun",
    [
        ({}, 3, r"query heads \(4\)"),
        ({"intermediate_size": 385}, 2, r"MLP width \(385\)"),
        ({"num_heads": 12, "num_kv_heads": 4}, 6, r"KV heads \(4\)"),
    ],
)
def test_what_cannot_be_divided_is_refused(changes, ranks, noun):
    with pytest.raises(SettingError, match=noun):
        part_of(replace(TINY, **changes), ranks)
