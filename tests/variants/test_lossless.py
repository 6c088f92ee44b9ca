"""Lossless step rejection: exactly the target's distribution over steps, by enumeration
on a small world, with the very functions that the variant runs; and in a run on models,
by a chi-square test.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import product

import pytest
import torch
from acceptance_kit import pair as models_of
from reasoner_kit import write_checkpoint
from scipy import stats
from torch import Tensor

from lr.errors import SettingError
from lr.reasoner import Reasoner
from lr.rng import Stream
from lr.spec.variant import Correction
from lr.spec.verifiers.base import Pair
from lr.theory.exact import Model
from lr.types import Finish, SamplingParams, Step
from lr.variants.lossless import StepRejection, corrects, lossless, stays

FALSE_ALARM = 1e-6


def steps(v: int, longest: int) -> list[tuple[int, ...]]:
    """All steps over v tokens: they end with token 0, or are cut at `longest`
    tokens."""
    whole = [
        (*more, 0) for n in range(longest) for more in product(range(1, v), repeat=n)
    ]
    return whole + list(product(range(1, v), repeat=longest))


def law(model: Model, all_steps: list[tuple[int, ...]]) -> Tensor:
    """The probability of each step under a model."""
    rows = [
        math.prod(float(model(step[:i])[token]) for i, token in enumerate(step))
        for step in all_steps
    ]
    return torch.tensor(rows, dtype=torch.float64)


def log(p: float) -> float:
    return math.log(p) if p > 0 else -math.inf


@pytest.mark.parametrize("kind", ["random", "peaked", "zeros", "equal"])
@pytest.mark.parametrize("seed", range(3))
def test_the_emitted_step_has_the_targets_distribution(seed: int, kind: str) -> None:
    """All draft steps, all numbers, all attempts added up; cut steps are always
    rejected."""
    v, longest = 3, 3
    world = steps(v, longest)
    target, draft = models_of(kind, seed, v)
    p, q = law(target, world), law(draft, world)
    assert float(p.sum()) == pytest.approx(1) and float(q.sum()) == pytest.approx(1)
    cut = torch.tensor([step[-1] != 0 for step in world])
    accepted = torch.tensor(
        [
            0.0 if is_cut or q_i == 0 else q_i * stays(log(p_i), log(q_i))
            for p_i, q_i, is_cut in zip(
                p.tolist(), q.tolist(), cut.tolist(), strict=True
            )
        ],
        dtype=torch.float64,
    )
    kept = torch.tensor(
        [
            p_i * corrects(log(p_i), -math.inf if is_cut else log(q_i))
            if p_i > 0
            else 0.0
            for p_i, q_i, is_cut in zip(
                p.tolist(), q.tolist(), cut.tolist(), strict=True
            )
        ],
        dtype=torch.float64,
    )
    rejected = 1.0 - float(accepted.sum())
    emitted = accepted + rejected * kept / kept.sum()
    assert float((emitted - p).abs().max()) < 1e-12
    # Redrawing until a step is kept costs 1 / P(kept) steps: one per position in
    # expectation.
    assert rejected / float(kept.sum()) == pytest.approx(1.0)
    if kind == "random":  # a plain step of the target as correction would be biased
        assert float((accepted + rejected * p - p).abs().max()) > 1e-3


def test_the_objects_decide_with_these_probabilities() -> None:
    rejection = StepRejection(None)  # type: ignore[arg-type]  # it asks no draft here
    rejection.log_q = lambda prefix, step, sampling: math.log(0.3)  # type: ignore[method-assign]
    step = Step((1, 0), Finish.BOUNDARY)
    logs = (math.log(0.2),), (math.log(0.5),)
    verdicts = [
        rejection.judge(
            [
                Pair(
                    (1,),
                    step,
                    None,
                    None,
                    None,
                    *logs,
                    stream=Stream.root(1).fold_in(i),
                )
            ]
        )[0]
        for i in range(2000)
    ]
    kept = sum(verdict.aligned for verdict in verdicts)
    assert stats.binomtest(kept, 2000, 0.2 / 0.5).pvalue > FALSE_ALARM
    correction = Correction((1,), (), SamplingParams(), logprobs=(math.log(0.4),))
    chance = 1 - 0.3 / 0.4
    assert rejection.keep(correction, step, chance - 1e-9)
    assert not rejection.keep(correction, step, chance + 1e-9)
    cut = Step((1, 1), Finish.LENGTH)
    assert rejection.keep(correction, cut, 0.999999)
    pair = Pair((1,), step)
    with pytest.raises(SettingError, match="needs width 1"):
        rejection.keep(Correction((1,), (pair, pair), SamplingParams()), step, 0.5)


def test_on_models_the_first_step_is_distributed_as_the_targets(tmp_path) -> None:
    """Steps of two tokens of which few are possible (top-k 2): 300 samples in each
    mode, compared by a chi-square test of homogeneity.
    """
    target = write_checkpoint(tmp_path / "target", seed=1, layers=1)
    draft = write_checkpoint(tmp_path / "draft", seed=2)
    how = {
        "segmenter": "fixed",
        "segment_tokens": 2,
        "max_tokens": 2,
        "temperature": 1.0,
    }
    with Reasoner(target, draft, "exact") as reasoner:
        variant, counted = lossless(reasoner), []
        for mode, own in (("ar", None), ("lr", variant)):
            answers = (
                reasoner.generate(
                    "How many?",
                    mode=mode,
                    variant=own,
                    sample=i,
                    top_k=2,
                    depth=1,
                    **how,
                )
                for i in range(300)
            )
            counted.append(Counter(answer.tokens for answer in answers))
    seen = sorted(set(counted[0]) | set(counted[1]))
    table_ = [[counter[one] + 0.5 for one in seen] for counter in counted]
    assert len(seen) >= 2
    assert stats.chi2_contingency(table_).pvalue > FALSE_ALARM
