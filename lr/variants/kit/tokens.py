"""The contracts of drafters and acceptance rules.

A rule that calls itself lossless is compared with the target by enumerating every
proposal and outcome (`lr/theory/exact.py`), without sampling. The tokens of a drafter
are compared with the `q` that it states, at every place of a chain, at several
temperatures and filters, over the rounds of one step: `FUNCTIONS` random functions of
the token must have the mean that q gives them. A normal deviate above `LIMIT` is a
fault; a correct drafter shows one in fewer than one of 10,000 checks.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from lr.engine.runner import ModelRunner
from lr.kvcache.branch import Branch
from lr.model.config import ModelConfig
from lr.model.qwen import CausalLM
from lr.rng import Stream, uniform
from lr.spec.acceptance import ROOT, AcceptanceRule, Draws, Outcome, Proposal, pick
from lr.spec.checks import check_list, check_outcomes, check_proposal
from lr.spec.sampling import sample
from lr.spec.token_sd import Context, Drafter, DrafterSetup
from lr.theory.exact import (
    Model,
    certain_drafts,
    drawn_drafts,
    plain_distribution,
    round_distribution,
    total_variation,
)
from lr.types import Coupling, SamplingParams
from lr.variants.kit.findings import Findings, Make, World

EXACT = 1e-9
LIMIT = 5.5  # standard errors
FUNCTIONS = 8
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


def table(seed: int, v: int, drop: float) -> Model:
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


def worlds() -> Iterator[tuple[Model, Model, int]]:
    """(target, draft, vocabulary size) for small vocabularies."""
    for seed, v, drop in ((1, 2, 0.0), (2, 3, 0.0), (3, 3, 0.4), (4, 4, 0.0)):
        yield table(seed, v, drop), table(seed + 100, v, drop), v


def without_replacement(
    draft: Model, parents: Sequence[int]
) -> Iterator[tuple[float, Proposal]]:
    """Drafts in which no two siblings are equal."""
    return drawn_drafts(draft, parents, replace=False)


def check_rule(findings: Findings, make: Make, world: World) -> None:
    """Outcomes are a distribution over paths; decisions follow it; a rule that calls
    itself lossless emits exactly the target's distribution."""
    rule: AcceptanceRule = make().make("rule")
    worst, place = 0.0, "nowhere"
    for target, draft, v in worlds():
        for parents in [*CHAINS, *(TREES if rule.trees else [])]:
            if v == 4 and len(parents) > 2:
                continue
            for drafts_of in (drawn_drafts, without_replacement, certain_drafts):
                drafts = list(drafts_of(draft, parents))
                for _, proposal in drafts:
                    _check_outcomes(findings, rule, target, proposal)
                length = 1 + max(drafts[0][1].depths())
                emitted = round_distribution(rule, target, drafts, length)
                error = total_variation(emitted, plain_distribution(target, length))
                if not error <= worst:
                    worst, place = (
                        error,
                        f"{v} tokens, parents {parents}, {drafts_of.__name__}",
                    )
    if rule.lossless:
        statement = "a lossless rule emits the target's distribution, by enumeration"
        findings.must(
            worst < EXACT, statement, f"total variation {worst:.3g} ({place})"
        )
    else:
        findings.remarks.append(f"not lossless: total variation up to {worst:.3g}")
    _check_noise(findings, rule)
    _check_decisions(findings, rule)


