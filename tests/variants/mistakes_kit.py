"""Deliberate mistakes, each a function that `--variant` could name, marked with who must
notice it:

`refused`: the part or a value, where it is given. `raised`: the part's own exception.
`broken`: `lr check` finds it. `shown`: a line about what did nothing. `harmless`:
nobody; nothing is written that would not have been written.

The file is run anew for every object, so its globals are a part's own."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from lr.rng import uniform
from lr.spec.acceptance import BlockRule, RejectRule
from lr.spec.drafters import LookupDrafter, ModelDrafter, draft_key
from lr.spec.proposal import Proposal
from lr.spec.protocol import WAIT
from lr.spec.sampling import distribution, sample
from lr.spec.variant import Controller, Corrector, StepSource, Variant
from lr.spec.verifiers.base import Requires, Verifier
from lr.types import Coupling, Verdict

MISTAKES: dict[str, str] = {}
THEN = "Then Ben has 10 coins.\n\n"


def noticed_as(notices: str) -> Callable[[Any], Any]:
    def note(make: Any) -> Any:
        MISTAKES[make.__name__] = notices
        return make

    return note


refused = noticed_as("refused")
raised = noticed_as("raised")
broken = noticed_as("broken")
shown = noticed_as("shown")
harmless = noticed_as("harmless")
fine = noticed_as("fine")


class Like(Verifier):
    """The correct verifier that most of these spoil."""

    name = "like"
    requires = Requires.TARGET_LOGPROBS

    def judge(self, pairs):
        return [self.verdict(pair) for pair in pairs]

    def verdict(self, pair):
        mean = sum(pair.logprobs) / len(pair.logprobs)
        return Verdict(mean > -1.0, "mean", mean)


def verifier(verdict=None, requires=Requires.TARGET_LOGPROBS, **methods):
    """A variant whose verifier judges each pair by `verdict`."""
    members = {"requires": requires, **methods}
    if verdict is not None:
        members["verdict"] = lambda self, pair: verdict(pair)
    return Variant(type("V", (Like,), members)())


@fine
def a_correct_verifier(reasoner):
    return Variant(Like())


# Verdicts


@refused
def a_short_list(reasoner):
    return verifier(judge=lambda self, pairs: Like.judge(self, pairs)[:-1])


@broken
def a_reversed_list(reasoner):
    return verifier(judge=lambda self, pairs: Like.judge(self, pairs)[::-1])


@broken
def a_counter(reasoner):
    calls = []

    def verdict(pair):
        calls.append(1)
        return Verdict(len(calls) % 3 > 0, "x")

    return verifier(verdict)


STORE: dict[Any, Any] = {}


@broken
def a_memo_that_forgets_the_prefix(reasoner):
    return verifier(
        lambda pair: STORE.setdefault(pair.draft.tokens, Like().verdict(pair))
    )


@broken
def the_wall_clock(reasoner):
    return verifier(lambda pair: Verdict(time.perf_counter_ns() // 1000 % 2 == 0, "x"))


@broken
def a_global_generator(reasoner):
    return verifier(lambda pair: Verdict(random.random() < 0.5, "x"))


@shown
def the_same_key_for_every_pair(reasoner):
    return verifier(lambda pair: Verdict(uniform(12345) < 0.7, "x"))


@refused
def a_score_that_is_not_a_number(reasoner):
    return verifier(lambda pair: Verdict(True, "x", float("nan")))


@refused
def a_tensor_for_a_bool(reasoner):
    return verifier(lambda pair: Verdict(torch.tensor(1.0) > 0, "x"))


@raised
def an_exception(reasoner):
    return verifier(lambda pair: 1 / 0)


@raised
def a_forgotten_requires(reasoner):
    return verifier(requires=Requires.TARGET_STEP)


BOTH = Requires.TARGET_STEP | Requires.TARGET_LOGPROBS


@refused
def a_misspelt_early_pass(reasoner):
    early = {"early_requires": Requires.TARGET_LOGPROBS}
    return verifier(requires=BOTH, **early, judge_erly=Like.judge)


@refused
def an_early_pass_that_requires_nothing(reasoner):
    return verifier(requires=BOTH, judge_early=Like.judge)


@refused
def an_early_pass_that_needs_the_target_step(reasoner):
    early = {"early_requires": Requires.TARGET_STEP}
    return verifier(requires=BOTH, **early, judge_early=Like.judge)


@harmless
def log_probabilities_off_by_one(reasoner):
    """Another verifier, only a worse one."""

    return verifier(lambda pair: Verdict(sum(pair.logprobs[1:]) > -4.0, "x"))


@broken
def hidden_states_are_changed(reasoner):
    def verdict(pair):
        pair.hidden.zero_()
        return Like().verdict(pair)

    return verifier(verdict, Requires.HIDDEN | Requires.TARGET_LOGPROBS)


@raised
def a_variance_of_one_token(reasoner):
    return verifier(lambda pair: Verdict(True, "x", 1.0 / (len(pair.logprobs) - 1)))


@raised
def a_forbidden_token(reasoner):
    def verdict(pair):
        return Verdict(True, "x", int(sum(pair.target_sampling)))

    return verifier(verdict, Requires.SAMPLING_LOGPROBS)


@raised
def a_draft_that_no_model_drew(reasoner):
    def verdict(pair):
        logs = zip(pair.target_sampling, pair.draft_sampling, strict=True)
        return Verdict(sum(p - q for p, q in logs) > -1, "x")

    return verifier(verdict, Requires.SAMPLING_LOGPROBS)


@broken
def the_pairs_are_kept(reasoner):
    pairs = []

    def verdict(pair):
        pairs.append(pair)
        return Like().verdict(pair)

    return verifier(verdict)


# Choices


def chooser(choose, verdict=None):
    variant = verifier(verdict, choose=lambda self, alternatives: choose(alternatives))
    return replace(variant, settings={"width": 3})


def aligned_of(alternatives):
    return [j for j, verdict in enumerate(alternatives.verdicts) if verdict.aligned]


def by_score(alternatives):
    return max(
        range(len(alternatives.verdicts)), key=lambda j: alternatives.verdicts[j].score
    )


@refused
def a_choice_that_is_not_aligned(reasoner):
    return chooser(lambda alternatives: 0, lambda pair: Verdict(False, "x", 1.0))


@refused
def waiting_for_ever(reasoner):
    return chooser(lambda alternatives: WAIT)


@shown
def a_choice_that_never_waits(reasoner):
    return chooser(lambda alternatives: max(aligned_of(alternatives), default=None))


@refused
def the_best_of_no_numbers(reasoner):
    return chooser(by_score, lambda pair: Verdict(True, "x", float("nan")))


@broken
def a_choice_by_the_clock(reasoner):
    def choose(alternatives):
        aligned = aligned_of(alternatives)
        number = time.perf_counter_ns() // 100
        return aligned[number % len(aligned)] if aligned else None

    return chooser(choose)


# Controllers


def controller(depth=lambda progress: 3, **methods):
    names = {"depth": lambda self, progress: depth(progress), **methods}
    return Variant(controller=type("K", (Controller,), names))


@refused
def a_depth_of_2_point_0(reasoner):
    return controller(lambda progress: 2.0)


@broken
def a_depth_by_the_clock(reasoner):
    return controller(lambda progress: 1 + time.perf_counter_ns() // 1000 % 4)


@raised
def a_depth_by_seconds(reasoner):
    return controller(lambda progress: 1 + int(progress.seconds * 1e4) % 4)


@refused
def one_controller_for_all_answers(reasoner):
    return Variant(controller=controller().controller())


@broken
def one_controller_made_again_and_again(reasoner):
    calls = []

    def depth(progress):
        calls.append(1)
        return 1 + len(calls) % 3

    shared = controller(depth).controller()
    return Variant(controller=lambda: shared)


@refused
def a_misspelt_number_of_tokens(reasoner):
    return controller(token=lambda self, progress: 1)


@refused
def tokens_below_zero(reasoner):
    return controller(tokens=lambda self, progress: -1)


@shown
def a_depth_above_the_runs(reasoner):
    return replace(controller(lambda progress: 50), settings={"depth": 2})


# Correctors


def corrector(**methods):
    names = {name: staticmethod(method) for name, method in methods.items()}
    part = type("C", (Corrector,), names)()
    return replace(verifier(lambda pair: Verdict(False, "no")), corrector=part)


@refused
def a_beginning_that_is_not_the_drafts(reasoner):
    return corrector(begin=lambda correction: reasoner.codec.encode("bananas "))


@broken
def no_step_is_kept(reasoner):
    return corrector(keep=lambda correction, step, number: False)


@refused
def a_misspelt_keep(reasoner):
    return corrector(keeps=lambda correction, step, number: False)


@refused
def keeping_by_a_number(reasoner):
    return corrector(keep=lambda correction, step, number: 1)


@refused
def a_corrector_beside_a_verifier_that_compares(reasoner):
    return Variant(corrector=Corrector())


# Segmenters and step sources


def segmenter(ends):
    """`ends(tokens)`: whether a step of these tokens is complete."""

    class Made:
        def __init__(self, token_bytes):
            self.tokens = []

        def feed(self, token):
            self.tokens.append(token)
            return ends(self.tokens)

    return Variant(segmenter=Made)


@broken
def steps_that_never_end(reasoner):
    return segmenter(lambda tokens: False)


READ: list[int] = []


@broken
def steps_that_share_a_counter(reasoner):
    def ends(tokens):
        READ.append(tokens[-1])
        return len(READ) % 11 == 0

    return segmenter(ends)


@refused
def the_number_of_boundaries(reasoner):
    return segmenter(lambda tokens: len(tokens) // 12)


def source(propose):
    names = {"steps_after": lambda self, tokens, prompt, width: propose(tokens)}
    return Variant(step_source=type("S", (StepSource,), names)())


@refused
def text_for_tokens(reasoner):
    return source(lambda tokens: [THEN])


@shown
def a_step_without_its_boundary(reasoner):
    return source(lambda tokens: [reasoner.codec.encode(THEN.strip())])


@shown
def the_last_token_again(reasoner):
    return source(lambda tokens: [[tokens[-1], *reasoner.codec.encode(THEN)]])


@refused
def a_flat_list(reasoner):
    return source(lambda tokens: reasoner.codec.encode(THEN))


@refused
def a_negative_token_in_a_step(reasoner):
    return source(lambda tokens: [[-3, *reasoner.codec.encode("\n\n")]])


@refused
def a_step_outside_the_vocabulary(reasoner):
    return source(lambda tokens: [[99999, *reasoner.codec.encode("\n\n")]])


@broken
def the_prefix_is_changed(reasoner):
    def propose(tokens):
        if isinstance(tokens, list):
            tokens[-1] = 5
        return [None]

    return source(propose)


# Drafters


def drawn(change):
    """The model's drafts, changed."""

    class D(ModelDrafter):
        def propose(self, contexts, k):
            return [change(p) if len(p) else p for p in super().propose(contexts, k)]

    return drafter(D)


