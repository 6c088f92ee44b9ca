"""The drift ledger: what accepting the draft's words has cost, in the target's own measure.

For every accepted draft step: log p(draft step) - log p(target step) under the target, from the
prefix they share. Negative: the target finds its own wording likelier. Summed over a problem the
terms say how far the chain has been led away from what the target would have written, and beside
the sum stands whether the answer flipped against plain decoding. Log-probabilities are in nats, at
temperature 1. Read next: `laboratory.py`, where the pairs come from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from lr.errors import LRError
from lr.lab.eval.laboratory import KeptPair
from lr.lab.eval.report import RunResults
from lr.lab.eval.store import Key
from lr.spec.runner import Runner
from lr.spec.verifiers.judge import step_logprobs
from lr.spec.verifiers.prompted import PrefixCache, Row
from lr.types import Step


@dataclass(frozen=True)
class Entry:
    """One accepted step: log-probabilities of both versions, in nats."""

    key: Key
    draft: float
    target: float

    @property
    def drift(self) -> float:
        return self.draft - self.target


@dataclass(frozen=True)
class Page:
    """One problem: how many draft steps it kept, their drift, and its answer here and in the
    baseline (None: not known).
    """

    key: Key
    steps: int
    drift: float
    right: bool | None
    baseline: bool | None

    @property
    def flipped(self) -> str:
        """lost, won, same, or nothing where one of the two is not known."""
        if self.right is None or self.baseline is None:
            return ""
        return "same" if self.right == self.baseline else "won" if self.right else "lost"


def accepted_pairs(pairs: Sequence[KeptPair], run: RunResults) -> list[KeptPair]:
    """Those pairs whose draft step is in the answer: the prefix and the step are where the answer
    begins with them.

    More pairs were judged aligned: some behind a step that was rejected later in the same
    look-ahead.
    """
    found = {}
    for one in pairs:
        record = run.records.get(one.key)
        if record is None or not one.aligned or one.pair.target is None:
            continue
        chain = (*one.pair.prefix, *one.pair.draft.tokens)
        if tuple(record["full_tokens"][: len(chain)]) == chain:
            found[one.key, len(one.pair.prefix)] = one
    return list(found.values())


def entries(pairs: Sequence[KeptPair], runner: Runner) -> list[Entry]:
    """The ledger's entries, in one forward per pair. `runner` runs the target."""
    prefixes, made = PrefixCache(runner), []
    try:
        for one in pairs:
            steps = (one.pair.draft, one.pair.target_step)
            logits = prefixes.logits([_row(one.pair.prefix, step) for step in steps])
            sums = []
            for found, step in zip(logits, steps, strict=True):
                if isinstance(found, LRError):
                    raise found
                sums.append(math.fsum(step_logprobs(found, step.tokens)))
            made.append(Entry(one.key, *sums))
    finally:
        prefixes.close()
    return made


def _row(prefix: tuple[int, ...], step: Step) -> Row:
    """Example: a prefix of 10 and a step of 4: the logits behind the last 4 of the 13 tokens are
    those of the step's.
    """
    return Row([*prefix, *step.tokens[:-1]], wanted=len(step.tokens), keep=len(prefix))


def ledger(made: Sequence[Entry], run: RunResults, baseline: RunResults | None) -> list[Page]:
    """One page per problem of the run, those that kept no draft step included."""
    pages = []
    for key, record in sorted(run.records.items()):
        mine = [entry.drift for entry in made if entry.key == key]
        other = baseline.records.get(key, {}).get("right") if baseline is not None else None
        pages.append(Page(key, len(mine), math.fsum(mine), record.get("right"), other))
    return pages


def summary(pages: Sequence[Page]) -> dict[str, tuple[int, float, float]]:
    """By what happened to the answer: problems, mean drift, mean drift per kept step."""
    found = {}
    for what in ("same", "lost", "won", ""):
        some = [page for page in pages if page.flipped == what]
        steps = sum(page.steps for page in some)
        if some:
            drift = math.fsum(page.drift for page in some)
            found[what or "not compared"] = (
                len(some),
                fmean(page.drift for page in some),
                drift / steps if steps else 0.0,
            )
    return found
