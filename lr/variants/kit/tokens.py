"""The contracts of drafters and acceptance rules.

A rule that calls itself lossless is compared with the target by enumerating every
proposal and outcome (`lr/theory/exact.py`), without sampling. The tokens of a drafter
are compared with the `q` that it states, at every place of a chain, at several
temperatures and filters, over the rounds of one step: random functions of the token
must have the mean that q gives them. A normal deviate above `LIMIT` is a fault; a
correct drafter shows one in fewer than one of 10,000 checks.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lr.engine.runner import ModelRunner
from lr.model.config import ModelConfig
from lr.model.qwen import CausalLM
from lr.rng import Stream
from lr.spec.acceptance import ROOT, AcceptanceRule, Decision, Draws, Outcome, Proposal
from lr.spec.checks import check_list, check_outcomes, check_proposal
from lr.spec.sampling import sample
from lr.spec.token_sd import Context, Drafter, DrafterSetup
from lr.spec.variant import Variant
from lr.theory.exact import (
    Model,
    certain_drafts,
    drawn_drafts,
    plain_distribution,
    round_distribution,
    target_rows,
    total_variation,
)
from lr.types import Coupling, SamplingParams
from lr.variants.kit.findings import Findings, Make, Material, same_everywhere

EXACT = 1e-9
LIMIT = 5.5  # standard errors
ROUNDS = 300
VOCABULARY = 48
CHAINS = [tuple(range(ROOT, n - 1)) for n in (1, 2, 3)]
TREES = [(ROOT, ROOT), (ROOT, 0, 0), (ROOT, ROOT, 0, 1)]
SAMPLINGS = (
    SamplingParams(1.0),
    SamplingParams(0.6, top_p=0.9),
    SamplingParams(1.3, top_k=9),
)


# Rules


def table(seed: int, v: int, drop: float = 0.0) -> Model:
    """A model with a random distribution after every prefix; the share `drop` of tokens
    has 0."""

    def after(text: tuple[int, ...]) -> Tensor:
        number = random.Random(f"{seed} {text}").getrandbits(60)
        noise = torch.Generator().manual_seed(number)
        scores = 1.5 * torch.randn(v, dtype=torch.float64, generator=noise)
        dropped = torch.rand(v, generator=noise) < drop
        dropped[int(torch.randint(v, (), generator=noise))] = False
        return scores.masked_fill(dropped, -torch.inf).softmax(-1)

    return after


def check_rule(findings: Findings, make: Make, material: Material) -> None:
    """Outcomes are a distribution over paths; a rule that calls itself lossless emits
    exactly the target's; decisions depend on their own branch alone."""
    rule: AcceptanceRule = make().make("rule")
    shapes = [*CHAINS, *(TREES if rule.trees else [])]
    worst = 0.0
    for seed, v, drop in ((1, 2, 0.0), (2, 3, 0.0), (3, 3, 0.4), (4, 4, 0.0)):
        target, draft = table(seed, v, drop), table(seed + 100, v, drop)
        for parents in [p for p in shapes if v < 4 or len(p) < 3]:
            for drafts in (
                list(drawn_drafts(draft, parents)),
                list(drawn_drafts(draft, parents, replace=False)),
                list(certain_drafts(draft, parents)),
            ):
                for _, proposal in drafts:
                    _check_outcomes(
                        findings, rule, target_rows(target, proposal), proposal
                    )
                length = 1 + max(drafts[0][1].depths())
                emitted = round_distribution(rule, target, drafts, length)
                error = total_variation(emitted, plain_distribution(target, length))
                worst = max(worst, error)
    if rule.lossless:
        statement = "a lossless rule emits the target's distribution, by enumeration"
        findings.must(worst < EXACT, statement, f"a total variation of {worst:.3g}")
    else:
        findings.remarks.append(f"not lossless: total variation up to {worst:.3g}")
    if not rule.needs_fresh_noise:
        for parents in shapes[1:]:
            _check_noise(findings, rule, parents)

    def decide(variant: Variant, question: tuple[Tensor, Proposal, Draws]) -> Decision:
        p_rows, proposal, draw = question
        [decision] = variant.make("rule").verify(p_rows, [proposal], [draw])
        assert isinstance(decision, Decision)
        return decision

    target = table(7, 4, 0.2)
    proposals = [p for _, p in drawn_drafts(table(8, 4, 0.2), CHAINS[1])][:12]
    rows = [target_rows(target, proposal) for proposal in proposals]
    draws = [Draws(Stream.root(5).fold_in(i), i) for i in range(len(proposals))]
    questions = list(zip(rows, proposals, draws, strict=True))
    alone = same_everywhere(findings, make, decide, questions)
    together = rule.verify(torch.cat(rows), proposals, draws)
    back = rule.verify(torch.cat(rows[::-1]), proposals[::-1], draws[::-1])[::-1]
    statement = "a batch decides as each branch alone, in any order"
    findings.must(together == back == alone, statement, f"{together} and {alone}")


