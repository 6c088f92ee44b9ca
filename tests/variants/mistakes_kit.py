"""Deliberate mistakes by name, in a table for each who must notice them. A mistake is a
function that makes a variant.

`REFUSED`: the part or a value, where it is given. `RAISED`: the part's own exception.
`BROKEN`: `lr check` finds it. `SHOWN`: a line about what did nothing. `FINE` is correct,
or writes nothing that would not have been written. (Verdicts of another kind:
`tests/spec/test_verifiers.py`.)

The file is run anew for every object, so its globals are a part's own."""

from dataclasses import replace
from itertools import count

import torch

from lr.model.codec import Codec
from lr.rng import uniform
from lr.spec.acceptance import BlockRule, RejectRule
from lr.spec.drafters import LookupDrafter, ModelDrafter
from lr.spec.proposal import Proposal
from lr.spec.variant import Controller, StepSource, Variant
from lr.spec.verifiers.base import Requires, Verifier
from lr.types import Coupling, Verdict

NUMBERS = count(1)
STORE = {}
KEPT = []


def derived(base, **members):
    """A class with these members."""
    return type("Derived", (base,), members)


# Verifiers


class Like(Verifier):
    """The correct verifier that most of these spoil."""

    name = "like"
    requires = Requires.TARGET_LOGPROBS

    def judge(self, pairs):
        return [self.verdict(pair) for pair in pairs]

    def verdict(self, pair):
        mean = sum(pair.logprobs) / len(pair.logprobs)
        return Verdict(mean > -1.0, "mean", mean)


def verifier(**members):
    return Variant(derived(Like, **members)())


def verdicts(verdict, **members):
    """A verifier that judges each pair by `verdict`."""
    return verifier(
        judge=lambda self, pairs: [verdict(pair) for pair in pairs],
        **members,
    )


def accepts(rule):
    return verdicts(lambda pair: Verdict(rule(pair), "x"))


def keep_the_pair(pair):
    KEPT.append(pair)
    return Like().verdict(pair)


def consume(self, pairs):
    verdicts = []
    while pairs:
        verdicts.insert(0, Like().verdict(pairs.pop()))
    return verdicts


def chooser(choose, verdict=None):
    variant = verdicts(
        verdict or Like().verdict,
        choose=lambda self, drafts, verdicts: choose(verdicts),
    )
    return replace(variant, settings={"width": 3})


# Other parts that decide about steps


class InItsClass(Controller):
    """Counts the calls of all answers."""

    count = 0

    def depth(self, progress):
        InItsClass.count += 1
        return 1 + InItsClass.count % 3


def controller(depth=lambda progress: 3, **members):
    members["depth"] = lambda self, progress: depth(progress)
    return Variant(controller=derived(Controller, **members))


def segmenter(ends):
    """`ends(tokens)`: whether a step of these tokens is complete."""

    class Part:
        def __init__(self, token_bytes):
            self.tokens = []

        def feed(self, token):
            self.tokens.append(token)
            return ends(self.tokens)

    return Variant(segmenter=Part)


def source(step_after):
    part = derived(
        StepSource,
        write=lambda self, places: [step_after(place.tokens) for place in places],
    )
    return Variant(step_source=part())


# Drafters


def drafter(**members):
    """The model's drafter with other members."""
    kind = derived(ModelDrafter, **members)
    return Variant(drafter=lambda setup: kind(setup.runner, setup.sampling))


def drawn(change):
    """The model's proposals, changed."""

    def propose(self, contexts, k):
        proposals = ModelDrafter.propose(self, contexts, k)
        return [change(p) if len(p) else p for p in proposals]

    return drafter(propose=propose)


def lookup(**members):
    kind = derived(LookupDrafter, **members)
    return Variant(drafter=lambda setup: kind())


def looked_up(propose):
    """`propose(self, context, k)` makes the proposal for a branch."""
    return lookup(
        propose=lambda self, contexts, k: [
            propose(self, context, min(k, context.limit)) for context in contexts
        ]
    )


def overwrite_a_token(self, context, k):
    context.tokens[-1] = context.tokens[0]
    return self._look_up(context.tokens, k)


def sure_tokens(p):
    sure = 0
    while sure < len(p) and p.q[sure, p.tokens[sure]] > 0.5:
        sure += 1
    return Proposal.chain(p.tokens[:sure], p.q[:sure] if sure else None)


