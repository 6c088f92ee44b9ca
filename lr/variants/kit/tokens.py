"""The contracts of drafters and acceptance rules.

A rule that calls itself lossless is compared with the target by enumerating every
proposal and outcome (`lr/theory/exact.py`), without sampling. The tokens of a drafter
are compared with the `q` that it states, at every place of a chain, at several
temperatures and filters, over the rounds of one step: every token must be as frequent
as q says. A normal deviate above `LIMIT` is a fault; a
correct drafter shows one in fewer than one of 10,000 checks.

`anew` returns what makes the drafter or the rule of a new variant.
"""

import gc
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor

from lr.engine.runner import ModelRunner
from lr.model.config import ModelConfig
from lr.registry import dummies
from lr.rng import Stream
from lr.spec.acceptance import (
    AcceptanceRule,
    Decision,
    MatchRule,
    Outcome,
    check_outcomes,
)
from lr.spec.checks import check_list
from lr.spec.proposal import ROOT, Draws, Proposal, check_proposal, check_widths
from lr.spec.sampling import sample
from lr.spec.token_sd import Context, Drafter, DrafterSetup, Speculation, speculate
from lr.spec.verifiers.base import Requires
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
from lr.variants.kit.findings import Findings, same_everywhere

EXACT = 1e-9
LIMIT = 5.5  # standard errors
GROWTH = 1000  # bytes: less than eight texts take, more than a pool's lists vary
ROUNDS = 300
VOCABULARY = 48
HIDDEN_SIZE = 16
CHAINS = [tuple(range(ROOT, n - 1)) for n in range(1, 7)]
TREES = [(ROOT, ROOT), (ROOT, 0, 0), (ROOT, ROOT, 0, 1)]
WORLDS = ((2, 0.0, 6), (3, 0.0, 3), (3, 0.4, 3), (3, 1.0, 3))
"""Tokens, the share of them that the target never writes (1.0: temperature 0), and the
longest chain."""
SAMPLINGS = (
    SamplingParams(1.0),
    SamplingParams(0.6, top_p=0.9),
    SamplingParams(1.3, top_k=9),
)


# Rules


def random_rows(seed: int, v: int, zeros: float = 0.0) -> Model:
    """A random distribution over v tokens after every text; the share `zeros` of them
    is 0."""

    def after(text: tuple[int, ...]) -> Tensor:
        chance = random.Random(f"{seed} {text}")
        weights = [chance.expovariate(1) * (chance.random() >= zeros) for _ in range(v)]
        # at least one token is possible
        weights[chance.randrange(v)] += 0.1
        row = torch.tensor(weights, dtype=torch.float64)
        return row / row.sum()

    return after


def greedy(model: Model) -> Model:
    """The model at temperature 0."""
    return lambda text: (model(text) == model(text).max()).double()


def observed(proposal: Proposal, target: Model, rule: AcceptanceRule) -> Proposal:
    """The proposal with the evidence that the rule requires."""
    if not rule.requires:
        return proposal
    logits = (target_rows(target, proposal) + 1e-9).log()  # [n + 1, v]
    noise = torch.Generator().manual_seed(len(proposal))
    hidden = torch.randn(len(logits), HIDDEN_SIZE, generator=noise)
    return replace(proposal, logits=logits, hidden=hidden)


