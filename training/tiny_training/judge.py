"""What the tiny judge is trained on: rows about pairs of steps, from the grammar and
from real runs. `measure_judge.py` says how well it agrees with the oracle.

A training row is the prompt that `JudgeVerifier` will put, its answer begun, and the
one token that decides. That token is what counts, but one bit per row teaches slowly.
So in training the judge also has to say, at every token of the second step, whether the
step can still mean what the first one does (`agreeing_prefix` in `pairs.py`): the same
two answers, with a small weight. It learns where steps part, and the answer at the end
follows.

A run gives pairs at every place of a chain, where draft and target write one step from
the same prefix. The chain goes on as in Lookahead Reasoning with the oracle as
verifier. What never reaches a judge is left out: pairs that are decided by their form,
and equal texts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from lr.model.codec import Codec
from lr.model.weights import load_model
from lr.rng import Stream
from lr.spec.verifiers.base import Pair
from lr.spec.verifiers.judge import ANSWER_BEGUN, ANSWERS, BARE_PROMPT, AnswerTokens
from lr.tiny.grammar import Style, unglue
from lr.tiny.language import Problem, Split
from lr.tiny.oracle import parse, same_meaning
from lr.tiny.stories import DATASETS
from lr.types import Finish, Role, Step
from tiny_training.evaluate import BATCH, EvalSettings, Voice, grow_chains
from tiny_training.pairs import TextPair, agreeing_prefix, grammar_pair
from tiny_training.rows import Row, RowMaker

POOL_PAIRS = 1024
RUNNING_WEIGHT = 0.1
MAX_STEP_TOKENS = 100


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
        answers = AnswerTokens.of([self.encode(answer) for answer in ANSWERS])
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


class PairSource:
    """A target and a draft that solve problems together, step by step, and what they
    wrote at the same places."""

    def __init__(
        self,
        target: str | Path = "tiny-target",
        draft: str | Path = "tiny-draft",
        *,
        temperature: float = 0.6,
    ) -> None:
        settings = EvalSettings(temperature=temperature)
        self.target, self.draft = (
            Voice(
                role, load_model(name, dtype=torch.float32), Codec.load(name), settings
            )
            for role, name in ((Role.TARGET, target), (Role.DRAFT, draft))
        )

    def pairs(
        self, split: Split, batch: int, seed: int = 0, dataset: str = "tiny"
    ) -> list[TextPair]:
        """The pairs (target's step, draft's step) of batch number `batch` of a split's
        problems, 32 problems each."""
        problems = [
            DATASETS[dataset](split, batch * BATCH + i, seed) for i in range(BATCH)
        ]
        pairs: list[TextPair] = []

        def number(task: Problem, index: int, sibling: int) -> int:
            return (
                Stream.root(seed).fold_in("judge pairs", task.question, index).key(0)
                >> 1
            )

        def accepts(
            written: Sequence[int], drafted: Sequence[int], _: Sequence[int]
        ) -> bool:
            first, second = (
                self.target.codec.decode(step).strip() for step in (written, drafted)
            )
            same = same_meaning(first, second)
            alike = self.target.ended(written) == self.target.ended(drafted)
            uncut = max(len(written), len(drafted)) < MAX_STEP_TOKENS
            if alike and uncut and first.casefold() != second.casefold():
                pairs.append(TextPair(first, second, same))
            return alike and uncut and same

        grow_chains(self.target, self.draft, problems, number, accepts)
        return pairs


def as_pair(pair: TextPair, encode: Callable[[str], list[int]]) -> Pair:
    """The pair as a verifier gets it: the first text is the target's step, the second
    the draft's."""
    target, draft = (
        Step(tuple(encode(text + "\n\n")), Finish.BOUNDARY)
        for text in (pair.first, pair.second)
    )
    return Pair((0,), draft, target)
