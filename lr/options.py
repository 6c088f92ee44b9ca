"""How one question is to be answered: the settings of `Reasoner.generate` and of `lr generate`, validated in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lr.types import SamplingParams, require

MAX_DEPTH = 64


@dataclass(frozen=True)
class GenerateOptions:
    """Settings of one generation; a sampling setting of None is taken from the checkpoint's generation_config.json.

    Raises `SettingError` at construction if one is impossible.
    """

    mode: Literal["ar", "lr"] = "lr"
    """ar: plain decoding of the target, one token at a time. lr: Lookahead Reasoning."""
    depth: int = 4
    """How many draft steps to write ahead (gamma in the paper)."""
    width: int = 1
    """How many alternative draft steps per position. The synchronous algorithm of this version writes one."""
    temperature: float | None = None
    """0 is greedy."""
    top_p: float | None = None
    """Keep the smallest set of likeliest tokens that holds this probability; 1 keeps all."""
    top_k: int | None = None
    """Keep this many likeliest tokens; 0 keeps all."""
    min_p: float | None = None
    """Keep tokens at least this many times as likely as the likeliest; 0 keeps all."""
    seed: int = 0
    """Same seed, same question, same models: same answer."""
    sample: int = 0
    """Which of the seed's answers to this question: 0, 1, 2, ... are independent."""
    max_tokens: int | None = None
    """Longest answer in tokens; None: as long as the context allows, at most 32768."""
    max_step_tokens: int = 100
    """A step is cut here; a cut step is never accepted from the draft."""
    ignore_half_sentence: bool = True
    """Do not accept a draft for the step that follows a cut one."""
    system: str | None = None
    """A system message for the chat template."""
    enable_thinking: bool | None = None
    """Handed to chat templates that know it (Qwen3); None leaves it to the template."""

    def __post_init__(self) -> None:
        require(self.mode in ("ar", "lr"), "mode", self.mode, "'ar' (plain decoding) or 'lr' (Lookahead Reasoning)")
        require(
            _whole(self.depth) and 1 <= self.depth <= MAX_DEPTH,
            "depth",
            self.depth,
            f"a whole number from 1 to {MAX_DEPTH}",
        )
        require(
            self.width == 1, "width", self.width, "1: the synchronous algorithm writes one alternative per position"
        )
        require(_whole(self.seed), "seed", self.seed, "a whole number")
        require(_whole(self.sample) and self.sample >= 0, "sample", self.sample, "a whole number >= 0")
        positive = self.max_tokens is None or (_whole(self.max_tokens) and self.max_tokens > 0)
        require(positive, "max_tokens", self.max_tokens, "a whole number > 0, or None")
        positive = _whole(self.max_step_tokens) and self.max_step_tokens > 0
        require(positive, "max_step_tokens", self.max_step_tokens, "a whole number > 0")
        self.sampling(SamplingParams())  # refuse impossible values now, not after the models are loaded

    def sampling(self, default: SamplingParams) -> SamplingParams:
        """The sampling parameters: what is set here, else `default`."""
        stated = {name: getattr(self, name) for name in ("temperature", "top_p", "top_k", "min_p")}
        return SamplingParams(**{name: getattr(default, name) if v is None else v for name, v in stated.items()})


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