def drafter(kind):
    return Variant(drafter=lambda setup: kind(setup.runner, setup.sampling))


def looked_up(propose):
    """`propose(self, context, k)` makes the proposal for a branch."""

    class D(LookupDrafter):
        def propose(self, contexts, k):
            return [propose(self, c, min(k, c.limit)) for c in contexts]

    return Variant(drafter=lambda setup: D())


@fine
def a_correct_drafter(reasoner):
    return drawn(lambda proposal: proposal)


@shown
def a_lookup_off_by_one(reasoner):
    def propose(self, context, k):
        copied = self._look_up(context.tokens, k).tokens
        return Proposal.chain((context.tokens[-1], *copied)[: max(0, k)])

    return looked_up(propose)


@refused
def a_q_that_sums_to_less(reasoner):
    return drawn(lambda p: replace(p, q=p.q * 0.9))


@refused
def a_q_without_numbers(reasoner):
    return drawn(lambda p: replace(p, q=p.q * float("nan")))


@broken
def the_rows_of_q_shifted_by_one(reasoner):
    return drawn(lambda p: replace(p, q=p.q.roll(1, 0)))


@broken
def a_q_at_another_temperature(reasoner):
    class D(ModelDrafter):
        def propose(self, contexts, k):
            live = [c for c in contexts if min(k, c.limit) > 0]
            rows = iter(self.runner.forward([self.follow(c.branch) for c in live]))
            return [
                self.draw(c, next(rows)) if c in live else Proposal((), ())
                for c in contexts
            ]

        def draw(self, context, logits):
            key = draft_key(context, 0, self.coupling)
            [token] = sample(distribution(logits[None], self.sampling), [key])
            return Proposal.chain([token], logits.softmax(-1)[None])

    return drafter(D)


