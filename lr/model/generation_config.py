"""A warning about entries of a checkpoint's generation_config.json that are not
supported."""

import json

from lr.model.codec import Codec

HARMLESS = frozenset(
    """
do_sample temperature top_p top_k eos_token_id bos_token_id pad_token_id
decoder_start_token_id transformers_version _from_model_config _commit_hash use_cache
cache_implementation cache_config return_legacy_cache compile_config disable_compile
low_memory num_return_sequences is_assistant output_attentions output_hidden_states
output_scores output_logits return_dict_in_generate remove_invalid_values
renormalize_logits mode draft judge judge_prompt verifier""".split()
)
"""Entries that are supported or do not affect the output. The last five are ours: what
a target is used with unless the user says otherwise, and the prompt of a judge."""
NEUTRAL_AT_ONE = frozenset(
    """
repetition_penalty encoder_repetition_penalty typical_p length_penalty guidance_scale
num_beams num_beam_groups""".split()
)
"""Other entries without an effect at 1. All have none at null, 0, false and empty."""


def unsupported(codec: Codec) -> str:
    """A sentence about the entries that are not supported, unknown ones included; "" if
    there are none."""
    asked_for = [
        f"{name} = {json.dumps(value):.60}"
        for name, value in codec.generation_config.items()
        if name not in HARMLESS
        and value not in (None, 0, "", [], {})
        and not (name in NEUTRAL_AT_ONE and value == 1)  # a penalty of 1, say
    ]
    if not asked_for:
        return ""
    shown = ", ".join(asked_for[:10])  # ten are enough
    return (
        f"generation_config.json of {codec.name} asks for {shown}; not supported here"
    )
