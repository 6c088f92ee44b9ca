"""The settings of one answer (of `Reasoner.generate` and `lr generate`), and their
checks."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from math import prod
from typing import Any, Literal, get_args, get_origin, get_type_hints

from lr.errors import SettingError
from lr.types import SamplingParams, is_number, require, require_whole

Mode = Literal["ar", "sd", "lr", "lr+sd"]
TokenDrafter = Literal["ngram", "draft", "tree"]
AcceptanceName = Literal["reject", "block", "match"]
SegmenterName = Literal["blank_line", "sentence", "fixed"]
Driver = Literal["lockstep", "overlapped"]

LEAST = {
    "seed": None,
    "sample": 0,
    "top_k": 0,
}  # every other whole number is at least 1
SCHEDULES = ("sync", "paper", "depth")
WHICH = (
    "sync (synchronous, Algorithm 1: target steps begin after all drafts of a cycle), paper "
    "(asynchronous, at most depth pairs in flight) or depth (asynchronous, at most depth "
    "unverified drafts; async is its other name)"
)
MAX_NODES = MAX_PATHS = 1024  # nodes of the tree of steps, paths of the tree of tokens
MODES: tuple[Mode, ...] = get_args(Mode)
DRAFTER_OPTIONS = (
    "drafter",
    "draft_confidence",
    "prompt_lookup_max",
    "prompt_lookup_min",
    "branching",
    "coupling",
)
"""Those that only the drafter of tokens follows (coupling: draft steps too)."""
LOOKAHEAD = ("lr", "lr+sd")  # the modes in which the draft writes steps ahead


@dataclass(frozen=True)
class GenerateOptions:
    """Settings of one answer. Those of token-level speculation (modes sd and lr+sd)
    come first. A sampling setting of None is taken from generation_config.json.
    """

    drafter: TokenDrafter = "draft"
    """What proposes the next tokens in sd and lr+sd. ngram: prompt lookup. draft: the
    draft model. tree: a token tree of the draft model."""
    num_speculative_tokens: int = 6
    """The most tokens drafted ahead."""
    draft_confidence: float = 0.0
    """Drafter draft: a chain ends with the first token where the draft's likeliest
    token has less than this probability, before temperature, top-k and top-p. 0: every
    chain is as long as it may be."""
    prompt_lookup_max: int = 2
    """Longest n-gram that drafter ngram looks up."""
    prompt_lookup_min: int = 1
    """Shortest n-gram that drafter ngram looks up."""
    branching: tuple[int, ...] = (3, 2, 1, 1)
    """Drafter tree: the number of candidates at each level."""
    acceptance: AcceptanceName = "reject"
    """The rule that accepts or rejects draft tokens: reject (rejection sampling), block
    (block verification), match (sample matching: emits exactly what plain decoding
    would)."""
    coupling: Literal["independent", "shared"] = "independent"
    """Whether the draft samples tokens, and the first alternative of each step, with
    the target's noise (shared). The distributions stay the same; draft and target agree
    more often."""
    mode: Literal[Mode, None] = None
    """ar: plain decoding of the target, one token at a time. sd: token-level
    speculative decoding. lr: Lookahead Reasoning, step by step. lr+sd: both,
    token-level speculation inside the steps. None: lr+sd with a draft (the tiny models:
    lr), ar without one."""
    depth: int = 4
    """How many draft steps to write ahead (gamma in the paper)."""
    width: int = 1
    """How many alternative draft steps to write per position."""
    schedule: str = "depth"
    """When target steps begin. sync, synchronous: after all drafts of a cycle (Algorithm
    1). Asynchronous, at once: paper, with at most `depth` pairs in flight; depth (or
    async), with at most `depth` unverified drafts."""
    max_target_rows: int | None = None
    """The most target steps in flight; None: one per node."""
    late_drafts: Literal["wait", "reject"] = "wait"
    """Schedule depth, if a draft step is not finished when the target's is. wait: judge
    it later. reject: it counts as rejected, as in the official code; the answer then
    depends on timing. No other option has this effect."""
    driver: Driver = "lockstep"
    """lockstep: draft and target alternate on one thread. overlapped: the draft runs at
    the same time in its own process. The answer is the same."""
    draft_floor: float | None = None
    """The draft gives a step up once the sum of its own log-probabilities of the tokens
    so far, over the root of their number, is below this (nats, below 0). The target
    then writes the step. None: it never does."""
    draft_forwards: int = 8
    """Driver lockstep: how many tokens the draft may write while the target writes
    one."""
    temperature: float | None = None
    """0 is greedy."""
    top_p: float | None = None
    """Keep the smallest set of likeliest tokens with at least this probability; 1 keeps
    all."""
    top_k: int | None = None
    """Keep this many of the likeliest tokens; 0 keeps all."""
    seed: int = 0
    """Same seed, same question, same models: same answer."""
    sample: int = 0
    """Which of the seed's independent answers to this question: 0, 1, 2, ..."""
    max_tokens: int | None = None
    """Longest answer in tokens; None: as long as the context allows, at most 32768."""
    max_step_tokens: int = 100
    """Longest step in tokens. A longer one is cut; a cut draft step is never
    accepted."""
    segmenter: SegmenterName = "blank_line"
    """Where a step ends. blank_line: at a blank line, as in the paper. sentence: at the
    white space after a sentence. fixed: after `segment_tokens` tokens."""
    segment_tokens: int = 32
    """Tokens per step of segmenter fixed."""
    ignore_half_sentence: bool = True
    """Accept no draft for the step after a cut one."""
    system: str | None = None
    """A system message for the chat template."""
    enable_thinking: bool | None = None
    """Passed to chat templates that use it (Qwen3); None leaves it to the template."""

    def __post_init__(self) -> None:
        if self.schedule == "async":
            object.__setattr__(self, "schedule", "depth")
        require(self.schedule in SCHEDULES, "schedule", self.schedule, WHICH)
        # refuses impossible values before the models are loaded
        self.sampling(SamplingParams())
        for name, hint in _type_hints().items():
            value = getattr(self, name)
            if get_origin(hint) is Literal:
                choices = get_args(hint)
                expected = f"one of {', '.join(map(str, choices))}"
                require(value in choices, name, value, expected)
            elif hint is int or (hint == int | None and value is not None):
                require_whole(name, value, LEAST.get(name, 1))
        name = "prompt_lookup_max (not below prompt_lookup_min)"
        require_whole(name, self.prompt_lookup_max, self.prompt_lookup_min)
        require(
            len(self.branching) > 0, "branching", self.branching, "one number per level"
        )
        for width in self.branching:
            require_whole("a number in branching", width, 1)
        fewer = f"numbers whose product, the paths of the tree, is at most {MAX_PATHS}"
        require(prod(self.branching) <= MAX_PATHS, "branching", self.branching, fewer)
        fewer = f"fewer: the tree of steps may have {MAX_NODES} nodes"
        fits = self.depth < MAX_NODES and self.nodes <= MAX_NODES
        require(fits, "depth and width", (self.depth, self.width), fewer)
        fits = self.late_drafts == "wait" or self.schedule == "depth"
        expected = f"'wait' with schedule {self.schedule!r}; only 'depth' can reject"
        require(fits, "late_drafts", self.late_drafts, expected)
        fits = self.segmenter != "fixed" or self.segment_tokens <= self.max_step_tokens
        expected = f"at most max_step_tokens = {self.max_step_tokens}: longer ones would all be cut"
        require(fits, "segment_tokens", self.segment_tokens, expected)
        confidence = self.draft_confidence
        fits = is_number(confidence) and 0.0 <= confidence <= 1.0
        require(fits, "draft_confidence", confidence, "a number from 0 to 1")
        floor = self.draft_floor
        fits = floor is None or (is_number(floor) and floor < 0)
        require(fits, "draft_floor", floor, "None or a number of nats below 0")

    @property
    def looks_ahead(self) -> bool:
        """Whether the draft writes whole steps ahead: Lookahead Reasoning."""
        return self.mode in LOOKAHEAD

    @property
    def speculates(self) -> bool:
        """Whether tokens are drafted ahead inside the steps: speculative decoding."""
        return self.mode in ("sd", "lr+sd")

    @property
    def drafts_tokens(self) -> bool:
        """Whether a draft model proposes those tokens."""
        return self.speculates and self.drafter in ("draft", "tree")

    @property
    def needs_draft(self) -> bool | None:
        """Whether a draft model is needed, for steps or for tokens. None, if the mode is
        not chosen yet: one is used if it is there."""
        return None if self.mode is None else self.looks_ahead or self.drafts_tokens

    @property
    def nodes(self) -> int:
        """Nodes of the largest tree, including the root: 1 + W + W^2 + ... +
        W^depth."""
        return sum(self.width**level for level in range(self.depth + 1))

    def sampling(self, default: SamplingParams) -> SamplingParams:
        """The sampling parameters; those that are not set here are taken from
        `default`."""
        # None: not set here
        stated = {n: getattr(self, n) for n in ("temperature", "top_p", "top_k")}
        return dataclasses.replace(
            default, **{k: v for k, v in stated.items() if v is not None}
        )


@cache
def _type_hints() -> dict[str, Any]:
    """The type of each option, from the strings that annotations are."""
    return get_type_hints(GenerateOptions)


def make_options(
    options: GenerateOptions | None = None, **changes: Any
) -> GenerateOptions:
    """The options, with some of their fields changed. The `SettingError` for an unknown
    name says which one may be meant."""
    names = [field.name for field in dataclasses.fields(GenerateOptions)]
    for unknown in set(changes) - set(names):
        likely = ", ".join(get_close_matches(unknown, names)) or "another"
        raise SettingError(
            f"there is no option {unknown}; did you mean {likely}? "
            "help(lr.GenerateOptions) describes them all."
        )
    try:
        return dataclasses.replace(options or GenerateOptions(), **changes)
    except TypeError as error:
        raise SettingError(
            f"an option has a value of the wrong type ({error}); the options given are {changes}."
        ) from error
