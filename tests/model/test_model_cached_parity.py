"""A chunk after a cache: m tokens fed earlier, then c more, against transformers'
forward over the whole sequence.

Blocks hold 16 tokens; m stands before, at and after their edges. In the caches here
free memory is full of NaN, and so is every block that is given back: whoever reads what
is not the branch's own fails.
"""

from functools import cache

import pytest
import torch
from model_kit import KINDS, YARN, hf_logits, hf_model, poisoned, random_tokens

from lr.engine.runner import ModelRunner
from lr.kvcache.invariant import check_cache
from lr.model.attention import REFERENCE, SDPA
from lr.model.weights import load_model

CACHED = (0, 1, 15, 16, 17, 40)
CHUNKS = (1, 2, 5, 16, 33)
TOKENS = random_tokens(max(CACHED) + max(CHUNKS))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """kind -> (directory, transformers' logits [t, v] of TOKENS), made once. Heads in
    groups of two, positions beyond YaRN's 32.
    """

    @cache
    def make(kind):
        directory = tmp_path_factory.mktemp(kind)
        model = hf_model(kind, rope_parameters=YARN)
        model.save_pretrained(directory)
        return directory, hf_logits(model, TOKENS)

    return make


def runner_for(directory, attention):
    model = load_model(directory, dtype=torch.float64)
    model.attention = attention
    return poisoned(ModelRunner(model, num_blocks=200))


@pytest.mark.parametrize("attention", [REFERENCE, SDPA])
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_after_a_cache_in_one_ragged_batch(checkpoint, kind, attention):
    """All branches of the grid in one forward, in a scrambled order; those with nothing
    cached are prompts."""
    directory, expected = checkpoint(kind)
    runner = runner_for(directory, attention)
    grid = [(m, c) for c in CHUNKS for m in CACHED]
    grid = [grid[7 * i % len(grid)] for i in range(len(grid))]
    branches = [runner.open(TOKENS[: m or c].tolist()) for m, c in grid]
    cached = [branch for branch, (m, _) in zip(branches, grid, strict=True) if m]
    for branch, logits in zip(cached, runner.forward(cached), strict=True):
        m = len(branch)
        torch.testing.assert_close(logits, expected[m - 1], rtol=0, atol=1e-10)
    for branch, (m, c) in zip(branches, grid, strict=True):
        branch.extend(TOKENS[m : m + c].tolist() if m else [])
    for (m, c), logits in zip(
        grid, runner.forward(branches, logits="all"), strict=True
    ):
        torch.testing.assert_close(logits, expected[m : m + c], rtol=0, atol=1e-10)
    check_cache(runner.cache, [branch.table for branch in branches])
