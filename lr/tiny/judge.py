"""The tiny judge: what it is trained on, pairs of steps from real runs, and how well it agrees with
the oracle.

A training row is the prompt that `JudgeVerifier` will put, its answer begun, and the one token that
decides. That token is what counts, but one bit per row teaches slowly. So in training the judge
also has to say, at every token of the second step, whether the step can still mean what the first
one does (`agreeing_prefix` in `pairs.py`): the same two answers, with a small weight. It learns
where steps part, and the answer at the end follows.

A run gives pairs at every place of a chain, where draft and target write one step from the same
prefix. The chain goes on as in Lookahead Reasoning with the oracle as verifier. What never reaches
a judge is left out: pairs that are decided by their form, and equal texts.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from transformers import PreTrainedTokenizerFast

from lr.model.codec import Codec
from lr.model.weights import load_model
from lr.rng import Stream
from lr.spec.verifiers.base import Pair, Verifier
from lr.spec.verifiers.judge import TINY_JUDGE_PROMPT
from lr.spec.verifiers.prompted import AnswerTokens
from lr.tiny.evaluate import BATCH, EvalSettings, Voice, grow_chains
from lr.tiny.grammar import Style, unglue
from lr.tiny.language import Split, problem
from lr.tiny.languages import Exercise
from lr.tiny.oracle import parse, same_meaning
from lr.tiny.pairs import TextPair, agreeing_prefix, grammar_pair, kind_of_difference
from lr.tiny.rows import Row, RowMaker
from lr.types import Finish, Role, Step

POOL_PAIRS = 1024
RUNNING_WEIGHT = 0.1
MAX_STEP_TOKENS = 100
THRESHOLDS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
JUDGED_AT_ONCE = 64


class JudgeRows(RowMaker):
    """Makes rows of pairs, both classes equally often. `real` are pairs from runs on training
    problems, a share `real_share` of each pool; empty: none."""

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
        answers = AnswerTokens.of([self.encode(prompt.aligned), self.encode(prompt.unaligned)])
        self.begun = [*self.encode(prompt.prefill), *answers.common]
        aligned, unaligned = answers.tokens
        assert aligned is not None and unaligned is not None
        self.aligned, self.unaligned = aligned, unaligned
        self.texts = [tokenizer.decode([token]) for token in range(len(tokenizer))]
        [self.blank] = self.encode("\n\n")

    def pair_row(self, pair: TextPair) -> Row:
        """The prompt about a pair with the right answer; its own weight is 1, that of the running
        answers `RUNNING_WEIGHT`."""
        ids = [*self.prompt(TINY_JUDGE_PROMPT.about(pair.first, pair.second)), *self.begun]
        labels, weights = list(ids), [0.0] * len(ids)
        for place, agrees in self._running(pair, ids):
            labels[place + 1] = self.aligned if agrees else self.unaligned
            weights[place + 1] = RUNNING_WEIGHT
        answer = self.aligned if pair.same else self.unaligned
        return Row([*ids, answer], [*weights, 1.0], [*labels, answer])

    def _running(self, pair: TextPair, ids: list[int]) -> Iterator[tuple[int, bool]]:
        """The places of the second step's tokens in a prompt, and whether the step up to there
        agrees with the first."""
        meaning = parse(pair.first)
        if meaning is None:
            return
        agreeing = agreeing_prefix(meaning, pair.second)
        begin, read = ids.index(self.blank) + 1, ""
        for place in range(begin, ids.index(self.end, begin)):
            read += self.texts[ids[place]]
            yield place, len(unglue(read)) <= agreeing

    def pool(self, number: int, rng: random.Random) -> list[Row]:
        rows = []
        for index in range(number * POOL_PAIRS, (number + 1) * POOL_PAIRS):
            if rng.random() >= self.real_share:
                pair = grammar_pair(index, self.seed)
            else:
                pair = rng.choice(self.real[index % 2])
                if rng.random() < 0.5:
                    pair = TextPair(pair.second, pair.first, pair.same)
            rows.append(self.pair_row(pair))
        return rows


class PairSource:
    """A target and a draft that solve problems together, step by step, and what they wrote at the
    same places."""

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
        problems each."""
        problems = [problem(split, batch * BATCH + i, seed) for i in range(BATCH)]
        found: list[TextPair] = []

        def number(what: Exercise, index: int, sibling: int) -> int:
            return Stream.root(seed).fold_in("judge pairs", what.question, index).key(0) >> 1

        def accepts(own: Sequence[int], drafted: Sequence[int], _: Sequence[int]) -> bool:
            first, second = (self.target.codec.decode(step).strip() for step in (own, drafted))
            same = same_meaning(first, second)
            alike = self.target.ended(own) == self.target.ended(drafted)
            whole = max(len(own), len(drafted)) < MAX_STEP_TOKENS
            if alike and whole and first.casefold() != second.casefold():
                found.append(TextPair(first, second, same))
            return alike and whole and same

        grow_chains(self.target, self.draft, problems, number, accepts)
        return found


