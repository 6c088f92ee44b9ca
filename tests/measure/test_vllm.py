"""vLLM, where somebody has one running: `LR_VLLM=openai:http://host:port/name pytest -m
vllm tests/measure/test_vllm.py`.

The name must be that of a checkpoint directory or hub id that can be read here. Not run
otherwise.
"""

from __future__ import annotations

import os

import pytest

from lr.measure.endpoint.address import Servers
from lr.measure.endpoint.models import ServedModel
from lr.measure.endpoint.probe import Seeds, Stops
from lr.reasoner import Reasoner

ADDRESS = os.environ.get("LR_VLLM", "")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not ADDRESS, reason="LR_VLLM names no server"),
]


def test_ids_go_in_and_out() -> None:
    model = ServedModel.open(ADDRESS, Servers())
    assert model.ids and model.can.logprobs
    assert (model.can.seeds, model.can.stops) == (Seeds.ALWAYS, Stops.CUT_BEFORE)


def test_greedy_lookahead_is_plain_decoding() -> None:
    """The target as its own draft: every step is equal, but for ties between numbers
    that batches round differently.
    """
    with Reasoner(ADDRESS, ADDRESS, "exact") as reasoner:
        how = {"temperature": 0, "max_tokens": 200}
        plain = reasoner.generate("What is 17 + 25?", mode="ar", **how)
        ahead = reasoner.generate("What is 17 + 25?", **how)
    assert ahead.tokens[:20] == plain.tokens[:20]
    assert ahead.stats.accepted > 0
