"""A warning about entries of a checkpoint's generation_config.json that are not
supported."""

from __future__ import annotations

import json
import warnings
from typing import Any

from lr.model.codec import Codec

HEEDED = frozenset((
    *("do_sample", "temperature", "top_p", "top_k", "min_p", "eos_token_id", "bos_token_id"),
    *("pad_token_id", "decoder_start_token_id", "transformers_version", "_from_model_config"),
    *("_commit_hash", "use_cache", "cache_implementation", "cache_config", "return_legacy_cache"),
    *("compile_config", "disable_compile", "low_memory", "num_return_sequences", "is_assistant"),
    *("output_attentions", "output_hidden_states", "output_scores", "output_logits"),
    *("return_dict_in_generate", "remove_invalid_values", "renormalize_logits"),
    *("judge", "judge_prompt"),  # ours: a target's judge, a judge's prompt
))  # fmt: skip
"""Supported entries of generation_config.json, and entries that do not affect the
output."""
NEUTRAL: dict[str, Any] = {
    **dict.fromkeys(
        ("repetition_penalty", "encoder_repetition_penalty", "typical_p"), 1.0
    ),
    **dict.fromkeys(
        ("length_penalty", "guidance_scale", "num_beams", "num_beam_groups"), 1.0
    ),
}
"""Values of other entries that have no effect. Neither have null, 0, false and empty
values."""
SHOWN = 10  # entries that a warning names


def unheeded(codec: Codec) -> str | None:
    """A sentence about the entries that are not supported, unknown ones included, or
    None."""
    asks = []
    for name, value in codec.generation_config.items():
        nothing = value in (None, 0, "", [], {}) or value == NEUTRAL.get(name)
        if name not in HEEDED and not nothing:
            asks.append(f"{json.dumps(name)[1:-1]:.60} = {json.dumps(value):.60}")
    if len(asks) > SHOWN:
        asks[SHOWN:] = [f"{len(asks) - SHOWN} more"]
    said = f"generation_config.json of {codec.name} asks for {', '.join(asks)}; not supported here"
    return said if asks else None


def warn_unheeded(codec: Codec) -> None:
    """Warn at the line that made the `Reasoner`."""
    if asks := unheeded(codec):
        warnings.warn(asks, stacklevel=3)