def balanced(pairs: Sequence[TextPair], count: int) -> list[TextPair]:
    """`count` pairs of each class, the first that come; fewer where there are not so many."""
    same = [pair for pair in pairs if pair.same]
    return same[:count] + [pair for pair in pairs if not pair.same][:count]


@dataclass(frozen=True)
class JudgeReport:
    """Scores of judged pairs, each with the truth and with what tells the two steps apart. Every
    pair is judged in both orders: the second half is the first in the other order."""

    scores: tuple[float, ...]
    truths: tuple[bool, ...]
    kinds: tuple[str, ...]

    def accepted(self, threshold: float, same: bool) -> int:
        """How many pairs of a class score at least `threshold`."""
        scored = zip(self.scores, self.truths, strict=True)
        return sum(score >= threshold for score, truth in scored if truth is same)

    def agreement(self, threshold: float = 0.5) -> float:
        """The share of verdicts that are the oracle's."""
        refused = self.truths.count(False) - self.accepted(threshold, False)
        return (self.accepted(threshold, True) + refused) / len(self.truths)

    def precision(self, threshold: float = 0.5) -> float:
        """Of the pairs that are accepted, how many mean the same."""
        accepted = self.accepted(threshold, True) + self.accepted(threshold, False)
        return self.accepted(threshold, True) / accepted if accepted else 1.0

    def recall(self, threshold: float = 0.5) -> float:
        """Of the pairs that mean the same, how many are accepted."""
        return self.accepted(threshold, True) / max(1, self.truths.count(True))

    def false_accepts(self, threshold: float = 0.5) -> float:
        """The share of different pairs that are accepted."""
        return self.accepted(threshold, False) / max(1, self.truths.count(False))

    @property
    def area(self) -> float:
        """The area under the ROC curve, which is the chance that of an equal and a different pair
        the equal one scores higher; ties count half."""
        scored = list(zip(self.scores, self.truths, strict=True))
        same = [score for score, truth in scored if truth]
        other = [score for score, truth in scored if not truth]
        wins = sum((a > b) + 0.5 * (a == b) for a in same for b in other)
        return wins / (len(same) * len(other))

    def order_agreement(self, threshold: float = 0.5) -> float:
        """The share of pairs that are judged alike in both orders."""
        half = len(self.scores) // 2
        both = zip(self.scores[:half], self.scores[half:], strict=True)
        return sum((a >= threshold) == (b >= threshold) for a, b in both) / half

    def mistakes(self, threshold: float = 0.5) -> dict[str, tuple[int, int]]:
        """By what tells the steps apart ("" where nothing does): verdicts that are not the
        oracle's, and verdicts."""
        wrong: Counter[str] = Counter()
        for score, truth, kind in zip(self.scores, self.truths, self.kinds, strict=True):
            wrong[kind] += (score >= threshold) != truth
        return {kind: (wrong[kind], count) for kind, count in sorted(Counter(self.kinds).items())}


def judge_pairs(
    verifier: Verifier, encode: Callable[[str], list[int]], pairs: Sequence[TextPair]
) -> JudgeReport:
    """Put pairs, in both orders, to a verifier that gives scores."""
    both = [*pairs, *(TextPair(pair.second, pair.first, pair.same) for pair in pairs)]
    asked, scores = [as_pair(pair, encode) for pair in both], []
    for first in range(0, len(asked), JUDGED_AT_ONCE):
        verdicts = verifier.judge(asked[first : first + JUDGED_AT_ONCE])
        scores += [verdict.score or 0.0 for verdict in verdicts]
    truths, kinds = (pair.same for pair in both), map(kind_of_difference, both)
    return JudgeReport(tuple(scores), tuple(truths), tuple(kinds))


def milliseconds(
    verifier: Verifier,
    encode: Callable[[str], list[int]],
    pairs: Sequence[TextPair],
    batch: int,
    repeats: int = 30,
) -> float:
    """The median time of one call with `batch` pairs, over `repeats` calls with different pairs,
    after three that do not count."""
    asked, times = [as_pair(pair, encode) for pair in pairs], []
    for call in range(repeats + 3):
        chosen = [asked[(call * batch + i) % len(asked)] for i in range(batch)]
        began = time.perf_counter()
        verifier.judge(chosen)
        times.append(1e3 * (time.perf_counter() - began))
    return median(times[3:])


def as_pair(pair: TextPair, encode: Callable[[str], list[int]]) -> Pair:
    """The pair as a verifier gets it: the first text is the target's step, the second the
    draft's."""
    target, draft = (
        Step(tuple(encode(text + "\n\n")), Finish.BOUNDARY) for text in (pair.first, pair.second)
    )
    return Pair((0,), draft, target)
