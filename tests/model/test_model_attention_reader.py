"""A branch that is alone in its batch is read in place where its blocks lie in a row, else
gathered: nobody can see the difference.
"""

from __future__ import annotations

import pytest
import torch
from model_kit import hf_model, random_tokens

from lr.engine.runner import ModelRunner
from lr.kvcache.branch import Branch
from lr.model.attention import paged_attention, reference_attention
from lr.model.qwen import CausalLM
from lr.model.weights import load_model

TOKENS = random_tokens(40).tolist()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    directory = tmp_path_factory.mktemp("reader")
    hf_model("qwen3").save_pretrained(directory)
    return load_model(directory, dtype=torch.float64)


def written(runner: ModelRunner, *, with_neighbour: bool) -> Branch:
    """A branch of 20 tokens in blocks of 4; a neighbour that grows in turn with it takes every
    other block.
    """
    branch = runner.open(TOKENS[:4])
    both = [branch, runner.open(TOKENS[20:24])] if with_neighbour else [branch]
    for start in range(4, 24, 4):
        runner.feed(both)
        if start < 20:
            for i, one in enumerate(both):
                one.extend(TOKENS[20 * i + start : 20 * i + start + 4])
    return branch


@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_in_place_or_gathered(model: CausalLM, chunk: int) -> None:
    in_a_row, scattered, plain = (
        ModelRunner(model, num_blocks=20, block_size=4, backend=backend)
        for backend in (paged_attention, paged_attention, reference_attention)
    )
    branches = [
        written(in_a_row, with_neighbour=False),
        written(scattered, with_neighbour=True),
        written(plain, with_neighbour=False),
    ]
    assert branches[0].table.blocks == [0, 1, 2, 3, 4]
    assert branches[1].table.blocks == [0, 2, 4, 6, 8]
    results = []
    for runner, branch in zip((in_a_row, scattered, plain), branches, strict=True):
        branch.extend(TOKENS[20 : 20 + chunk])
        results += runner.feed([branch], logits="all")
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-12)
    torch.testing.assert_close(results[0], results[2], rtol=0, atol=1e-12)
