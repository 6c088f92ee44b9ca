"""What a verifier is, and the guard around it.

A verifier judges pairs (prefix, draft step, target step) in batches. It says what it `need`s of the
target, so that a scheduler knows whether a target step must be written before it can be asked. It
never decides eligibility (see `spec/scheduler.py`), and it may fail: `judge_safely` turns an
exception or rubbish into a rejection with its reason, because a broken judge may cost speed but
never the run.

Knows no model, no tensor and no clock. Read next: `exact.py`, `judge.py`; `choose.py` has the list
of what there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Flag, auto
from typing import TYPE_CHECKING, Protocol

from lr.errors import ProtocolError
from lr.types import Step, Verdict

if TYPE_CHECKING:
    from torch import Tensor


class Need(Flag):
    """What a verifier must find in its pairs. Needs add up: `Need.TARGET_STEP |
    Need.TARGET_LOGPROBS`.
    """

    NOTHING = 0
    """The prefix and the draft step are enough."""
    TARGET_STEP = auto()
    """The target's own step from the same prefix has to be written first."""
    TARGET_LOGPROBS = auto()
    """The target's log-probabilities of the draft step's tokens; the prefill of the draft step
    yields them.
    """
    HIDDEN = auto()
    """The target's last hidden states of the draft step's tokens."""


@dataclass(frozen=True)
class Pair:
    """The same position written twice: `prefix` are the token ids before it, prompt included.

    Beyond prefix and draft a pair holds what the verifier's `need` names. `logprobs[i]` is the
    natural log-probability under the target of the draft's token i given all before it; `hidden`
    [t, e] its last hidden state there.
    """

    prefix: tuple[int, ...]
    draft: Step
    target: Step | None = None
    logprobs: tuple[float, ...] | None = None
    hidden: Tensor | None = None

    @property
    def target_step(self) -> Step:
        """The target's step. Raises ProtocolError where the pair has none: the verifier's `need`
        was not heeded.
        """
        if self.target is None:
            raise ProtocolError(
                "a pair without a target step came to a verifier that compares with one: heed the verifier's need (Need.TARGET_STEP)."
            )
        return self.target


class Verifier(Protocol):
    """Judges pairs. `name` is what reports call it, `need` what the pairs must hold."""

    name: str
    need: Need

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """One verdict per pair, in order. A verdict depends on its own pair alone, not on the
        others of the batch.
        """
        ...


class Glancing(Protocol):
    """A verifier that can be sure without the target's step. Its `judge` may then be asked about
    the rest, target steps in hand.
    """

    glance_need: Need
    """What `glance` needs; never `TARGET_STEP`, or there is nothing to be gained."""

    def glance(self, pairs: Sequence[Pair]) -> list[Verdict | None]:
        """A verdict for each pair of which it is sure, None for the others."""
        ...


def glances(verifier: Verifier) -> bool:
    """Whether the verifier needs the target's step only where it is not sure without."""
    without: Need = getattr(verifier, "glance_need", Need.TARGET_STEP)
    return bool(need_of(verifier) & Need.TARGET_STEP) and not without & Need.TARGET_STEP


def need_of(verifier: Verifier) -> Need:
    """What the verifier needs; a verifier that does not say compares with the target's step."""
    need: Need = getattr(verifier, "need", Need.TARGET_STEP)
    return need


def judge_safely(verifier: Verifier, pairs: Sequence[Pair]) -> list[Verdict]:
    """The verifier's verdicts; if it raises or answers with anything else, a rejection with the
    reason for every pair.

    It waits as long as the verifier takes; `timed.TimedVerifier` is the verifier to give it where
    it must not.
    """
    try:
        verdicts = verifier.judge(pairs)
    except Exception as error:
        return [
            Verdict(
                aligned=False,
                why=f"verifier {verifier.name} failed: {type(error).__name__}: {error}",
            )
            for _ in pairs
        ]
    proper = (
        isinstance(verdicts, list)
        and len(verdicts) == len(pairs)
        and all(isinstance(v, Verdict) for v in verdicts)
    )
    if not proper:
        return [
            Verdict(aligned=False, why=f"verifier {verifier.name} answered with no verdict")
            for _ in pairs
        ]
    return verdicts


def glance_safely(verifier: Verifier, pairs: Sequence[Pair]) -> list[Verdict | None]:
    """As `judge_safely`, for pairs without a target step: None where the verifier wants to see one.
    A glance that fails is not sure.
    """
    if not glances(verifier):
        return list(judge_safely(verifier, pairs))
    glancing: Glancing = verifier  # type: ignore[assignment]
    try:
        found = glancing.glance(pairs)
    except Exception:
        return [None] * len(pairs)
    proper = isinstance(found, list) and len(found) == len(pairs)
    return (
        [one if isinstance(one, Verdict) else None for one in found]
        if proper
        else [None] * len(pairs)
    )
