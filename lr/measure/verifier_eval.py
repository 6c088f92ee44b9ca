"""Evaluates verifiers on pairs of steps that runs have saved.

`PairRecorder` saves every pair that a run's verifier judges, as token ids and as text.
`replay` asks any verifier about them again, and `quality` compares it with the truth:
the oracle of the tiny language, another verifier, or labels that a reader wrote into
the file. For a verifier with a score the user chooses a threshold, so `curve` gives all
of them: how much is accepted, and how much of that is wrong."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from msgspec import convert, to_builtins

from lr.errors import SettingError
from lr.measure.datasets import Item
from lr.measure.store import Store
from lr.spec.verifiers.base import Decode, Pair, Requires, Verifier, verdicts_of
from lr.types import Step, Verdict

BATCH = 16  # Pairs that a replay judges at a time: the cost of a verdict depends on it.


class PairRecorder(Verifier):
    """Judges and chooses as `verifier` does, and keeps every pair with its verdict in
    `seen`. `requires`: what a pair must have besides, for a verifier that judges it
    later."""

    def __init__(
        self, verifier: Verifier, requires: Requires = Requires.NOTHING
    ) -> None:
        self.verifier = verifier
        self.name = verifier.name
        self.requires = verifier.requires | requires
        self.layer = verifier.layer
        self.seen: list[tuple[Pair, Verdict]] = []

    @property
    def passes(self) -> int:  # type: ignore[override]  # it only counts up
        return self.verifier.passes

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        verdicts = verdicts_of(self.verifier, pairs)
        self.seen += zip(pairs, verdicts, strict=True)
        return verdicts

    @property
    def chooses(self) -> bool:
        return self.verifier.chooses

    def choose(self, drafts: Sequence[Step], verdicts: Sequence[Verdict]) -> int | None:
        return self.verifier.choose(drafts, verdicts)

    def take(
        self, prompt: Sequence[int], item: Item, decode: Decode
    ) -> list[SavedPair]:
        """Remove the pairs that begin with this prompt, and return them."""
        begin = tuple(prompt)
        of_prompt, others = [], []
        for pair, verdict in self.seen:
            if pair.prefix[: len(begin)] != begin:
                others.append((pair, verdict))
                continue
            draft, target = pair.draft_step, pair.own_step
            saved = SavedPair(
                target_text=None if target is None else decode(target.tokens),
                draft_text=decode(draft.tokens),
                problem=item.number,
                context=pair.prefix,
                draft=draft,
                target=target,
                verdict=verdict,
                logprobs=rounded(pair.logprobs),
                draft_logprobs=rounded(pair.draft_logprobs),
            )
            of_prompt.append(saved)
        self.seen = others
        return of_prompt


@dataclass(frozen=True, kw_only=True)
class SavedPair:
    """A pair as a file holds it, with all that a verifier without a model asks for.
    `context`: the tokens before both steps. `label` is a reader's verdict, `problem` the
    number in the data set. `logprobs` and `draft_logprobs`: of the draft step under
    target and draft."""

    target_text: str | None = None
    draft_text: str
    label: bool | None = None
    problem: int
    context: tuple[int, ...]
    draft: Step
    target: Step | None
    verdict: Verdict
    logprobs: tuple[float, ...] | None = None
    draft_logprobs: tuple[float, ...] | None = None

    def pair(self) -> Pair:
        return Pair(
            self.context,
            self.draft,
            self.target,
            logprobs=self.logprobs,
            draft_logprobs=self.draft_logprobs,
        )


def rounded(logs: Sequence[float] | None) -> tuple[float, ...] | None:
    """Log-probabilities to four digits, as files hold them."""
    return None if logs is None else tuple(round(log, 4) for log in logs)


def pair_lines(pairs: Sequence[SavedPair]) -> list[str]:
    """The lines of a file of pairs, the texts first. A label is null until a reader says
    true (the steps mean the same) or false."""
    return [json.dumps(to_builtins(pair), ensure_ascii=False) for pair in pairs]


def load_pairs(path: Path) -> list[SavedPair]:
    """The pairs in a file, or in the folder of a run. Raises `SettingError` if there are
    none."""
    files = [path]
    if not path.is_file():
        keys = Store(path).keys()
        files = [path / "pairs" / f"{key.file}l" for key in keys]
    pairs = []
    try:
        for file in filter(Path.is_file, files):
            # not `splitlines`: a text may hold other line separators
            lines = file.read_text(encoding="utf-8").split("\n")
            pairs += [convert(json.loads(line), SavedPair) for line in lines if line]
    except (ValueError, RecursionError) as error:
        raise SettingError(f"{path} has a damaged pair ({error}).") from error
    if not pairs:
        raise SettingError(f"{path} has no pairs; lr run --save_pairs keeps them.")
    return pairs


@dataclass(frozen=True)
class SheetTexts:
    """The texts of the steps in a file, in place of the tokenizer that made them."""

    texts: Mapping[tuple[int, ...], str]
    generation_config: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, saved: Sequence[SavedPair]) -> SheetTexts:
        texts = {pair.draft.tokens: pair.draft_text for pair in saved}
        for pair in saved:
            if pair.target is not None and pair.target_text is not None:
                texts[pair.target.tokens] = pair.target_text
        return cls(texts)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of a step; of anything else only that it has one."""
        return self.texts.get(tuple(tokens), "?")