def check_rule(
    findings: Findings, anew: Callable[[], Callable[[], AcceptanceRule]]
) -> None:
    """Outcomes are a distribution over paths; a rule that calls itself lossless emits
    exactly the target's; decisions depend on nothing else."""
    rule = anew()()
    errors = {}  # by world
    for v, zeros, longest in WORLDS:
        soft = random_rows(1, v, zeros % 1)
        target = greedy(soft) if zeros == 1.0 else soft
        draft = random_rows(2, v, zeros % 1)  # at temperature 0 it may still draw
        worst = 0.0
        for parents in [*CHAINS[:longest], *(TREES if rule.trees else [])]:
            kinds = [drawn_drafts(draft, parents), certain_drafts(draft, parents)]
            if parents in TREES:
                kinds.append(drawn_drafts(draft, parents, replace=False))
            for kind in kinds:
                # the logits are soft at any temperature
                drafts = [(weight, observed(p, soft, rule)) for weight, p in kind]
                # of all proposals of this shape: they differ in drafts beyond a place
                stops: Stops = {}
                for _, proposal in drafts:
                    rows = target_rows(target, proposal)
                    check_round(findings, rule, rows, proposal, stops)
                length = 1 + max(drafts[0][1].depths())
                # all that a round can write, against the target alone
                emitted = round_distribution(rule, target, drafts, length)
                error = total_variation(emitted, plain_distribution(target, length))
                worst = max(worst, error)
        errors[v, zeros] = worst
    worst = max(errors.values())
    if rule.lossless:
        findings.must(
            worst < EXACT,
            "a lossless rule emits the target's distribution, by enumeration",
            f"a total variation of {worst:.3g}",
        )
    else:
        findings.remarks.append(f"not lossless: total variation up to {worst:.3g}")
        if errors[3, 1.0] < EXACT and not rule.requires:
            strict = "at temperature 0 it keeps the target's likeliest tokens only"
            findings.remarks.append(f"{strict}: p is one-hot there")

    def decide(
        make: Callable[[], AcceptanceRule], question: tuple[Tensor, Proposal, Draws]
    ) -> Decision:
        rows, proposal, draws = question
        [decision] = make().verify(rows, [proposal], [draws])
        return decision

    target = random_rows(1, 4, 0.2)
    drafts = list(drawn_drafts(random_rows(2, 4, 0.2), CHAINS[1]))[:12]
    questions = []
    for number, (_, proposal) in enumerate(drafts):
        draws = Draws(Stream.root(5).fold_in(number), number)
        shown = observed(proposal, target, rule)
        questions.append((target_rows(target, proposal), shown, draws))
    same_everywhere(findings, anew, decide, questions)


Stops = dict[tuple[Any, ...], float]
"""How likely a rule stops at a place, given the drafts that it had tried by then."""


def check_round(
    findings: Findings,
    rule: AcceptanceRule,
    rows: Tensor,
    proposal: Proposal,
    stops: Stops,
) -> None:
    """The outcomes of one proposal. Stopping somewhere must not depend on drafts beyond
    that place: the next round draws there with the same noise (coupling shared)."""
    outcomes = rule.outcomes(rows, proposal)
    check_list("rule", rule.outcomes, outcomes, Outcome, len(outcomes))
    check_outcomes(rule, outcomes)
    chances: dict[tuple[int, ...], float] = {}
    for outcome in outcomes:
        path = proposal.path(outcome.end)
        findings.equal(outcome.nodes, path, "the nodes are a path from the root")
        chances[path] = chances.get(path, 0.0) + outcome.probability
        if outcome.probability > 0:
            probs = outcome.next_probs()
            fits = len(probs) == len(rows[0]) and abs(float(probs.sum()) - 1) < 1e-6
            findings.must(fits, "next_probs is a distribution over all tokens", probs)
    for end, depth in enumerate(proposal.depths(), start=ROOT):
        path = proposal.path(end)
        drafts = zip(proposal.tokens, proposal.depths()[1:], strict=True)
        tried = tuple(token for token, level in drafts if level <= depth + 1)
        chance = chances.get(path, 0.0)  # an outcome that is not listed never happens
        first = stops.setdefault((path, tried), chance)
        findings.must(
            rule.needs_fresh_noise or abs(chance - first) < EXACT,
            "the place where a rule stops depends on no draft beyond it",
            f"{first} and {chance}: set needs_fresh_noise",
        )
    # torch counts the changes in place
    findings.equal(rows._version, 0, "the target's rows are left as they are")


# Drafters

