"""The evaluation of the tiny models on held-out problems: `measure_tiny.py` prints it.

Accuracy: each model solves the problems alone. Token acceptance: the mean over the
target's own solutions of sum_x min(p(x), q(x)), the probability that the rejection rule
keeps a token drawn from the draft (Leviathan et al., arXiv 2211.17192, section 3.2).
Step acceptance: a chain grows from the prompt. At every position both models write one
step from the same prefix, and the oracle judges. The draft's step joins the chain if it
means the same, else the target's step does. The result is alpha_1 of Lookahead
Reasoning.

`lr bench decode` measures speed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lr.engine.runner import Branch, ModelRunner
from lr.kvcache.branch import BLOCK_SIZE
from lr.model.codec import Codec
from lr.model.qwen import CausalLM
from lr.model.weights import load_model
from lr.result import boxed
from lr.rng import Stream
from lr.spec.protocol import Limits
from lr.spec.sampling import distribution
from lr.spec.write import StepJob, StepWriter, WriterConfig
from lr.tiny.language import Problem, Split
from lr.tiny.oracle import parse, same_meaning
from lr.tiny.stories import DATASETS
from lr.types import Role, SamplingParams, require

KINDS = ("goal", "given", "note", "operation", "answer", "unreadable")
BATCH = 32  # problems solved together
CONTEXT = 2048
LIMITS = Limits(max_tokens=1600)
Tokens = tuple[int, ...]  # of a step


@dataclass
class StepSums:
    """Sums over steps of one kind, as counted on the judged chain.

    `accepted`: the draft's step means the same as the target's; `exact`: it has the
    same tokens. `self_accepted`, `self_exact`: the same for a second step of the target
    from the same prefix. `tokens`, `draft_tokens`: lengths of the target's and the
    draft's steps. `positions`, `overlap`: token positions and the sum of sum_x min(p,
    q) in the target's own solutions."""

    steps: int = 0
    accepted: int = 0
    exact: int = 0
    self_accepted: int = 0
    self_exact: int = 0
    tokens: int = 0
    draft_tokens: int = 0
    positions: int = 0
    overlap: float = 0.0

    def __add__(self, summand: StepSums) -> StepSums:
        sums = {
            name: sum_ + getattr(summand, name) for name, sum_ in vars(self).items()
        }
        return StepSums(**sums)

    def rates(self) -> dict[str, float]:
        """All rates by name; NaN if nothing was counted."""
        counts = {
            "step acceptance": self.accepted,
            "exact text": self.exact,
            "target against itself": self.self_accepted,
            "itself, exact text": self.self_exact,
            "tokens per target step": self.tokens,
            "tokens per draft step": self.draft_tokens,
        }
        rates = {
            name: count / self.steps if self.steps else math.nan
            for name, count in counts.items()
        }
        overlap = self.overlap / self.positions if self.positions else math.nan
        return rates | {"token acceptance": overlap}


@dataclass(frozen=True)
class TinyReport:
    """The results of `evaluate`."""

    problems: int
    temperature: float
    target_right: int
    draft_right: int
    tallies: dict[str, StepSums]

    @property
    def total(self) -> StepSums:
        return sum(self.tallies.values(), StepSums())

    def table(self) -> str:
        """The report as Markdown: accuracy, then the rates by kind of step."""
        columns = {"all": self.total} | {
            k: self.tallies[k] for k in KINDS if k in self.tallies
        }
        rows = [["", *columns], ["---"] * (1 + len(columns))]
        rows.append(["steps", *(str(tally.steps) for tally in columns.values())])
        for name in self.total.rates():
            rows.append(
                [name, *(f"{tally.rates()[name]:.3f}" for tally in columns.values())]
            )
        target, draft = (
            f"{right / self.problems:.3f} ({right}/{self.problems})"
            for right in (self.target_right, self.draft_right)
        )
        lines = [
            f"Held-out problems: {self.problems}, temperature {self.temperature}.\n",
            f"Accuracy: target {target}, draft {draft}.\n",
            *(f"| {' | '.join(row)} |" for row in rows),
        ]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class EvalSettings:
    """How much to measure, on which data set (tiny: short problems)."""

    problems: int = 128
    seed: int = 0
    temperature: float = 0.6
    dataset: str = "tiny"

    def __post_init__(self) -> None:
        require(self.problems > 0, "problems", self.problems, "a whole number > 0")