def _check_outcomes(
    findings: Findings, rule: AcceptanceRule, target: Model, proposal: Proposal
) -> None:
    rows = torch.stack([target(tuple(proposal.tokens[i] for i in proposal.path(node)))
                        for node in range(ROOT, len(proposal))])  # fmt: skip
    before = rows.clone()
    outcomes = rule.outcomes(rows, proposal)
    check_list("rule", rule.outcomes, outcomes, Outcome)
    check_outcomes(rule, outcomes)
    families = proposal.families()
    for outcome in outcomes:
        end = outcome.nodes[-1] if outcome.nodes else ROOT
        fits = outcome.nodes == proposal.path(end)
        findings.must(fits, "the nodes are a path from the root", outcome.nodes)
        if outcome.probability <= 0:
            continue
        following = outcome.next_probs()
        total = float(following.sum())
        fits = following.shape == rows[0].shape and abs(total - 1) < 1e-6
        findings.must(fits, "next_probs is a distribution over all tokens", following)
        # The key of plain decoding may have drawn the drafts, too (coupling shared), so
        # only a place without drafts may use it.
        fits = not (outcome.untouched and families[end + 1])
        statement = "`untouched` only where no draft was tried"
        findings.must(fits, statement, f"untouched after {outcome.nodes}")
    statement = "the target's rows are left as they are"
    findings.must(torch.equal(rows, before), statement, "changed rows")


def _check_noise(findings: Findings, rule: AcceptanceRule) -> None:
    """Unless `needs_fresh_noise`, stopping somewhere must not depend on drafts beyond
    that place: the next round draws there with the same noise (coupling shared)."""
    if rule.needs_fresh_noise:
        return
    target, draft = table(5, 3, 0.0), table(6, 3, 0.0)
    statement = "the place where a rule stops depends on no draft beyond it"
    for parents in [CHAINS[1], CHAINS[2], *(TREES[1:] if rule.trees else [])]:
        chances: dict[tuple[Any, ...], float] = {}
        for _, proposal in drawn_drafts(draft, parents):
            paths = [tuple(proposal.tokens[i] for i in proposal.path(node))
                     for node in range(ROOT, len(proposal))]  # fmt: skip
            depths = proposal.depths()
            outcomes = rule.outcomes(torch.stack([target(p) for p in paths]), proposal)
            for outcome in outcomes:
                # all drafts up to the level that was tried at this stop
                tried = tuple(
                    token
                    for token, depth in zip(proposal.tokens, depths[1:], strict=True)
                    if depth <= len(outcome.nodes) + 1
                )
                name = (outcome.nodes, tried)
                chance = chances.setdefault(name, outcome.probability)
                same = abs(chance - outcome.probability) < EXACT
                instead = f"{chance} and {outcome.probability}; set needs_fresh_noise"
                findings.must(same, statement, instead)


