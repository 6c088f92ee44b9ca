"""Verifiers, evaluated on pairs of steps that runs have saved.

`Recorder` saves every pair that a run's verifier judges: context, draft step and target step as
token ids, and the verdict. `replay` asks any verifier about them again, and `quality` compares it
with a reference: the oracle of the tiny language, or a larger judge. A verifier with a score has a
threshold to be chosen, so the whole curve matters: how much is accepted, and how much of that the
reference rejects.

`drift` asks what the accepted steps have cost in the target's own measure: log p(draft step) - log
p(target step) from the prefix they share, in nats at temperature 1. Negative: the target finds its
own wording likelier. The sum over a problem says how far the chain was led away from what the
target would have written, and beside it stands whether the answer flipped against plain decoding.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from lr.errors import LRError, SettingError
from lr.lab.eval.datasets import Item
from lr.lab.eval.report import RunResults
from lr.lab.eval.store import Key, read_object
from lr.spec.runner import Runner
from lr.spec.verifiers.base import Pair, Requires, Verifier, verdicts_of
from lr.spec.verifiers.judge import PrefixCache, Row, step_logprobs
from lr.types import Finish, Step, Verdict

BINS = 10

# ---------------------------------------------------------------- pairs on disk


class Recorder(Verifier):
    """Judges as `verifier` does and remembers every pair. `take` hands out those of one problem."""

    def __init__(self, verifier: Verifier) -> None:
        self.name, self.fallible = verifier.name, verifier.fallible
        self.verifier, self.requires = verifier, verifier.requires
        self.seen: list[tuple[Pair, Verdict]] = []

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        verdicts = verdicts_of(self.verifier, pairs)
        self.seen += zip(pairs, verdicts, strict=True)
        return verdicts

    def take(self, prompt: Sequence[int], item: Item) -> dict[str, Any]:
        """The pairs that begin with this prompt, as JSON, and forget them."""
        begin = tuple(prompt)
        mine = [one for one in self.seen if one[0].prefix[: len(begin)] == begin]
        self.seen = [one for one in self.seen if one[0].prefix[: len(begin)] != begin]
        return {
            "question_id": item.number,
            "verifier": self.name,
            "prompt": list(begin),
            "pairs": [
                pair_to_json(pair, len(begin)) | {"verdict": asdict(verdict)}
                for pair, verdict in mine
            ],
        }


class ShadowVerifier(Verifier):
    """Judges as `verifier` does, and lets `reference` judge the same pairs for the record: what an
    oracle or a larger judge would have said (`failure_modes.verifier_drift`). `verdicts` and
    `reference` record, pair by pair, whether each said aligned."""

    def __init__(self, verifier: Verifier, reference: Verifier) -> None:
        self.name, self.fallible = verifier.name, verifier.fallible
        self.requires = verifier.requires | reference.requires
        self.verifier, self.shadow = verifier, reference
        self.verdicts: list[bool] = []
        self.reference: list[bool] = []

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        verdicts = verdicts_of(self.verifier, pairs)
        self.verdicts += [verdict.aligned for verdict in verdicts]
        self.reference += [verdict.aligned for verdict in verdicts_of(self.shadow, pairs)]
        return verdicts


def pair_to_json(pair: Pair, prompt: int) -> dict[str, Any]:
    """A pair without the first `prompt` tokens of its prefix."""

    def plain(step: Step) -> dict[str, Any]:
        return {"tokens": list(step.tokens), "finish": step.finish.value}

    target = None if pair.target is None else plain(pair.target)
    return {"context": list(pair.prefix[prompt:]), "draft": plain(pair.draft), "target": target}


def pair_from_json(content: dict[str, Any], prompt: Sequence[int]) -> Pair:
    """The inverse of `pair_to_json`."""

    def step(content: dict[str, Any]) -> Step:
        return Step(tuple(content["tokens"]), Finish(content["finish"]))

    target = None if content["target"] is None else step(content["target"])
    return Pair((*prompt, *content["context"]), step(content["draft"]), target)


@dataclass(frozen=True)
class SavedPair:
    """A pair, the problem it comes from, and what the run's own verifier said."""

    key: Key
    pair: Pair
    aligned: bool


