"""The evaluation of the tiny models on held-out problems: `measure_tiny.py` prints it.

Accuracy: each model solves the problems alone. Token acceptance: the mean over the
target's own solutions of sum_x min(p(x), q(x)), the probability that the rejection rule
keeps a token drawn from the draft (Leviathan et al., arXiv 2211.17192, section 3.2).
Step acceptance: a chain grows from the prompt. At every position both models write one
step from the same prefix, and the oracle judges. The draft's step joins the chain if it
means the same, else the target's step does. The result is alpha_1 of Lookahead
Reasoning. The layer ablation leaves out one layer of the target at a time: a layer
whose absence costs nothing is useless.

`lr bench decode` measures speed."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

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

    def __add__(self, other: StepSums) -> StepSums:
        mine, theirs = vars(self), vars(other)
        return StepSums(**{name: mine[name] + theirs[name] for name in mine})

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
class LayerSkipped:
    """The target without one layer (None: the whole target): its accuracy and its loss.

    The loss is -log p per token (nats) on the whole target's own solutions."""

    layer: int | None
    accuracy: float
    loss: float


@dataclass(frozen=True)
class TinyReport:
    """The results of `evaluate`. `ablation`, if requested, begins with the whole
    target."""

    problems: int
    temperature: float
    target_right: int
    draft_right: int
    tallies: dict[str, StepSums]
    ablation: tuple[LayerSkipped, ...] = ()

    @property
    def total(self) -> StepSums:
        return sum(self.tallies.values(), StepSums())

    def table(self) -> str:
        """The report as Markdown: accuracy, then the rates by kind of step, then the
        ablation."""
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
        if self.ablation:
            names = [
                "none" if one.layer is None else str(one.layer) for one in self.ablation
            ]
            rows = [["layer left out", *names], ["---"] * (1 + len(names))]
            rows.append(["accuracy", *(f"{one.accuracy:.2f}" for one in self.ablation)])
            rows.append(
                ["loss per token", *(f"{one.loss:.3f}" for one in self.ablation)]
            )
            lines += ["\nThe target without one layer:\n"]
            lines += [f"| {' | '.join(row)} |" for row in rows]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class EvalSettings:
    """How much to measure, on which data set (tiny: short problems).

    `ablation_problems`: problems per layer, 0 for no ablation. `ablation_layers`: the
    layers to leave out one at a time, empty for all."""

    problems: int = 128
    seed: int = 0
    temperature: float = 0.6
    dataset: str = "tiny"
    ablation_problems: int = 0
    ablation_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require(self.problems > 0, "problems", self.problems, "a whole number > 0")
        least = self.ablation_problems >= 0
        require(
            least, "ablation_problems", self.ablation_problems, "a whole number >= 0"
        )
        used = self.ablation_problems > 0 or not self.ablation_layers
        require(
            used, "ablation_problems", 0, "at least 1, since ablation_layers are given"
        )


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

    own, other = voice(Role.TARGET, target), voice(Role.DRAFT, draft)
    layers = own.runner.model.config.num_layers
    for layer in settings.ablation_layers:
        require(
            0 <= layer < layers, "ablation_layers", layer, f"layers 0 to {layers - 1}"
        )
    tallies: dict[str, StepSums] = {}
    right, drafts_right = 0, 0
    for first in range(0, settings.problems, BATCH):
        indices = range(first, min(first + BATCH, settings.problems))
        problems = draw(indices, settings)
        solutions = solve(own, problems)
        right += count_right(own, problems, solutions)
        drafts_right += count_right(other, problems, solve(other, problems))
        for what, steps in zip(problems, solutions, strict=True):
            prompt = own.codec.chat(what.question)
            text = [token for step in steps for token in step]
            p, q = (
                distribution(v.logits(prompt, text), v.sampling) for v in (own, other)
            )
            overlaps, at = (
                torch.minimum(p, q).sum(-1).tolist(),
                0,
            )  # sum_x min(p, q), by token
            for step in steps:
                tally = tallies.setdefault(
                    own.kind_of(own.codec.decode(step)), StepSums()
                )
                tally.positions += len(step)
                tally.overlap += sum(overlaps[at : at + len(step)])
                at += len(step)
        _step_acceptance(own, other, problems, tallies)
    ablation = _ablation(own, settings) if settings.ablation_problems else ()
    count, temperature = settings.problems, settings.temperature
    return TinyReport(count, temperature, right, drafts_right, tallies, ablation)