def _check_outcomes(
    findings: Findings, rule: AcceptanceRule, rows: Tensor, proposal: Proposal
) -> None:
    before = rows.clone()
    outcomes = rule.outcomes(rows, proposal)
    check_list("rule", rule.outcomes, outcomes, Outcome)
    check_outcomes(rule, outcomes)
    for outcome in outcomes:
        end = outcome.nodes[-1] if outcome.nodes else ROOT
        path = outcome.nodes == proposal.path(end)
        findings.must(path, "the nodes are a path from the root", outcome.nodes)
        if outcome.probability <= 0:
            continue
        following = outcome.next_probs()
        fits = (
            following.shape == rows[0].shape and abs(float(following.sum()) - 1) < 1e-6
        )
        findings.must(fits, "next_probs is a distribution over all tokens", following)
        # The key of plain decoding may have drawn the drafts, too (coupling shared), so
        # only a place without drafts may use it.
        fits = not (outcome.untouched and proposal.families()[end + 1])
        statement = "`untouched` only where no draft was tried"
        findings.must(fits, statement, f"untouched after {outcome.nodes}")
    same = torch.equal(rows, before)
    findings.must(same, "the target's rows are left as they are", "changed rows")


def _check_noise(
    findings: Findings, rule: AcceptanceRule, parents: tuple[int, ...]
) -> None:
    """Stopping somewhere must not depend on drafts beyond that place: the next round
    draws there with the same noise (coupling shared)."""
    target = table(5, 3)
    chances: dict[tuple[Any, ...], float] = {}
    for _, proposal in drawn_drafts(table(6, 3), parents):
        depths = proposal.depths()[1:]
        for outcome in rule.outcomes(target_rows(target, proposal), proposal):
            # All drafts down to the level that was tried at this stop.
            level = len(outcome.nodes) + 1
            drafts = zip(proposal.tokens, depths, strict=True)
            tried = tuple(token for token, depth in drafts if depth <= level)
            chance = chances.setdefault((outcome.nodes, tried), outcome.probability)
            findings.must(
                abs(chance - outcome.probability) < EXACT,
                "the place where a rule stops depends on no draft beyond it",
                f"{chance} and {outcome.probability}: set needs_fresh_noise",
            )


# Drafters


def small_model(seed: int) -> CausalLM:
    """A random fp64 model whose distributions are neither flat nor one-hot."""
    config = ModelConfig(
        VOCABULARY, 32, 48, 2, 4, 2, 8, 512, 1e-6, 10_000.0, False, True, True
    )
    model = CausalLM(config).double().requires_grad_(False).eval()
    noise = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        drawn = torch.randn(parameter.shape, generator=noise, dtype=torch.float64)
        parameter.copy_(1 + 0.1 * drawn if "norm" in name else 0.3 * drawn)
    return model


class Bench:
    """Makes drafters, branches of a target, and rounds."""

    def __init__(self) -> None:
        self.draft = small_model(0)
        self.target = ModelRunner(small_model(1), num_blocks=4000, block_size=4)
        chance = random.Random(8)
        self.texts = [
            [chance.randrange(VOCABULARY) for _ in range(n)] * 2 for n in (3, 5, 8, 4)
        ]

    def drafter(
        self, variant: Variant, sampling: SamplingParams = SAMPLINGS[0]
    ) -> tuple[Drafter, ModelRunner]:
        """A new drafter and the runner of its draft model."""
        runner = ModelRunner(self.draft, num_blocks=400, block_size=4)
        return variant.make("drafter", DrafterSetup(runner, sampling)), runner

    def propose(
        self, drafter: Drafter, contexts: Sequence[Context], k: int = 4
    ) -> list[Proposal]:
        """The drafter's proposals, checked as in an answer."""
        proposals = drafter.propose(contexts, k)
        check_list("drafter", drafter.propose, proposals, Proposal, len(contexts))
        for context, proposal in zip(contexts, proposals, strict=True):
            check_proposal(drafter, proposal, max(0, min(k, context.limit)))
        return proposals

    def contexts(self, numbers: Sequence[int], limit: int = 9) -> list[Context]:
        """A new branch of every numbered text, in the first round of its own step."""
        return [
            Context(
                self.target.open(self.texts[number]),
                limit,
                Draws(Stream.root(9).fold_in(number), 0),
            )
            for number in numbers
        ]

    def two_rounds(self, variant: Variant, numbers: Sequence[int]) -> list[Any]:
        """What a new drafter proposes for these texts, in a round and, after it has
        learnt from it, in the next."""
        drafter, _ = self.drafter(variant)
        contexts = self.contexts(numbers)
        shapes: list[list[Any]] = [[] for _ in numbers]
        for offset in (1, 2):
            proposals = self.propose(drafter, contexts)
            for number, context, proposal, shape in zip(
                numbers, contexts, proposals, shapes, strict=True
            ):
                shape.append((proposal.tokens, proposal.parents))
                context.branch.append(number + 1)  # the target's token
                noise = torch.Generator().manual_seed(number)
                logits = torch.randn(len(proposal) + 1, VOCABULARY, generator=noise)
                drafter.learn(context, proposal, logits.double())
            contexts = [
                Context(c.branch, 9, Draws(c.draws.stream, offset)) for c in contexts
            ]
        return shapes