def with_the_noise_of_the_first_round(self, contexts, k):
    same = [replace(c, draws=replace(c.draws, offset=0)) for c in contexts]
    return ModelDrafter.propose(self, same, k)


def with_the_targets_noise(self, contexts, k):
    self.coupling = Coupling.SHARED
    proposals = ModelDrafter.propose(self, contexts, k)
    self.coupling = Coupling.INDEPENDENT
    return proposals


class SharedTable(LookupDrafter):
    """Learns from all branches, and does not say so."""

    table = 7

    def learn(self, context, proposal, logits):
        self.table = int(logits[0].argmax())

    def propose(self, contexts, k):
        return [Proposal.chain([self.table][: min(k, c.limit)]) for c in contexts]


class KeepsTexts(LookupDrafter):
    """Frees nothing."""

    def __init__(self, setup):
        super().__init__()
        self.texts = []

    def forget(self, branches):
        self.texts += [list(branch.tokens) for branch in branches]


# Rules


class WrongFromTheFourth(RejectRule):
    """Draws again from p after three tokens."""

    def outcomes(self, p_rows, proposal):
        usual = RejectRule.outcomes(self, p_rows, proposal)
        if not proposal.is_chain or len(proposal) < 4:
            return usual
        return [
            replace(o, next_probs=lambda: p_rows[3]) if len(o.nodes) == 3 else o
            for o in usual
        ]


def rule(change):
    """Rejection, with its outcomes changed."""

    def outcomes(self, p_rows, proposal):
        usual = RejectRule.outcomes(self, p_rows, proposal)
        return [change(outcome, p_rows) for outcome in usual]

    kind = derived(RejectRule, outcomes=outcomes)
    return Variant(rule=kind, settings={"drafter": "draft"})


def overwrite_the_rows(outcome, p_rows):
    p_rows.mul_(0).add_(1 / p_rows.shape[1])
    return outcome


def without_certain_drafts(self, p_rows, proposal):
    assert proposal.q.shape == p_rows[1:].shape
    return RejectRule.outcomes(self, p_rows, proposal)


