"""A scenario for tests of `lr.model.ranks`, in which a cache changes in every way."""

from __future__ import annotations

import torch
from torch import Tensor

from lr.engine.readings import read
from lr.engine.runner import ModelRunner
from lr.model.qwen import CausalLM


def scenario(model: CausalLM, vocabulary: int) -> Tensor:
    """Everything that a model computes in a scenario with a prompt in pieces, forks,
    copy on write, cut branches and hidden states, in a row.
    """
    runner = ModelRunner(model, num_blocks=24, block_size=4, max_batch_tokens=8)
    noise = torch.Generator().manual_seed(5)

    def tokens(count: int) -> list[int]:
        return torch.randint(vocabulary, (count,), generator=noise).tolist()

    results: list[Tensor] = []
    trunk = runner.open(tokens(11))  # more than one forward takes
    results += runner.forward([trunk], "all")
    fork = runner.fork(trunk)  # block 3 is shared and partly filled
    trunk.extend(tokens(1))
    fork.extend(tokens(3))
    results += runner.forward([trunk, fork], [1, 2])  # one of them copies the block
    other = runner.open(tokens(4))
    for _ in range(3):
        for branch in (trunk, fork, other):
            branch.extend(tokens(1))
        results += runner.forward([trunk, fork, other])
    runner.rewind(fork, 9)
    fork.extend(tokens(2))
    for reading in read(runner, [fork]):
        results += reading
    runner.close(trunk)
    other.extend(tokens(5))
    results += runner.forward([other], "all")  # into blocks that another branch had
    assert runner.cache.copied_blocks == 1
    for branch in (fork, other):
        runner.close(branch)
    return torch.cat([result.double().flatten() for result in results])