def _check_decisions(findings: Findings, rule: AcceptanceRule) -> None:
    """`verify` decides each branch alone, and as the outcomes say."""
    target, draft = table(7, 4, 0.2), table(8, 4, 0.2)
    drafts = [proposal for _, proposal in drawn_drafts(draft, CHAINS[1])][:12]
    rows = [torch.stack([target(p.tokens[:n]) for n in range(3)]) for p in drafts]
    draws = [Draws(Stream.root(5).fold_in(i), i) for i in range(len(drafts))]
    together = rule.verify(torch.cat(rows), drafts, draws)
    alone = [
        rule.verify(p_rows, [proposal], [draw])[0]
        for p_rows, proposal, draw in zip(rows, drafts, draws, strict=True)
    ]
    statement = "a batch decides as each branch alone, in any order"
    findings.must(together == alone, statement, f"{together} and {alone}")
    back = rule.verify(torch.cat(rows[::-1]), drafts[::-1], draws[::-1])[::-1]
    findings.must(back == alone, statement, f"{back} and {alone}")

    outcomes = rule.outcomes(rows[0], drafts[0])
    chances: dict[tuple[int, ...], float] = {}
    for outcome in outcomes:
        chances[outcome.nodes] = chances.get(outcome.nodes, 0.0) + outcome.probability
    counts = dict.fromkeys(chances, 0)
    for number in range(ROUNDS):
        draw = Draws(Stream.root(6).fold_in(number), number)
        [decision] = rule.verify(rows[0], [drafts[0]], [draw])
        counts[decision.nodes] = counts.get(decision.nodes, 0) + 1
        if rule.draws_uniform and type(rule).verify is AcceptanceRule.verify:
            assert decision.nodes == pick(outcomes, uniform(draw.uniform_key)).nodes
    for nodes, count in counts.items():
        p = chances.get(nodes, 0.0)
        error = (ROUNDS * p * (1 - p)) ** 0.5
        near = abs(count - ROUNDS * p) <= LIMIT * error + 1e-6
        statement = "decisions are as frequent as the outcomes say"
        findings.must(near, statement, f"{nodes} {count} times of {ROUNDS} at {p:.3f}")


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

    def __init__(self, make: Make) -> None:
        self.make = make
        self.draft = small_model(0)
        self.target = ModelRunner(small_model(1), num_blocks=400, block_size=4)
        chance = random.Random(8)
        self.texts = [
            [chance.randrange(VOCABULARY) for _ in range(n)] * 2 for n in (3, 5, 8, 4)
        ]

    def drafter(
        self, sampling: SamplingParams = SAMPLINGS[0]
    ) -> tuple[Drafter, ModelRunner]:
        """A new drafter and the runner of its draft model."""
        runner = ModelRunner(self.draft, num_blocks=400, block_size=4)
        drafter: Drafter = self.make().make("drafter", DrafterSetup(runner, sampling))
        return drafter, runner

    def contexts(self, numbers: Sequence[int], limit: int = 9) -> list[Context]:
        """A new branch of every numbered text, in the first round of its own step."""
        streams = [Stream.root(9).fold_in(number) for number in numbers]
        branches = [self.target.open(self.texts[number]) for number in numbers]
        pairs = zip(branches, streams, strict=True)
        return [Context(branch, limit, Draws(stream, 0)) for branch, stream in pairs]

    def propose(
        self, drafter: Drafter, contexts: Sequence[Context], k: int
    ) -> list[Proposal]:
        """The drafter's proposals, checked as in an answer."""
        proposals = drafter.propose(contexts, k)
        check_list("drafter", drafter.propose, proposals, Proposal, len(contexts))
        for context, proposal in zip(contexts, proposals, strict=True):
            check_proposal(drafter, proposal, max(0, min(k, context.limit)))
        return proposals

    def two_rounds(self, numbers: Sequence[int]) -> list[Any]:
        """What a new drafter proposes for these texts, in a round and, after it has
        learnt from it, in the next."""
        drafter, _ = self.drafter()
        shapes: dict[int, list[Any]] = {number: [] for number in numbers}
        contexts = self.contexts(numbers)
        for _ in range(2):
            proposals = self.propose(drafter, contexts, 4)
            following = []
            for number, context, proposal in zip(
                numbers, contexts, proposals, strict=True
            ):
                shapes[number].append((proposal.tokens, proposal.parents))
                context.branch.append(number + 1)  # the target's token
                drafter.learn(context, proposal, self.logits(number, len(proposal) + 1))
                draws = Draws(context.draws.stream, context.draws.offset + 1)
                following.append(Context(context.branch, 9, draws))
            contexts = following
        return [shapes[number] for number in numbers]

    def logits(self, number: int, rows: int) -> Tensor:
        """What the target says about a text: random, but always the same."""
        noise = torch.Generator().manual_seed(number)
        return torch.randn(rows, VOCABULARY, dtype=torch.float64, generator=noise)


