"""Times the modes on models without weights: the passes are real, and random draws
decide what is accepted.

    python scripts/synthetic.py --model dummy:Qwen3-8B --draft_model dummy:Qwen3-0.6B --verifier exact
    python scripts/synthetic.py --help

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

import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from math import floor
from pathlib import Path
from typing import Any

import tyro
from torch import Tensor

from lr.commands.info import memory_table
from lr.commands.options import ModelChoice
from lr.commands.show import console, progress, require_at_least
from lr.engine.answer import Answer
from lr.engine.question import Question
from lr.errors import LRError
from lr.measure.datasets import Item, Task, fingerprint
from lr.measure.experiments import speedup_ways, write_results
from lr.measure.lab import Lab
from lr.measure.machine import conditions
from lr.measure.models import Models
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
        answer = super().run(question, options, variant=variant, detailed=detailed)
        asked = answer.question
        parts = {part.field for part in asked.variant.replaced}
        expected = "none: draws decide"
        require(parts <= {"verifier"}, "variant", asked.variant.name, expected)
        stream = Stream.root(self.synthetic.seed).fold_in(question, options.sample)
        verifier = SyntheticVerifier(self.synthetic, asked.verifier, stream)
        # nothing runs yet
        answer.question = SyntheticQuestion(**{**vars(asked), "verifier": verifier})
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
            steps = (*pair.target_step.tokens, *pair.draft_step.tokens)
            tokens = [*INSTRUCTIONS, *(token % BYTES for token in steps), *FRAME]
            rows.append(PromptRow(tokens, keep=len(INSTRUCTIONS)))
        for logits in judge.prefixes.logits(rows):
            if isinstance(logits, LRError):
                raise logits
            logits.argmax(-1).tolist()


DRAWN = ("ar", "sd drafter=ngram", "lr", "lr+sd drafter=ngram")
"""The usual ways to answer of models without weights."""


@dataclass(frozen=True)
class SyntheticSpeedup:
    """`lr experiment speedup` with drawn acceptance, for models without weights. The
    same command again continues."""

    models: ModelChoice = field(default_factory=ModelChoice)
    accepted: tuple[float, float] = (0.5, 0.24)
    """The probabilities that a draft step and a draft token are accepted. Those of Qwen3
    on GSM8K in the paper."""
    problems: int = 3  # How many problems.
    prompt_tokens: int = 512  # Tokens before the answer.
    step_tokens: float = 32.0  # Mean length of a step.
    values: tuple[str, ...] = DRAWN
    """Ways to answer, each a mode and settings, such as "lr depth=3"."""
    generation: GenerateOptions = field(
        default_factory=lambda: GenerateOptions(driver="overlapped", max_tokens=256)
    )
    output: Path = Path("results")  # The folder for tables, figures and JSON.
    work: Path = Path("runs/synthetic")
    """The folder that keeps the answers between calls."""

    def run(self, command: str) -> None:
        require_at_least(self, problems=2, prompt_tokens=8, step_tokens=1)
        models = self.models
        draft = models.required_draft()
        longest = self.generation.max_tokens
        require(
            longest is not None, "max_tokens", None, "a number: no token ends these"
        )
        assert longest is not None
        synthetic = Synthetic(*self.accepted, Lognormal(self.step_tokens, 0.5))
        largest = replace(self.generation, mode="lr+sd", drafter="ngram")
        notes = console(stderr=True)
        memory = models.memory(largest, self.prompt_tokens + longest, 1)
        notes.print(memory_table(memory))
        memory.check()
        prompts = [f"{n:x>{self.prompt_tokens}}" for n in range(self.problems)]
        items = [Item(n, prompt, Task.FREE) for n, prompt in enumerate(prompts)]

        def load(draft_alone: bool) -> Reasoner:
            if draft_alone:
                return models.reasoner(draft, None)
            return SyntheticReasoner(models.reasoner(models.model, draft), synthetic)

        facts = {"drawn": str(synthetic)}
        settings = models.settings() | {"draft_model": draft} | facts
        lab = Lab(
            items,
            self.work,
            Models(load, models.judge_model, settings),
            self.generation,
            values=self.values,
            data=fingerprint(items),
        )
        with closing(lab.models):
            ways = [way for way in speedup_ways(lab) if way.variant is None]
            with progress("speedup", len(ways) * len(items)) as advance:
                results = lab.run(ways, advance)
        stated = conditions() | facts
        files = write_results("speedup", results, self.output, command, stated)
        console().print(files[0].read_text(encoding="utf-8"))
        for error in lab.failures.values():
            raise error  # the rows of the others are written


def main(words: Sequence[str] | None = None) -> None:
    """Time what these flags say; None: those of the command line."""
    words = sys.argv[1:] if words is None else words
    chosen = tyro.cli(
        SyntheticSpeedup,
        args=words,
        use_underscores=True,
        config=(tyro.conf.OmitArgPrefixes,),
    )
    chosen.run(f"python scripts/synthetic.py {shlex.join(words)}")


if __name__ == "__main__":
    from synthetic import main  # by this name the draft's process finds it

    main()
