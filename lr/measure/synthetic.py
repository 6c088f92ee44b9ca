"""Synthetic acceptance: models with random weights run, random draws decide what is
accepted.

Every forward, drawn token, fork and message is real. Only what depends on the meaning
of a text is replaced, at the extension points:

    where a step ends             the segmenter counts up to a drawn length
    whether a draft step stays    drawn with alpha1 per step, after the judge has read the pair
    whether a draft token stays   drawn with alpha2 per token, after the target's pass
    what prompt lookup finds      the drafter always finds k tokens, at no cost

The answers are meaningless, and no mode is lossless here. docs/gpu.md says where rates
come from, and why the draws are stratified. Every draw is a function of a key.

    reasoner = SyntheticReasoner(Reasoner("dummy:Qwen3-8B", "dummy:Qwen3-0.6B"), Synthetic(0.5, 0.24))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import floor
from typing import Any

from torch import Tensor

from lr.engine.answer import Answer
from lr.engine.question import Question
from lr.errors import LRError
from lr.options import GenerateOptions, make_options
from lr.reasoner import Reasoner
from lr.rng import Stream, uniform
from lr.spec.acceptance import AcceptanceRule, Outcome
from lr.spec.proposal import Draws, Proposal
from lr.spec.runner import Runner
from lr.spec.token_sd import Context, Drafter, Speculation
from lr.spec.variant import Variant
from lr.spec.verifiers.base import Pair, Verifier
from lr.spec.verifiers.judge import JudgeVerifier, PromptRow
from lr.spec.write import WriterConfig
from lr.theory.distributions import Duration, Lognormal
from lr.types import Role, Verdict, require

ASSUMED_LENGTH = Lognormal(32.0, 0.5)  # tokens of a step; the paper prints no lengths
INSTRUCTIONS, FRAME = list(range(180)), range(32)
"""Tokens of a judge's prompt: the shared beginning, and those around the two steps."""
FITTING = "width 1 (siblings would get the same verdict), and ngram or draft"
BYTES = 256  # tokens that every dummy has
DRAWN_STEPS, DRAWN_TOKENS = 8, 32
"""Block sizes of `kept_in` for steps and tokens. Small blocks keep short runs close to
the rate; large blocks look more like independent draws."""


@lru_cache(maxsize=4096)
def kept_in(stream: Stream, rate: float, size: int, block: int) -> frozenset[int]:
    """Which of the `size` places of a block are kept: a fixed number, at random places.

    The number is rounded so that the sum over blocks follows the rate, from a random
    start: each place is kept with probability `rate`. Example: size 8 and rate 0.3 keep
    2.4 on average; blocks keep 2, 2, 3, 2, 3, or 3, 2, 2, 3, 2."""
    start = uniform(stream.fold_in("start").key(0))
    before, after = (floor(n * size * rate + start) for n in (block, block + 1))
    order = sorted(range(size), key=lambda index: stream.key(block * size + index))
    return frozenset(order[: after - before])