def check_drafter(findings: Findings, make: Make, material: Material) -> None:
    """A proposal depends on its branch alone, is no deeper than allowed, and follows
    the stated `q`. `forget` frees all blocks; branches are left as they are."""
    bench = Bench()
    numbers = list(range(len(bench.texts)))

    def alone(variant: Variant, number: int) -> Any:
        return bench.two_rounds(variant, [number])[0]

    each = same_everywhere(findings, make, alone, numbers)
    drafter, runner = bench.drafter(make())
    if drafter.shares_state:
        findings.remarks.append("shares state between branches: use acceptance match")
    else:
        together = bench.two_rounds(make(), numbers)
        back = bench.two_rounds(make(), numbers[::-1])[::-1]
        statement = "a proposal depends on its own branch alone, also after `learn`"
        findings.must(together == back == each, statement, f"{together} and {each}")

    for limit in (0, 1, 2, 9):
        contexts = bench.contexts(numbers, limit)
        bench.propose(drafter, contexts)
        tokens = [context.tokens for context in contexts]
        same = tokens == bench.texts
        findings.must(same, "the branches are left as they are", tokens)
        drafter.forget([context.branch for context in contexts])
        used = runner.cache.pool.num_used
        findings.must(
            used == 0, "`forget` gives all blocks back (no leak)", f"{used} held"
        )
    nothing = drafter.propose([], 3)
    findings.must(nothing == [], "no contexts give no proposals", nothing)
    for sampling in SAMPLINGS:
        _check_q(findings, bench, make(), sampling)


def _check_q(
    findings: Findings, bench: Bench, variant: Variant, sampling: SamplingParams
) -> None:
    """The rounds of one step: the same branch and stream, other offsets."""
    drafter, _ = bench.drafter(variant, sampling)
    branch = bench.target.open(bench.texts[0])
    noise = torch.Generator().manual_seed(3)
    functions = torch.randn(VOCABULARY, 8, dtype=torch.float64, generator=noise)
    deviation: dict[int, Tensor] = {}  # by place: sums over the rounds, [8]
    variance: dict[int, Tensor] = {}
    ahead: dict[tuple[int, ...], bool] = {}  # whether a token is drafted after these
    agreed = expected = 0.0
    drawn = 0
    for offset in range(ROUNDS):
        context = Context(branch, 9, Draws(Stream.root(10), offset))
        [proposal] = bench.propose(drafter, [context], 3)
        for place in range(min(3, len(proposal) + 1)) if proposal.is_chain else ():
            before = proposal.tokens[:place]
            goes_on = place < len(proposal)
            same = ahead.setdefault(before, goes_on) == goes_on
            statement = "whether a token is drafted depends on no draw of that token"
            findings.must(same, statement, f"only sometimes after {before}")
        if proposal.q is None or not proposal.is_chain:
            continue
        drawn += 1
        for place, (token, row) in enumerate(
            zip(proposal.tokens, proposal.q, strict=True)
        ):
            q = row[:VOCABULARY].double()
            mean = q @ functions
            zero = torch.zeros_like(mean)
            deviation[place] = deviation.get(place, zero) + functions[token] - mean
            variance[place] = variance.get(place, zero) + q @ functions**2 - mean**2
        first = proposal.q[:1].double()
        agreed += sample(first, [context.draws.sample_key(0)])[0] == proposal.tokens[0]
        expected += float((first**2).sum())
    if not drawn:
        remark = "no chain of drawn tokens, so there is no q to check"
        findings.remarks += [remark] if remark not in findings.remarks else []
    for place, sums in deviation.items():
        errors = sums.abs() / variance[place].clamp(min=1e-9).sqrt()
        near = float(errors.max()) < LIMIT or float(sums.abs().max()) < 1e-6
        statement = "tokens are drawn from the stated q, anew in every round"
        instead = f"{errors.max():.1f} standard errors at place {place}, {sampling}"
        findings.must(near, statement, instead)
    if drafter.coupling is Coupling.INDEPENDENT and drawn:
        error = max(0.0, expected * (1 - expected / drawn)) ** 0.5
        statement = "with coupling independent the noise is not the target's"
        near = agreed - expected <= LIMIT * error + 1e-6
        findings.must(
            near, statement, f"{agreed:.0f} of {drawn} are the target's draws"
        )
