"""Training rows for the judge: the prompt that `JudgeVerifier` will put, answer begun, and the one
token that decides.

That token is what counts, but one bit per row teaches slowly. So while training the judge also has
to say, at every token of the second step, whether the step can still mean what the first one does
(`agreement.py`): the same two answers, with a small weight. It learns where steps part, and the
answer at the end follows.

A batch holds pairs from the grammar and from runs, both classes equally often. Which rows a batch
holds is a pure function of (seed, pool, position), as in `rows.py`, so training resumes exactly.

Pairs of steps from real runs: at every place of a chain, draft and target write one step from
the same prefix.

The chain goes on as in Lookahead Reasoning with the oracle as verifier: with the draft's step where
it means the same, else with the target's. What never reaches a judge is left out: pairs that are
decided by their form, and equal texts (`spec/scheduler.py`, `spec/verifiers/simple.py`). Read
next: `judge_eval.py`, which measures a judge on such pairs.

How well a judge agrees with the oracle, and how long it takes: agreement, precision, recall, an
ROC curve, milliseconds per batch.

Every pair is judged in both orders, and both count. Precision: of the pairs it accepts, how many
mean the same. Recall: of those that mean the same, how many it accepts. A point of the ROC curve is
a threshold: which share of the different pairs it would accept, and which share of the equal ones.
The area under the curve is the chance that of an equal and a different pair the equal one scores
higher.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from transformers import PreTrainedTokenizerFast

from lr.kvcache.branch import Branch
from lr.model.codec import Codec
from lr.model.weights import load_model
from lr.rng import Stream
from lr.spec.verifiers.base import Pair, Verifier
from lr.spec.verifiers.judge import TINY_JUDGE_PROMPT
from lr.spec.verifiers.prompted import AnswerTokens
from lr.tiny.evaluate import BATCH, LIMITS, EvalSettings, Voice
from lr.tiny.grammar import Style, unglue
from lr.tiny.language import Problem, Split, problem
from lr.tiny.oracle import parse, same_meaning
from lr.tiny.pairs import TextPair, agreeing_prefix, grammar_pair, kind_of_difference
from lr.tiny.rows import Batch, RowMaker, pad
from lr.types import Finish, Role, Step

POOL_PAIRS = 1024
RUNNING_WEIGHT = 0.1


class JudgeRow(NamedTuple):
    """Token ids; for each place the weight of the loss, and what is to be predicted there."""

    ids: list[int]
    weights: list[float]
    labels: list[int]


def batch_of(rows: Sequence[JudgeRow], fill: int, place: tuple[int, int] = (0, 0)) -> Batch:
    """Rows as rectangles, padded on the right."""
    tokens, weights = pad([(row.ids, row.weights) for row in rows], fill)
    labels, _ = pad([(row.labels, row.weights) for row in rows], fill)
    return Batch(tokens, weights, place, labels)


class JudgeRows(RowMaker):
    """Makes rows of pairs. `real` are pairs from runs on training problems, a share `real_share` of
    each pool; empty: none.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        seed: int,
        real: Sequence[TextPair] = (),
        real_share: float = 0.3,
    ) -> None:
        super().__init__(tokenizer, Style.TARGET, seed)
        self.real = [[pair for pair in real if pair.same is same] for same in (True, False)]
        self.real_share = real_share if all(self.real) else 0.0
        prompt = TINY_JUDGE_PROMPT
        answers = [
            tokenizer.encode(text, add_special_tokens=False)
            for text in (prompt.aligned, prompt.unaligned)
        ]
        answer_tokens = AnswerTokens.of(answers)
        self.begun = [
            *tokenizer.encode(prompt.prefill, add_special_tokens=False),
            *answer_tokens.common,
        ]
        aligned, unaligned = answer_tokens.tokens
        assert aligned is not None and unaligned is not None
        self.aligned, self.unaligned = aligned, unaligned
        self.texts = [tokenizer.decode([token]) for token in range(len(tokenizer))]
        [self.blank] = tokenizer.encode("\n\n", add_special_tokens=False)

    def pair_row(self, pair: TextPair) -> JudgeRow:
        """The prompt about a pair with the right answer; its own weight is 1, that of the running
        answers `RUNNING_WEIGHT`.
        """
        ids = [*self.prompt(TINY_JUDGE_PROMPT.about(pair.first, pair.second)), *self.begun]
        labels, weights = list(ids), [0.0] * len(ids)
        for place, agrees in self._running(pair, ids):
            labels[place + 1], weights[place + 1] = self._answer(agrees), RUNNING_WEIGHT
        answer = self._answer(pair.same)
        return JudgeRow([*ids, answer], [*weights, 1.0], [*labels, answer])

    def _running(self, pair: TextPair, ids: list[int]) -> Iterator[tuple[int, bool]]:
        """The places of the second step's tokens in a prompt, and whether the step up to there
        agrees with the first.
        """
        meaning = parse(pair.first)
        if meaning is None:
            return
        agreeing = agreeing_prefix(meaning, pair.second)
        begin, read = ids.index(self.blank) + 1, ""
        for place in range(begin, ids.index(self.end, begin)):
            read += self.texts[ids[place]]
            yield place, len(unglue(read)) <= agreeing

    def _answer(self, same: bool) -> int:
        return self.aligned if same else self.unaligned

    def batches(
        self, start: tuple[int, int], stride: int, budget: int, drills: float = 0.0
    ) -> Iterator[Batch]:
        """Endless batches of about `budget` tokens from place `start`; see `RowMaker.batches`.
        There are no drills.
        """
        pool, position = start
        while True:
            groups = self._pair_groups(pool, budget)
            for i in range(position, len(groups)):
                place = (pool, i + 1) if i + 1 < len(groups) else (pool + stride, 0)
                yield batch_of(groups[i], self.tokenizer.pad_token_id, place)
            pool, position = pool + stride, 0

    def _pair_groups(self, pool: int, budget: int) -> list[list[JudgeRow]]:
        """The rows of a pool in groups of like length and at most `budget` tokens, in random
        order.
        """
        rng = random.Random(f"judge rows/{self.seed}/{pool}")
        rows = [self.pair_row(self._pair(pool * POOL_PAIRS + i, rng)) for i in range(POOL_PAIRS)]
        rows.sort(key=lambda row: len(row.ids))
        groups: list[list[JudgeRow]] = [[]]
        for row in rows:
            if groups[-1] and (len(groups[-1]) + 1) * len(row.ids) > budget:
                groups.append([])
            groups[-1].append(row)
        rng.shuffle(groups)
        return groups

    def _pair(self, index: int, rng: random.Random) -> TextPair:
        if rng.random() >= self.real_share:
            return grammar_pair(index, self.seed)
        pair = rng.choice(self.real[index % 2])
        return TextPair(pair.second, pair.first, pair.same) if rng.random() < 0.5 else pair