MakeDrafter = Callable[[DrafterSetup], Drafter]


def random_runner(layers: int) -> ModelRunner:
    """A random fp64 model whose distributions are neither flat nor one-hot."""
    config = ModelConfig(
        VOCABULARY, 32, 48, layers, 4, 2, 8, 512, 1e-6, 10_000.0, False, True, True
    )
    model = dummies().random_model(config, torch.float64, torch.device("cpu"))
    model.norm.weight.mul_(2)  # some tokens are likelier than a half
    return ModelRunner(model, num_blocks=4000, block_size=4)


TEXTS = [2 * list(range(n, 3 * n)) for n in (3, 5, 8, 4)]
"""What stands on the branches, with something to look up."""


def write_rounds(
    findings: Findings, make: MakeDrafter, numbers: Sequence[int]
) -> list[Any]:
    """What a new drafter proposes for these texts in a few rounds, in which it learns
    from a target. For one with memory: the first tokens that are written."""
    draft = random_runner(layers=1)
    proposed = rounds_of(make(DrafterSetup(draft, SAMPLINGS[0])), numbers)
    held = draft.cache.pool.num_used
    findings.equal(held, 0, "`forget` gives all blocks back (no leak)")
    return proposed


def rounds_of(drafter: Drafter, numbers: Sequence[int]) -> list[Any]:
    """What it proposes for these texts, which are closed afterwards."""
    target = random_runner(layers=2)
    if Requires.HIDDEN in drafter.requires:
        target.watch("norm")
    speculation = Speculation(drafter, MatchRule(), 4, checked=True)
    branches = [target.open(TEXTS[number]) for number in numbers]
    proposed: list[list[Any]] = [[] for _ in numbers]
    limits = (9, 9, 2, 0, 1)
    for limit in limits:
        contexts = []
        for i, branch in zip(numbers, branches, strict=True):
            offset = len(branch.tokens) - len(TEXTS[i])
            draws = Draws(Stream.root(9).fold_in(i), offset)
            contexts.append(Context(branch, limit, draws))
        ends = speculate(target, SAMPLINGS[0], speculation, contexts)
        for rounds, end in zip(proposed, ends, strict=True):
            nodes = end.proposal
            proposal = [*zip(nodes.tokens, nodes.parents, strict=True)]
            rounds += end.tokens if drafter.memory else [proposal]
    drafter.forget(branches)
    # Every round writes a token, or more if the drafts are good.
    return [rounds[: len(limits)] for rounds in proposed]


def bytes_held(part: object) -> int:
    """The bytes of all that can be reached from a part, apart from code."""
    reached: dict[int, object] = {}
    waiting = [part]
    while waiting:
        value = waiting.pop()
        if not isinstance(value, (type, ModuleType, FunctionType)):
            if id(value) not in reached:
                waiting += gc.get_referents(value)
            reached[id(value)] = value
    return sum(map(sys.getsizeof, reached.values()))


def check_drafter(findings: Findings, anew: Callable[[], MakeDrafter]) -> None:
    """A proposal depends on its branch alone, is no deeper than allowed, and follows
    the stated `q`. `forget` frees all blocks and texts; branches are left as they
    are."""

    def write_alone(make: MakeDrafter, number: int) -> Any:
        return write_rounds(findings, make, [number])[0]

    numbers = list(range(len(TEXTS)))
    alone = same_everywhere(findings, anew, write_alone, numbers)
    drafter = anew()(DrafterSetup(random_runner(layers=1), SAMPLINGS[0]))
    if drafter.memory:
        findings.remarks.append("remembers earlier answers: only tokens are compared")
    else:
        sizes = []
        for _ in range(8):  # in the first ones it may learn
            rounds_of(drafter, numbers)
            sizes.append(bytes_held(drafter))
        # A list that takes new room at once does so in one of these; a leak in both.
        grew = min(sizes[5] - sizes[3], sizes[7] - sizes[5])
        freed = (
            "`forget` frees what is kept of a text: the same texts take no more room"
        )
        findings.must(grew < GROWTH, freed, f"{grew} bytes more")
    if drafter.shares_state or drafter.memory:
        findings.remarks.append("shares state between branches: use acceptance match")
    else:
        findings.equal(
            write_rounds(findings, anew(), numbers[::-1])[::-1],
            alone,
            "a proposal depends on its own branch alone, also after `learn`",
        )
    findings.equal(drafter.propose([], 3), [], "no contexts give no proposals")
    drawn = [check_q(findings, anew(), sampling) for sampling in SAMPLINGS]
    if not any(drawn):
        findings.remarks.append("no chain of drawn tokens, so there is no q to check")


