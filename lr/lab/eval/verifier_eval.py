"""Verifiers, evaluated on pairs of steps that runs have saved.

`PairRecorder` saves every pair that a run's verifier judges: context, draft step and target step as
token ids, and the verdict. `replay` asks any verifier about them again, and `quality` compares it
with a reference: the oracle of the tiny language, or a larger judge. A verifier with a score has a
threshold to be chosen, so the whole curve matters: how much is accepted, and how much of that the
reference rejects.

`drift` asks what the accepted steps have cost in the target's own measure: log p(draft step) - log
p(target step) from the prefix they share, in nats at temperature 1. Negative: the target finds its
own wording likelier. The sum over a problem says how far the chain was led away from what the
target would have written; beside it stands whether the answer flipped against plain decoding."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from msgspec import ValidationError, convert, to_builtins

from lr.errors import LRError, SettingError
from lr.lab.eval.datasets import Item
from lr.lab.eval.report import RunResults, column
from lr.lab.eval.store import AnswerKey, Store
from lr.parts.judge import PrefixCache, PromptRow
from lr.parts.verifiers import Around
from lr.spec.runner import Runner
from lr.spec.sampling import step_logprobs
from lr.spec.verifiers.base import Pair, Requires, Verifier, verdicts_of
from lr.types import Step, Verdict

# ---------------------------------------------------------------- pairs on disk


class PairRecorder(Around):
    """Judges as `verifier` does and remembers every pair with its verdict in `seen`. `requires`:
    what else a pair must have, for a verifier that is asked about it later (`replay`)."""

    def __init__(self, verifier: Verifier, requires: Requires = Requires.NOTHING) -> None:
        super().__init__(verifier)
        self.requires, self.seen = verifier.requires | requires, list[tuple[Pair, Verdict]]()

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        verdicts = verdicts_of(self.verifier, pairs)
        self.seen += zip(pairs, verdicts, strict=True)
        return verdicts

    def take(self, prompt: Sequence[int], item: Item) -> dict[str, Any]:
        """The pairs that begin with this prompt, as JSON, and forget them."""
        begin, seen, self.seen = tuple(prompt), self.seen, []
        n, mine = len(begin), []
        for pair, verdict in seen:
            if pair.prefix[:n] == begin:
                mine.append(KeptPair(pair.prefix[n:], pair.draft, pair.target, verdict))
            else:
                self.seen.append((pair, verdict))
        head = {"question_id": item.number, "verifier": self.name, "prompt": list(begin)}
        return head | {"pairs": to_builtins(mine)}


@dataclass(frozen=True)
class KeptPair:
    """A pair as its file has it: `context` is what comes after the prompt."""

    context: tuple[int, ...]
    draft: Step
    target: Step | None
    verdict: Verdict


@dataclass(frozen=True)
class SavedPair:
    """A pair, the problem it comes from, and what the run's own verifier said."""

    key: AnswerKey
    pair: Pair
    aligned: bool


def load_pairs(folder: Path, keys: Collection[AnswerKey] | None = None) -> list[SavedPair]:
    """The pairs of a run (its folder, or the folder pairs/ in it). `keys`: of these answers, and
    there may be none; otherwise raises `SettingError` if there are none."""
    place = folder / "pairs" if (folder / "pairs").is_dir() else folder
    found = []
    for key, content in Store(place).results():
        for one in content.get("pairs", ()) if keys is None or key in keys else ():
            try:
                kept = convert(one, KeptPair)
                pair = Pair((*content["prompt"], *kept.context), kept.draft, kept.target)
                found.append(SavedPair(key, pair, kept.verdict.aligned))
            except (KeyError, ValidationError) as error:
                raise SettingError(
                    f"{place / key.file} has a pair that is none ({error}). Remove the file, or run"
                    " lr run --save_pairs again."
                ) from error
    if not found and keys is None:
        raise SettingError(f"{folder} has no pairs of steps; lr run --save_pairs keeps them.")
    return found


# ---------------------------------------------------------------- a verifier against a reference


@dataclass(frozen=True)
class ReplayedVerdicts:
    """What a verifier said about pairs, in order, and the seconds that it took in all."""

    verdicts: tuple[Verdict, ...]
    seconds: float

    @property
    def scores(self) -> list[float]:
        """A number per pair that grows with agreement: the verifier's score; where it decided
        without one, a value below or above all scores."""
        known = [verdict.score for verdict in self.verdicts if verdict.score is not None]
        low, high = (min(known), max(known)) if known else (0.0, 1.0)
        edge = (0.0, 1.0) if low >= 0 and high <= 1 else (low - 1.0, high + 1.0)
        return [edge[one.aligned] if one.score is None else one.score for one in self.verdicts]