@dataclass(frozen=True)
class ReplayedVerdicts:
    """A verifier's verdicts on pairs, in order, and its total seconds, if timed."""

    verdicts: tuple[Verdict, ...]
    seconds: float = 0.0

    @property
    def scores(self) -> list[float]:
        """One number per pair that grows with agreement: the score or, without one, an
        extreme."""
        scores = [v.score for v in self.verdicts if v.score is not None]
        rejected, accepted = min([0.0, *scores]), max([1.0, *scores])
        return [
            (accepted if v.aligned else rejected) if v.score is None else v.score
            for v in self.verdicts
        ]


FIELD_OF = {
    Requires.TARGET_STEP: "own_step",
    Requires.TARGET_LOGPROBS: "logprobs",
    Requires.DRAFT_LOGPROBS: "draft_logprobs",
}
"""What a pair may lack, by the evidence that a verifier requires."""


def require_evidence(who: str, requires: Requires, pairs: Sequence[Pair]) -> None:
    """Raise `SettingError` if a pair lacks what is required."""
    for evidence, field_name in FIELD_OF.items():
        if evidence in requires and any(vars(p)[field_name] is None for p in pairs):
            raise SettingError(
                f"{who} asks for {field_name}, and some pairs have none. Save pairs in a "
                "run (lr run --save_pairs) whose verifier compares, such as judge."
            )


def replay(verifier: Verifier, pairs: Sequence[Pair]) -> ReplayedVerdicts:
    """Ask a verifier about pairs again, `BATCH` at a time. Raises as
    `require_evidence`."""
    require_evidence(f"verifier {verifier.name}", verifier.requires, pairs)
    verdicts: list[Verdict] = []
    started = time.perf_counter()
    for first in range(0, len(pairs), BATCH):
        verdicts += verdicts_of(verifier, pairs[first : first + BATCH])
    return ReplayedVerdicts(tuple(verdicts), time.perf_counter() - started)


def swapped(pairs: Sequence[Pair]) -> list[Pair]:
    """The same pairs with draft and target step exchanged."""
    return [
        replace(pair, draft_step=pair.target_step, own_step=pair.draft_step)
        for pair in pairs
    ]


@dataclass(frozen=True)
class Quality:
    """A verifier compared with the truth. `accepted`: the share it accepts. `error`:
    the share of those that is wrong. `recall`: the accepted share of the true pairs.
    `order_flips`: the share of verdicts that change when draft and target step are
    swapped."""

    pairs: int
    accepted: float
    error: float | None
    recall: float | None
    auc: float
    ms_per_pair: float
    order_flips: float | None = None


def quality(
    replayed: ReplayedVerdicts,
    truth: Sequence[bool],
    swapped_order: ReplayedVerdicts | None = None,
) -> Quality:
    """The numbers of one verifier. `swapped_order`: its verdicts with the steps
    swapped."""
    aligned = [verdict.aligned for verdict in replayed.verdicts]
    right = sum(a and t for a, t in zip(aligned, truth, strict=True))
    flips = None
    if swapped_order is not None:
        after = (verdict.aligned for verdict in swapped_order.verdicts)
        flips = fmean(a != b for a, b in zip(aligned, after, strict=True))
    return Quality(
        pairs=len(aligned),
        accepted=sum(aligned) / len(aligned),
        error=1 - right / sum(aligned) if any(aligned) else None,
        recall=right / sum(truth) if any(truth) else None,
        auc=auc(replayed.scores, truth),
        ms_per_pair=1000 * replayed.seconds / len(aligned),
        order_flips=flips,
    )


@dataclass(frozen=True)
class Threshold:
    """The result of accepting pairs with at least this `score`: the accepted shares of
    the true, the false and all pairs; `error`: the share of accepted pairs that is
    false."""

    score: float
    true_rate: float
    false_rate: float
    accepted: float
    error: float


def curve(scores: Sequence[float], truth: Sequence[bool]) -> list[Threshold]:
    """One point per distinct score, from the strictest threshold to the loosest: the
    ROC curve, and what acceptance costs.

    Example: scores (3, 2, 1), truth (yes, no, yes): threshold 3 accepts half of the
    true pairs and no false one, threshold 2 half of the true and all false ones."""
    # the strictest first; pairs with equal scores are a group
    negated, group, sizes = np.unique(
        -np.array(scores), return_inverse=True, return_counts=True
    )
    num_accepted = sizes.cumsum()
    num_right = np.bincount(group, truth).cumsum()
    num_true = sum(truth)
    num_false = len(truth) - num_true
    rows = zip(
        (-negated).tolist(), num_accepted.tolist(), num_right.tolist(), strict=True
    )
    return [
        Threshold(
            score,
            true_rate=right / max(num_true, 1),
            false_rate=(accepted - right) / max(num_false, 1),
            accepted=accepted / len(truth),
            error=(accepted - right) / accepted,
        )
        for score, accepted, right in rows
    ]


def auc(scores: Sequence[float], truth: Sequence[bool]) -> float:
    """The area under the ROC curve: how often a true pair scores above a false one,
    where a tie counts half. NaN unless there are pairs of both kinds."""
    if all(truth) or not any(truth):
        return math.nan
    values = np.array(scores)
    is_true = np.array(truth)
    false_scores = np.sort(values[~is_true])
    below, with_ties = (
        np.searchsorted(false_scores, values[is_true], side).mean()
        for side in ("left", "right")
    )
    return float((below + with_ties) / 2 / len(false_scores))