def rounds_of_a_step(drafter: Drafter) -> Iterator[tuple[Draws, Proposal]]:
    """The rounds of one step: the same text and stream, other offsets."""
    target = random_runner(layers=2)
    branches = [target.open(TEXTS[1]) for _ in range(10)]  # for fewer calls
    for first in range(0, ROUNDS, 10):
        draws = [Draws(Stream.root(10), first + i) for i in range(10)]
        contexts = [Context(b, 9, d) for b, d in zip(branches, draws, strict=True)]
        yield from zip(draws, drafter.propose(contexts, 3), strict=True)


def check_q(findings: Findings, make: MakeDrafter, sampling: SamplingParams) -> bool:
    """Whether tokens were drawn in the rounds of a step, and by the stated `q`."""
    drafter = make(DrafterSetup(random_runner(layers=1), sampling))
    drawn: dict[int, list[tuple[int, Tensor]]] = {}  # by position: tokens, with their q
    goes_on: dict[tuple[int, ...], bool] = {}  # whether a token follows these
    excess = 0.0  # of first tokens that are the target's draw, over those by chance
    variance = 0.0
    for draws, proposal in rounds_of_a_step(drafter):
        check_proposal(drafter, proposal, 3)
        check_widths(drafter, [proposal], VOCABULARY)
        if not proposal.is_chain:
            continue
        for position in range(min(3, len(proposal) + 1)):
            before = proposal.tokens[:position]
            drafts = position < len(proposal)
            findings.must(
                goes_on.setdefault(before, drafts) == drafts,
                "whether a token is drafted depends on no draw of that token",
                f"only sometimes after {before}",
            )
        if proposal.q is None:
            continue
        q = proposal.q.double()
        for position, token in enumerate(proposal.tokens):
            drawn.setdefault(position, []).append((token, q[position]))
        [target_token] = sample(q[:1], [draws.sample_key(0)])
        # two independent draws from q agree with probability sum q^2
        chance = float((q[0] ** 2).sum())
        excess += (target_token == proposal.tokens[0]) - chance
        variance += chance * (1 - chance)
    for position, tokens in drawn.items():
        errors = standard_errors(*zip(*tokens, strict=True))
        findings.must(
            errors < LIMIT,
            "tokens are drawn from the stated q, anew in every round",
            f"{errors:.1f} standard errors at position {position}, {sampling}",
        )
    if drawn and drafter.coupling is Coupling.INDEPENDENT:
        few = excess <= LIMIT * variance**0.5 + 1e-6
        statement = "with coupling independent the noise is not the target's"
        findings.must(few, statement, f"{excess:.0f} draws too many are its")
    return bool(drawn)


def standard_errors(tokens: Sequence[int], rows: Sequence[Tensor]) -> float:
    """How far the tokens are from draws of these distributions: the worst
    count of a token. Rare ones count as if one more draw decided about them."""
    q = torch.stack(list(rows))  # [rounds, v]
    counts = torch.tensor(tokens).bincount(minlength=VOCABULARY)
    # of a sum of independent draws: sum q (1 - q)
    variance = (q - q**2).sum(0) + 1
    return float(((counts - q.sum(0)).abs() / variance.sqrt()).max())
