"""Training rows: problems in the model's own style, and arithmetic drills.

A problem row is the chat prompt and the solution; the loss is on the solution. At inference draft and target continue each other's
text, so some steps of a row are written in the *other* style and carry no loss: a model learns to write its own style whatever it
has read before. A drill row is a list of single calculations in the words of the language, with loss on the results alone; without
drills, arithmetic is learnt late or not at all.

Batches are cut from pools of rows sorted by length, so that little is padded. Which rows a batch holds is a pure function of
(seed, pool, position): training resumes exactly.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from lr.tiny.grammar import RELATIONS, Style, pieces, render, slots
from lr.tiny.language import ITEMS, NAMES, Meaning, Problem, Split, drill, problem

NAME_WEIGHT, DIGIT_WEIGHT = 2.0, 3.0
POOL_ROWS = 192
Row = tuple[list[int], list[float]]
"""Token ids and, for each, the weight of the loss for predicting it (0: context only)."""


@dataclass(frozen=True)
class Batch:
    """Rows [r, t] of ids, padded; `weights` [r, t] belongs to the token at the same place; `place` is where to resume after it.

    `labels` [r, t] are what is to be predicted at each place; None: the tokens themselves.
    """

    tokens: Tensor
    weights: Tensor
    place: tuple[int, int]
    labels: Tensor | None = None


class RowMaker:
    """Makes rows of one style with one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, style: Style, seed: int) -> None:
        self.tokenizer, self.style, self.seed = tokenizer, style, seed
        self.names = set(tokenizer.convert_tokens_to_ids([f"Ġ{name}" for name in NAMES]))
        self.items = set(tokenizer.convert_tokens_to_ids([f"Ġ{item}" for item in ITEMS]))
        self.digits = set(tokenizer.convert_tokens_to_ids([*"0123456789", *(f"Ġ{digit}" for digit in "0123456789")]))
        self.end = tokenizer.convert_tokens_to_ids("<|im_end|>")

    def prompt(self, question: str) -> list[int]:
        """The chat prompt of a question, up to and with the assistant's header."""
        messages = [{"role": "user", "content": question}]
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return self.tokenizer.encode(text, add_special_tokens=False)

    def problem_row(self, what: Problem, rng: random.Random) -> Row:
        """Prompt and solution; in half of the rows, half of the steps are foreign context without loss."""
        ids = self.prompt(what.question)
        weights = [0.0] * len(ids)
        foreign = 0.5 if rng.random() < 0.5 else 0.0
        for i, step in enumerate(what.steps):
            own = rng.random() >= foreign
            last = i == len(what.steps) - 1
            text = render(step, self.style if own else self.style.other, rng)
            new = self.tokenizer.encode(text if last else text + "\n\n", add_special_tokens=False)
            new += [self.end] if last else []
            ids += new
            weights += [self.weight(token) if own else 0.0 for token in new]
        return ids, weights

    def weight(self, token: int) -> float:
        return DIGIT_WEIGHT if token in self.digits else NAME_WEIGHT if token in self.names else 1.0

    def drill_row(self, length: int, rng: random.Random) -> Row:
        """Calculations up to `length` tokens: bare ones (" 12 + 5 = 17,") or whole steps; loss on each result and the token after it."""
        ids: list[int] = self.tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)
        weights = [0.0] * len(ids)
        bare = rng.random() < 0.6
        while True:
            step = drill(rng)
            text = _bare(step, rng) if bare else render(step, rng.choice(list(Style)), rng) + "\n\n"
            new = self.tokenizer.encode(text, add_special_tokens=False)
            if len(ids) + len(new) > length:
                return ids, weights
            ids += new
            weights += self._result_weights(new, len(str(step.result)))

    def _result_weights(self, tokens: list[int], digits: int) -> list[float]:
        """Weight on the result, which is the last run of digits, and on the one token that follows it."""
        last = max(i for i, token in enumerate(tokens) if token in self.digits)
        return [
            DIGIT_WEIGHT if last - digits < i <= last else 1.0 if i == last + 1 else 0.0 for i in range(len(tokens))
        ]

    def batches(self, start: tuple[int, int], stride: int, budget: int, drills: float) -> Iterator[Batch]:
        """Endless batches of about `budget` tokens from place `start`, a share `drills` of their tokens being drills.

        A place is (pool, position in it); `stride` is the distance from pool to pool (processes share the pools out).
        """
        pool, position = start
        while True:
            rng = random.Random(f"rows/{self.seed}/{self.style.value}/{pool}")
            groups = self._groups(pool, int(budget * (1 - drills)), rng)
            for i in range(position, len(groups)):
                rng = random.Random(f"drills/{self.seed}/{pool}/{i}")
                rows = groups[i]
                width = max(len(ids) for ids, _ in rows)
                count = max(1, round(budget / width)) - len(rows)
                rows = rows + [self.drill_row(width, rng) for _ in range(count)]
                place = (pool, i + 1) if i + 1 < len(groups) else (pool + stride, 0)
                yield Batch(*pad(rows, self.tokenizer.pad_token_id), place)
            pool, position = pool + stride, 0

    def _groups(self, pool: int, budget: int, rng: random.Random) -> list[list[Row]]:
        """The rows of a pool in groups of like length and at most `budget` tokens, in random order."""
        rows = [self.problem_row(problem(Split.TRAIN, pool * POOL_ROWS + i, self.seed), rng) for i in range(POOL_ROWS)]
        rows.sort(key=lambda row: len(row[0]))
        groups: list[list[Row]] = [[]]
        for row in rows:
            if groups[-1] and (len(groups[-1]) + 1) * len(row[0]) > budget:
                groups.append([])
            groups[-1].append(row)
        rng.shuffle(groups)
        return groups


def pad(rows: list[Row], fill: int) -> tuple[Tensor, Tensor]:
    """Rows of ids and weights to rectangles [r, t], padded on the right."""
    width = max(len(ids) for ids, _ in rows)
    tokens = torch.tensor([ids + [fill] * (width - len(ids)) for ids, _ in rows])
    weights = torch.tensor([row + [0.0] * (width - len(row)) for _, row in rows])
    return tokens, weights


def _bare(step: Meaning, rng: random.Random) -> str:
    values = slots(step)
    places = pieces(RELATIONS[step.operation][1])
    words = [values.get(word, word) for word in (rng.choice(place) for place in places)]
    return " " + " ".join(words) + ","
