"""Token-level speculation inside steps: what must not change, whatever is drafted,
accepted or cut.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
import torch
from drafter_kit import DRAFTERS, RULES, fits, runner_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from spec_kit import (
    EOS,
    PROMPT,
    KitWriter,
    decode_plainly,
    random_model,
    tokens_of,
    writer,
)

from lr.errors import SettingError
from lr.spec.acceptance import BlockRule, MatchRule
from lr.spec.drafters import LookupDrafter, ModelDrafter, TreeDrafter
from lr.spec.proposal import Proposal
from lr.spec.protocol import Limits
from lr.spec.sampling import distribution
from lr.spec.token_sd import Drafter, Speculation, run_target
from lr.trace import TokenRound, Trace
from lr.types import Coupling, Finish, Role, SamplingParams, Step

MODELS = [random_model(seed) for seed in (0, 1, 3)]
LIMITS = Limits(40, 14)
PAIRS = [(name, rule) for name in DRAFTERS for rule in RULES if fits(name, rule)]


def speculating(
    model: int, drafter: Drafter, rule: str, k: int, **how: object
) -> KitWriter:
    made = writer(Role.TARGET, MODELS[model], **how)  # type: ignore[arg-type]
    made.config = replace(made.config, speculation=Speculation(drafter, RULES[rule], k))
    return made


@cache
def plain(model: int, **how: object) -> list[int]:
    return tokens_of(
        decode_plainly(PROMPT, writer(Role.TARGET, MODELS[model], **how), LIMITS)
    )


@pytest.mark.parametrize(("name", "rule"), PAIRS)
def test_greedy_speculation_is_greedy_decoding(name: str, rule: str) -> None:
    """k up to 8, random models, fp64: not one token differs, under any rule and
    drafter."""
    for k in (1, 3, 8):
        made = speculating(
            k % len(MODELS), DRAFTERS[name](SamplingParams(0.0)), rule, k
        )
        assert tokens_of(decode_plainly(PROMPT, made, LIMITS)) == plain(k % len(MODELS))
        assert made.runner.cache.pool.num_used == 0  # type: ignore[attr-defined]


LAWS = [
    ("draft", "reject"),
    ("draft", "block"),
    ("draft", "match"),
    ("tree", "reject"),
    ("draft shared", "match"),
]
FALSE_ALARM = 1e-6 / (2 * len(LAWS))


@pytest.mark.parametrize(("name", "rule"), LAWS)
def test_the_law_of_two_tokens(name: str, rule: str) -> None:
    """Thousands of two-token continuations of one prompt at temperature 1, in batches
    of forks, against the target's own rows.

    The exact law is proved by enumeration (`test_acceptance_law.py`); this is the same
    claim for the whole machine: ragged batches, caches, keyed draws. False alarm <=
    1e-6 over all rules.
    """
    count, batches = 100, 30
    how = {"temperature": 1.0, "seed": 11, "num_blocks": 800}
    made = speculating(0, DRAFTERS[name](SamplingParams(1.0)), rule, 3, **how)
    root = made.runner.open(PROMPT)
    first = distribution(made.runner.forward([root])[0][None], made.config.sampling)[0]
    made.runner.rewind(root, len(PROMPT) - 1)
    root.append(PROMPT[-1])
    pairs: list[tuple[int, ...]] = []
    for batch in range(batches):
        branches = [made.runner.fork(root) for _ in range(count)]
        jobs = [
            made.job(branch, batch * count + i, 2) for i, branch in enumerate(branches)
        ]
        pairs += [step.tokens for step in made.write(jobs)]
        for branch in branches:
            made.close(branch)
    follow = Counter(pair[0] for pair in pairs if len(pair) == 2)
    [(before, _)] = follow.most_common(1)
    root.append(before)
    second = distribution(made.runner.forward([root])[0][None], made.config.sampling)[0]
    assert agrees(first, [pair[0] for pair in pairs])
    assert agrees(second, [pair[1] for pair in pairs if pair[0] == before])


def agrees(law: torch.Tensor, drawn: list[int]) -> bool:
    """Pearson's test, tokens with an expectation below 5 counted as one."""
    expected = law / law.sum() * len(drawn)
    common = (expected >= 5).nonzero()[:, 0].tolist()
    counts = Counter(drawn)
    observed = [counts[token] for token in common]
    wanted = expected[common].tolist()
    rest = len(drawn) - sum(wanted)
    if rest > 0.5:
        observed, wanted = [*observed, len(drawn) - sum(observed)], [*wanted, rest]
    assert len(wanted) > 1, "nothing to tell apart"
    scale = sum(observed) / sum(wanted)
    return bool(chisquare(observed, [w * scale for w in wanted]).pvalue > FALSE_ALARM)


