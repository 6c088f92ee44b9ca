"""The contracts of the parts on the token level, drafters and acceptance rules; see
`kit.py`.

The output of a rule that calls itself lossless is compared with the target's own
distribution by enumerating every proposal and outcome (`lr/theory/exact.py`), without
sampling, to 1e-9. The tokens of a drafter are compared with the `q` that it states by a
chi-square test, with a false-alarm probability of one in a million."""

from __future__ import annotations

import inspect
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from lr.engine.runner import ModelRunner
from lr.model.config import ModelConfig
from lr.model.qwen import CausalLM
from lr.rng import Stream, uniform
from lr.spec.acceptance import ROOT, AcceptanceRule, Decision, Draws, Proposal, pick
from lr.spec.guard_tokens import guarded_drafter, guarded_rule
from lr.spec.sampling import sample
from lr.spec.token_sd import Context
from lr.theory.exact import (
    Model,
    certain_drafts,
    drawn_drafts,
    plain_distribution,
    round_distribution,
    total_variation,
)
from lr.types import Coupling, SamplingParams
from lr.variants.kit.check import Checked

EXACT = 1e-9
FALSE_ALARM = 1e-6
ROUNDS = 600
CHAINS = [tuple(range(ROOT, n - 1)) for n in (1, 2, 3)]
TREES = [(ROOT, ROOT), (ROOT, 0, 0), (ROOT, ROOT, 0, 1)]


def table(seed: int, v: int, drop: float) -> Model:
    """A model with a random distribution after every prefix; the share `drop` of tokens
    has 0."""

    def after(text: tuple[int, ...]) -> Tensor:
        noise = torch.Generator().manual_seed(
            random.Random(f"{seed} {text}").getrandbits(60)
        )
        scores = 1.5 * torch.randn(v, dtype=torch.float64, generator=noise)
        dropped = torch.rand(v, generator=noise) < drop
        dropped[int(torch.randint(v, (), generator=noise))] = False
        return scores.masked_fill(dropped, -torch.inf).softmax(-1)

    return after


def worlds() -> Iterator[tuple[Model, Model, int]]:
    """(target, draft, vocabulary size) for small vocabularies."""
    for seed, v, drop in ((1, 2, 0.0), (2, 3, 0.0), (3, 3, 0.4), (4, 4, 0.0)):
        yield table(seed, v, drop), table(seed + 100, v, drop), v


def without_replacement(
    draft: Model, parents: Sequence[int]
) -> Iterator[tuple[float, Proposal]]:
    """Drafts in which no two siblings are equal."""
    return drawn_drafts(draft, parents, replace=False)


def check_rule(
    found: Checked, make: Callable[[], AcceptanceRule], vocab_size: int
) -> None:
    """Check: outcomes are a distribution over paths, and decisions follow it.

    A rule that calls itself lossless must emit exactly the target's distribution."""
    rule = guarded_rule(make())
    worst, where = 0.0, "nowhere"
    for target, draft, v in worlds():
        for parents in [*CHAINS, *(TREES if rule.trees else [])]:
            if v == 4 and len(parents) > 2:
                continue
            for how in (drawn_drafts, without_replacement, certain_drafts):
                drafts = list(how(draft, parents))
                length = 1 + max(drafts[0][1].depths())
                emitted = round_distribution(rule, target, drafts, length)
                error = total_variation(emitted, plain_distribution(target, length))
                if error > worst:
                    worst, where = (
                        error,
                        f"{v} tokens, parents {parents}, {how.__name__}",
                    )
    if rule.lossless:
        what = "a lossless rule emits the target's distribution (by enumeration)"
        found.must(worst < EXACT, what, f"a total variation of {worst:.3g} ({where})")
    else:
        found.notes.append(f"not lossless: total variation up to {worst:.3g} ({where})")
    _decisions(found, rule)


