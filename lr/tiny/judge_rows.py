"""Training rows for the judge: the prompt that `JudgeVerifier` will put, answer begun, and the one token that decides.

Only that token carries loss. A batch is half grammar and half pairs from runs (a setting), both classes equally often. Which rows a
batch holds is a pure function of (seed, pool, position), as in `rows.py`, so training resumes exactly.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from transformers import PreTrainedTokenizerFast

from lr.spec.verifiers.answers import part
from lr.spec.verifiers.prompts import TINY_JUDGE_PROMPT
from lr.tiny.grammar import Style
from lr.tiny.pairs import TextPair, grammar_pair
from lr.tiny.rows import Batch, Row, RowMaker, pad

POOL_PAIRS = 1024


class JudgeRows(RowMaker):
    """Makes rows of pairs. `real` are pairs from runs on training problems, a share `real_share` of each pool; empty: none."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, seed: int, real: Sequence[TextPair] = (), real_share: float = 0.3
    ) -> None:
        super().__init__(tokenizer, Style.TARGET, seed)
        self.real = [[pair for pair in real if pair.same is same] for same in (True, False)]
        self.real_share = real_share if all(self.real) else 0.0
        prompt = TINY_JUDGE_PROMPT
        answers = [tokenizer.encode(text, add_special_tokens=False) for text in (prompt.aligned, prompt.unaligned)]
        parting = part(answers)
        self.begun = [*tokenizer.encode(prompt.prefill, add_special_tokens=False), *parting.common]
        self.aligned, self.unaligned = parting.tokens

    def pair_row(self, pair: TextPair) -> Row:
        """The prompt about a pair and the token of the right answer, which alone carries weight."""
        assert self.aligned is not None and self.unaligned is not None
        ids = [*self.prompt(TINY_JUDGE_PROMPT.about(pair.first, pair.second)), *self.begun]
        return [*ids, self.aligned if pair.same else self.unaligned], [0.0] * len(ids) + [1.0]

    def batches(self, start: tuple[int, int], stride: int, budget: int, drills: float = 0.0) -> Iterator[Batch]:
        """Endless batches of about `budget` tokens from place `start`; see `RowMaker.batches`. There are no drills."""
        pool, position = start
        while True:
            groups = self._pair_groups(pool, budget)
            for i in range(position, len(groups)):
                place = (pool, i + 1) if i + 1 < len(groups) else (pool + stride, 0)
                yield Batch(*pad(groups[i], self.tokenizer.pad_token_id), place)
            pool, position = pool + stride, 0

    def _pair_groups(self, pool: int, budget: int) -> list[list[Row]]:
        """The rows of a pool in groups of like length and at most `budget` tokens, in random order."""
        rng = random.Random(f"judge rows/{self.seed}/{pool}")
        rows = [self.pair_row(self._pair(pool * POOL_PAIRS + i, rng)) for i in range(POOL_PAIRS)]
        rows.sort(key=lambda row: len(row[0]))
        groups: list[list[Row]] = [[]]
        for row in rows:
            if groups[-1] and (len(groups[-1]) + 1) * len(row[0]) > budget:
                groups.append([])
            groups[-1].append(row)
        rng.shuffle(groups)
        return groups

    def _pair(self, index: int, rng: random.Random) -> TextPair:
        if rng.random() >= self.real_share:
            return grammar_pair(index, self.seed)
        pair = rng.choice(self.real[index % 2])
        return TextPair(pair.second, pair.first, pair.same) if rng.random() < 0.5 else pair