@pytest.mark.parametrize("name", DRAFTERS)
@given(
    seed=st.integers(0, 999),
    k=st.integers(1, 8),
    model=st.integers(0, 2),
    temperature=st.sampled_from([0.6, 1.3]),
)
@settings(max_examples=6, deadline=None)
def test_matching_emits_what_plain_decoding_draws(
    name: str, seed: int, k: int, model: int, temperature: float
) -> None:
    """At any temperature: sample matching uses the keys of plain decoding, so
    speculation changes no token.
    """
    made = speculating(
        model,
        DRAFTERS[name](SamplingParams(temperature)),
        "match",
        k,
        temperature=temperature,
        seed=seed,
    )
    assert tokens_of(decode_plainly(PROMPT, made, LIMITS)) == plain(
        model, temperature=temperature, seed=seed
    )


@pytest.mark.parametrize(("name", "rule"), PAIRS)
def test_branches_of_a_batch_do_not_influence_each_other(name: str, rule: str) -> None:
    """A batch gives what separate runs give, and permuting it permutes the outputs,
    though each branch accepts another length.
    """
    how = {"temperature": 0.9, "seed": 3}
    prompts = [[5, 6, 7], [8], [5, 6, 5, 6, 5], [9, 0, 9, 0, 9, 0, 9]]

    def run(order: list[int]) -> list[list[Step]]:
        made = speculating(0, DRAFTERS[name](SamplingParams(0.9)), rule, 4, **how)
        branches = [made.runner.open(prompts[i]) for i in order]
        written: list[list[Step]] = [[] for _ in order]
        for step in range(2):
            jobs = [
                made.job(branch, 100 * i + step, 14)
                for i, branch in zip(order, branches, strict=True)
            ]
            for steps, new in zip(written, made.write(jobs), strict=True):
                steps.append(new)
            for branch in branches:
                assert branch.num_computed_tokens == len(branch) - 1
        return written

    together = run([0, 1, 2, 3])
    assert run([2, 0, 3, 1]) == [together[i] for i in (2, 0, 3, 1)]
    assert [run([i])[0] for i in range(4)] == together


def test_forked_rows_are_followed_by_the_draft() -> None:
    """A new branch is met by a fork of the draft's; closing it gives the draft's blocks
    back too.
    """
    drafter = ModelDrafter(runner_of(MODELS[1]), SamplingParams(0.0))
    made = speculating(0, drafter, "reject", 3)
    root = made.runner.open(PROMPT)
    made.write([made.job(root, 0, 14)])
    twin = made.runner.fork(root)
    twin.append(8)
    one, other = made.write([made.job(root, 1, 14), made.job(twin, 1, 14)])
    alone = writer(Role.TARGET, MODELS[0])
    for branch, step in ((root, one), (twin, other)):
        again = alone.runner.open(branch.tokens[: len(branch) - len(step.tokens)])
        assert alone.write([alone.job(again, 1, 14)]) == [step]
    for branch in (root, twin):
        made.close(branch)
    assert drafter.runner.cache.pool.num_used == 0  # type: ignore[attr-defined]


class Prophet(Drafter):
    """Proposes the true continuation, so that ends and boundaries fall inside accepted
    runs."""

    name = "prophet"

    def __init__(
        self, text: list[int], *, then: list[int] | None = None, silent_until: int = 0
    ) -> None:
        self.text, self.then, self.silent_until = text, then or [], silent_until

    def propose(self, contexts, k):  # type: ignore[no-untyped-def]
        made = []
        for context in contexts:
            depth = (
                min(k, context.limit) if len(context.tokens) >= self.silent_until else 0
            )
            known = [*self.text, *self.then]
            made.append(
                Proposal.chain(known[len(context.tokens) : len(context.tokens) + depth])
            )
        return made


