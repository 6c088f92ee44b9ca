"""How one question is to be answered: the settings of `Reasoner.generate` and of `lr generate`,
validated in one place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lr.types import SamplingParams, require

MAX_DEPTH = 64
MAX_NODES = 1024
SCHEDULES = ("sync", "paper", "depth")
DRIVERS = ("lockstep", "overlapped")
LATE_DRAFTS = ("wait", "reject")
SEGMENTERS = ("blank_line", "sentence", "fixed", "discourse")
MODES = ("ar", "sd", "lr", "lr+sd")
DRAFT_MODEL_DRAFTERS = ("draft", "tree")
"""The drafters that are made of a draft model."""
TOKEN_CHOICES = {
    "drafter": ("ngram", "suffix", "draft", "tree", "step"),
    "acceptance": ("reject", "block", "match"),
    "coupling": ("independent", "shared"),
}


@dataclass(frozen=True)
class TokenOptions:
    """Settings of token-level speculation (modes sd and lr+sd)."""

    drafter: Literal["ngram", "suffix", "draft", "tree", "step"] = "draft"
    """Who guesses the next tokens in sd and lr+sd: ngram (prompt lookup), suffix (longest repeated
    end), draft (the draft model), tree (a token tree of the draft model), step (lr+sd only: the
    draft's version of the same step)."""
    num_speculative_tokens: int = 6
    """How many tokens are guessed ahead at most."""
    prompt_lookup_max: int = 2
    """Longest n-gram that drafter ngram looks up."""
    prompt_lookup_min: int = 1
    """Shortest n-gram that drafter ngram looks up."""
    min_confidence: float = 0.0
    """Drafter draft stops after a token whose law has no token as likely as this; 0 never stops
    early.
    """
    branching: tuple[int, ...] = (3, 2, 1, 1)
    """Drafter tree: how many candidates at each place."""
    acceptance: Literal["reject", "block", "match"] = "reject"
    """The rule that decides about guessed tokens: reject (rejection sampling), block (block
    verification), match (sample matching: emits exactly what plain decoding would)."""
    coupling: Literal["independent", "shared"] = "independent"
    """Whether the draft draws with the target's noise, tokens and (first alternatives of) steps
    alike: the laws stay, they agree more often."""

    def __post_init__(self) -> None:
        for name, choices in TOKEN_CHOICES.items():
            _one_of(name, getattr(self, name), choices)
        k = self.num_speculative_tokens
        require(_whole(k) and k >= 1, "num_speculative_tokens", k, "a whole number >= 1")
        lookup = (self.prompt_lookup_min, self.prompt_lookup_max)
        proper = all(map(_whole, lookup)) and 1 <= lookup[0] <= lookup[1]
        require(
            proper,
            "(prompt_lookup_min, prompt_lookup_max)",
            lookup,
            "whole numbers, 1 <= min <= max",
        )
        require(
            0 <= self.min_confidence <= 1,
            "min_confidence",
            self.min_confidence,
            "a number in [0, 1]",
        )
        proper = len(self.branching) > 0 and all(
            _whole(width) and width >= 1 for width in self.branching
        )
        require(
            proper,
            "branching",
            self.branching,
            "one whole number >= 1 per level, such as (3, 2, 1)",
        )


@dataclass(frozen=True)
class GenerateOptions(TokenOptions):
    """Settings of one generation; a sampling setting of None is taken from the checkpoint's
    generation_config.json.
    """

    mode: Literal["ar", "sd", "lr", "lr+sd"] = "lr"
    """ar: plain decoding of the target, one token at a time. sd: token-level speculative decoding.
    lr: Lookahead Reasoning, step by step. lr+sd: both, token-level speculation inside the steps."""
    depth: int = 4
    """How many draft steps to write ahead (gamma in the paper)."""
    width: int = 1
    """How many alternative draft steps per position."""
    schedule: Literal["sync", "paper", "depth"] = "depth"
    """When target steps begin. sync: when all drafts of a cycle are there (Algorithm 1). paper: at
    once, at most `depth` pairs in flight. depth: at once, at most `depth` unverified drafts."""
    max_target_rows: int | None = None
    """Never more target steps than this in flight; None: as many as there are nodes."""
    late_drafts: Literal["wait", "reject"] = "wait"
    """Schedule depth: what becomes of a draft that is not there when the target's step is. wait: it
    is judged when it comes. reject: it counts as rejected, as in the official code; the answer then
    depends on what happens to be faster."""
    driver: Literal["lockstep", "overlapped"] = "lockstep"
    """lockstep: draft and target take turns on one thread. overlapped: the draft writes in a
    process of its own at the same time. The answer is the same."""
    draft_ticks: int = 8
    """Driver lockstep: how many tokens the draft may write while the target writes one."""
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
    segmenter: Literal["blank_line", "sentence", "fixed", "discourse"] = "blank_line"
    """Where a step ends. blank_line: at a blank line, as in the paper. sentence: at the white space
    behind a sentence. fixed: after `segment_tokens` tokens. discourse: at a cue such as "Wait" or
    "So", or at a paragraph that is long enough."""
    segment_tokens: int = 32
    """Tokens per step of segmenter fixed."""
    ignore_half_sentence: bool = True
    """Do not accept a draft for the step that follows a cut one."""
    system: str | None = None
    """A system message for the chat template."""
    enable_thinking: bool | None = None
    """Handed to chat templates that know it (Qwen3); None leaves it to the template."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_of("mode", self.mode, MODES)
        require(
            _whole(self.depth) and 1 <= self.depth <= MAX_DEPTH,
            "depth",
            self.depth,
            f"a whole number from 1 to {MAX_DEPTH}",
        )
        require(
            _whole(self.width) and 1 <= self.width <= 16,
            "width",
            self.width,
            "a whole number from 1 to 16",
        )
        _one_of("schedule", self.schedule, SCHEDULES)
        _one_of("late_drafts", self.late_drafts, LATE_DRAFTS)
        proper = self.late_drafts == "wait" or self.schedule == "depth"
        require(
            proper,
            "late_drafts",
            self.late_drafts,
            f"'wait' with schedule {self.schedule!r}; only 'depth' can reject",
        )
        _one_of("driver", self.driver, DRIVERS)
        positive = self.max_target_rows is None or (
            _whole(self.max_target_rows) and self.max_target_rows > 0
        )
        require(positive, "max_target_rows", self.max_target_rows, "a whole number > 0, or None")
        require(
            _whole(self.draft_ticks) and self.draft_ticks > 0,
            "draft_ticks",
            self.draft_ticks,
            "a whole number > 0",
        )
        nodes = sum(self.width**level for level in range(self.depth + 1))
        require(
            nodes <= MAX_NODES,
            "depth and width",
            (self.depth, self.width),
            f"fewer: together they make {nodes} nodes, and {MAX_NODES} is the most",
        )
        stepless = self.drafter == "step" and self.mode == "sd"
        require(
            not stepless,
            "drafter",
            self.drafter,
            "another one in mode sd: 'step' needs the draft steps of mode lr+sd",
        )
        require(_whole(self.seed), "seed", self.seed, "a whole number")
        require(
            _whole(self.sample) and self.sample >= 0, "sample", self.sample, "a whole number >= 0"
        )
        positive = self.max_tokens is None or (_whole(self.max_tokens) and self.max_tokens > 0)
        require(positive, "max_tokens", self.max_tokens, "a whole number > 0, or None")
        positive = _whole(self.max_step_tokens) and self.max_step_tokens > 0
        require(positive, "max_step_tokens", self.max_step_tokens, "a whole number > 0")
        _one_of("segmenter", self.segmenter, SEGMENTERS)
        fits = _whole(self.segment_tokens) and self.segment_tokens >= 1
        require(fits, "segment_tokens", self.segment_tokens, "a whole number >= 1")
        fits = self.segmenter != "fixed" or self.segment_tokens <= self.max_step_tokens
        room = f"at most max_step_tokens = {self.max_step_tokens}: longer steps would all be cut"
        require(fits, "segment_tokens", self.segment_tokens, room)
        self.sampling(
            SamplingParams()
        )  # refuse impossible values now, not after the models are loaded

    def sampling(self, default: SamplingParams) -> SamplingParams:
        """The sampling parameters: what is set here, else `default`."""
        stated = {name: getattr(self, name) for name in ("temperature", "top_p", "top_k", "min_p")}
        return SamplingParams(
            **{name: getattr(default, name) if v is None else v for name, v in stated.items()}
        )


def needs_draft(options: GenerateOptions) -> bool:
    """Whether these settings need a draft model: for steps, or for tokens."""
    return options.mode.startswith("lr") or (
        options.mode == "sd" and options.drafter in DRAFT_MODEL_DRAFTERS
    )


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    require(value in choices, name, value, f"one of {', '.join(choices)}")
