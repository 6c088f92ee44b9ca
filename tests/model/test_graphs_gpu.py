"""CUDA graphs on a GPU: they compute what ordinary forwards compute, and no graph
touches what belongs to others, dead or running at the same time.
"""

import threading
import time
from dataclasses import replace

import pytest
import torch

from lr.engine.runner import ModelRunner
from lr.measure.dummy import SHAPES, random_model
from lr.model.attention_choice import equip
from lr.model.device import own_stream

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
GIB = 1 << 30


def wide_model(name, layers=4):
    """A few layers as wide as real ones: cuBLAS splits the sums of their products with
    several rows, which takes its workspace."""
    config = replace(SHAPES[name], num_layers=layers, vocab_size=2048)
    model = random_model(config, torch.bfloat16, CUDA)
    equip(model)
    if not model.replayable:
        pytest.skip(f"attention {model.attention.name} is not recorded")
    return model


class Decoder:
    """A runner whose forward of a few rows can be repeated."""

    def __init__(self, model, rows, length=200):
        self.runner = ModelRunner(model, num_blocks=rows * (length // 16 + 4))
        prompts = [[(7 * i + 3 * j) % 2048 for i in range(length)] for j in range(rows)]
        self.branches = [self.runner.open(prompt) for prompt in prompts]
        self.runner.forward(self.branches)

    def logits(self):
        """Of one more token per branch, which is forgotten again."""
        for branch in self.branches:
            branch.append(5)
        logits = torch.stack(self.runner.forward(self.branches))
        for branch in self.branches:
            self.runner.rewind(branch, len(branch) - 1)
        return logits


@pytest.mark.parametrize("rows", [1, 4, 8])
def test_replayed_forwards_are_the_ordinary_ones(rows):
    model = wide_model("Qwen3-0.6B")
    replayed = Decoder(model, rows).logits()
    model.graphs = False
    ordinary = Decoder(model, rows).logits()
    distance = (replayed.float().softmax(-1) - ordinary.float().softmax(-1)).abs()
    assert 0.5 * distance.sum(-1).max() <= 0.05


def test_graphs_survive_the_death_of_others():
    """The memory that a dead runner gives back is overwritten, and read again."""
    model = wide_model("Qwen3-8B")
    dies, lives = Decoder(model, 4), Decoder(model, 4)
    before = lives.logits().clone()
    dies.logits()
    dies.runner.end()
    del dies
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    others = torch.full((2 * GIB,), 77, dtype=torch.int8, device=CUDA)
    after = [lives.logits().clone() for _ in range(20)]
    assert all(torch.equal(before, each) for each in after)
    assert bool((others == 77).all())


def test_graphs_of_two_models_may_run_at_the_same_time():
    """Each on its own thread and stream, as a judge beside a target."""
    decoders = [Decoder(wide_model(name), 8) for name in ("Qwen3-8B", "Qwen2.5-7B")]
    alone = [decoder.logits().clone() for decoder in decoders]
    wrong = []

    def repeat(number):
        with own_stream(CUDA) as work:
            end = time.monotonic() + 2
            while time.monotonic() < end:
                with work():
                    if not torch.equal(decoders[number].logits(), alone[number]):
                        wrong.append(number)

    threads = [threading.Thread(target=repeat, args=(n,)) for n in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
