"""From settings to a drafter and a rule. The list of what there is; a new drafter or rule is added
here, and nowhere else by hand.
"""

from __future__ import annotations

from lr.options import TokenOptions
from lr.spec.draft_model import ModelDrafter, TreeDrafter
from lr.spec.drafters import Drafter, LookupDrafter, StepDrafter, SuffixDrafter
from lr.spec.rules import choose_rule
from lr.spec.runner import Runner
from lr.spec.token_sd import Speculation
from lr.types import Coupling, SamplingParams


def make_speculation(
    options: TokenOptions,
    sampling: SamplingParams,
    eos_ids: frozenset[int],
    *,
    runner: Runner | None,
) -> Speculation:
    """The token-level speculation that `options` describe. `runner` runs the draft model, for the
    drafters made of one.
    """
    drafter = _make_drafter(options, sampling, eos_ids, runner)
    return Speculation(drafter, choose_rule(options.acceptance), options.num_speculative_tokens)


def _make_drafter(
    options: TokenOptions, sampling: SamplingParams, eos_ids: frozenset[int], runner: Runner | None
) -> Drafter:
    if options.drafter == "ngram":
        return LookupDrafter(options.prompt_lookup_max, options.prompt_lookup_min)
    if options.drafter == "suffix":
        return SuffixDrafter()
    if options.drafter == "step":
        return StepDrafter()
    assert runner is not None, "the caller opens a runner for the drafters in DRAFT_MODEL_DRAFTERS"
    coupling = Coupling(options.coupling)
    if options.drafter == "tree":
        return TreeDrafter(
            runner, sampling, branching=options.branching, coupling=coupling, eos_ids=eos_ids
        )
    return ModelDrafter(
        runner, sampling, coupling=coupling, min_confidence=options.min_confidence, eos_ids=eos_ids
    )
