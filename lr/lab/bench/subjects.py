"""Whose decoding is timed: the trained tiny models, and random ones of a given shape (speed does
not depend on what was learnt).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lr.errors import SettingError
from lr.model.config import ModelConfig
from lr.model.dummy import SHAPES as SHAPES_BY_NAME
from lr.model.qwen import CausalLM
from lr.model.weights import empty_model, load_model
from lr.tiny.names import CHECKPOINTS
from lr.tiny.training import tiny_config
from lr.types import SamplingParams

PROMPT_TOKENS = 40
"""About the length of a question of the tiny language with its chat template. Large shapes take 8,
the bare loop reads them singly.
"""
QWEN3_06B = SHAPES_BY_NAME["Qwen3-0.6B"]
RANDOM_12 = "random-12"
SHAPES = {"0.6b-fp32": torch.float32, "0.6b-bf16": torch.bfloat16}
NAMES = (*CHECKPOINTS, RANDOM_12, *SHAPES)


@dataclass(frozen=True)
class Subject:
    """A model in memory, by its name in the report, and how its tokens are drawn when they are
    drawn.
    """

    name: str
    model: CausalLM
    sampling: SamplingParams

    @property
    def prompt(self) -> tuple[int, ...]:
        """Some tokens; which ones is of no matter to the speed."""
        length = 8 if self.name in SHAPES else PROMPT_TOKENS
        return tuple((7 * i + 3) % self.model.config.vocab_size for i in range(length))


def load_subject(name: str) -> Subject:
    """The subject of a name in `NAMES`. Raises `CheckpointError` for a tiny model that is not
    there, `SettingError` for others.
    """
    if name in CHECKPOINTS:
        return Subject(name, load_model(name, dtype=torch.float32), _recommended(name))
    if name == RANDOM_12:
        return Subject(name, random_model(tiny_config(12, 800), torch.float32), SamplingParams(0.6))
    if name in SHAPES:
        # what Qwen3's own generation_config.json recommends
        return Subject(
            name, random_model(QWEN3_06B, SHAPES[name]), SamplingParams(0.6, top_p=0.95, top_k=20)
        )
    raise SettingError(f"models has {name!r}, expected names among {', '.join(NAMES)}.")


def _recommended(name: str) -> SamplingParams:
    """What the generation_config.json of a checkpoint says."""
    from lr.model.codec import Codec

    stated = Codec.load(name).generation_defaults
    values = {key: getattr(stated, key) for key in ("temperature", "top_p", "top_k", "min_p")}
    return SamplingParams(**{key: value for key, value in values.items() if value is not None})


def random_model(config: ModelConfig, dtype: torch.dtype) -> CausalLM:
    """A model of that shape with norms of 1 and small random weights, always the same."""
    model = empty_model(config, dtype, torch.device("cpu"))
    noise = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.fill_(1)
        else:
            parameter.uniform_(-0.05, 0.05, generator=noise)
    return model