MAX_STEP_TOKENS = 100


class PairSource:
    """A target and a draft that solve problems together, step by step, and what they wrote at the
    same places.
    """

    def __init__(
        self,
        target: str | Path = "tiny-target",
        draft: str | Path = "tiny-draft",
        *,
        temperature: float = 0.6,
    ) -> None:
        settings = EvalSettings(temperature=temperature)
        self.target, self.draft = (
            Voice(role, load_model(name, dtype=torch.float32), Codec.load(name), settings)
            for role, name in ((Role.TARGET, target), (Role.DRAFT, draft))
        )

    def pairs(self, split: Split, batch: int, seed: int = 0) -> list[TextPair]:
        """The pairs (target's step, draft's step) of batch number `batch` of a split's problems, 32
        problems each.
        """
        problems = [problem(split, batch * BATCH + i, seed) for i in range(BATCH)]
        chains = [self.target.codec.chat(what.question) for what in problems]
        branches = [
            [voice.runner.open(chain) for chain in chains] for voice in (self.target, self.draft)
        ]
        ends = [len(chain) + LIMITS.max_tokens for chain in chains]
        found: list[TextPair] = []
        live, index = list(range(BATCH)), 0
        while live:
            own, guesses = (
                voice.write(
                    [row[i] for i in live], [_number(problems[i], index, seed) for i in live]
                )
                for voice, row in zip((self.target, self.draft), branches, strict=True)
            )
            for i, step, guess in zip(live, own, guesses, strict=True):
                chosen = self._settle(step, guess, found)
                chains[i] = [*chains[i], *chosen]
                for voice, row in zip((self.target, self.draft), branches, strict=True):
                    _go_on(voice, row[i], chains[i], len(chosen))
            live = [
                i for i in live if not self.target.ended(chains[i]) and len(chains[i]) < ends[i]
            ]
            index += 1
        for voice, row in zip((self.target, self.draft), branches, strict=True):
            for branch in row:
                voice.runner.close(branch)
        return found

    def _settle(
        self, step: tuple[int, ...], guess: tuple[int, ...], found: list[TextPair]
    ) -> tuple[int, ...]:
        """Note the pair if a judge would see it; the step that the chain goes on with."""
        first, second = (self.target.codec.decode(tokens).strip() for tokens in (step, guess))
        same = same_meaning(first, second)
        alike = self.target.ended(step) == self.target.ended(guess)
        whole = max(len(step), len(guess)) < MAX_STEP_TOKENS
        if alike and whole and first.casefold() != second.casefold():
            found.append(TextPair(first, second, same))
        return guess if alike and whole and same else step


def balanced(pairs: Sequence[TextPair], count: int) -> list[TextPair]:
    """`count` pairs of each class, the first that come; fewer where there are not so many."""
    return [
        pair
        for same in (True, False)
        for pair in [pair for pair in pairs if pair.same is same][:count]
    ]