@cache
def ending_seed() -> tuple[int, list[int]]:
    """A seed at which plain sampling begins with a step of at least 9 tokens and ends
    its text after at least 16, and that text.
    """
    for seed in range(500):
        emitted = list(
            decode_plainly(
                PROMPT,
                writer(Role.TARGET, MODELS[0], temperature=1.2, seed=seed),
                LIMITS,
            )
        )
        text = tokens_of(emitted)
        if text[-1] == EOS and len(text) >= 16 and len(emitted[0].step.tokens) >= 9:
            return seed, text
    raise AssertionError("no such seed")


@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_the_end_of_text_and_boundaries_inside_accepted_runs(k: int) -> None:
    """Everything proposed is right, junk after the end included: nothing after the end
    or the boundary is emitted, at any offset.
    """
    seed, text = ending_seed()
    ended_inside = 0
    for shift in range(k + 1):  # moves the end through every place of the block
        trace = Trace()
        prophet = Prophet(PROMPT + text, then=[5] * 9, silent_until=len(PROMPT) + shift)
        made = speculating(
            0, prophet, "match", k, temperature=1.2, seed=seed, trace=trace
        )
        emitted = list(decode_plainly(PROMPT, made, LIMITS))
        assert tokens_of(emitted) == text
        assert emitted[-1].step.finish is Finish.EOS
        rounds = [event for _, event in trace.events if isinstance(event, TokenRound)]
        assert all(r.accepted <= r.proposed for r in rounds)
        ended_inside += any(r.emitted <= r.accepted for r in rounds)
    assert ended_inside


@pytest.mark.parametrize("budget", range(1, 12))
def test_the_budget_is_never_overshot(budget: int) -> None:
    text = plain(1)
    made = speculating(1, Prophet(PROMPT + text), "reject", 6)
    emitted = tokens_of(decode_plainly(PROMPT, made, Limits(budget, 14)))
    assert emitted == tokens_of(
        decode_plainly(PROMPT, writer(Role.TARGET, MODELS[1]), Limits(budget, 14))
    )
    assert len(emitted) <= budget


def test_one_look_is_one_forward_and_reads_every_node() -> None:
    trace = Trace()
    made = writer(Role.TARGET, MODELS[0], trace=trace)
    chain_branch, tree_branch = (
        made.runner.open([5, 6, 7, 8, 9]),
        made.runner.open([6, 5]),
    )
    chain = Proposal.chain((5, 6))
    tree = Proposal((5, 6, 7, 8), (-1, -1, 0, 0))
    runs = run_target(made.runner, [chain_branch, tree_branch], [chain, tree])
    assert [rows.shape[0] for rows, _ in runs] == [3, 5]
    forwards = [(e.branches, e.tokens) for _, e in trace.events]  # type: ignore[union-attr]
    assert forwards == [
        (1, 1),
        (4, 7 + 3 + 3 + 2),
    ]  # catch up with the tree's prompt, then one forward: a chain and three paths
    for node in range(-1, 4):
        fresh = writer(Role.TARGET, MODELS[0]).runner
        text = [6, 5, *(tree.tokens[i] for i in tree.path(node))]
        torch.testing.assert_close(
            runs[1][0][node + 1],
            fresh.forward([fresh.open(text)])[0],
            rtol=0,
            atol=1e-12,
        )


@pytest.mark.parametrize("k", [0, -1, 1.5])
def test_impossible_lengths_are_refused(k: float) -> None:
    with pytest.raises(SettingError, match="num_speculative_tokens"):
        Speculation(LookupDrafter(), MatchRule(), k)  # type: ignore[arg-type]


def test_a_drafter_that_a_rule_cannot_take_is_refused() -> None:
    """Noise that is drawn twice, and trees."""
    runner = runner_of(MODELS[0])
    shared = ModelDrafter(runner, SamplingParams(1.0), coupling=Coupling.SHARED)
    for drafter in (shared, TreeDrafter(runner, SamplingParams(1.0))):
        with pytest.raises(SettingError, match="block"):
            Speculation(drafter, BlockRule(), 4)