REFUSED = {
    # verdicts
    "log_p_of_a_step_that_is_not_required": lambda: verifier(
        requires=Requires.OWN_LOGPROBS
    ),
    # choices
    "a_choice_that_is_not_aligned": lambda: chooser(
        lambda verdicts: 0, lambda pair: Verdict(False, "x", 1.0)
    ),
    # controllers
    "a_depth_of_2_point_0": lambda: controller(lambda progress: 2.0),
    "one_controller_for_all_answers": lambda: Variant(
        controller=controller().controller()
    ),
    # segmenters
    "the_number_of_boundaries": lambda: segmenter(lambda tokens: len(tokens) // 12),
    # step sources
    "text_for_a_step": lambda: source(lambda tokens: "Then Ben has 10 coins.\n\n"),
    "a_step_outside_the_vocabulary": lambda: source(lambda tokens: [99999, 5]),
    "a_step_source_with_a_method_of_yesterday": lambda: Variant(
        step_source=derived(StepSource, step_after=lambda self, tokens: None)()
    ),
    # drafters
    "a_rounded_q": lambda: drawn(lambda p: replace(p, q=p.q.bfloat16().double())),
    "a_token_of_the_branch_overwritten": lambda: looked_up(overwrite_a_token),
    "a_misspelt_learn": lambda: lookup(learns=LookupDrafter.learn),
    "too_deep": lambda: looked_up(lambda self, c, k: self._look_up(c.tokens, k + 3)),
    "a_draft_outside_the_vocabulary": lambda: looked_up(
        lambda self, c, k: Proposal.chain([99999][:k])
    ),
    "a_q_of_another_width": lambda: drawn(
        lambda p: replace(p, q=torch.nn.functional.pad(p.q, (0, 3)))
    ),
    "a_draft_of_a_token_and_a_half": lambda: looked_up(
        lambda self, c, k: Proposal.chain([5.5][:k])
    ),
    "parents_of_another_kind": lambda: looked_up(
        lambda self, c, k: Proposal((5, 6)[:k], (-1, 0.0)[:k])
    ),
    "a_tree_that_is_not_declared": lambda: looked_up(
        lambda self, c, k: Proposal((5, 6), (-1, -1)) if k > 0 else Proposal((), ())
    ),
    # rules
    "outcomes_that_sum_to_less": lambda: rule(
        lambda o, p_rows: replace(o, probability=o.probability * 0.9)
    ),
    # variants
    "a_misspelt_setting": lambda: Variant(Like(), settings={"widht": 3}),
    "a_class_for_an_object": lambda: Variant(Like),
    "a_verifier_in_mode_sd": lambda: Variant(Like(), settings={"mode": "sd"}),
}

RAISED = {
    "a_choice_by_scores_that_may_be_missing": lambda: chooser(
        lambda verdicts: sorted(v.score for v in verdicts) and None
    ),
    "pairs_that_are_consumed": lambda: verifier(judge=consume),
    "a_forgotten_requires": lambda: verifier(requires=Requires.TARGET_STEP),
    "a_rule_that_forgets_certain_drafts": lambda: Variant(
        rule=derived(RejectRule, outcomes=without_certain_drafts)
    ),
}

BROKEN = {
    # verdicts and choices
    "a_reversed_list": lambda: verifier(
        judge=lambda self, pairs: Like.judge(self, pairs)[::-1]
    ),
    "a_counter": lambda: accepts(lambda pair: next(NUMBERS) % 3 > 0),
    "a_memo_that_forgets_the_prefix": lambda: verdicts(
        lambda pair: STORE.setdefault(pair.draft_step.tokens, Like().verdict(pair))
    ),
    "a_memo_by_identity": lambda: verdicts(
        lambda pair: STORE.setdefault(id(pair), Like().verdict(pair))
    ),
    "a_claim_to_be_lossless": lambda: verifier(lossless=True),
    "the_pairs_are_kept": lambda: verdicts(keep_the_pair),
    # controllers and segmenters
    "a_count_in_the_class": lambda: Variant(controller=InItsClass),
    "steps_that_never_end": lambda: segmenter(lambda tokens: False),
    "a_step_by_a_counter": lambda: source(lambda tokens: [next(NUMBERS) % 461]),
    # drafters
    "texts_never_freed": lambda: Variant(drafter=KeepsTexts),
    "the_rows_of_q_shifted_by_one": lambda: drawn(
        lambda p: replace(p, q=p.q.roll(1, 0))
    ),
    "unsure_tokens_dropped_after_the_draw": lambda: drawn(sure_tokens),
    "greedy_tokens_with_a_softmax": lambda: drawn(
        lambda p: replace(p, tokens=tuple(p.q.argmax(-1).tolist()))
    ),
    "the_same_noise_in_every_round": lambda: drafter(
        propose=with_the_noise_of_the_first_round
    ),
    "the_targets_noise": lambda: drafter(propose=with_the_targets_noise),
    "branches_never_forgotten": lambda: drafter(forget=lambda self, branches: None),
    "proposals_in_the_wrong_order": lambda: drafter(
        propose=lambda self, contexts, k: ModelDrafter.propose(self, contexts, k)[::-1]
    ),
    "a_table_for_all_branches_undeclared": lambda: Variant(
        drafter=lambda setup: SharedTable()
    ),
    # rules
    "a_rule_that_is_wrong_from_the_fourth_draft_on": lambda: Variant(
        rule=WrongFromTheFourth, settings={"drafter": "draft"}
    ),
    "the_targets_rows_overwritten": lambda: rule(overwrite_the_rows),
    "a_rule_that_needs_fresh_noise_and_says_not": lambda: Variant(
        rule=derived(BlockRule, needs_fresh_noise=False),
        settings={"drafter": "draft", "coupling": "shared"},
    ),
}

SHOWN = {
    "the_same_key_for_every_pair": lambda: accepts(lambda pair: uniform(12345) < 0.7),
    "the_same_step_again_and_again": lambda: source(
        lambda tokens: Codec.load("tiny-target").encode("Then Ben has 10 coins.\n\n")
    ),
    "a_lookup_that_proposes_the_last_token": lambda: looked_up(
        lambda self, c, k: Proposal.chain([c.tokens[-1]][: max(0, k)])
    ),
}

FINE = {
    "a_correct_verifier": lambda: Variant(Like()),
    # the draft model writes the steps, as for None
    "a_step_that_never_ends": lambda: source(lambda tokens: [5] * 9),
}
