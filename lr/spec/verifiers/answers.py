"""Reading an answer off one distribution: several answers are possible, and the first token in
which they part decides.

Works with any tokenizer. Example: "aligned]" is the tokens (al, igned, ]) and "unaligned]" (un, al,
igned, ]): they part at the first token, al against un. "7" and "8" after a space may be (space, 7)
and (space, 8): the space is common and is fed, 7 and 8 decide. Where one answer is the beginning of
another, it is told by the other's token *not* coming.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lr.errors import SettingError


@dataclass(frozen=True)
class Parting:
    """Answers that begin with the tokens `common` and then part: `tokens[i]` is what answer i goes
    on with, None if it ends there.
    """

    common: tuple[int, ...]
    tokens: tuple[int | None, ...]


def part(answers: Sequence[Sequence[int]]) -> Parting:
    """Where answers part, given as token ids. Raises SettingError if they do not all part at the
    same place.
    """
    shortest = min(map(len, answers))
    place = next(
        (i for i in range(shortest) if len({tuple(answer[: i + 1]) for answer in answers}) > 1),
        shortest,
    )
    tokens = tuple(answer[place] if place < len(answer) else None for answer in answers)
    if len(set(tokens)) < len(tokens):
        raise SettingError(
            f"the possible answers are the token ids {[list(answer) for answer in answers]}, which one token does not tell apart. "
            "Choose answers that begin differently, or a model with another tokenizer."
        )
    return Parting(tuple(answers[0][:place]), tokens)


def read_answer(logits: Tensor, parting: Parting) -> tuple[list[float], float]:
    """The probabilities of the answers relative to each other, and how much of the distribution
    they hold together (0 to 1).

    `logits` [v] are those after the common tokens. The answer that ends there, if one does, has
    what the others leave, so that the answers hold everything. The relative probabilities sum to 1;
    they are exact even where the answers hold next to nothing.
    """
    log_p = torch.log_softmax(logits.double(), -1)
    going_on = [token for token in parting.tokens if token is not None]
    chosen = log_p[going_on]
    if None not in parting.tokens:
        return chosen.softmax(-1).tolist(), float(chosen.logsumexp(-1).exp())
    p = dict(zip(going_on, chosen.exp().tolist(), strict=True))
    rest = max(0.0, 1.0 - sum(p.values()))
    return [rest if token is None else p[token] for token in parting.tokens], 1.0
