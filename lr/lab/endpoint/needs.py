"""What settings ask of a served model, beside what it can do: a refusal that names the endpoint,
what it lacks, and what to do.

A model behind a server gives no logits. So nothing of ours can guess tokens for it, and no rule can
accept them; whatever its server does about that (vLLM's own speculative decoding, say) is invisible
and welcome. Read next: `probe.py`, where the answers come from.
"""

from __future__ import annotations

from lr.errors import SettingError
from lr.lab.endpoint.models import ServedModel
from lr.lab.endpoint.probe import Filters, Seeds
from lr.options import GenerateOptions
from lr.spec.verifiers.base import Requires, Verifier
from lr.types import SamplingParams

LOCAL = "take a checkpoint in this process instead"


def check_run(
    options: GenerateOptions,
    sampling: SamplingParams,
    verifier: str | Verifier,
    target: object,
    draft: object = None,
) -> None:
    """Raise `SettingError` where a served target or draft (anything else: a local one, or none)
    lacks what the settings need.
    """
    if isinstance(target, ServedModel) and options.looks_ahead and not isinstance(verifier, str):
        check_verifier(verifier, target)
    speculates = options.speculates
    if isinstance(target, ServedModel) and speculates:
        refuse(
            target,
            f"mode {options.mode!r} with drafter {options.drafter!r} and acceptance {options.acceptance!r}",
            "the probabilities of tokens that somebody else has guessed",
            f"Use mode {'lr' if options.mode == 'lr+sd' else 'ar'!r}, and start the server with its own speculative decoding",
        )
    if isinstance(draft, ServedModel) and options.drafts_tokens:
        refuse(
            draft,
            f"drafter {options.drafter!r}",
            "logits",
            "Use drafter ngram, suffix or step (lr+sd)",
        )
    for model in (target, draft):
        if isinstance(model, ServedModel):
            _check_one(model, options, sampling)
    if (
        options.coupling == "shared"
        and isinstance(target, ServedModel) != isinstance(draft, ServedModel)
        and draft
    ):
        served = target if isinstance(target, ServedModel) else draft
        assert isinstance(served, ServedModel)
        refuse(
            served, "coupling 'shared'", "the noise of this process", "Use coupling 'independent'"
        )


def _check_one(model: ServedModel, options: GenerateOptions, sampling: SamplingParams) -> None:
    """What must hold for a served model in either role."""
    if options.segmenter == "fixed" and not model.ids:
        refuse(model, "segmenter 'fixed'", "token ids, which it counts", "Use another segmenter")
    if sampling.greedy:
        return
    if sampling.top_k and model.can.top_k is Filters.NOT:
        refuse(
            model,
            f"top_k {sampling.top_k}",
            "top_k, which it refuses or ignores",
            "Give top_k 0 (--top_k 0)",
        )
    if sampling.min_p and model.can.min_p is Filters.NOT:
        refuse(
            model,
            f"min_p {sampling.min_p:g}",
            "min_p, which it refuses or ignores",
            "Give min_p 0 (--min_p 0)",
        )
    if options.coupling == "shared" and model.can.seeds is not Seeds.ALWAYS:
        lack = f"seeds that it heeds (it does so: {model.can.seeds.value})"
        refuse(model, "coupling 'shared'", lack, "Use coupling 'independent'")


def check_verifier(verifier: Verifier, target: ServedModel) -> None:
    """Raise `SettingError` where a verifier reads in a served target what no server gives."""
    if verifier.requires & Requires.TARGET_LOGPROBS:
        refuse(
            target,
            f"verifier {verifier.name!r}",
            "the log-probabilities of given tokens",
            "Use exact, judge or score",
        )
    if verifier.requires & Requires.HIDDEN:
        refuse(target, f"verifier {verifier.name!r}", "hidden states", "Use exact, judge or score")


def refuse_for_logprobs(model: ServedModel, what: str, remedy: str) -> None:
    """Raise `SettingError` where the likeliest tokens do not come with their log-probabilities."""
    if not model.can.logprobs:
        refuse(model, what, "log-probabilities of the likeliest tokens", remedy)


def refuse(model: ServedModel, what: str, lacks: str, remedy: str) -> None:
    """Raise `SettingError`: `what` needs something that the model's endpoint `lacks`."""
    raise SettingError(
        f"{what} needs of {model} what it does not give: {lacks}. {remedy}, or {LOCAL}."
    )