def kept_at(stream: Stream, rate: float, size: int, place: int) -> bool:
    """Whether a place, counted from 0 over all blocks, is kept."""
    return place % size in kept_in(stream, rate, size, place // size)


@dataclass(frozen=True)
class Synthetic:
    """The model of acceptance. `alpha1`: the probability that a draft step is accepted;
    `alpha2`: that a draft token is, given that those before it are. `lengths`: the
    distribution of the steps' lengths in tokens."""

    alpha1: float
    alpha2: float
    lengths: Duration = ASSUMED_LENGTH
    seed: int = 0

    def __post_init__(self) -> None:
        require(0 <= self.alpha1 <= 1, "alpha1", self.alpha1, "a probability, 0 to 1")
        require(0 <= self.alpha2 <= 1, "alpha2", self.alpha2, "a probability, 0 to 1")

    def __str__(self) -> str:
        return (
            f"steps accepted with {self.alpha1:.2f}, tokens with {self.alpha2:.3f}; "
            f"lengths of steps: {self.lengths}"
        )


@dataclass
class DrawnLengths:
    """A segmenter whose steps have drawn lengths, independent of what their tokens
    mean.

    The key of the draw is the step's first token, so driver and order of events do not
    matter. Example: if 3 is drawn for token 17, a step that begins with 17 ends at its
    third token."""

    lengths: Duration
    stream: Stream
    token_bytes: Callable[[int], bytes]
    left: int | None = None

    def feed(self, token: int) -> bool:
        if self.left is None:  # the first token of the step
            self.left = max(1, round(self.lengths.draw(self.stream.key(token))))
        self.left -= 1
        return self.left <= 0


class SyntheticReasoner(Reasoner):
    """A reasoner's models under a model of acceptance. Its verifier does its work, and
    the draws decide."""

    def __init__(self, reasoner: Reasoner, synthetic: Synthetic) -> None:
        self.codec = reasoner.codec
        self.engine = reasoner.engine
        self.verifier = reasoner.verifier
        self.synthetic = synthetic

    def run(
        self,
        question: str,
        options: GenerateOptions | None = None,
        *,
        variant: Variant | None = None,
        detailed: bool = False,
        **changes: Any,
    ) -> Answer:
        options = make_options(options, **changes)
        fits = options.width == 1 and options.drafter in ("ngram", "draft")
        require(fits, "width, drafter", (options.width, options.drafter), FITTING)
        variant = variant or Variant()
        parts = {part.field for part in variant.replaced}
        expected = "none: draws decide"
        require(parts <= {"verifier"}, "variant", variant.name, expected)
        stream = Stream.root(self.synthetic.seed).fold_in(question, options.sample)
        asked_verifier = variant.verifier or self.verifier
        verifier = SyntheticVerifier(self.synthetic, asked_verifier, stream)
        asked = self.engine.question(question, options, verifier)
        answer = Answer(SyntheticQuestion(**vars(asked)), detailed=detailed)
        answer.served = self.engine.serve([answer])
        return answer


class SyntheticQuestion(Question):
    """A `Question` under the model of acceptance."""

    verifier: SyntheticVerifier

    def writer_config(
        self, role: Role, draft_runner: Runner | None = None
    ) -> WriterConfig:
        """The engine's, but steps have drawn lengths and no token ends the sequence."""
        config = super().writer_config(role, draft_runner)
        synthetic = self.verifier.synthetic
        stream = Stream.root(synthetic.seed).fold_in("step length", role.value)
        # a factory that can be sent to the draft's process
        segmenter = partial(DrawnLengths, synthetic.lengths, stream)
        return replace(config, segmenter=segmenter, eos_ids=frozenset())

    def token_speculation(
        self, role: Role, draft_runner: Runner | None
    ) -> Speculation | None:
        """The engine's, with our rule; drafters without a model always find
        something."""
        rule = SyntheticRule(self.verifier.synthetic.alpha2)
        if not self.options.drafts_tokens:
            drafter = SyntheticDrafter(self.codec.vocab_size)
            return Speculation(drafter, rule, self.options.num_speculative_tokens)
        speculation = super().token_speculation(role, draft_runner)
        return None if speculation is None else replace(speculation, rule=rule)


@dataclass(eq=False)
class SyntheticDrafter(Drafter):
    """Prompt lookup that always finds k tokens: the ids that follow the last one,
    cyclically."""

    vocab_size: int
    name = "synthetic"

    def propose(self, contexts: Sequence[Context], k: int) -> list[Proposal]:
        proposals = []
        for context in contexts:
            first = context.tokens[-1] + 1
            ids = range(first, first + min(k, context.limit))
            proposals.append(Proposal.chain([i % self.vocab_size for i in ids]))
        return proposals


@dataclass(eq=False)
class SyntheticRule(AcceptanceRule):
    """Keeps each draft token with probability `alpha`, up to the first rejection, after
    which the target draws the next token. Whether a place is kept depends only on step
    and place. Example: kept, not kept, kept: a round that begins there keeps one, and
    the next begins at the third."""

    alpha: float
    name = "synthetic"
    lossless = False
    trees = False

    def outcomes(self, p_rows: Tensor, proposal: Proposal) -> list[Outcome]:
        """n tokens are kept with probability alpha^n (1 - alpha), all k with alpha^k,
        as if draws were independent. Our stratified draws keep n in a row slightly less
        often."""
        k, alpha = len(proposal), self.alpha
        outcomes = []
        for n in range(k + 1):
            chance = alpha**n * (1 - alpha if n < k else 1)
            row = partial(p_rows.__getitem__, n)
            outcomes.append(Outcome(chance, tuple(range(n)), row))
        return outcomes

    def select(self, p_rows: Tensor, proposal: Proposal, draws: Draws) -> Outcome:
        stream = draws.stream.fold_in("synthetic")
        n = 0
        while n < len(proposal) and kept_at(
            stream, self.alpha, DRAWN_TOKENS, draws.offset + n
        ):
            n += 1
        return self.outcomes(p_rows, proposal)[n]


class SyntheticVerifier(Verifier):
    """Accepts with probability alpha1, after `verifier` has done its work. A judge reads
    as many tokens as it would of real steps, since the words of a dummy are long."""

    def __init__(
        self, synthetic: Synthetic, verifier: Verifier, stream: Stream
    ) -> None:
        self.name = f"synthetic:{synthetic.alpha1:g}"
        self.requires = verifier.requires
        self.synthetic = synthetic
        self.verifier = verifier
        self.stream = stream

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        if isinstance(self.verifier, JudgeVerifier):
            self._read(self.verifier, pairs)
        else:
            self.verifier.judge(pairs)
        rate = self.synthetic.alpha1
        return [
            Verdict(
                kept_at(self.stream, rate, DRAWN_STEPS, pair.index),
                why=f"drawn for step {pair.index}",
            )
            for pair in pairs
        ]

    def _read(self, judge: JudgeVerifier, pairs: Sequence[Pair]) -> None:
        """Read the pairs as a judge does, and wait for the result, which is not
        used."""
        rows = []
        for pair in pairs:
            steps = (*pair.target_step.tokens, *pair.draft.tokens)
            tokens = [*INSTRUCTIONS, *(token % BYTES for token in steps), *FRAME]
            rows.append(PromptRow(tokens, keep=len(INSTRUCTIONS)))
        for logits in judge.prefixes.logits(rows):
            if isinstance(logits, LRError):
                raise logits
            logits.argmax(-1).tolist()
