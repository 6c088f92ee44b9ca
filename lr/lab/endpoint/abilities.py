"""The words for what endpoints do differently: with seeds, with stop strings, with the filters of
sampling. Read next: `probe.py`.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import Any


class Seeds(Enum):
    """Whether a request's seed decides its draws."""

    ALWAYS = "yes"
    ALONE = "only while no other request is in flight"
    NEVER = "no"


class Stops(Enum):
    """What becomes of a stop string in the text."""

    CUT_BEFORE = "cut before the stop string"
    CUT_BEHIND = "cut behind the stop string"
    OVERSHOOTS = "the stop string and what came with it in one token"
    IGNORED = "ignored"


class Filters(Enum):
    """How top_k and min_p are given to an endpoint."""

    FIELDS = "fields of the request"
    CONFIG = "in generation_config"
    NOT = "not at all"


def generation_config(eos_ids: tuple[int, ...], **settings: Any) -> str:
    """The JSON that transformers' server takes instead of fields. It replaces the model's own
    settings, its ends of sequence included.
    """
    config: dict[str, Any] = {"do_sample": True, "top_k": 0, **settings}
    if eos_ids:
        config |= {"eos_token_id": list(eos_ids), "pad_token_id": eos_ids[0]}
    return json.dumps(config)
