"""Lossless step rejection: exactly the target's distribution over steps, by enumeration
on a small world, with the very functions that the variant runs; and in a run on models,
by a chi-square test.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
import torch
from acceptance_kit import pair as models_of
from reasoner_kit import write_checkpoint
from scipy import stats

from lr.errors import SettingError
from lr.lookahead import QUESTION
from lr.reasoner import Reasoner
from lr.rng import Stream
from lr.spec.variant import Correction, Corrector, Variant
from lr.spec.verifiers.base import Pair, Requires, Verifier
from lr.theory.exact import Model
from lr.types import Finish, SamplingParams, Step, Verdict
from lr.variants.lossless import StepRejection, corrects, lossless, stays

FALSE_ALARM = 1e-6
V, LONGEST = 3, 3
ENDED = [
    (*tokens, 0) for n in range(LONGEST) for tokens in product(range(1, V), repeat=n)
]
CUT = list(product(range(1, V), repeat=LONGEST))
"""All steps: they end with token 0, or are cut at `LONGEST` tokens."""


def log_law(model: Model) -> list[float]:
    """The log-probability of each step under a model."""
    return [
        float(sum(model(step[:i])[token].log() for i, token in enumerate(step)))
        for step in (*ENDED, *CUT)
    ]


@pytest.mark.parametrize("kind", ["random", "zeros", "equal"])
@pytest.mark.parametrize("seed", range(3))
def test_the_emitted_step_has_the_targets_distribution(seed: int, kind: str) -> None:
    """All draft steps, all numbers, all attempts added up; a cut draft is always
    rejected."""
    target, draft = models_of(kind, seed, V)
    log_p, log_q = log_law(target), log_law(draft)
    p = torch.tensor(log_p, dtype=torch.float64).exp()
    log_q[len(ENDED) :] = [-math.inf] * len(CUT)
    accepted = torch.zeros_like(p)
    redrawn = torch.zeros_like(p)
    for i, (lp, lq) in enumerate(zip(log_p, log_q, strict=True)):
        if lq > -math.inf:
            accepted[i] = math.exp(lq) * stays(lp, lq)
        if lp > -math.inf:
            redrawn[i] = p[i] * corrects(lp, lq)
    rejected = 1 - accepted.sum()
    emitted = accepted + rejected * redrawn / redrawn.sum()
    assert float((emitted - p).abs().max()) < 1e-12
    # Redrawing until a step stays costs 1 / P(stays): one per position on average.
    assert float(rejected / redrawn.sum()) == pytest.approx(1)
    if kind == "random":  # a plain step of the target as correction would be biased
        assert (accepted + rejected * p - p).abs().max() > 1e-3


def test_the_objects_decide_with_these_probabilities() -> None:
    rejection = StepRejection(None)  # type: ignore[arg-type]  # it asks no draft here
    rejection.log_q = lambda correction, step: math.log(0.3)  # type: ignore[method-assign]
    step = Step((1, 0), Finish.BOUNDARY)
    logs = {"target_sampling": (math.log(0.2),), "draft_sampling": (math.log(0.5),)}
    pairs = [
        Pair((1,), step, stream=Stream.root(1).fold_in(i), **logs) for i in range(2000)
    ]
    accepted = sum(verdict.aligned for verdict in rejection.judge(pairs))
    assert stats.binomtest(accepted, 2000, 0.2 / 0.5).pvalue > FALSE_ALARM
    correction = Correction((1,), (), SamplingParams(), logprobs=(math.log(0.4),))
    chance = 1 - 0.3 / 0.4
    assert rejection.keep(correction, step, chance - 1e-9)
    assert not rejection.keep(correction, step, chance + 1e-9)
    two = Correction((1,), tuple(pairs[:2]), SamplingParams())
    with pytest.raises(SettingError, match="width"):
        rejection.keep(two, step, 0.5)


def test_a_cut_step_of_the_target_is_always_kept() -> None:
    rejection = StepRejection(None)  # type: ignore[arg-type]
    correction = Correction((1,), (), SamplingParams(), logprobs=(-1.0,))
    assert rejection.keep(correction, Step((1, 1), Finish.LENGTH), 0.999999)


def test_on_models_the_first_step_is_distributed_as_the_targets(tmp_path: Path) -> None:
    """Steps of two tokens of which few are possible (top-k 2): 300 samples in each
    mode, compared by a chi-square test of homogeneity."""
    target = write_checkpoint(tmp_path / "target", seed=1, layers=1)
    draft = write_checkpoint(tmp_path / "draft", seed=2)
    options = {"segmenter": "fixed", "segment_tokens": 2, "max_tokens": 2}
    options |= {"temperature": 1.0, "top_k": 2, "depth": 1}
    with Reasoner(target, draft, "exact") as reasoner:
        counts = []
        for mode in ({"mode": "ar"}, {"variant": lossless(reasoner)}):
            answers = [
                reasoner.generate("How many?", sample=i, **options, **mode)  # type: ignore[arg-type]
                for i in range(300)
            ]
            counts.append(Counter(answer.tokens for answer in answers))
    steps = sorted({*counts[0], *counts[1]})
    assert len(steps) >= 2
    table = [[count[step] + 0.5 for step in steps] for count in counts]
    assert stats.chi2_contingency(table).pvalue > FALSE_ALARM


class Never(Verifier):
    name = "never"
    requires = Requires.NOTHING

    def judge(self, pairs):
        return [Verdict(False, "never") for _ in pairs]


class Again(Corrector):
    """Discards two steps, whatever they are."""

    def keep(self, correction: Correction, step: Step, number: float) -> bool:
        return correction.attempt == 2


def test_a_discarded_step_leaves_nothing_behind() -> None:
    """Greedy, the third attempt writes what the first one wrote."""
    options = {"mode": "lr", "temperature": 0, "max_tokens": 40}
    with Reasoner("tiny-target", "tiny-draft", dtype=torch.float64) as reasoner:
        plain, again = (
            reasoner.generate(
                QUESTION, variant=Variant(Never(), corrector=part), **options
            )
            for part in (None, Again())
        )
    assert again.stats.target_tokens > 2 * plain.stats.target_tokens
    assert again.tokens == plain.tokens