def _decisions(found: Checked, rule: AcceptanceRule) -> None:
    """`verify` must decide each branch alone, follow the outcomes, and change
    nothing."""
    target, draft, v = table(7, 4, 0.2), table(8, 4, 0.2), 4
    drafts = [proposal for _, proposal in drawn_drafts(draft, CHAINS[1])][:12]
    rows = [
        torch.stack([target(p.tokens[:n]) for n in range(3)]) for p in drafts
    ]  # [3, v] each
    draws = [Draws(Stream.root(5).fold_in(i), i) for i in range(len(drafts))]
    probs = torch.cat(rows)
    before, together = probs.clone(), rule.verify(probs, drafts, draws)
    found.must(
        torch.equal(probs, before), "the target's rows are left alone", "changed rows"
    )
    alone = [rule.verify(*one)[0] for one in zip(rows, [[d] for d in drafts], [[d] for d in draws],
                                                  strict=True)]  # fmt: skip
    found.must(
        together == alone,
        "a batch decides as each branch alone",
        f"{together}, {alone}",
    )
    back = rule.verify(torch.cat(rows[::-1]), drafts[::-1], draws[::-1])[::-1]
    found.must(
        back == alone, "the order of a batch does not matter", f"{back}, {alone}"
    )
    outcomes, counted = rule.outcomes(rows[0], drafts[0]), Counter[tuple[int, ...]]()
    followed, started = 0, time.perf_counter()
    for number in range(ROUNDS):
        draw = Draws(Stream.root(6).fold_in(number), number)
        [decision] = rule.verify(rows[0], [drafts[0]], [draw])
        counted[decision.nodes] += 1
        followed += isinstance(decision, Decision) and 0 <= decision.token < v
        if type(rule).verify is AcceptanceRule.verify:
            assert decision.nodes == pick(outcomes, uniform(draw.uniform_key)).nodes
    found.seconds = (time.perf_counter() - started) / ROUNDS
    found.must(
        followed == ROUNDS, "the token after the drafts is in the vocabulary", followed
    )
    chances: Counter[tuple[int, ...]] = Counter()
    for outcome in outcomes:
        chances[outcome.nodes] += outcome.probability  # type: ignore[assignment]
    _follows(
        found, counted, dict(chances), "decisions are as frequent as the outcomes say"
    )


def _follows(
    found: Checked, counted: Counter[Any], chances: dict[Any, float], what: str
) -> None:
    """Counts must follow probabilities, by a chi-square test."""
    total = sum(counted.values())
    strange = [one for one in counted if chances.get(one, 0.0) <= 1e-12]
    found.must(not strange, what, f"{strange[:3]}, which cannot happen")
    common = [one for one, p in chances.items() if total * p >= 5]
    seen = [counted[one] for one in common]
    due = [total * chances[one] for one in common]
    rest, left = total - sum(seen), total - sum(due)
    if left > 1e-6 * total:
        seen, due = [*seen, rest], [*due, left]
    if len(seen) > 1:
        p = float(
            stats.chisquare(seen, [one * sum(seen) / sum(due) for one in due]).pvalue
        )
        found.must(
            p > FALSE_ALARM, what, f"a chi-square p-value of {p:.2g} ({dict(counted)})"
        )


def small_model(vocab_size: int, seed: int = 0) -> CausalLM:
    """A random fp64 model whose distributions are neither flat nor one-hot."""
    config = ModelConfig(
        vocab_size, 32, 48, 2, 4, 2, 8, 512, 1e-6, 10_000.0, False, True, True
    )
    model = CausalLM(config).double().requires_grad_(False).eval()
    noise = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        drawn = torch.randn(parameter.shape, generator=noise, dtype=torch.float64)
        parameter.copy_(1 + 0.1 * drawn if "norm" in name else 0.3 * drawn)
    return model