@broken
def unsure_tokens_dropped_after_the_draw(reasoner):
    def change(p):
        sure = 0
        while sure < len(p) and p.q[sure, p.tokens[sure]] > 0.5:
            sure += 1
        return Proposal.chain(p.tokens[:sure], p.q[:sure] if sure else None)

    return drawn(change)


@broken
def greedy_tokens_with_a_softmax(reasoner):
    return drawn(lambda p: replace(p, tokens=tuple(p.q.argmax(-1).tolist())))


@broken
def the_same_noise_in_every_round(reasoner):
    class D(ModelDrafter):
        def propose(self, contexts, k):
            same = [replace(c, draws=replace(c.draws, offset=0)) for c in contexts]
            return super().propose(same, k)

    return drafter(D)


@broken
def the_targets_noise(reasoner):
    class D(ModelDrafter):
        def propose(self, contexts, k):
            self.coupling = Coupling.SHARED
            proposals = super().propose(contexts, k)
            self.coupling = Coupling.INDEPENDENT
            return proposals

    return drafter(D)


@broken
def a_global_draw(reasoner):
    return drawn(lambda p: Proposal.chain([int(torch.multinomial(p.q[0], 1))], p.q[:1]))


@refused
def a_token_of_the_branch_overwritten(reasoner):
    def propose(self, context, k):
        context.tokens[-1] = context.tokens[0]
        return self._look_up(context.tokens, k)

    return looked_up(propose)