def replay(verifier: Verifier, pairs: Sequence[Pair], batch: int = 16) -> ReplayedVerdicts:
    """Ask a verifier about pairs again, `batch` at a time. Pairs lack the target's
    log-probabilities; a verifier that needs them computes them, if it can. Raises `SettingError`
    for a verifier that needs a target step if a pair has none."""
    if verifier.requires & Requires.TARGET_STEP and any(pair.target is None for pair in pairs):
        raise SettingError(
            f"verifier {verifier.name} compares with the target's step, and some pairs have none: "
            "they were kept in a run whose verifier judges alone. Keep pairs with a verifier that "
            "compares, such as judge."
        )
    verdicts: list[Verdict] = []
    started = time.perf_counter()
    for first in range(0, len(pairs), batch):
        verdicts += verdicts_of(verifier, pairs[first : first + batch])
    return ReplayedVerdicts(tuple(verdicts), time.perf_counter() - started)


def swapped(pairs: Sequence[Pair]) -> list[Pair]:
    """The same pairs with draft and target in each other's place."""
    return [replace(pair, draft=pair.target_step, target=pair.draft) for pair in pairs]


@dataclass(frozen=True)
class Quality:
    """A verifier against a reference. `accepted`: the share it accepts; `error`: the share of those
    that the reference rejects; `order_flips`, `order_shift`: how many verdicts change, and by how
    much the score, if draft and target are swapped."""

    pairs: int = column("pairs")
    accepted: float = column("accepted")
    error: float | None = column("of them wrong")
    precision: float | None = column("precision")
    recall: float | None = column("recall")
    auc: float | None = column("ROC area")
    average_precision: float | None = column("PR area")
    calibration_error: float | None = column("calibration error")
    ms_per_pair: float = column("ms per pair")
    order_flips: float | None = column("flips by order", default=None)
    order_shift: float | None = column("score shift by order", default=None)


def quality(
    made: ReplayedVerdicts, truth: Sequence[bool], other_order: ReplayedVerdicts | None = None
) -> Quality:
    """The numbers of one verifier. `other_order`: what it says with the steps swapped."""
    said, scores = [verdict.aligned for verdict in made.verdicts], made.scores
    count, accepted, aligned = len(said), sum(said), sum(truth)
    both = sum(a and b for a, b in zip(said, truth, strict=True))
    graded = any(verdict.score is not None for verdict in made.verdicts)
    flips = shift = None
    if other_order is not None:
        swaps = zip(made.verdicts, other_order.verdicts, strict=True)
        flips = fmean(a.aligned != b.aligned for a, b in swaps)
        shifts = (abs(a - b) for a, b in zip(scores, other_order.scores, strict=True))
        shift = fmean(shifts) if graded else None
    return Quality(
        pairs=count,
        accepted=accepted / count,
        error=(accepted - both) / accepted if accepted else None,
        precision=both / accepted if accepted else None,
        recall=both / aligned if aligned else None,
        auc=auc(scores, truth),
        average_precision=average_precision(scores, truth),
        calibration_error=calibration_error(scores, truth) if graded else None,
        ms_per_pair=1000 * made.seconds / count,
        order_flips=flips,
        order_shift=shift,
    )


@dataclass(frozen=True)
class Threshold:
    """What accepting from `score` on gives: the accepted shares of the true, the false, and all
    pairs; of the accepted, the wrong."""

    score: float
    true_rate: float
    false_rate: float
    accepted: float
    error: float


def curve(scores: Sequence[float], truth: Sequence[bool]) -> list[Threshold]:
    """One point per distinct score, from the strictest threshold to the loosest: ROC, precision and
    recall, acceptance and error in one.

    Example: scores (3, 2, 1), truth (yes, no, yes): from 3 on half of the true and nothing false,
    from 2 on half of the true and all of the false."""
    positive, negative = sum(truth), len(truth) - sum(truth)
    pairs = sorted(zip(scores, truth, strict=True), key=lambda pair: -pair[0])
    points, true, accepted = [], 0, 0
    for score, equal in groupby(pairs, key=lambda pair: pair[0]):
        rights = [right for _, right in equal]
        true, accepted = true + sum(rights), accepted + len(rights)
        false = accepted - true
        rates = true / max(positive, 1), false / max(negative, 1)  # none of a kind: 0
        points.append(Threshold(score, *rates, accepted / len(pairs), false / accepted))
    return points


def auc(scores: Sequence[float], truth: Sequence[bool]) -> float | None:
    """The area under the ROC curve: how often a true pair scores above a false one, ties as halves;
    None unless there are both kinds."""
    if all(truth) or not any(truth):
        return None
    points = [(0.0, 0.0), *((one.false_rate, one.true_rate) for one in curve(scores, truth))]
    return sum((x - left) * (y + low) / 2 for (left, low), (x, y) in pairwise(points))


