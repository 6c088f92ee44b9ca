"""Random models, questions and settings. With the exact verifier and rule `match`, an
answer has the tokens of plain decoding, alone or in a batch; what a cache
admits never runs out of blocks."""

from contextlib import suppress
from random import Random

import pytest
import torch
from model_kit import write_checkpoint
from tests_root import cases
from toy_kit import random_options

from lr.errors import ContextError
from lr.kvcache.invariant import check_cache
from lr.reasoner import Reasoner

WORDS = (
    "Ann Ben has 3 more coins than 47 At first Then gets How many . , half as".split()
)
CONTEXT = 192


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """Two models hardly ever agree; one that drafts for itself often does, as far as
    its window goes."""
    folder = tmp_path_factory.mktemp("random")
    sizes = {"target": (0, CONTEXT), "other": (1, CONTEXT), "short": (0, 56)}
    return {
        name: write_checkpoint(
            folder / name, seed=seed, layers=1 + seed, context=context
        )
        for name, (seed, context) in sizes.items()
    }


@pytest.fixture(scope="module", params=["other", "target", "short"])
def reasoner(names, request):
    draft = names[request.param]
    with Reasoner(names["target"], draft, "exact", dtype=torch.float64) as made:
        yield made


def random_question(rng, longest):
    return " ".join(rng.choices(WORDS, k=rng.randint(1, longest)))


def answer_together(reasoner, questions, options, concurrency):
    runs = []
    for question in questions:
        with suppress(ContextError):
            runs.append(reasoner.run(question, options))
    room = reasoner.engine.num_blocks
    runs = [run for run in runs if room is None or run.question.blocks <= room]
    for _ in reasoner.engine.serve(runs, concurrency):
        pass
    return runs


@pytest.mark.parametrize("seed", range(cases(8)))
def test_answers_are_those_of_plain_decoding(reasoner, seed):
    rng = Random(seed)
    options = random_options(rng)
    questions = [random_question(rng, rng.choice([5, 60])) for _ in range(3)]
    runs = answer_together(reasoner, questions, options, rng.randint(1, 4))
    assert len(runs) == 3
    for run in runs:
        plain = reasoner.generate(run.question.text, **{**vars(options), "mode": "ar"})
        assert [s.tokens for s in run.steps] == [s.tokens for s in plain.steps]


@pytest.mark.parametrize("seed", range(cases(4)))
def test_what_is_admitted_never_runs_out_of_blocks(names, seed):
    """Prompts up to the context, some questions twice, few or many cache blocks."""
    rng = Random(seed)
    num_blocks = rng.choice([None, 40, 120])
    models = names["target"], names["other"]
    with Reasoner(*models, "random:0.5", num_blocks=num_blocks) as reasoner:
        questions = [random_question(rng, rng.choice([4, CONTEXT])) for _ in range(4)]
        questions += rng.choices(questions, k=2)
        answer_together(reasoner, questions, random_options(rng), rng.randint(1, 6))
        for runners in reasoner.engine.runners.values():
            for runner in runners.idle:
                check_cache(runner.cache)
                assert runner.cache.pool.num_used == 0