def draw(indices: Sequence[int], settings: EvalSettings) -> list[Problem]:
    """Held-out problems by index."""
    problem = DATASETS[settings.dataset]
    return [problem(Split.TEST, index, settings.seed) for index in indices]


def solve(voice: Voice, problems: Sequence[Problem]) -> list[list[Tokens]]:
    """Let the model solve each problem; returns the steps of each solution."""
    branches = [voice.runner.open(voice.codec.chat(what.question)) for what in problems]
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
    answers = (str(what.answer) for what in problems)
    return sum(
        boxed(text) == answer for text, answer in zip(texts, answers, strict=True)
    )


def draw_number(what: Problem, index: int, sibling: int = 0) -> int:
    """A different number for every (problem, place in the chain, try)."""
    return Stream.root(index).fold_in(what.question, sibling).key(0) >> 1


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
    target writes another). If `accepts(target's, draft's, other)`, the draft's step
    joins the chain, else the target's. `number(problem, position, sibling)` is the
    number of a step's draws."""
    voices = (target, draft)
    chains = [target.codec.chat(what.question) for what in problems]
    branches = [[voice.runner.open(chain) for chain in chains] for voice in voices]
    ends = [len(chain) + LIMITS.max_tokens for chain in chains]
    live, index = list(range(len(problems))), 0
    while live:
        numbers = [number(problems[i], index, 0) for i in live]
        again = [number(problems[i], index, 1) for i in live] if twice else []
        forks = [target.runner.fork(branches[0][i]) for i in live] if twice else []
        own = target.write([branches[0][i] for i in live] + forks, numbers + again)
        for fork in forks:
            target.runner.close(fork)
        drafts = draft.write([branches[1][i] for i in live], numbers)
        for place, i in enumerate(live):
            mine, drafted = own[place], drafts[place]
            other = own[len(live) + place] if twice else mine
            chosen = drafted if accepts(mine, drafted, other) else mine
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

    def accepts(mine: Tokens, drafted: Tokens, other: Tokens) -> bool:
        text, said, again = (
            target.codec.decode(step) for step in (mine, drafted, other)
        )
        tally = tallies.setdefault(target.kind_of(text), StepSums())
        accepted = target.ended(mine) == target.ended(drafted) and same_meaning(
            text, said
        )
        tally.steps += 1
        tally.tokens += len(mine)
        tally.draft_tokens += len(drafted)
        tally.accepted += accepted
        tally.exact += mine == drafted
        tally.self_accepted += same_meaning(text, again)
        tally.self_exact += mine == other
        return accepted

    grow_chains(target, draft, problems, draw_number, accepts, twice=True)


def without_layer(model: CausalLM, layer: int) -> CausalLM:
    """The model without one layer. It shares the weights of the other layers."""
    lesser = copy.copy(model)
    lesser._modules = dict(model._modules)
    lesser.layers = nn.ModuleList(
        block for i, block in enumerate(model.layers) if i != layer
    )
    return lesser


def _ablation(target: Voice, settings: EvalSettings) -> tuple[LayerSkipped, ...]:
    """Accuracy and loss of the whole target, then of the target without each single
    layer.

    The loss, -log p per token at temperature 1, shows differences that sampled accuracy
    is too coarse to show."""
    model, codec = target.runner.model, target.codec
    problems = draw(range(settings.ablation_problems), settings)
    prompts = [codec.chat(what.question) for what in problems]
    solutions: list[list[Tokens]] = []
    found = []
    for layer in (None, *(settings.ablation_layers or range(model.config.num_layers))):
        lesser = model if layer is None else without_layer(model, layer)
        voice, own = Voice(Role.TARGET, lesser, codec, settings), list[list[Tokens]]()
        for first in range(0, len(problems), BATCH):
            own += solve(voice, problems[first : first + BATCH])
        solutions = solutions or own
        losses = []
        for prompt, steps in zip(prompts, solutions, strict=True):
            text = [token for step in steps for token in step]
            logits, wanted = voice.logits(prompt, text).float(), torch.tensor(text)
            losses.append(nn.functional.cross_entropy(logits, wanted, reduction="none"))
        right = count_right(voice, problems, own) / len(problems)
        found.append(LayerSkipped(layer, right, float(torch.cat(losses).mean())))
    return tuple(found)
