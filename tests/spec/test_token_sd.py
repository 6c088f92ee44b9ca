"""Token-level speculation inside steps: what must not change, whatever is drafted,
accepted or cut.
"""

from dataclasses import replace
from functools import cache, partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from law_kit import Choices
from model_kit import random_model
from toy_kit import (
    DRAFTERS,
    PROMPT,
    RULES,
    fits,
    tokens_of,
    writer,
)

from lr.page_engine import emission
from lr.spec import acceptance, drafters, write
from lr.spec.proposal import Proposal
from lr.spec.protocol import Limits
from lr.spec.sampling import distribution
from lr.spec.token_sd import Drafter, Speculation
from lr.types import EmittedStep, Finish, Origin, Role, SamplingParams


def decode_plainly(prompt, target, limits):
    """Plain decoding of the target, step by step: the baseline of every comparison,
    with the keys that Lookahead Reasoning uses.
    """
    branch = target.runner.open(prompt)
    try:
        index = written = 0
        while limit := limits.step_limit(written):
            [step] = target.write([target.job(branch, index, limit)])
            emitted = EmittedStep(index, step, Origin.TARGET)
            target.trace.record(emission(emitted))
            yield emitted
            if step.finish is Finish.EOS:
                return
            index, written = index + 1, written + len(step.tokens)
    finally:
        target.close(branch)


MODELS = [random_model(seed) for seed in (0, 1, 3)]
LIMITS = Limits(40, 14)
PAIRS = [(name, rule) for name in DRAFTERS for rule in RULES if fits(name, rule)]


def speculating(model, drafter, rule, k, **options):
    target = writer(Role.TARGET, MODELS[model], **options)
    speculation = Speculation(drafter, RULES[rule], k)
    target.config = replace(target.config, speculation=speculation)
    return target


@cache
def plain(model, **options):
    target = writer(Role.TARGET, MODELS[model], **options)
    return tokens_of(decode_plainly(PROMPT, target, LIMITS))


@pytest.mark.parametrize("name, rule", PAIRS)
def test_greedy_speculation_is_greedy_decoding(name, rule):
    """k up to 8, random models, fp64: not one token differs, under any rule and
    drafter."""
    for k in (1, 3, 8):
        model = k % len(MODELS)
        target = speculating(model, DRAFTERS[name](SamplingParams(0.0)), rule, k)
        assert tokens_of(decode_plainly(PROMPT, target, LIMITS)) == plain(model)
        assert target.runner.cache.pool.num_used == 0


@pytest.mark.parametrize(
    "name, rule",
    [(n, rule) for n, rule in PAIRS if "shared" not in n and rule != "match"],
)
def test_the_law_of_a_step_is_the_targets(name, rule, monkeypatch):
    """By enumeration of every draw and every decision (as of the rules alone in
    `test_acceptance.py`), through the caches and rounds of a whole step."""
    choices = Choices()
    monkeypatch.setattr(acceptance, "pick", choices.pick)
    for module in (acceptance, drafters):
        monkeypatch.setattr(module, "sample", choices.sample)
    sampling = SamplingParams(1.0, top_k=2)
    monkeypatch.setattr(
        write,
        "draw",
        lambda logits, _, keys: choices.sample(distribution(logits, sampling), keys),
    )
    drafter = DRAFTERS[name](sampling)
    law, plain = (
        choices.enumerate(partial(one_step, target, sampling))
        for target in (speculating(0, drafter, rule, 2), writer(Role.TARGET, MODELS[0]))
    )
    assert law.keys() == plain.keys() and len(law) > 3
    assert dict(law) == pytest.approx(dict(plain), abs=1e-12)


def one_step(target, sampling):
    target.config = replace(target.config, sampling=sampling)
    branch = target.runner.open(PROMPT)
    [step] = target.write([target.job(branch, 0, 3)])
    target.close(branch)
    return step.tokens


@pytest.mark.parametrize("name", DRAFTERS)
@given(
    seed=st.integers(0, 999),
    k=st.integers(1, 8),
    model=st.integers(0, 2),
    temperature=st.sampled_from([0.6, 1.3]),
)
@settings(max_examples=6, deadline=None)
def test_matching_emits_what_plain_decoding_draws(name, seed, k, model, temperature):
    """At any temperature: sample matching uses the keys of plain decoding, so
    speculation changes no token.
    """
    options = {"temperature": temperature, "seed": seed}
    drafter = DRAFTERS[name](SamplingParams(temperature))
    target = speculating(model, drafter, "match", k, **options)
    emitted = tokens_of(decode_plainly(PROMPT, target, LIMITS))
    assert emitted == plain(model, **options)


@pytest.mark.parametrize("name, rule", PAIRS)
def test_branches_of_a_batch_do_not_influence_each_other(name, rule):
    """A batch gives what separate runs give, and permuting it permutes the outputs,
    though each branch accepts another length.
    """
    prompts = [[5, 6, 7], [8], [5, 6, 5, 6, 5], [9, 0, 9, 0, 9, 0, 9]]

    def run(*order):
        """Two steps of each branch, by prompt and index."""
        drafter = DRAFTERS[name](SamplingParams(0.9))
        target = speculating(0, drafter, rule, 4, temperature=0.9, seed=3)
        branches = [target.runner.open(prompts[i]) for i in order]
        written = {}
        for index in range(2):
            keys = [(i, index) for i in order]
            jobs = [
                target.job(branch, 100 * i + index, 14)
                for i, branch in zip(order, branches, strict=True)
            ]
            written |= zip(keys, target.write(jobs), strict=True)
            assert all(b.num_computed_tokens == len(b) - 1 for b in branches)
        return written

    together = run(0, 1, 2, 3)
    assert run(2, 0, 3, 1) == together
    assert run(0) | run(1) | run(2) | run(3) == together


class Prophet(Drafter):
    """Proposes the true continuation, so that ends and boundaries fall inside accepted
    runs."""

    name = "prophet"

    def __init__(self, text):
        self.text = text

    def propose(self, contexts, k):
        runs = [self.text[len(c.tokens) :][: min(k, c.limit)] for c in contexts]
        return [Proposal.chain(run) for run in runs]


@given(seed=st.integers(0, 999), k=st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_the_end_of_text_and_boundaries_inside_accepted_runs(seed, k):
    """Everything proposed is right, junk after the end included: nothing after the end
    or the boundary is emitted, at any offset."""
    options = {"temperature": 1.2, "seed": seed}
    target = writer(Role.TARGET, MODELS[0], **options)
    expected = list(decode_plainly(PROMPT, target, LIMITS))
    prophet = Prophet([*PROMPT, *tokens_of(expected), *[5] * 9])
    target = speculating(0, prophet, "match", k, **options)
    assert list(decode_plainly(PROMPT, target, LIMITS)) == expected