class Voice:
    """A model that writes steps: runner, codec and step writer."""

    def __init__(
        self, role: Role, model: CausalLM, codec: Codec, settings: EvalSettings
    ) -> None:
        self.codec = codec
        self.sampling = SamplingParams(temperature=settings.temperature)
        self.runner = ModelRunner(
            model,
            num_blocks=2 * BATCH * (CONTEXT // BLOCK_SIZE),
            vocab_size=codec.vocab_size,
        )
        self.stream = Stream.root(settings.seed).fold_in("tiny eval", role.value)
        config = WriterConfig(role, self.sampling, codec.eos_ids)
        self.writer = StepWriter(config, self.runner, codec.token_bytes)

    def write(self, branches: Sequence[Branch], numbers: Sequence[int]) -> list[Tokens]:
        """Write a step at the end of each branch. `numbers` must differ for different
        draws."""
        limit = LIMITS.step_limit(0)
        jobs = [
            StepJob(branch, n, limit, self.stream.fold_in(n))
            for branch, n in zip(branches, numbers, strict=True)
        ]
        return [step.tokens for step in self.writer.write(jobs)]

    def ended(self, step: Sequence[int]) -> bool:
        return step[-1] in self.codec.eos_ids

    def kind_of(self, text: str) -> str:
        """The kind of a step, such as "goal"; "unreadable" if it is not in the
        language."""
        meaning = parse(text)
        return "unreadable" if meaning is None else str(meaning.kind.value)

    def logits(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
        """The logits [t, v] of the t tokens of `text` after `prompt`."""
        branch = self.runner.open([*prompt, *text[:-1]])
        logits = self.runner.forward([branch], "all")[0][len(prompt) - 1 :]
        self.runner.close(branch)
        return logits


def evaluate(
    target: str | Path, draft: str | Path, settings: EvalSettings
) -> TinyReport:
    """Evaluate a target and a draft (directories or names of tiny models) on held-out
    problems."""

    def voice(role: Role, name: str | Path) -> Voice:
        codec = Codec.load(name)
        return Voice(role, load_model(name, dtype=torch.float32), codec, settings)

    large = voice(Role.TARGET, target)
    small = voice(Role.DRAFT, draft)
    tallies: dict[str, StepSums] = {}
    right = drafts_right = 0
    for first in range(0, settings.problems, BATCH):
        indices = range(first, min(first + BATCH, settings.problems))
        problems = draw(indices, settings)
        solutions = solve(large, problems)
        right += count_right(large, problems, solutions)
        drafts_right += count_right(small, problems, solve(small, problems))
        for task, steps in zip(problems, solutions, strict=True):
            prompt = large.codec.chat(task.question)
            text = [token for step in steps for token in step]
            p = distribution(large.logits(prompt, text), large.sampling)
            q = distribution(small.logits(prompt, text), small.sampling)
            overlaps = torch.minimum(p, q).sum(-1).tolist()  # sum_x min(p, q), by token
            for step in steps:
                kind = large.kind_of(large.codec.decode(step))
                tally = tallies.setdefault(kind, StepSums())
                tally.positions += len(step)
                tally.overlap += sum(overlaps[: len(step)])
                del overlaps[: len(step)]
        _step_acceptance(large, small, problems, tallies)
    count = settings.problems
    temperature = settings.temperature
    return TinyReport(count, temperature, right, drafts_right, tallies)


def draw(indices: Sequence[int], settings: EvalSettings) -> list[Problem]:
    """Held-out problems by index."""
    problem = DATASETS[settings.dataset]
    return [problem(Split.TEST, index, settings.seed) for index in indices]


def solve(voice: Voice, problems: Sequence[Problem]) -> list[list[Tokens]]:
    """Let the model solve each problem; returns the steps of each solution."""
    branches = [voice.runner.open(voice.codec.chat(task.question)) for task in problems]
    ends = [len(branch) + LIMITS.max_tokens for branch in branches]
    solutions: list[list[Tokens]] = [[] for _ in problems]
    live = list(range(len(problems)))
    while live:
        numbers = [draw_number(problems[i], len(solutions[i])) for i in live]
        written = voice.write([branches[i] for i in live], numbers)
        for i, step in zip(live, written, strict=True):
            solutions[i].append(step)
        live = [
            i
            for i in live
            if not voice.ended(solutions[i][-1]) and len(branches[i]) < ends[i]
        ]
    for branch in branches:
        voice.runner.close(branch)
    return solutions


def count_right(
    voice: Voice, problems: Sequence[Problem], solutions: Sequence[list[Tokens]]
) -> int:
    """The number of solutions with the right answer in the last box."""
    texts = ("".join(voice.codec.decode(step) for step in steps) for steps in solutions)
    answers = (str(task.answer) for task in problems)
    return sum(
        boxed(text) == answer for text, answer in zip(texts, answers, strict=True)
    )


def draw_number(task: Problem, index: int, sibling: int = 0) -> int:
    """A different number for every (problem, place in the chain, try)."""
    return Stream.root(index).fold_in(task.question, sibling).key(0) >> 1


def grow_chains(
    target: Voice,
    draft: Voice,
    problems: Sequence[Problem],
    number: Callable[[Problem, int, int], int],
    accepts: Callable[[Tokens, Tokens, Tokens], bool],
    *,
    twice: bool = False,
) -> None:
    """Grow the chains of a batch of problems.

    At every position both models write one step from the same prefix (`twice`: the
    target writes another). If `accepts(target's, draft's, another of the target)`, the draft's step
    joins the chain, else the target's. `number(problem, position, sibling)` is the
    number of a step's draws."""
    voices = (target, draft)
    chains = [target.codec.chat(task.question) for task in problems]
    branches = [[voice.runner.open(chain) for chain in chains] for voice in voices]
    ends = [len(chain) + LIMITS.max_tokens for chain in chains]
    live = list(range(len(problems)))
    index = 0
    while live:
        numbers = [number(problems[i], index, 0) for i in live]
        again = [number(problems[i], index, 1) for i in live] if twice else []
        forks = [target.runner.fork(branches[0][i]) for i in live] if twice else []
        targets = target.write([branches[0][i] for i in live] + forks, numbers + again)
        for fork in forks:
            target.runner.close(fork)
        drafts = draft.write([branches[1][i] for i in live], numbers)
        for position, i in enumerate(live):
            written = targets[position]
            drafted = drafts[position]
            second = targets[len(live) + position] if twice else written
            chosen = drafted if accepts(written, drafted, second) else written
            for voice, row in zip(voices, branches, strict=True):
                voice.runner.rewind(row[i], len(chains[i]))
                row[i].extend((chains[i] + list(chosen))[len(row[i]) :])
            chains[i] = chains[i] + list(chosen)
        live = [
            i for i in live if not target.ended(chains[i]) and len(chains[i]) < ends[i]
        ]
        index += 1
    for voice, row in zip(voices, branches, strict=True):
        for branch in row:
            voice.runner.close(branch)


def _step_acceptance(
    target: Voice,
    draft: Voice,
    problems: Sequence[Problem],
    tallies: dict[str, StepSums],
) -> None:
    """Count how the oracle judges draft steps and second target steps, by kind of
    target step."""

    def accepts(written: Tokens, drafted: Tokens, second: Tokens) -> bool:
        text, draft_text, second_text = (
            target.codec.decode(step) for step in (written, drafted, second)
        )
        tally = tallies.setdefault(target.kind_of(text), StepSums())
        accepted = target.ended(written) == target.ended(drafted) and same_meaning(
            text, draft_text
        )
        tally.steps += 1
        tally.tokens += len(written)
        tally.draft_tokens += len(drafted)
        tally.accepted += accepted
        tally.exact += written == drafted
        tally.self_accepted += same_meaning(text, second_text)
        tally.self_exact += written == second
        return accepted

    grow_chains(target, draft, problems, draw_number, accepts, twice=True)
