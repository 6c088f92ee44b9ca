"""What a checkpoint's generation_config.json asks for and nobody does here: it is named."""

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
))  # fmt: skip
"""Entries of generation_config.json that are done here, or that change nothing of what is written.
"""
NEUTRAL: dict[str, Any] = {
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty", "typical_p"), 1.0),
    **dict.fromkeys(("length_penalty", "guidance_scale", "num_beams", "num_beam_groups"), 1.0),
}
"""Values of others that change nothing; so do null, 0, false and what is empty."""
SHOWN = 10  # so many are named


def unheeded(codec: Codec) -> str | None:
    """What the checkpoint asks for and does not get, in a sentence; None: nothing. An entry that
    nobody here knows is named too."""
    asks = []
    for name, value in codec.generation_config.items():
        nothing = value in (None, 0, "", [], {}) or value == NEUTRAL.get(name)
        if name not in HEEDED and not nothing:
            asks.append(f"{json.dumps(name)[1:-1]:.60} = {json.dumps(value):.60}")
    if len(asks) > SHOWN:
        asks[SHOWN:] = [f"{len(asks) - SHOWN} things more"]
    said = f"generation_config.json of {codec.name} asks for {', '.join(asks)}; it is not done here"
    return said if asks else None


def warn_unheeded(codec: Codec) -> None:
    """Warn, at the line that made the `Reasoner`."""
    if asks := unheeded(codec):
        warnings.warn(asks, stacklevel=3)