def average_precision(scores: Sequence[float], truth: Sequence[bool]) -> float | None:
    """The area under the precision-recall curve as a sum of steps; None without a true pair."""
    points = curve(scores, truth) if any(truth) else []
    recalls = [0.0, *(one.true_rate for one in points)]
    gains = (after - before for before, after in pairwise(recalls))
    return sum(g * (1 - p.error) for g, p in zip(gains, points, strict=True)) if points else None


def reliability(scores: Sequence[float], truth: Sequence[bool]) -> list[tuple[float, float, int]]:
    """Ten equal bins of scores in [0, 1]: the mean score, the share that is true, the number of
    pairs; empty bins are left out."""
    score, right = np.array(scores), np.array(truth, dtype=float)
    bins = np.minimum(9, (10 * score).astype(int))
    masks = [bins == number for number in np.unique(bins)]
    return [(float(score[m].mean()), float(right[m].mean()), int(m.sum())) for m in masks]


def calibration_error(scores: Sequence[float], truth: Sequence[bool]) -> float | None:
    """The mean gap between score and share over the bins, weighted by their pairs; None for scores
    that are no probabilities."""
    if any(not 0 <= score <= 1 for score in scores):
        return None
    bins = reliability(scores, truth)
    return sum(count * abs(mean - share) for mean, share, count in bins) / len(scores)


# ---------------------------------------------------------------- drift


@dataclass(frozen=True)
class ProblemDrift:
    """One problem: how many draft steps it kept, their drift, and whether its answer is right here
    and in the baseline (None: not known)."""

    key: AnswerKey
    steps: int
    drift: float
    right: bool | None
    baseline: bool | None

    @property
    def flipped(self) -> str:
        """lost, won, same, or nothing if one of the two is not known."""
        if self.right is None or self.baseline is None:
            return ""
        return "same" if self.right == self.baseline else "won" if self.right else "lost"


def accepted_pairs(pairs: Sequence[SavedPair], run: RunResults) -> list[SavedPair]:
    """Those pairs whose draft step is in the answer: the answer begins with prefix and step. More
    pairs were judged aligned: some came after a step that was rejected later."""
    found = {}
    for one in pairs:
        record = run.records.get(one.key)
        if record is None or not one.aligned or one.pair.target is None:
            continue
        chain = (*one.pair.prefix, *one.pair.draft.tokens)
        if tuple(record["full_tokens"][: len(chain)]) == chain:
            found[one.key, len(one.pair.prefix)] = one
    return list(found.values())


def step_drifts(pairs: Sequence[SavedPair], runner: Runner) -> list[tuple[AnswerKey, float, float]]:
    """Of every pair its answer, and the log-probabilities of draft step and target step under the
    target, in nats. `runner` runs the target, one forward per pair.

    Example: a prefix of 10 and a step of 4: the logits at the last 4 of the first 13 tokens are
    those of the step's tokens."""
    made = []
    with closing(PrefixCache(runner)) as prefixes:
        for one in pairs:
            prefix, steps = one.pair.prefix, (one.pair.draft, one.pair.target_step)
            rows = [
                PromptRow([*prefix, *step.tokens[:-1]], wanted=len(step.tokens), keep=len(prefix))
                for step in steps
            ]
            sums = []
            for found, step in zip(prefixes.logits(rows), steps, strict=True):
                if isinstance(found, LRError):
                    raise found
                sums.append(math.fsum(step_logprobs(found, step.tokens)))
            made.append((one.key, sums[0], sums[1]))
    return made


def problem_drifts(
    made: Sequence[tuple[AnswerKey, float, float]], run: RunResults, baseline: RunResults | None
) -> list[ProblemDrift]:
    """One entry per problem of the run, those that kept no draft step included."""
    plainly, found = {} if baseline is None else baseline.records, []
    for key, record in sorted(run.records.items()):
        mine = [draft - target for of, draft, target in made if of == key]
        rights = record.get("right"), plainly.get(key, {}).get("right")
        found.append(ProblemDrift(key, len(mine), math.fsum(mine), *rights))
    return found


def summary(problems: Sequence[ProblemDrift]) -> dict[str, tuple[int, float, float]]:
    """By what happened to the answer: problems, mean drift, mean drift per kept step."""
    found = {}
    for what in ("same", "lost", "won", ""):
        if some := [one for one in problems if one.flipped == what]:
            drift, steps = math.fsum(one.drift for one in some), sum(one.steps for one in some)
            means = drift / len(some), drift / steps if steps else 0.0
            found[what or "not compared"] = (len(some), *means)
    return found