def _go_on(voice: Voice, branch: Branch, chain: Sequence[int], new: int) -> None:
    voice.runner.rewind(branch, len(chain) - new)
    branch.extend(chain[len(branch) :])


def _number(what: Problem, index: int, seed: int) -> int:
    """A number of its own for every step that is ever written: the key of its draws."""
    return Stream.root(seed).child("judge pairs", what.question, index).key(0) >> 1


THRESHOLDS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
JUDGED_AT_ONCE = 64


@dataclass(frozen=True)
class JudgeReport:
    """Scores of judged pairs, each with the truth and with what tells the two steps apart."""

    scores: tuple[float, ...]
    truths: tuple[bool, ...]
    kinds: tuple[str, ...]

    def accepted(self, threshold: float, same: bool) -> int:
        """How many pairs of a class score at least `threshold`."""
        return sum(
            score >= threshold
            for score, truth in zip(self.scores, self.truths, strict=True)
            if truth is same
        )

    def agreement(self, threshold: float = 0.5) -> float:
        """The share of verdicts that are the oracle's."""
        right = (
            self.accepted(threshold, True)
            + self.truths.count(False)
            - self.accepted(threshold, False)
        )
        return right / len(self.truths)

    def precision(self, threshold: float = 0.5) -> float:
        accepted = self.accepted(threshold, True) + self.accepted(threshold, False)
        return self.accepted(threshold, True) / accepted if accepted else 1.0

    def recall(self, threshold: float = 0.5) -> float:
        return self.accepted(threshold, True) / max(1, self.truths.count(True))

    def false_accepts(self, threshold: float = 0.5) -> float:
        """The share of different pairs that are accepted."""
        return self.accepted(threshold, False) / max(1, self.truths.count(False))

    @property
    def area(self) -> float:
        """The area under the ROC curve; ties count half."""
        same = [score for score, truth in zip(self.scores, self.truths, strict=True) if truth]
        other = [score for score, truth in zip(self.scores, self.truths, strict=True) if not truth]
        wins = sum((a > b) + 0.5 * (a == b) for a in same for b in other)
        return wins / (len(same) * len(other))

    def order_agreement(self, threshold: float = 0.5) -> float:
        """The share of pairs that are judged alike in both orders (the second half of the scores is
        the first in the other order).
        """
        half = len(self.scores) // 2
        alike = [
            (a >= threshold) == (b >= threshold)
            for a, b in zip(self.scores[:half], self.scores[half:], strict=True)
        ]
        return sum(alike) / half

    def mistakes(self, threshold: float = 0.5) -> dict[str, tuple[int, int]]:
        """By what tells the steps apart ("" where nothing does): verdicts that are not the
        oracle's, and verdicts.
        """
        wrong: Counter[str] = Counter()
        for score, truth, kind in zip(self.scores, self.truths, self.kinds, strict=True):
            wrong[kind] += (score >= threshold) != truth
        return {kind: (wrong[kind], count) for kind, count in sorted(Counter(self.kinds).items())}


def judge_pairs(
    verifier: Verifier, encode: Callable[[str], list[int]], pairs: Sequence[TextPair]
) -> JudgeReport:
    """Put pairs, in both orders, to a verifier that gives scores."""
    both = [*pairs, *(TextPair(pair.second, pair.first, pair.same) for pair in pairs)]
    asked = [as_pair(pair, encode) for pair in both]
    scores = []
    for first in range(0, len(asked), JUDGED_AT_ONCE):
        scores += [
            verdict.score or 0.0
            for verdict in verifier.judge(asked[first : first + JUDGED_AT_ONCE])
        ]
    return JudgeReport(
        tuple(scores), tuple(pair.same for pair in both), tuple(map(kind_of_difference, both))
    )


def milliseconds(
    verifier: Verifier,
    encode: Callable[[str], list[int]],
    pairs: Sequence[TextPair],
    batch: int,
    repeats: int = 30,
) -> float:
    """The median time of one call with `batch` pairs, over `repeats` calls with different pairs,
    after three that do not count.
    """
    asked = [as_pair(pair, encode) for pair in pairs]
    times = []
    for call in range(repeats + 3):
        chosen = [asked[(call * batch + i) % len(asked)] for i in range(batch)]
        began = time.perf_counter()
        verifier.judge(chosen)
        times.append(1e3 * (time.perf_counter() - began))
    return median(times[3:])


def as_pair(pair: TextPair, encode: Callable[[str], list[int]]) -> Pair:
    """The pair as a verifier gets it: the first text is the target's step, the second the
    draft's.
    """
    target, draft = (
        Step(tuple(encode(text + "\n\n")), Finish.BOUNDARY) for text in (pair.first, pair.second)
    )
    return Pair((0,), draft, target)
