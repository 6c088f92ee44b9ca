"""Training rows for the judge: the prompt that `JudgeVerifier` will put, answer begun, and the one
token that decides.

That token is what counts, but one bit per row teaches slowly. So while training the judge also has
to say, at every token of the second step, whether the step can still mean what the first one does
(`agreement.py`): the same two answers, with a small weight. It learns where steps part, and the
answer at the end follows.

A batch holds pairs from the grammar and from runs, both classes equally often. Which rows a batch
holds is a pure function of (seed, pool, position), as in `rows.py`, so training resumes exactly.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from transformers import PreTrainedTokenizerFast

from lr.spec.verifiers.answers import part
from lr.spec.verifiers.prompts import TINY_JUDGE_PROMPT
from lr.tiny.agreement import agreeing_prefix
from lr.tiny.grammar import Style, unglue
from lr.tiny.oracle import parse
from lr.tiny.pairs import TextPair, grammar_pair
from lr.tiny.rows import Batch, RowMaker, pad

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
        parting = part(answers)
        self.begun = [*tokenizer.encode(prompt.prefill, add_special_tokens=False), *parting.common]
        aligned, unaligned = parting.tokens
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
