"""Training rows: problems in the model's own style, and drills in sums.

A problem row is the chat prompt and the solution; the loss is on the solution. At
inference draft and target continue each other's text, so some steps of a row are
written in the *other* style and carry no loss: a model learns to write its own style
whatever it has read before. A drill row is a list of single calculations in
the words of the language, with loss on the results alone; without drills, arithmetic is
learnt late or not at all.

Rows come in pools. The rows of a pool are cut into batches of like length, each padded
to one of `WIDTHS`, so that a compiled layer meets few shapes. Which rows a batch holds
is a pure function of (seed, pool, position): training resumes exactly.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from lr.tiny.language import Problem, Split
from lr.tiny.stories import DATASETS
from tiny_training.drills import NAME_WORDS, RESULT_WORDS, drill
from tiny_training.wording import Style, render

NAME_WEIGHT = 2.0
RESULT_WEIGHT = 3.0
POOL_PROBLEMS = 192
POOL_LONG = 128
DRILL_TOKENS = 192
WIDTHS = (64, 96, 128, 160, 192, 256, 320, 384, 512, *range(640, 4097, 128))
"""How long the rows of a batch may be: each row is padded to the next of these."""


class Row(NamedTuple):
    """Token ids; for each the weight of the loss for predicting it (0: context only),
    and what is to be predicted at its place: in a language model the token itself."""

    ids: list[int]
    weights: list[float]
    labels: list[int]


@dataclass(frozen=True)
class Batch:
    """Rows [r, t] of ids, padded on the right, with their weights and labels; `place`
    is where to resume after it."""

    tokens: Tensor
    weights: Tensor
    labels: Tensor
    place: tuple[int, int]


def batch_of(
    rows: Sequence[Row], fill: int, next_place: tuple[int, int], width: int, count: int
) -> Batch:
    """Rows as a rectangle of `count` rows of this `width`; `fill` is the padding
    token."""
    rows = [*rows, *[Row([], [], [])] * (count - len(rows))]

    def pad(lists: Iterator[list[int]] | Iterator[list[float]], value: float) -> Tensor:
        return torch.tensor(
            [[*values, *[value] * (width - len(values))] for values in lists]
        )

    tokens = pad((r.ids for r in rows), fill)
    labels = pad((r.labels for r in rows), fill)
    return Batch(tokens, pad((r.weights for r in rows), 0.0), labels, next_place)


class RowMaker:
    """Makes rows of one style of the language with its tokenizer."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, style: Style, seed: int
    ) -> None:
        self.tokenizer = tokenizer
        self.style = style
        self.seed = seed
        words = {
            token: entry.removeprefix("Ġ")
            for entry, token in tokenizer.get_vocab().items()
        }
        self.results = {token for token, word in words.items() if word in RESULT_WORDS}
        self.names = {token for token, word in words.items() if word in NAME_WORDS}
        self.end = tokenizer.convert_tokens_to_ids("<|im_end|>")

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def prompt(self, question: str) -> list[int]:
        """The chat prompt of a question, up to and with the assistant's header."""
        messages = [{"role": "user", "content": question}]
        return self.encode(
            self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        )

    def problem_row(self, task: Problem, rng: random.Random) -> Row:
        """Prompt and solution; in half of the rows, half of the steps are foreign
        context without loss."""
        ids = self.prompt(task.question)
        weights = [0.0] * len(ids)
        foreign = 0.5 if rng.random() < 0.5 else 0.0
        for i, step in enumerate(task.steps):
            in_style = rng.random() >= foreign
            last = i == len(task.steps) - 1
            text = render(step, self.style if in_style else self.style.other, rng)
            new = [*self.encode(text), self.end] if last else self.encode(text + "\n\n")
            ids += new
            weights += [self.weight(token) if in_style else 0.0 for token in new]
        return Row(ids, weights, ids)

    def weight(self, token: int) -> float:
        if token in self.results:
            return RESULT_WEIGHT
        return NAME_WEIGHT if token in self.names else 1.0

    def drill_row(self, length: int, rng: random.Random) -> Row:
        """Practice up to `length` tokens, bare (" 12 + 5 = 17,") or in whole steps;
        loss on each result and the token after it."""
        ids = self.encode("<|im_start|>assistant\n")
        weights = [0.0] * len(ids)
        bare = rng.random() < 0.6
        while True:
            text, result = drill(rng, bare)
            at = text.rindex(result)
            parts = (
                text[: at - 1],
                text[at - 1 : at + len(result)],
                text[at + len(result) :],
            )
            before, new, after = map(self.encode, parts)  # the result with its space
            if len(ids) + len(before) + len(new) + len(after) > length:
                return Row(ids, weights, ids)
            ids += before + new + after
            weights += [0.0] * len(before) + [RESULT_WEIGHT] * len(new)
            weights += [1.0] + [0.0] * (len(after) - 1)

    def batches(
        self, start: tuple[int, int], budget: int, drills: float
    ) -> Iterator[Batch]:
        """Endless batches of at most `budget` tokens, padding included, or of one row,
        from place `start`; a share `drills` of the tokens of a pool are drills.

        A place is (pool, position in it)."""
        pool, position = start
        while True:
            groups = self._groups(pool, budget, drills)
            for i in range(position, len(groups)):
                rows, width = groups[i]
                next_place = (pool, i + 1) if i + 1 < len(groups) else (pool + 1, 0)
                count = max(1, budget // width)
                yield batch_of(
                    rows, self.tokenizer.pad_token_id, next_place, width, count
                )
            pool += 1
            position = 0

    def pool(self, number: int, rng: random.Random) -> list[Row]:
        """The rows of a pool without its drills."""
        rows = []
        for name, draw in DATASETS.items():
            count = POOL_LONG if name == "stories" else POOL_PROBLEMS
            numbers = range(number * count, (number + 1) * count)
            rows += [
                self.problem_row(draw(Split.TRAIN, i, self.seed), rng) for i in numbers
            ]
        return rows

    def _groups(
        self, number: int, budget: int, drills: float
    ) -> list[tuple[list[Row], int]]:
        """The rows of a pool, drills included, in groups of one width and at most
        `budget` tokens, each with its width; in random order."""
        rng = random.Random(f"rows/{self.seed}/{self.style.value}/{number}")
        rows = self.pool(number, rng)
        wanted = sum(len(row.ids) for row in rows) * drills / (1 - drills)
        rows += [
            self.drill_row(DRILL_TOKENS, rng)
            for _ in range(round(wanted / DRILL_TOKENS))
        ]
        by_width: dict[int, list[Row]] = {}
        for row in rows:
            by_width.setdefault(
                next(w for w in WIDTHS if w >= len(row.ids)), []
            ).append(row)
        groups = []
        for width, alike in sorted(by_width.items()):
            rng.shuffle(alike)
            count = max(1, budget // width)
            groups += [
                (alike[i : i + count], width) for i in range(0, len(alike), count)
            ]
        rng.shuffle(groups)
        return groups
