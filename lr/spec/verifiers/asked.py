"""A model that is asked questions, as a verifier sees it: a runner and two plain functions.

Verifiers never import a model or a tokenizer; whoever builds them (`engine/verification.py`) hands
these in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lr.spec.runner import Runner

Decode = Callable[[Sequence[int]], str]
"""Token ids to text: how the steps of the chain are read."""


@dataclass(frozen=True)
class AskedModel:
    """`runner` runs the model. `encode` turns text into its ids, nothing added; `chat` turns a
    question into the ids of a prompt in the model's chat format, up to where the assistant begins
    to speak. `tiny`: the model speaks the tiny language only."""

    runner: Runner
    encode: Callable[[str], list[int]]
    chat: Callable[[str], list[int]]
    tiny: bool = False