@broken
def branches_never_forgotten(reasoner):
    class D(ModelDrafter):
        def forget(self, branches):
            return

    return drafter(D)


@broken
def proposals_in_the_wrong_order(reasoner):
    class D(ModelDrafter):
        def propose(self, contexts, k):
            return super().propose(contexts, k)[::-1]

    return drafter(D)


@broken
def a_table_for_all_branches_undeclared(reasoner):
    class D(LookupDrafter):
        table = 7

        def learn(self, context, proposal, logits):
            self.table = int(logits[0].argmax())

        def propose(self, contexts, k):
            return [Proposal.chain([self.table][: min(k, c.limit)]) for c in contexts]

    return Variant(drafter=lambda setup: D())


@refused
def a_misspelt_learn(reasoner):
    class D(LookupDrafter):
        def learns(self, context, proposal, logits):
            return

    return Variant(drafter=lambda setup: D())


@refused
def too_deep(reasoner):
    return looked_up(lambda self, context, k: self._look_up(context.tokens, k + 3))


@refused
def text_for_a_proposal(reasoner):
    return looked_up(lambda self, context, k: "coins")


@refused
def a_draft_outside_the_vocabulary(reasoner):
    return looked_up(lambda self, context, k: Proposal.chain([99999][:k]))


@refused
def a_negative_draft(reasoner):
    return looked_up(lambda self, context, k: Proposal.chain([-1][:k]))


@refused
def a_tree_that_is_not_declared(reasoner):
    def propose(self, context, k):
        return Proposal((5, 6), (-1, -1)) if k > 0 else Proposal((), ())

    return looked_up(propose)


# Rules


def rule(change, **names):
    """Rejection, with its outcomes changed."""

    class R(RejectRule):
        def outcomes(self, p_rows, proposal):
            outcomes = super().outcomes(p_rows, proposal)
            return [change(outcome, p_rows) for outcome in outcomes]

    for name, value in names.items():
        setattr(R, name, value)
    return Variant(rule=R, settings={"drafter": "draft"})


def row_after(outcome, p_rows):
    return p_rows[outcome.nodes[-1] + 1 if outcome.nodes else 0]


@broken
def a_redraw_after_a_rejection(reasoner):
    return rule(lambda o, p_rows: replace(o, next_probs=lambda: row_after(o, p_rows)))


@refused
def outcomes_that_sum_to_less(reasoner):
    return rule(lambda o, p_rows: replace(o, probability=o.probability * 0.9))


@broken
def the_targets_rows_overwritten(reasoner):
    def change(outcome, p_rows):
        p_rows.mul_(0).add_(1 / p_rows.shape[1])
        return outcome

    return rule(change)


@broken
def a_replacement_with_plain_decodings_key(reasoner):
    return rule(lambda outcome, p_rows: replace(outcome, untouched=True))


@broken
def a_rule_that_needs_fresh_noise_and_says_not(reasoner):
    kind = type("R", (BlockRule,), {"needs_fresh_noise": False})
    return Variant(rule=kind, settings={"drafter": "draft", "coupling": "shared"})


@broken
def a_next_token_without_its_distribution(reasoner):
    return rule(
        lambda o, p_rows: replace(o, next_probs=lambda: row_after(o, p_rows) * 0.5)
    )


# Variants


@refused
def a_misspelt_setting(reasoner):
    return Variant(Like(), settings={"widht": 3})


@refused
def a_class_for_an_object(reasoner):
    return Variant(Like)


@refused
def a_verifier_in_mode_sd(reasoner):
    return Variant(Like(), settings={"mode": "sd"})


@refused
def a_drafter_in_mode_lr(reasoner):
    return Variant(drafter=lambda setup: LookupDrafter(), settings={"mode": "lr"})


@refused
def a_setting_of_the_wrong_type(reasoner):
    return Variant(Like(), settings={"depth": "4"})


@raised
def a_rule_that_forgets_certain_drafts(reasoner):
    class R(RejectRule):
        def outcomes(self, p_rows, proposal):
            assert proposal.q.shape == p_rows[1:].shape
            return super().outcomes(p_rows, proposal)

    return Variant(rule=R)


@refused
def a_number_for_a_draft(reasoner):
    return Variant(draft=7)