def load_pairs(folder: Path) -> list[SavedPair]:
    """The pairs of a run (its folder, or the folder pairs/ in it). Raises `SettingError` if there
    are none."""
    place = folder / "pairs" if (folder / "pairs").is_dir() else folder
    keys = sorted(key for path in place.glob("*.json") if (key := Key.of(path.name)) is not None)
    found = []
    for key in keys:
        content = read_object(place / key.file)
        for one in content.get("pairs", ()):
            pair = pair_from_json(one, content["prompt"])
            found.append(SavedPair(key, pair, bool(one["verdict"]["aligned"])))
    if not found:
        raise SettingError(
            f"{folder} has no pairs of steps; a run keeps them with lr run --mode lr --save_pairs."
        )
    return found


# ---------------------------------------------------------------- a verifier against a reference


@dataclass(frozen=True)
class Replayed:
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
        return [
            edge[verdict.aligned] if verdict.score is None else verdict.score
            for verdict in self.verdicts
        ]


def replay(verifier: Verifier, pairs: Sequence[Pair], batch: int = 16) -> Replayed:
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
    return Replayed(tuple(verdicts), time.perf_counter() - started)


def swapped(pairs: Sequence[Pair]) -> list[Pair]:
    """The same pairs with draft and target in each other's place."""
    return [replace(pair, draft=pair.target_step, target=pair.draft) for pair in pairs]


@dataclass(frozen=True)
class Quality:
    """A verifier against a reference. `accepted`: the share it accepts; `error`: the share of those
    that the reference rejects; `order_flips`, `order_shift`: how many verdicts change, and by how
    much the score, if draft and target are swapped."""

    pairs: int
    accepted: float
    error: float | None
    precision: float | None
    recall: float | None
    auc: float | None
    average_precision: float | None
    calibration_error: float | None
    ms_per_pair: float
    order_flips: float | None = None
    order_shift: float | None = None


