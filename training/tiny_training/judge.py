"""What the tiny judge is trained on: rows about pairs of steps, from the grammar and
from real runs.

A training row is the prompt that `JudgeVerifier` will put, its answer begun, and the
one token that decides. That token is what counts, but one bit per row teaches slowly.
So in training the judge also has to say, at every token of the second step, whether the
step can still mean what the first one does (`agreeing_prefix` in `pairs.py`): the same
two answers, with a small weight. It learns where steps part, and the answer at the end
follows.

A run of Lookahead Reasoning with the oracle as verifier gives pairs at every place of a
chain, where draft and target write one step from the same prefix. Equal texts, which
never reach a judge, are left out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import torch
from transformers import PreTrainedTokenizerFast

from lr.measure.verifier_eval import PairRecorder
from lr.reasoner import Reasoner
from lr.spec.variant import Variant
from lr.spec.verifiers.judge import (
    ANSWER_BEGUN,
    BARE_PROMPT,
    VERDICT_WORDS,
    AnswerTokens,
)
from lr.tiny.grammar import unglue
from lr.tiny.language import Split
from lr.tiny.oracle import parse
from lr.tiny.stories import DATASETS
from tiny_training.pairs import TextPair, agreeing_prefix, grammar_pair
from tiny_training.rows import Row, RowMaker
from tiny_training.wording import Style

POOL_PAIRS = 1024
RUNNING_WEIGHT = 0.1


class JudgeRows(RowMaker):
    """Makes rows of pairs, both classes equally often. `real` are pairs from runs on
    training problems, a share `real_share` of each pool; empty: none."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        seed: int,
        real: Sequence[TextPair] = (),
        real_share: float = 0.3,
    ) -> None:
        super().__init__(tokenizer, Style.TARGET, seed)
        self.real = [
            [pair for pair in real if pair.same is same] for same in (True, False)
        ]
        self.real_share = real_share if all(self.real) else 0.0
        answers = AnswerTokens.of([self.encode(f"{word}]") for word in VERDICT_WORDS])
        self.begun = [*self.encode(ANSWER_BEGUN), *answers.common]
        self.aligned, self.unaligned = answers.tokens
        self.texts = [tokenizer.decode([token]) for token in range(len(tokenizer))]
        [self.blank] = self.encode("\n\n")

    def pair_row(self, pair: TextPair) -> Row:
        """The prompt about a pair with the right answer; its own weight is 1, that of
        the running answers `RUNNING_WEIGHT`."""
        question = BARE_PROMPT.format(first=pair.first, second=pair.second)
        ids = [*self.prompt(question), *self.begun]
        labels = list(ids)
        weights = [0.0] * len(ids)
        for position, agrees in self._running(pair, ids):
            labels[position + 1] = self.aligned if agrees else self.unaligned
            weights[position + 1] = RUNNING_WEIGHT
        answer = self.aligned if pair.same else self.unaligned
        return Row([*ids, answer], [*weights, 1.0], [*labels, answer])

    def _running(self, pair: TextPair, ids: list[int]) -> Iterator[tuple[int, bool]]:
        """The places of the second step's tokens in a prompt, and whether the step up
        to there agrees with the first."""
        meaning = parse(pair.first)
        if meaning is None:
            return
        agreeing = agreeing_prefix(meaning, pair.second)
        begin = ids.index(self.blank) + 1
        read = ""
        for position in range(begin, ids.index(self.end, begin)):
            read += self.texts[ids[position]]
            yield position, len(unglue(read)) <= agreeing

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


def pairs_from_runs(
    target: str, draft: str, dataset: str, count: int, seed: int
) -> list[TextPair]:
    """What target and draft wrote at the same places of the answers to `count` training
    problems."""
    draw = DATASETS[dataset]
    with Reasoner(target, draft, "oracle", dtype=torch.float32) as reasoner:
        recorder = PairRecorder(reasoner.verifier)
        variant = Variant(recorder)
        answers = [
            reasoner.run(
                draw(Split.TRAIN, number, seed).question,
                variant=variant,
                mode="lr",
                schedule="paper",
                depth=1,
                seed=seed,
            )
            for number in range(count)
        ]
        for _ in reasoner.engine.serve(answers, concurrency=32):
            pass
        decode = reasoner.codec.decode
    pairs = []
    for pair, verdict in recorder.seen:
        first = decode(pair.target_step.tokens).strip()
        second = decode(pair.draft_step.tokens).strip()
        if first.casefold() != second.casefold():
            pairs.append(TextPair(first, second, verdict.aligned))
    return pairs