def check_drafter(findings: Findings, make: Make, world: World) -> None:
    """A proposal depends on its branch alone, is no deeper than allowed, and follows
    the stated `q`. `forget` frees all blocks; branches are left as they are."""
    bench = Bench(make)
    numbers = list(range(len(bench.texts)))
    drafter, _ = bench.drafter()

    contexts = bench.contexts(numbers)
    bench.propose(drafter, contexts, 4)
    tokens = [context.tokens for context in contexts]
    findings.must(tokens == bench.texts, "the branches are left as they are", tokens)
    for limit in (0, 1, 2):
        bench.propose(drafter, bench.contexts(numbers, limit), 4)
    nothing = drafter.propose([], 3)
    findings.must(nothing == [], "no contexts give no proposals", nothing)

    if drafter.shares_state:
        findings.remarks.append("shares state between branches: use acceptance match")
    else:
        statement = "a proposal depends on its own branch alone, also after `learn`"
        alone = [bench.two_rounds([number])[0] for number in numbers]
        together = bench.two_rounds(numbers)
        findings.must(together == alone, statement, f"{together} and {alone}")
        back = bench.two_rounds(numbers[::-1])[::-1]
        findings.must(back == alone, "the order of a batch does not matter", back)
    states = random.getstate(), torch.get_rng_state()
    try:
        shapes = []
        for seed in (0, 1):
            random.seed(seed)
            torch.manual_seed(seed)
            shapes.append(bench.two_rounds(numbers))
        statement = "proposals depend on no global generator and on no earlier object"
        findings.must(shapes[0] == shapes[1], statement, shapes)
    finally:
        random.setstate(states[0])
        torch.set_rng_state(states[1])

    drafter, runner = bench.drafter()
    for _ in range(3):
        contexts = bench.contexts(numbers)
        bench.propose(drafter, contexts, 3)
        drafter.forget([context.branch for context in contexts])
        used = runner.cache.pool.num_used
        findings.must(
            used == 0, "`forget` gives all blocks back (no leak)", f"{used} held"
        )
    for sampling in SAMPLINGS:
        _check_q(findings, bench, sampling)


def _check_q(findings: Findings, bench: Bench, sampling: SamplingParams) -> None:
    """The rounds of one step: the same branch and stream, other offsets."""
    drafter, _ = bench.drafter(sampling)
    branch: Branch = bench.target.open(bench.texts[0])
    stream = Stream.root(10)
    noise = torch.Generator().manual_seed(3)
    functions = torch.randn(VOCABULARY, FUNCTIONS, dtype=torch.float64, generator=noise)
    sums: dict[int, list[Tensor]] = {}  # by place: of the deviations, of the variances
    ahead: dict[tuple[int, ...], bool] = {}  # whether a token is drafted after these
    agreed, expected, drawn = 0.0, 0.0, 0
    for offset in range(ROUNDS):
        draws = Draws(stream, offset)
        [proposal] = bench.propose(drafter, [Context(branch, 9, draws)], 3)
        if proposal.tokens and proposal.q is None:
            certain = "the tokens are certain, so there is no q to check"
            if certain not in findings.remarks:
                findings.remarks.append(certain)
            if offset:
                return
            continue
        if not proposal.is_chain:
            return
        for place in range(min(3, len(proposal) + 1)):
            goes_on = place < len(proposal)
            before = ahead.setdefault(proposal.tokens[:place], goes_on)
            statement = "whether a token is drafted depends on no draw of that token"
            instead = f"sometimes after {proposal.tokens[:place]}"
            findings.must(before == goes_on, statement, instead)
        if proposal.q is None:
            continue
        q = proposal.q.double()
        drawn += 1
        for place, (token, row) in enumerate(zip(proposal.tokens, q, strict=True)):
            f = functions[: len(row)]
            mean = row[: len(f)] @ f
            known = sums.setdefault(
                place, [torch.zeros(FUNCTIONS).double() for _ in range(2)]
            )
            known[0] += f[token] - mean
            known[1] += row[: len(f)] @ f**2 - mean**2
        own = sample(q[:1], [draws.sample_key(0)])[0]
        agreed += own == proposal.tokens[0]
        expected += float((q[0] ** 2).sum())
    for place, (deviation, variance) in sums.items():
        z = float((deviation.abs() / variance.clamp(min=1e-12).sqrt()).max())
        near = z < LIMIT or float(deviation.abs().max()) < 1e-6
        statement = "tokens are drawn from the stated q, anew in every round"
        findings.must(
            near, statement, f"{z:.1f} standard errors at place {place}, {sampling}"
        )
    if drafter.coupling is Coupling.INDEPENDENT and drawn:
        error = max(1e-12, expected * (1 - expected / drawn)) ** 0.5
        near = agreed - expected <= LIMIT * error or agreed == expected
        statement = "with coupling independent the noise is not the target's"
        findings.must(
            near, statement, f"{agreed:.0f} of {drawn} are the target's draws"
        )