def quality(made: Replayed, truth: Sequence[bool], other_order: Replayed | None = None) -> Quality:
    """The numbers of one verifier. `other_order`: what it says with the steps swapped."""
    said, scores = [verdict.aligned for verdict in made.verdicts], made.scores
    count, accepted, aligned = len(said), sum(said), sum(truth)
    both = sum(a and b for a, b in zip(said, truth, strict=True))
    graded = any(verdict.score is not None for verdict in made.verdicts)
    flips = shift = None
    if other_order is not None:
        other = [verdict.aligned for verdict in other_order.verdicts]
        flips = fmean(a != b for a, b in zip(said, other, strict=True))
        shifts = [abs(a - b) for a, b in zip(scores, other_order.scores, strict=True)]
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
    from 2 on half of the true and all of the false.
    """
    positive, negative = sum(truth), len(truth) - sum(truth)
    ordered = sorted(zip(scores, truth, strict=True), key=lambda pair: -pair[0])
    points, true, false = [], 0, 0
    for place, (score, right) in enumerate(ordered):
        true, false = true + right, false + (not right)
        if place + 1 == len(ordered) or ordered[place + 1][0] != score:
            # no true pairs: true is 0, and so is the rate
            rates = true / max(positive, 1), false / max(negative, 1)
            accepted = true + false
            points.append(Threshold(score, *rates, accepted / len(ordered), false / accepted))
    return points


def auc(scores: Sequence[float], truth: Sequence[bool]) -> float | None:
    """The area under the ROC curve: how often a true pair scores above a false one, ties as halves;
    None unless there are both kinds."""
    if all(truth) or not any(truth):
        return None
    area, last = 0.0, (0.0, 0.0)
    for point in curve(scores, truth):
        area += (point.false_rate - last[0]) * (point.true_rate + last[1]) / 2
        last = (point.false_rate, point.true_rate)
    return area


def average_precision(scores: Sequence[float], truth: Sequence[bool]) -> float | None:
    """The area under the precision-recall curve as a sum of steps; None without a true pair."""
    if not any(truth):
        return None
    total, last = 0.0, 0.0
    for point in curve(scores, truth):
        total += (point.true_rate - last) * (1 - point.error)
        last = point.true_rate
    return total


def reliability(scores: Sequence[float], truth: Sequence[bool]) -> list[tuple[float, float, int]]:
    """Ten equal bins of scores in [0, 1]: the mean score, the share that is true, the number of
    pairs; empty bins are left out."""
    bins: dict[int, list[tuple[float, bool]]] = {}
    for score, right in zip(scores, truth, strict=True):
        bins.setdefault(min(BINS - 1, int(score * BINS)), []).append((score, right))
    return [
        (fmean(s for s, _ in some), fmean(r for _, r in some), len(some))
        for _, some in sorted(bins.items())
    ]


def calibration_error(scores: Sequence[float], truth: Sequence[bool]) -> float | None:
    """The mean gap between score and share over the bins, weighted by their pairs; None for scores
    that are no probabilities."""
    if any(not 0 <= score <= 1 for score in scores):
        return None
    bins = reliability(scores, truth)
    return sum(count * abs(mean - share) for mean, share, count in bins) / len(scores)


# ---------------------------------------------------------------- drift


@dataclass(frozen=True)
class StepDrift:
    """One accepted step: log-probabilities of both versions under the target, in nats."""

    key: Key
    draft: float
    target: float

    @property
    def drift(self) -> float:
        return self.draft - self.target


@dataclass(frozen=True)
class ProblemDrift:
    """One problem: how many draft steps it kept, their drift, and whether its answer is right here
    and in the baseline (None: not known)."""

    key: Key
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


def step_drifts(pairs: Sequence[SavedPair], runner: Runner) -> list[StepDrift]:
    """The drift of every pair, in one forward per pair. `runner` runs the target.

    Example: a prefix of 10 and a step of 4: the logits at the last 4 of the first 13 tokens are
    those of the step's tokens.
    """
    prefixes, made = PrefixCache(runner), []
    try:
        for one in pairs:
            prefix, steps = one.pair.prefix, (one.pair.draft, one.pair.target_step)
            rows = [
                Row([*prefix, *step.tokens[:-1]], wanted=len(step.tokens), keep=len(prefix))
                for step in steps
            ]
            logits = prefixes.logits(rows)
            sums = []
            for found, step in zip(logits, steps, strict=True):
                if isinstance(found, LRError):
                    raise found
                sums.append(math.fsum(step_logprobs(found, step.tokens)))
            made.append(StepDrift(one.key, *sums))
    finally:
        prefixes.close()
    return made


def problem_drifts(
    made: Sequence[StepDrift], run: RunResults, baseline: RunResults | None
) -> list[ProblemDrift]:
    """One entry per problem of the run, those that kept no draft step included."""
    found = []
    for key, record in sorted(run.records.items()):
        mine = [one.drift for one in made if one.key == key]
        other = baseline.records.get(key, {}).get("right") if baseline is not None else None
        found.append(ProblemDrift(key, len(mine), math.fsum(mine), record.get("right"), other))
    return found


def summary(problems: Sequence[ProblemDrift]) -> dict[str, tuple[int, float, float]]:
    """By what happened to the answer: problems, mean drift, mean drift per kept step."""
    found = {}
    for what in ("same", "lost", "won", ""):
        some = [one for one in problems if one.flipped == what]
        if some:
            drift, steps = math.fsum(one.drift for one in some), sum(one.steps for one in some)
            per_step = drift / steps if steps else 0.0
            found[what or "not compared"] = (len(some), drift / len(some), per_step)
    return found