def check_drafter(found: Checked, make: Callable[..., Any], vocab_size: int) -> None:
    """Check: a proposal depends on its branch alone and is no deeper than allowed.

    Its tokens follow the stated `q`, with new noise in every round. `forget` frees all
    blocks."""
    sampling = SamplingParams(1.0)
    takes = list(inspect.signature(make).parameters)[:2] == ["runner", "sampling"]
    model = small_model(vocab_size)
    target = ModelRunner(small_model(vocab_size, 1), num_blocks=200, block_size=4)
    chance = random.Random(8)
    texts = [[chance.randrange(vocab_size) for _ in range(n)] * 2 for n in (3, 5, 8, 4)]

    def fresh() -> tuple[Any, ModelRunner]:
        runner = ModelRunner(model, num_blocks=400, block_size=4)
        made = guarded_drafter(make if takes else lambda runner, sampling: make())
        return made(runner, sampling), runner

    def contexts(round_: int, limit: int = 9) -> list[Context]:
        opened = [target.open(text) for text in texts]
        stream = Stream.root(9).fold_in(round_)
        return [
            Context(one, limit, Draws(stream.fold_in(i), 0))
            for i, one in enumerate(opened)
        ]

    def said(proposals: Sequence[Proposal]) -> list[tuple[Any, Any]]:
        return [(one.tokens, one.parents) for one in proposals]

    drafter, runner = fresh()
    first = contexts(0)
    together = said(drafter.propose(first, 4))
    alone = []
    for context in contexts(0):
        alone += said(fresh()[0].propose([context], 4))
    what = "a proposal depends on its own branch alone"
    found.must(together == alone, what, f"{together} in a batch and {alone} alone")
    found.must(said(fresh()[0].propose(contexts(0)[::-1], 4))[::-1] == alone,
               "the order of a batch does not matter", "other proposals")  # fmt: skip
    for limit in (0, 1, 2):
        drafter.propose(contexts(0, limit), 4)  # the guard looks at the depths
    found.must(drafter.propose([], 3) == [], "no contexts give no proposals", "some")
    drafter, runner = fresh()
    for round_ in range(4):
        given = contexts(round_)
        drafter.propose(given, 3)
        drafter.forget([context.branch for context in given])
        used = runner.cache.pool.num_used
        found.must(
            used == 0, "`forget` gives all blocks back (no leak)", f"{used} blocks held"
        )
    _honest(found, fresh, target, texts[0])


def _honest(
    found: Checked,
    fresh: Callable[[], tuple[Any, ModelRunner]],
    target: ModelRunner,
    text: list[int],
) -> None:
    """The first tokens of many rounds must follow the stated q.

    Unless the drafter's coupling is "shared", they must not use the target's noise."""
    drafter, _ = fresh()
    counted: Counter[int] = Counter()
    agreed, row = 0, None
    branch, started = target.open(text), time.perf_counter()
    for number in range(ROUNDS):
        draws = Draws(Stream.root(10).fold_in(number), number % 7)
        [proposal] = drafter.propose([Context(branch, 5, draws)], 1)
        if not proposal.tokens or proposal.q is None:
            found.notes.append(
                "the tokens are certain, not drawn, so there is no q to check"
            )
            return
        row = proposal.q[0].double()
        counted[proposal.tokens[0]] += 1
        agreed += sample(row[None], [draws.sample_key(0)])[0] == proposal.tokens[0]
    found.seconds = (time.perf_counter() - started) / ROUNDS
    assert row is not None
    chances = {token: float(p) for token, p in enumerate(row.tolist()) if p > 0}
    _follows(
        found,
        counted,
        chances,
        "tokens are drawn from the stated q, anew in every round",
    )
    if drafter.coupling is Coupling.INDEPENDENT:
        by_chance = float((row**2).sum())
        p = float(
            stats.binomtest(agreed, ROUNDS, min(1.0, by_chance), "greater").pvalue
        )
        what = 'with coupling "independent" the noise is not the target\'s'
        got = f"{agreed} of {ROUNDS} tokens equal to the target's draws"
        found.must(p > FALSE_ALARM, what, got)
