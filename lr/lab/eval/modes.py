"""The ways to answer that an evaluation compares: the four of the official tool, and the rows of
the paper's tables beside them.

| mode | what answers | | --- | --- | | ar | the target alone, plainly | | sd | the target, tokens
guessed ahead | | lr | Lookahead Reasoning | | lr+sd | both | | draft | the draft alone, plainly:
the row "draft" of Table 1 (arXiv 2506.19830) | | specreason | SpecReason: the target scores the
draft's steps and writes the bad ones anew (`variants/specreason.py`) |

`acceptance_protocol` is how the paper measures acceptance: at every position draft and target write
one step each, the verifier judges, the accepted one goes on. That is the paper's schedule with a
window of one pair.
"""

from __future__ import annotations

from dataclasses import replace

from lr.engine.answer import Models
from lr.errors import SettingError
from lr.options import GenerateOptions
from lr.spec.seams import Variant
from lr.variants.specreason import specreason

MODES = ("ar", "sd", "lr", "lr+sd", "draft", "specreason")
PROTOCOLS = ("generate", "acceptance")
QWEN3 = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.0}
R1_DISTILL = {"temperature": 0.6, "top_p": 0.95, "top_k": 0, "min_p": 0.0}


def needs_draft_model(mode: str, drafter: str) -> bool:
    """Whether a mode needs a draft model beside the target."""
    return mode in ("lr", "lr+sd", "specreason") or (mode == "sd" and drafter in ("draft", "tree"))


def engine_options(mode: str, protocol: str, options: GenerateOptions) -> GenerateOptions:
    """The engine's settings for a mode. Raises `SettingError` where mode and protocol do not go
    together.
    """
    if mode not in MODES:
        raise SettingError(f"mode is {mode!r}, expected one of {', '.join(MODES)}.")
    if protocol == "acceptance":
        if mode not in ("lr", "lr+sd"):
            raise SettingError(
                f"protocol 'acceptance' measures how steps are accepted, and mode {mode!r} judges none; use mode lr."
            )
        return replace(options, mode=mode, schedule="paper", depth=1, width=1)  # type: ignore[arg-type]
    if mode == "specreason":
        return replace(options, mode="lr", schedule="sync", depth=1, width=1)
    return replace(options, mode="ar" if mode == "draft" else mode)  # type: ignore[arg-type]


def variant_of(mode: str, models: Models, *, threshold: float = 7.0) -> Variant | None:
    """What a mode replaces in the algorithm. `threshold`: SpecReason's score."""
    return (
        specreason(models.target, models.codec, threshold=threshold)
        if mode == "specreason"
        else None
    )


def family_sampling(name: str) -> dict[str, float | int]:
    """How a checkpoint that recommends nothing itself is sampled: by its family, told by its name;
    empty for others.
    """
    name = name.lower()
    if "qwen3" in name:
        return dict(QWEN3)
    if "deepseek-r1" in name or "r1-distill" in name:
        return dict(R1_DISTILL)
    return {}
